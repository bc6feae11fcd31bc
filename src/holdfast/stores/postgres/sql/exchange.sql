-- One exchange of a worker with the database in one transaction: settle ended attempts, then claim up to `want` jobs in queue
-- order (priority, position, age). With `begin` they start at once (one transition, one event); without it they wait as
-- `leased`.
--
-- The jobs come first, one row each. The last row has no id: `stale` lists the settlements whose attempt this lease no longer
-- holds; `live` is whether the lease is live (an expired one settles but claims nothing); `pick_us` is the time it took to
-- find the jobs; `next_in` is the number of seconds until a rate limit that holds jobs back has capacity again. `after_*`, one
-- entry per queue, start the search behind that position: for a worker that has already seen the jobs ahead of it and found
-- that scanning past them is slow.
--
-- The rows are picked and locked first, then updated by ctid: a locked row cannot move, and LIMIT holds whatever plan is
-- chosen. An exchange that finds no jobs writes nothing. The plain path calls no function for the pick: a call costs about as
-- much as a small statement (docs/adr/0025). The other paths are in exchange_pick.sql.
--
-- One plan serves all calls (plan_cache_mode, here and in the functions it calls): planning each call took a fifth of the time
-- of an exchange with one job (server time 601 microseconds, now 467) and could only find the same indexes. No plan may sort
-- what it has picked: beside an old transaction the index in queue order looks large, and another one and a sort look cheap
-- (docs/adr/0036). The rows of a thousand jobs with large payloads do not fit the usual work_mem, and would be written to a
-- file and read again.
create or replace function exchange(
    lease uuid, jobs uuid[], attempts integer[], outcomes text[], details json[],
    queues text[], want integer, begin boolean default true, kinds text[] default null,
    after_priority smallint[] default null, after_position bigint[] default null, for_tenant text default null)
returns table (id uuid, tenant text, kind text, queue text, payload text, attempt integer, retries smallint,
               crashes smallint, max_attempts smallint, max_crashes smallint, backoff jsonb, priority smallint,
               "position" bigint, deadline_at timestamptz, created_at timestamptz, correlation_id text, parent_id uuid,
               workflow_id uuid, agent text, tags text[], stale uuid[], live boolean, pick_us integer,
               next_in double precision)
language plpgsql security definer set search_path from current set plan_cache_mode = force_generic_plan
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_sort = off set jit = off
    set work_mem = '64MB' as $$
declare
    v_now      timestamptz := clock_now();
    v_left     integer := exchange.want;
    v_scope    text := enter(exchange.for_tenant);
    v_state    state := case when exchange.begin then 'in_progress' else 'leased' end;
    v_holder   text;
    v_label    text;
    v_worker   text;               -- what it can meet (requirement)
    v_version  text;
    v_pins     text[];
    v_may      boolean;            -- may claim, as an executor
    v_locked   boolean := false;   -- the lease row
    v_first    boolean := true;    -- nothing has been counted against a limit yet
    v_began    timestamptz;
    v_rows     tid[];
    v_agented  boolean;            -- some are jobs of agents
    v_limited  boolean;
    v_fair     text[];
    v_shared   boolean := false;   -- tenants share this queue
    v_quarantined    uuid[];             -- jobs that the database refuses to move (quarantine.sql)
    v_took     integer;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform check_isolation();
    end if;
    -- A change of limits waits for the exchanges that began without seeing it (admission.sql). The table is empty: this locks
    -- it in row share mode, as LOCK TABLE would, without the cost of a command.
    perform from lock_dispatch where false for share;
    select d.limited, d.fair, l.holder, l.name, requirement(l.app_version, l.code, l.name), l.app_version, l.pins,
           l.ended_at is null and l.until > v_now,
           -- executes(l.name), inlined.
           not d.listed_only and not exists (select from executor)
               or exists (select from executor e where e.label = l.name and e.role = 'executor'),
           (select array_agg(q.job_id) from quarantine q where q.until > v_now)
      into v_limited, v_fair, v_holder, v_label, v_worker, v_version, v_pins, live, v_may, v_quarantined
      from dispatch d left join lease l on l.id = exchange.lease and l.tenant = v_scope;
    if v_holder is null then
        raise exception 'unknown lease %', exchange.lease
            using errcode = 'ZH003', hint = 'Use the lease you were given, in the tenant it was opened for.';
    end if;
    if v_label = 'generator' then
        raise exception 'lease % belongs to a generator, which plans work and cannot claim jobs', exchange.lease
            using errcode = 'ZH033';
    end if;
    if cardinality(exchange.jobs) > 0 then
        perform set_config('holdfast.actor', v_holder, true);
        select array_agg(s.id) into stale
          from settle_under(exchange.lease, exchange.jobs, exchange.attempts, exchange.outcomes, exchange.details, v_now) as s(id);
    end if;
    if not v_may then
        -- Removed from the executors after it opened its lease: its settlements count, and it claims nothing more.
        if coalesce(cardinality(exchange.jobs), 0) = 0 and v_left > 0 then
            perform refuse_executor(v_label);
        end if;
        v_left := 0;
    end if;
    pick_us := 0;
    for i in 1 .. coalesce(cardinality(exchange.queues), 0) loop
        exit when v_left <= 0 or not live;
        v_rows := null;
        v_agented := false;
        -- Behind a position tenants do not alternate: finding the next tenant scans what the position is there to skip. The
        -- worker soon starts at the head again.
        v_shared := v_fair is not null and v_scope = '*' and exchange.after_priority[i] is null
                    and is_shared(exchange.queues[i], v_fair);
        if not v_limited and not v_shared then
            v_began := clock_timestamp();
            if exchange.after_priority[i] is null then
                select array_agg(p.ctid), bool_or(p.agented) into v_rows, v_agented from (
                    select s.ctid, s.agent is not null as agented from job_state s
                     where s.queue = exchange.queues[i] and s.state = 'queued' and s.due_at is null
                       and (s.deadline_at is null or s.deadline_at > v_now)
                       and (exchange.kinds is null or s.kind = any (exchange.kinds))
                       and (s.executor is null or meets(v_worker, s.executor))
                       and (v_scope = '*' or s.tenant = v_scope)
                       and (v_quarantined is null or s.id <> all (v_quarantined))
                     order by s.priority desc, s.position, s.id
                     limit v_left for update skip locked) p;
            else
                select p.picked, p.agented into v_rows, v_agented
                  from pick_after(exchange.queues[i], exchange.after_priority[i], exchange.after_position[i], v_left,
                                  exchange.kinds, v_worker, v_scope, null, v_quarantined, v_now) p;
            end if;
            pick_us := pick_us + extract(microseconds from clock_timestamp() - v_began)::integer;
        end if;
        if v_limited or v_shared or v_agented then
            select p.picked, p.locked, p.first, p.live, p.may, p.took into v_rows, v_locked, v_first, live, v_may, v_took
              from pick_admitted(exchange.lease, v_holder, exchange.queues[i], exchange.after_priority[i], exchange.after_position[i],
                                 v_left, exchange.kinds, v_worker, v_scope, v_quarantined, v_now, v_limited, v_shared, v_rows, v_locked, v_first) p;
            pick_us := pick_us + v_took;
            exit when not live or not v_may;
        end if;
        continue when v_rows is null;
        if not v_locked then
            -- The share lock keeps recovery from ending this lease while jobs are put under it. The worker may have been
            -- removed from the executors since the first check: then it must not get jobs enqueued later.
            select executes(l.name) into v_may from lease l where l.id = exchange.lease and l.ended_at is null for share;
            live := found;
            exit when not live or not v_may;
            perform set_config('holdfast.actor', v_holder, true);
            v_locked := true;
        end if;
        return query
        with taken as (
            update job_state s
               set state = v_state, lease = exchange.lease, settled_by = null, note = null, held_by = null,
                   attempt = s.attempt + case when exchange.begin then 1 else 0 end,
                   started_at = case when exchange.begin then v_now else s.started_at end,
                   executor = case when v_pins is null or not exchange.begin or s.kind <> all (v_pins) then s.executor
                                   else requirement(v_version, required(s.executor, 1), required(s.executor, 2)) end
             where s.ctid = any (v_rows)
            returning s.id, s.attempt, s.retries, s.crashes, s.priority, s.position, s.max_attempts
        )
        select j.id, j.tenant, j.kind, j.queue, j.payload::text, t.attempt, t.retries, t.crashes,
               t.max_attempts, j.max_crashes, j.backoff, t.priority, t.position, j.deadline_at, j.created_at,
               j.correlation_id, j.parent_id, j.workflow_id, j.agent, j.tags, null::uuid[], null::boolean, null::integer, null::double precision
          -- Sorted while the rows are narrow: the join keeps the order.
          from (select t.* from taken t order by t.priority desc, t.position, t.id) t join job j on j.id = t.id
         order by t.priority desc, t.position, t.id;
        v_left := v_left - cardinality(v_rows);
    end loop;
    if v_limited and exchange.want > 0 then
        next_in := next_token_in(clock_now());
    end if;
    -- All out parameters except the last four are null.
    return next;
end $$;
