-- The position of a waiting job in its queue. The order is priority, position, age (the id); positions have gaps. A queue is
-- one line for all its tenants. A tenant's operator names only the tenant's own jobs, but "first" means first of all; where a
-- gap is full, the jobs of every tenant around it are renumbered in their existing order.

-- The waiting jobs of a queue and priority after a position, or before it: nearest first. Jobs that are not due have an index
-- of their own.
create or replace function next_behind(p_queue text, p_priority smallint, p_position bigint, p_id uuid, p_want integer)
returns table (id uuid, "position" bigint) language sql stable set search_path from current
    set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set jit = off as $$
    select n.id, n.position from (
        (select s.id, s.position from job_state s
          where s.queue = p_queue and s.priority = p_priority and (s.position, s.id) > (p_position, p_id)
            and s.state = 'queued' and s.due_at is null
          order by s.priority desc, s.position, s.id limit p_want)
        union all
        (select s.id, s.position from job_state s
          where s.queue = p_queue and s.priority = p_priority and (s.position, s.id) > (p_position, p_id)
            and s.due_at is not null and s.state in ('queued', 'retry_waiting')
          order by s.priority desc, s.position, s.id limit p_want)) n
     order by n.position, n.id limit p_want
$$;

create or replace function next_before(p_queue text, p_priority smallint, p_position bigint, p_id uuid, p_want integer)
returns table (id uuid, "position" bigint) language sql stable set search_path from current
    set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set jit = off as $$
    select n.id, n.position from (
        (select s.id, s.position from job_state s
          where s.queue = p_queue and s.priority = p_priority and (s.position, s.id) < (p_position, p_id)
            and s.state = 'queued' and s.due_at is null
          order by s.priority, s.position desc, s.id desc limit p_want)
        union all
        (select s.id, s.position from job_state s
          where s.queue = p_queue and s.priority = p_priority and (s.position, s.id) < (p_position, p_id)
            and s.due_at is not null and s.state in ('queued', 'retry_waiting')
          order by s.priority, s.position desc, s.id desc limit p_want)) n
     order by n.position desc, n.id desc limit p_want
$$;

-- Make room for a job between two others whose gap is full: which jobs around it are renumbered (with the job itself among
-- them), above which number, and how far apart. The window grows until they are far enough apart, the further the more there
-- are (engine/order.py: needed). Ahead of the first job there is unlimited room, and the last one keeps its position, since
-- new jobs follow right after it.
create or replace function make_room(p_job uuid, p_queue text, p_priority smallint,
    p_before uuid, p_before_at bigint, p_behind uuid, p_behind_at bigint,
    out ids uuid[], out above bigint, out step bigint) language plpgsql stable set search_path from current as $$
declare
    v_window integer := 4;
    v_apart  integer := 4;
    v_front  uuid[];
    v_rear   uuid[];
    v_low    bigint[];
    v_high   bigint[];
    v_below  bigint;
begin
    loop
        select array_agg(n.id order by n.position desc, n.id desc), array_agg(n.position order by n.position desc, n.id desc)
          into v_front, v_low from next_before(p_queue, p_priority, p_behind_at, p_behind, v_window + 2) n where n.id <> p_job;
        select array_agg(n.id order by n.position, n.id), array_agg(n.position order by n.position, n.id)
          into v_rear, v_high from next_behind(p_queue, p_priority, p_before_at, p_before, v_window + 2) n where n.id <> p_job;
        -- What is left of them when one on each side is the boundary.
        above := v_low[v_window + 1];
        v_below := v_high[least(v_window + 1, cardinality(v_high))];
        v_front := v_front[:v_window];
        v_rear := v_rear[:least(v_window, cardinality(v_rear) - 1)];
        ids := array(select f.id from unnest(v_front) with ordinality f(id, n) order by f.n desc) || p_job || v_rear;
        step := case when above is null then 100 else (v_below - above) / (cardinality(ids) + 1) end;
        exit when above is null or step >= v_apart;
        v_window := v_window * 2;
        v_apart := v_apart + 2;
    end loop;
    above := coalesce(above, v_below - step * (cardinality(ids) + 1));
end $$;

-- Move a waiting job: 'first' or 'last' of its priority (or of another one, which alone means last), or 'before' or 'after'
-- another job of the queue, with that job's priority. Returns one row: the job and whether it was refused.
--
-- Moves in one queue are serialised, so that two never find the same free position; claims and enqueues do not wait for them.
-- All rows that change are locked in one statement in id order, as in every operator action; jobs claimed meanwhile are left
-- alone. Then one statement changes the positions.
create or replace function move(job uuid, "where" text default null, other uuid default null, priority integer default null,
                                reason text default null, actor text default null, for_tenant text default null)
returns table (id uuid, state state, refused boolean, refusal text)
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
    v_scope    text := enter(move.for_tenant, move.actor);
    v_where    text := coalesce(move."where", case when move.priority is not null then 'last' end);
    v_job      record;
    v_other    record;
    v_priority smallint;
    v_before   record;   -- the jobs it will stand between
    v_behind   record;
    v_ids      uuid[] := array[move.job];
    v_above    bigint;
    v_step     bigint := 0;
    v_locked   uuid[];
begin
    if v_where is null or v_where not in ('first', 'last', 'before', 'after')
       or (v_where in ('before', 'after')) <> (move.other is not null)
       or (move.other is not null and move.priority is not null) then
        raise exception 'move needs first, last, before, after or a priority'
            using errcode = 'ZH010', hint = 'move(job, ''first''), move(job, ''before'', other), move(job, priority => 5)';
    elsif move.priority not between -32768 and 32767 then
        raise exception 'priority is from -32768 to 32767, not %', move.priority using errcode = 'ZH010';
    end if;
    select s.queue into v_job from job_state s where s.id = move.job and (v_scope = '*' or s.tenant = v_scope);
    if not found then
        return query select move.job, null::state, true, 'not_found';
        return;
    end if;
    perform lock_mutex(mutex_of(5120, 64, v_job.queue));
    -- Read only now: another move may have come first.
    select s.queue, s.state, s.priority, s.position into v_job from job_state s where s.id = move.job;
    select s.queue, s.state, s.priority, s.position, s.id into v_other from job_state s
     where s.id = move.other and (v_scope = '*' or s.tenant = v_scope);
    refusal := case when v_job.state not in ('queued', 'retry_waiting') then 'not_waiting'
                    when move.other is null then null
                    when v_other.id is null then 'target_not_found'
                    when v_other.queue <> v_job.queue then 'other_queue'
                    when v_other.state not in ('queued', 'retry_waiting') then 'target_not_waiting' end;
    if refusal is not null then
        return query select move.job, v_job.state, true, refusal;
        return;
    end if;
    v_priority := coalesce(v_other.priority, move.priority, v_job.priority);
    v_above := v_job.position;

    perform set_config('holdfast.tenant', '*', true);
    if scope() is null then   -- a role that was granted only this function moves among the tenant's own jobs
        perform set_config('holdfast.tenant', v_scope, true);
    end if;
    select null::uuid as id, null::bigint as position into v_before;
    select null::uuid as id, null::bigint as position into v_behind;
    if v_where in ('before', 'after') then
        select v_other.id as id, v_other.position as position into v_behind;
        v_before := v_behind;
    end if;
    if v_where in ('first', 'after') then
        select n.id, n.position into v_behind
          from next_behind(v_job.queue, v_priority, coalesce(v_before.position, -9223372036854775808),
                           coalesce(v_before.id, '00000000-0000-0000-0000-000000000000'), 2) n
         where n.id <> move.job order by n.position, n.id limit 1;
    end if;
    if v_where in ('last', 'before') then
        select n.id, n.position into v_before
          from next_before(v_job.queue, v_priority, coalesce(v_behind.position, 9223372036854775807),
                           coalesce(v_behind.id, 'ffffffff-ffff-ffff-ffff-ffffffffffff'), 2) n
         where n.id <> move.job order by n.position desc, n.id desc limit 1;
    end if;
    if move.other = move.job
       or (v_priority = v_job.priority and coalesce(v_before.position < v_job.position, true)
           and coalesce(v_job.position < v_behind.position, true))
       or (v_before.id is null and v_behind.id is null) then
        null;   -- it is already there, or alone
    elsif v_behind.id is null then
        v_above := nextval('position_seq') * 100;   -- after all existing jobs and before all future ones
    elsif v_before.id is null then
        v_above := v_behind.position - 100;
    elsif v_behind.position - v_before.position >= 2 then
        v_above := v_before.position + (v_behind.position - v_before.position) / 2;
    else
        select r.ids, r.above, r.step into v_ids, v_above, v_step
          from make_room(move.job, v_job.queue, v_priority, v_before.id, v_before.position, v_behind.id, v_behind.position) r;
    end if;

    -- The states are compared in a form that no index matches: the jobs have to be found by their ids.
    select array_agg(h.id) into v_locked from (
        select s.id from job_state s
         where s.id = any (v_ids || move.other)
           and (s.state is not distinct from 'queued' or s.state is not distinct from 'retry_waiting')
         order by s.id for update) h;
    refusal := case when move.job = any (v_locked) is not true then 'not_waiting'
                    when move.other is not null and not move.other = any (v_locked) then 'target_not_waiting' end;
    if refusal is null then
        update job_state s
           set position = v_above + v_step * w.n,
               priority = case when s.id = move.job then v_priority else s.priority end,
               -- The ledger reads the move from the note, whose other fields may still be needed; numbered, so that each move
               -- is recorded.
               note = case when s.id <> move.job then s.note else
                   coalesce(s.note, '{}') || jsonb_build_object('moved', jsonb_strip_nulls(jsonb_build_object(
                       'to', v_where, 'other', move.other, 'priority', v_priority, 'reason', nullif(move.reason, ''),
                       'times', 1 + (select count(*) from event e where e.job_id = s.id and e.type = 'move')))) end
          from unnest(v_ids) with ordinality w(id, n)
         where s.id = w.id and (s.state is not distinct from 'queued' or s.state is not distinct from 'retry_waiting');
        perform notify_listeners(' ' || v_job.queue);
    end if;
    perform set_config('holdfast.tenant', v_scope, true);
    return query select s.id, s.state, refusal is not null, refusal from job_state s where s.id = move.job;
end $$;
