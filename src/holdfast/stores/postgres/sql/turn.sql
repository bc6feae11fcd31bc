-- A worker's turn, in one transaction: settle what has ended, then take up to `want` jobs in queue order (priority,
-- position, age). With `begin` they start at once (one step, one event); without it they wait as `leased`.
--
-- The jobs come first, one row each. The last row has no id and says the rest: `stale`, the settlements whose attempt
-- was no longer this lease's; `live`, whether the lease is (a lapsed one settles, but takes nothing); `pick_us`, how
-- long finding the jobs took. `after_*`, one entry a queue, begin the search behind that place: for a worker that
-- has seen what is before it, and knows that walking past it is slow.
--
-- The rows are picked and locked first, then updated where they lie (ctid): they cannot move while they are locked,
-- and a limit is a limit, whatever the planner thinks of. Finding nothing writes nothing.
--
-- One plan serves all calls (plan_cache_mode, here and in what it calls): to plan each of them anew took a fifth of
-- the time of a turn with one job (of the server's: 601 microseconds, now 467), and could only find the same indexes.
create or replace function turn(
    lease uuid, jobs uuid[], attempts integer[], outcomes text[], details json[],
    queues text[], want integer, begin boolean default true, kinds text[] default null,
    after_priority smallint[] default null, after_position bigint[] default null, for_tenant text default null)
returns table (id uuid, tenant text, kind text, queue text, payload text, attempt integer, retries smallint,
               crashes smallint, max_retries smallint, max_crashes smallint, backoff jsonb, priority smallint,
               "position" bigint, deadline_at timestamptz, created_at timestamptz, correlation_id text, parent_id uuid,
               workflow_id uuid, agent text, tags text[], stale uuid[], live boolean, pick_us integer)
language plpgsql security definer set search_path from current set plan_cache_mode = force_generic_plan
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    v_now      timestamptz := clock_now();
    v_left     integer := turn.want;
    v_scope    text := enter(turn.for_tenant);
    v_state    state := case when turn.begin then 'in_progress' else 'leased' end;
    v_holder   text;
    v_label    text;
    v_may      boolean;   -- execute
    v_locked   boolean := false;
    v_began    timestamptz;
    v_priority smallint;
    v_rows     tid[];
    v_more     tid[];
    v_agented  boolean;
    v_any      boolean;
    v_limited  boolean;
    v_switched boolean;
    v_first    boolean := true;   -- nothing has been counted yet
    v_most     integer;
    v_extra    integer := 0;
    v_room     integer;
    v_barred   text[];
    v_got      tid[];
    v_new      tid[];
    v_fair     text[];
    v_shared   boolean := false;   -- tenants share this queue
    v_last     text;               -- whose turn it was last, and what is left over of it
    v_rest     integer;
    v_mine     boolean;
    v_walked   bigint;
    v_aside    uuid[];             -- what the database refuses to move (quarantine.sql)
begin
    -- Whoever changes limits waits until all have gone that did not know of them (admission.sql).
    -- The table is empty: this locks it in row share mode, as LOCK TABLE would, without the cost of a command.
    perform from lock_dispatch where false for share;
    select d.limited, d.fair, l.holder, l.name, l.ended_at is null and l.until > v_now,
           -- As executes(l.name) says: here without a call.
           not exists (select from executor) or exists (select from executor e where e.label = l.name and e.role = 'executor'),
           (select array_agg(q.job_id) from quarantine q where q.until > v_now)
      into v_limited, v_fair, v_holder, v_label, live, v_may, v_aside
      from dispatch d left join lease l on l.id = turn.lease and l.tenant = v_scope;
    if v_holder is null then
        raise exception 'lease % is not known here', turn.lease
            using errcode = 'ZH003', hint = 'Use the lease you were given, in the tenant it was opened for.';
    end if;
    if v_label = 'generator' then
        raise exception 'lease % is a generator''s: it plans work and takes none', turn.lease using errcode = 'ZH033';
    end if;
    if cardinality(turn.jobs) > 0 then
        perform set_config('holdfast.actor', v_holder, true);
        select array_agg(s.id) into stale
          from settle_under(turn.lease, turn.jobs, turn.attempts, turn.outcomes, turn.details, v_now) as s(id);
    end if;
    if not v_may then
        -- Taken off the list after it had opened its lease: what it has ended is kept, and it takes nothing more.
        if coalesce(cardinality(turn.jobs), 0) = 0 and v_left > 0 then
            perform refuse_executor(v_label);
        end if;
        v_left := 0;
    end if;
    v_switched := v_limited and exists (select from switch);
    pick_us := 0;
    for i in 1 .. coalesce(cardinality(turn.queues), 0) loop
        exit when v_left <= 0 or not live;
        v_priority := turn.after_priority[i];
        v_most := v_left;
        if v_limited then
            v_barred := barred_from(turn.queues[i], v_now);
            continue when '*' = any (v_barred) or v_scope = any (v_barred);
            v_room := room_for_queue(turn.queues[i], v_scope, v_now, v_first);
            v_most := least(v_left, v_room);
            if v_room <= 0 then
                v_first := false;
                continue;
            end if;
            v_got := '{}';
            v_extra := 0;
        end if;
        if v_fair is not null and v_scope = '*' then
            v_shared := is_shared(turn.queues[i], v_fair);
            if v_shared then
                select f.last, f.left_over, f.mine into v_last, v_rest, v_mine from fair_place_of(turn.queues[i], turn.kinds) f;
            end if;
        end if;
        for v_round in 1 .. 8 loop
            v_began := clock_timestamp();
            if v_shared and v_priority is null then
                v_walked := pg_stat_get_xact_tuples_returned(to_regclass('fair'));
                select nullif(f.picked, '{}'), f.agented into v_rows, v_agented
                  from fair_pick(turn.queues[i], v_last, v_rest, v_most + v_extra, turn.kinds, v_barred, v_now) f;
                -- Who is told of a slow look begins the next ones behind a place, where nobody takes turns. So it is said
                -- only if there was much to walk past, and not if the machine had something else to do.
                if pg_stat_get_xact_tuples_returned(to_regclass('fair')) - v_walked < 1000 + 10 * (v_most + v_extra) then
                    v_began := clock_timestamp();
                end if;
            elsif v_priority is null then
                select array_agg(p.ctid), bool_or(p.agented) into v_rows, v_agented from (
                    select s.ctid, s.agent is not null as agented from job_state s
                     where s.queue = turn.queues[i] and s.state = 'queued' and s.due_at is null
                       and (s.deadline_at is null or s.deadline_at > v_now)
                       and (turn.kinds is null or s.kind = any (turn.kinds))
                       and (v_scope = '*' or s.tenant = v_scope)
                       and (v_barred is null or s.tenant <> all (v_barred))
                       and (v_aside is null or s.id <> all (v_aside))
                     order by s.priority desc, s.position, s.id
                     limit v_most + v_extra for update skip locked) p;
            else
                -- Two ranges of the index: what is left of that priority, then all lower ones.
                select array_agg(p.ctid), bool_or(p.agented) into v_rows, v_agented from (
                    select s.ctid, s.agent is not null as agented from job_state s
                     where s.queue = turn.queues[i] and s.state = 'queued' and s.due_at is null
                       and s.priority = v_priority and s.position > turn.after_position[i]
                       and (s.deadline_at is null or s.deadline_at > v_now)
                       and (turn.kinds is null or s.kind = any (turn.kinds))
                       and (v_scope = '*' or s.tenant = v_scope)
                       and (v_barred is null or s.tenant <> all (v_barred))
                       and (v_aside is null or s.id <> all (v_aside))
                     order by s.priority desc, s.position, s.id
                     limit v_most + v_extra for update skip locked) p;
                if coalesce(cardinality(v_rows), 0) < v_most + v_extra then
                    select array_agg(p.ctid), bool_or(p.agented) into v_more, v_any from (
                        select s.ctid, s.agent is not null as agented from job_state s
                         where s.queue = turn.queues[i] and s.state = 'queued' and s.due_at is null
                           and s.priority < v_priority
                           and (s.deadline_at is null or s.deadline_at > v_now)
                           and (turn.kinds is null or s.kind = any (turn.kinds))
                           and (v_scope = '*' or s.tenant = v_scope)
                           and (v_barred is null or s.tenant <> all (v_barred))
                           and (v_aside is null or s.id <> all (v_aside))
                         order by s.priority desc, s.position, s.id
                         limit v_most + v_extra - coalesce(cardinality(v_rows), 0) for update skip locked) p;
                    v_rows := v_rows || v_more;
                    v_agented := coalesce(v_agented, false) or coalesce(v_any, false);
                end if;
                if v_shared and coalesce(cardinality(v_rows), 0) < v_most then
                    -- Behind that place is not enough; and the places of tenants are not one behind the other.
                    v_priority := null;
                    continue;
                end if;
            end if;
            pick_us := pick_us + extract(microseconds from clock_timestamp() - v_began)::integer;
            exit when not coalesce(v_agented, false) and not v_limited;
            -- Agents' jobs are among them: those of disabled ones are put off, and the search begins again.
            v_more := case when v_agented then hold_back(v_rows, v_now) else v_rows end;
            if v_limited then
                continue when v_switched and park_paused(v_rows, turn.queues[i], v_now) > 0;
                -- The same for those that a limit has no room for. Who was let in stays in, and is found again.
                v_new := array(select r.ctid from unnest(v_rows) with ordinality r(ctid, n)
                                where r.ctid = any (v_more) and not r.ctid = any (v_got) order by r.n);
                if v_new <> '{}' and not v_locked then
                    -- As below, but before anything is counted: what is let in must be taken.
                    select executes(l.name) into v_may from lease l where l.id = turn.lease and l.ended_at is null for share;
                    live := found;
                    exit when not live or not v_may;
                    perform set_config('holdfast.actor', v_holder, true);
                    v_locked := true;
                end if;
                if v_new <> '{}' then
                    v_got := v_got || admit(v_new, v_now, v_first, v_most - cardinality(v_got));
                    v_first := false;
                end if;
                v_more := v_got;
                v_extra := 50;   -- somebody was in the way, and more of the same may be
                exit when v_rows is null or cardinality(v_got) >= v_most;
            end if;
            exit when cardinality(v_more) = cardinality(v_rows);
            v_rows := nullif(v_more, '{}');
        end loop;
        if v_limited then
            v_rows := nullif(v_got, '{}');
        end if;
        continue when v_rows is null;
        if not v_locked then
            -- The share lock keeps a reaper from ending this lease while jobs are being put under it.
            -- The worker may have been removed from the list since the first look: then it must not get jobs enqueued later.
            select executes(l.name) into v_may from lease l where l.id = turn.lease and l.ended_at is null for share;
            live := found;
            exit when not live or not v_may;
            perform set_config('holdfast.actor', v_holder, true);
            v_locked := true;
        end if;
        if v_shared and v_priority is null and v_mine then
            perform fair_move(turn.queues[i], turn.kinds, v_rows, v_last, v_rest);
        end if;
        return query
        with taken as (
            update job_state s
               set state = v_state, lease = turn.lease, settled_by = null, note = null, held_by = null,
                   attempt = s.attempt + case when turn.begin then 1 else 0 end,
                   started_at = case when turn.begin then v_now else s.started_at end
             where s.ctid = any (v_rows)
            returning s.id, s.attempt, s.retries, s.crashes, s.priority, s.position, s.max_retries
        )
        select j.id, j.tenant, j.kind, j.queue, j.payload::text, t.attempt, t.retries, t.crashes,
               t.max_retries, j.max_crashes, j.backoff, t.priority, t.position, j.deadline_at, j.created_at,
               j.correlation_id, j.parent_id, j.workflow_id, j.agent, j.tags, null::uuid[], null::boolean, null::integer
          -- Sorted before they are wide: the join keeps the order.
          from (select t.* from taken t order by t.priority desc, t.position, t.id) t join job j on j.id = t.id
         order by t.priority desc, t.position, t.id;
        v_left := v_left - cardinality(v_rows);
    end loop;
    -- The out parameters are null but for the last three.
    return next;
end $$;

-- The same without settling anything, for other languages: the jobs alone.
create or replace function claim_many(lease uuid, queues text[], want integer, begin boolean default true,
                                      kinds text[] default null, for_tenant text default null)
returns table (id uuid, tenant text, kind text, queue text, payload text, attempt integer, retries smallint,
               crashes smallint, max_retries smallint, max_crashes smallint, backoff jsonb, priority smallint,
               "position" bigint, deadline_at timestamptz, created_at timestamptz, correlation_id text, parent_id uuid,
               workflow_id uuid, agent text, tags text[])
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_scope text := enter(claim_many.for_tenant);
begin
    if not exists (select from lease l where l.id = claim_many.lease and l.tenant = v_scope
                      and l.ended_at is null and l.until > clock_now()) then
        raise exception 'lease % is not live', claim_many.lease
            using errcode = 'ZH003', hint = 'Open a lease first: select * from open_lease(…).';
    end if;
    return query
    select t.id, t.tenant, t.kind, t.queue, t.payload, t.attempt, t.retries, t.crashes, t.max_retries, t.max_crashes,
           t.backoff, t.priority, t.position, t.deadline_at, t.created_at, t.correlation_id, t.parent_id, t.workflow_id,
           t.agent, t.tags
      from turn(claim_many.lease, null, null, null, null, claim_many.queues, claim_many.want, claim_many.begin,
                claim_many.kinds, null, null, v_scope) t
     where t.id is not null;
end $$;

-- Start what was claimed without beginning. Rows that come back have started; the rest is no longer ours.
create or replace function start_many(lease uuid, jobs uuid[], for_tenant text default null)
returns table (id uuid, attempt integer)
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_now();
begin
    perform act_under(start_many.lease, start_many.for_tenant);
    return query
    with ours as materialized (
        select s.id from job_state s
         where s.id = any (start_many.jobs) and s.lease is not distinct from start_many.lease
           and s.state is not distinct from 'leased'
         order by s.id for update
    )
    update job_state s
       set state = 'in_progress', attempt = s.attempt + 1, started_at = v_now, note = null
      from ours where s.id = ours.id
    returning s.id, s.attempt;
end $$;

-- Hand back what was claimed and not begun, at no cost to it.
create or replace function release_many(lease uuid, jobs uuid[], for_tenant text default null)
returns setof uuid
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
begin
    perform act_under(release_many.lease, release_many.for_tenant);
    return query
    with ours as materialized (
        select s.id from job_state s
         where s.id = any (release_many.jobs) and s.lease is not distinct from release_many.lease
           and s.state is not distinct from 'leased'
         order by s.id for update
    )
    update job_state s set state = 'queued', lease = null, note = null
      from ours where s.id = ours.id
    returning s.id;
    perform rouse(q.queue) from (select distinct s.queue from job_state s where s.id = any (release_many.jobs)) q;
end $$;
