-- Updates a workflow when one of its jobs changes state. Called by the triggers of job_state in the transaction that moved the
-- job, so that no parent ends without its children being updated.
--
-- A transaction that moves jobs of a workflow locks the row of the workflow, after those of the jobs and before those of the
-- children: the ends of two parents are processed one after the other, each seeing what the other has done. Claims do not come
-- here and wait for no lock. (Ending a child at the moment in which it is released may raise a deadlock error; the caller
-- retries.)
--
-- The status of a job is open, succeeded, failed, dead (may be redriven), cancelled or skipped. Skipped jobs wait like those
-- with unmet parents, since the dead letter ahead of them may be redriven; once nothing can bring them back, they are
-- cancelled together.

-- Change the status of jobs, and update the counts of their workflow.
create or replace function set_node_status(p_flow uuid, p_jobs uuid[], p_status text, p_now timestamptz) returns void
language plpgsql set search_path from current
    set enable_nestloop = on set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
begin
    if coalesce(cardinality(p_jobs), 0) = 0 then
        return;
    end if;
    with was as materialized (
        select n.job_id, n.status from node n where n.job_id = any (p_jobs) and n.status <> p_status
    ), changed as (
        update node n set status = p_status from was where n.job_id = was.job_id
    ), less as materialized (
        select count(*)::integer as moved, (count(*) filter (where status = 'open'))::integer as open,
               (count(*) filter (where status = 'succeeded'))::integer as succeeded,
               (count(*) filter (where status = 'failed'))::integer as failed,
               (count(*) filter (where status = 'dead'))::integer as dead,
               (count(*) filter (where status = 'cancelled'))::integer as cancelled,
               (count(*) filter (where status = 'skipped'))::integer as skipped from was
    )
    update workflow w
       set open = w.open - l.open + case p_status when 'open' then l.moved else 0 end,
           succeeded = w.succeeded - l.succeeded + case p_status when 'succeeded' then l.moved else 0 end,
           failed = w.failed - l.failed + case p_status when 'failed' then l.moved else 0 end,
           dead = w.dead - l.dead + case p_status when 'dead' then l.moved else 0 end,
           cancelled = w.cancelled - l.cancelled + case p_status when 'cancelled' then l.moved else 0 end,
           skipped = w.skipped - l.skipped + case p_status when 'skipped' then l.moved else 0 end,
           finished_at = case when w.open - l.open + case p_status when 'open' then l.moved else 0 end = 0
                              then coalesce(w.finished_at, p_now) end
      from less l where w.id = p_flow and l.moved > 0;
end $$;

-- Mark these parents as met. Returns the children that have no unmet parents left.
create or replace function mark_parents_met(p_parents uuid[], p_whatever boolean) returns uuid[]
language plpgsql set search_path from current
    set enable_nestloop = on set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare v_ready uuid[];
begin
    if coalesce(cardinality(p_parents), 0) = 0 then
        return '{}';
    end if;
    with met as (
        update dependency d set met = true
         where d.parent = any (p_parents) and not d.met and (p_whatever or d.on_failure = 'continue')
        returning d.child
    ), fewer as (
        update node n set unmet = n.unmet - m.times
          from (select child, count(*)::integer as times from met group by child) m where n.job_id = m.child
        returning n.job_id, n.unmet
    )
    select array_agg(job_id) into v_ready from fewer where unmet = 0;
    return coalesce(v_ready, '{}');
end $$;

-- Callbacks whose end has come are due from now on; a worker creates their jobs (fire_callbacks). Not here: a refusal of the
-- new job (a pause, a full tenant) must not keep another job from ending.
create or replace function callbacks_on_end(p_flow uuid, p_good uuid[], p_bad uuid[], p_now timestamptz) returns void
language plpgsql set search_path from current
    set enable_nestloop = on set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
begin
    if not exists (select from callback c where c.workflow_id = p_flow and c.due_at is null) then
        return;   -- nearly always
    end if;
    update callback c set due_at = p_now
     where c.workflow_id = p_flow and c.due_at is null and c.fires = 'success'
       and (c.step_id = any (p_good)
            or c.step_id is null and exists (select from workflow w where w.id = p_flow and w.total = w.succeeded));
    update callback c
       set due_at = p_now, failed_job = f.id, error_code = f.error_code, error_message = f.error_message
      from (select s.id, s.error_code, s.error_message, row_number() over (order by s.finished_at, s.id) as place
              from node n join job_state s on s.id = n.job_id
             where n.workflow_id = p_flow and n.status in ('failed', 'dead')) f
     where c.workflow_id = p_flow and c.due_at is null and c.fires = 'failure'
       and (c.step_id = any (p_bad) and f.id = c.step_id
            or c.step_id is null and f.place = 1 and exists (select from workflow w where w.id = p_flow and w.open = 0));
end $$;

-- Jobs behind these are skipped, and the workflow stops if one of these stops it. Returns the jobs that may start.
create or replace function nodes_failed(p_flow uuid, p_bad uuid[], p_now timestamptz, out ready uuid[], out stops boolean)
language plpgsql as $$
declare v_behind uuid[];
begin
    ready := mark_parents_met(p_bad, false);
    with recursive behind(id) as (
        select d.child from dependency d join node n on n.job_id = d.child
         where d.parent = any (p_bad) and not d.met and n.status = 'open'
        union
        select d.child from behind b join dependency d on d.parent = b.id join node n on n.job_id = d.child
         where not d.met and d.on_failure <> 'continue' and n.status = 'open'
    )
    select array_agg(id) into v_behind from behind;
    perform set_node_status(p_flow, v_behind, 'skipped', p_now);
    ready := ready || mark_parents_met(v_behind, false);
    update node n set stops = true
     where n.job_id = any (p_bad)
       and (n.fatal or exists (select from dependency d where d.parent = n.job_id and d.on_failure = 'stop'));
    stops := found;
end $$;

-- These jobs no longer count as failed. Unless another failure stops the workflow, the skipped jobs that are no longer behind a
-- failed one come back; returns them.
create or replace function nodes_reopened(p_flow uuid, p_back uuid[], p_now timestamptz, out ready uuid[], out stopped boolean)
language plpgsql as $$
declare v_blocked uuid[];
begin
    update node n set stops = false where n.job_id = any (p_back) and n.stops;
    stopped := exists (select from node n where n.workflow_id = p_flow and n.stops);
    if stopped then
        return;
    end if;
    with recursive blocked(id) as (
        select d.child from node n join job_state s on s.id = n.job_id join dependency d on d.parent = n.job_id
         where n.workflow_id = p_flow and not d.met and d.on_failure <> 'continue'
           and (n.status in ('failed', 'dead', 'cancelled')
                -- A skipped job that an operator ended does not come back.
                or n.status = 'skipped' and s.state not in ('queued', 'retry_waiting'))
        union
        select d.child from blocked b join dependency d on d.parent = b.id
         where not d.met and d.on_failure <> 'continue'
    )
    select array_agg(id) into v_blocked from blocked;
    select array_agg(n.job_id) into ready from node n join job_state s on s.id = n.job_id
     where n.workflow_id = p_flow and n.status = 'skipped' and s.state in ('queued', 'retry_waiting')
       and not (n.job_id = any (coalesce(v_blocked, '{}')));
    perform set_node_status(p_flow, ready, 'open', p_now);
end $$;

-- Hold back the waiting jobs of a stopped workflow: those of `p_only` (null: all) except `p_back`. Running jobs continue, and
-- are held if they return to waiting. Locked rows are skipped: they are being claimed, or their transaction will run this
-- trigger after us.
create or replace function hold_nodes(p_flow uuid, p_only uuid[], p_back uuid[], p_now timestamptz) returns void
language plpgsql as $$
declare v_held uuid[];
begin
    select array_agg(h.id) into v_held from (
        select s.id from node n join job_state s on s.id = n.job_id
         where n.workflow_id = p_flow and n.status = 'open' and (p_only is null or n.job_id = any (p_only))
           and not (n.job_id = any (coalesce(p_back, '{}')))
           and s.state in ('queued', 'retry_waiting')
         order by s.id for update of s skip locked) h;
    -- Includes jobs that a limit holds back: otherwise the limit would release them.
    update job_state s set due_at = 'infinity', note = '{"held": "parents"}', held_by = null
     where s.id = any (v_held) and (s.due_at is distinct from 'infinity' or s.held_by is not null);
    perform set_node_status(p_flow, v_held, 'skipped', p_now);
end $$;

-- Queue those of these jobs that wait for no parent any more.
create or replace function release_nodes(p_jobs uuid[], p_now timestamptz) returns void language plpgsql as $$
declare v_queues text[];
begin
    with free as materialized (
        select s.id from job_state s join node n on n.job_id = s.id
         where s.id = any (p_jobs) and n.unmet = 0 and n.status = 'open' and s.due_at = 'infinity'
           and s.state in ('queued', 'retry_waiting') and s.note ->> 'held' = 'parents'
         order by s.id for update of s
    ), released as (
        update job_state s
           set due_at = case when s.state = 'retry_waiting' then p_now
                             when j.run_at > p_now then j.run_at end,
               note = nullif(s.note - 'held', '{}')
          from free f join job j on j.id = f.id where s.id = f.id
        returning s.queue, s.due_at
    )
    select array_agg(distinct queue) filter (where due_at is null) into v_queues from released;
    perform notify_listeners(q) from unnest(v_queues) q;
end $$;

-- Process jobs of a workflow that have changed state. Its settings hold for the functions above, which nothing else calls.
create or replace function advance_workflow(p_flow uuid, p_jobs uuid[], p_now timestamptz) returns void
language plpgsql set search_path from current set plan_cache_mode = force_generic_plan
    set enable_nestloop = on set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
    v_good    uuid[];
    v_failed  uuid[];
    v_dead    uuid[];
    v_gone    uuid[];
    v_bad     uuid[];
    v_back    uuid[];
    v_again   uuid[];
    v_ready   uuid[];
    v_more    uuid[];
    v_was     boolean;
    v_stopped boolean;
begin
    select array_agg(c.id) filter (where c.now_is = 'succeeded'), array_agg(c.id) filter (where c.now_is = 'failed'),
           array_agg(c.id) filter (where c.now_is = 'dead'), array_agg(c.id) filter (where c.now_is = 'cancelled'),
           array_agg(c.id) filter (where c.now_is = 'open' and c.was <> 'open'),
           array_agg(c.id) filter (where c.now_is = 'open' and c.was = 'open')
      into v_good, v_failed, v_dead, v_gone, v_back, v_again
      from (select n.job_id as id, n.status as was,
                   case s.state when 'succeeded' then 'succeeded' when 'failed' then 'failed' when 'dead_letter' then 'dead'
                                when 'cancelled' then 'cancelled' else 'open' end as now_is
              from node n join job_state s on s.id = n.job_id
             where n.job_id = any (p_jobs) and n.status <> 'skipped' and s.state <> 'cleaned') c
     where c.was <> c.now_is or c.was = 'open';
    v_bad := v_failed || v_dead || v_gone;
    perform set_node_status(p_flow, v_good, 'succeeded', p_now);
    perform set_node_status(p_flow, v_failed, 'failed', p_now);
    perform set_node_status(p_flow, v_dead, 'dead', p_now);
    perform set_node_status(p_flow, v_gone, 'cancelled', p_now);
    perform set_node_status(p_flow, v_back, 'open', p_now);
    select w.stopped into v_was from workflow w where w.id = p_flow;
    v_stopped := v_was;
    v_ready := mark_parents_met(v_good, true);
    if v_bad is not null then
        select f.ready, v_stopped or f.stops into v_more, v_stopped from nodes_failed(p_flow, v_bad, p_now) f;
        v_ready := v_ready || v_more;
    end if;
    if v_back is not null then
        select f.ready, f.stopped into v_more, v_stopped from nodes_reopened(p_flow, v_back, p_now) f;
        v_ready := v_ready || v_more;
    end if;
    if v_stopped <> v_was then
        update workflow w set stopped = v_stopped where w.id = p_flow;
    end if;
    if v_stopped and (not v_was or v_again is not null) then
        perform hold_nodes(p_flow, case when v_was then v_again end, v_back, p_now);
    end if;
    if cardinality(v_ready) > 0 then
        perform release_nodes(v_ready, p_now);
    end if;
    if v_good is not null or v_bad is not null then
        perform from workflow w where w.id = p_flow and w.open = 0 and w.dead = 0 and w.skipped > 0;
        if found then
            update job_state s
               set state = 'cancelled', due_at = null, finished_at = p_now,
                   note = '{"reason": "skipped: a job before it failed or was cancelled"}'
             where s.id in (select n.job_id from node n where n.workflow_id = p_flow and n.status = 'skipped')
               and s.state in ('queued', 'retry_waiting');
        end if;
        perform callbacks_on_end(p_flow, v_good, v_failed || v_dead, p_now);
    end if;
end $$;

create or replace function workflows_on_transition(p_jobs uuid[]) returns void language plpgsql set search_path from current
    set enable_nestloop = on set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
    v_now  timestamptz := clock_now();
    v_flow record;
begin
    perform from workflow w where w.id in (select n.workflow_id from node n where n.job_id = any (p_jobs))
      order by w.id for update;
    if found then
        perform check_isolation();
    end if;
    -- A new statement has a new snapshot, which shows the changes of the transactions that held the rows before us.
    for v_flow in
        select n.workflow_id as id, array_agg(n.job_id) as jobs from node n
         where n.job_id = any (p_jobs) group by 1 order by 1
    loop
        perform advance_workflow(v_flow.id, v_flow.jobs, v_now);
    end loop;
end $$;

-- New jobs with a workflow id join that workflow. Planned jobs already have a node and wait for their parents from the start.
-- Called by on_job_insert; gives all of these jobs their states.
create or replace function workflows_on_insert(p_jobs uuid[], p_now timestamptz) returns void
language plpgsql set search_path from current
    set enable_nestloop = on set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare v_bad record;
begin
    perform from workflow w where w.id in (select a.workflow_id from job a where a.id = any (p_jobs)) order by w.id for update;
    select w.id into v_bad from job a join workflow w on w.id = a.workflow_id and w.tenant = a.tenant
     where a.id = any (p_jobs) and w.finished_at is not null limit 1;
    if found then
        raise exception 'workflow % has ended', v_bad.id
            using errcode = 'ZH030', hint = 'Start another workflow, or resume this one first.';
    end if;
    -- Other jobs wait for this very job, so it is retried in place (enqueue_many ensures that; a hand-written insert has to).
    select a.id into v_bad from job a where a.id = any (p_jobs) and a.workflow_id is not null and a.retry_as is not null limit 1;
    if found then
        raise exception 'job %: jobs of a workflow must be retried in place, not as new jobs', v_bad.id using errcode = 'ZH034';
    end if;
    insert into node (job_id, tenant, workflow_id, status, fatal)
    select a.id, a.tenant, w.id, case when w.stopped then 'skipped' else 'open' end, w.on_failure = 'stop'
      from job a join workflow w on w.id = a.workflow_id and w.tenant = a.tenant
     where a.id = any (p_jobs)
    on conflict (job_id) do nothing;
    insert into job_state (id, tenant, kind, queue, state, priority, position,
                           max_attempts, max_crashes, due_at, deadline_at, agent, workflow_id, note, executor)
    select a.id, a.tenant, a.kind, a.queue, 'queued', a.priority, nextval('position_seq') * 100,
           a.max_attempts, a.max_crashes,
           case when n.unmet > 0 or n.status = 'skipped' then 'infinity'::timestamptz
                when a.run_at > p_now then a.run_at end,
           a.deadline_at, a.agent, n.workflow_id,
           case when n.unmet > 0 or n.status = 'skipped' then '{"held": "parents"}'::jsonb end, a.executor
      from unnest(p_jobs) with ordinality as o(id, ord) join job a on a.id = o.id   -- in the order in which they were sent
      left join node n on n.job_id = a.id and n.tenant = a.tenant and n.workflow_id = a.workflow_id
     order by o.ord;
    update workflow w
       set total = w.total + c.total, open = w.open + c.open, skipped = w.skipped + c.total - c.open,
           finished_at = case when w.open + c.open = 0 then p_now end
      from (select n.workflow_id, count(*)::integer as total, (count(*) filter (where n.status = 'open'))::integer as open
              from node n where n.job_id = any (p_jobs) group by 1) c
     where w.id = c.workflow_id;
end $$;

-- Guards of the workflow tables, and `failed`, the one state that may not last when it is entered.

-- `failed` is nearly always left at once in the same transaction; whether it was is known at commit.
create or replace function advance_failed() returns trigger language plpgsql security definer set search_path from current as $$
begin
    if exists (select from job_state s where s.id = new.id and s.state = 'failed') then
        perform workflows_on_transition(array[new.id]);
    end if;
    return null;
end $$;
drop trigger if exists advance_failed on job_state;
create constraint trigger advance_failed after update on job_state deferrable initially deferred
    for each row when (new.state = 'failed' and old.state <> 'failed' and new.workflow_id is not null)
    execute function advance_failed();

-- Only the ends of its parents release a job that waits for them. Called by record_transition.
create or replace function parents_on_transition(p_job uuid) returns void language plpgsql set search_path from current as $$
begin
    if exists (select from node n where n.job_id = p_job and (n.unmet > 0 or n.status = 'skipped')) then
        raise exception 'job % waits for its parents', p_job
            using errcode = 'ZH002', hint = 'To see which: select * from dependency where child = …';
    end if;
end $$;

-- Triggers derive statuses, counts and met dependencies from the jobs. Trigger depth 0 means a hand-written statement.
create or replace function refuse_by_hand() returns trigger language plpgsql as $$
begin
    raise exception '%: the plan never changes, and the rest is written by triggers only', tg_table_name
        using errcode = 'ZH002';
end $$;
create or replace trigger guard_update before update on workflow for each row
    when ((old.id, old.tenant, old.kind, old.generator, old.on_failure, old.plan_hash, old.enqueued_by, old.source_system,
           old.created_at) <> (new.id, new.tenant, new.kind, new.generator, new.on_failure, new.plan_hash, new.enqueued_by,
           new.source_system, new.created_at)
          or old.key is distinct from new.key or old.correlation_id is distinct from new.correlation_id
          or old.parent_id is distinct from new.parent_id
          or old.cancelled_at is not null and old.cancelled_at is distinct from new.cancelled_at
          or pg_trigger_depth() = 0 and (old.finished_at is distinct from new.finished_at
              or (old.stopped, old.total, old.open, old.succeeded, old.failed, old.dead, old.cancelled, old.skipped)
              <> (new.stopped, new.total, new.open, new.succeeded, new.failed, new.dead, new.cancelled, new.skipped)))
    execute function refuse_by_hand();
-- A hand-written statement may change only one thing of a node: the number of parents it waits for, if it equals their actual
-- number. A job that adds jobs at run time makes the jobs behind it wait for them (plan_nodes).
create or replace function guard_node() returns trigger language plpgsql set search_path from current as $$
begin
    if (old.job_id, old.tenant, old.workflow_id, old.fatal, old.status, old.stops)
           = (new.job_id, new.tenant, new.workflow_id, new.fatal, new.status, new.stops)
       and old.name is not distinct from new.name and old.part is not distinct from new.part
       and new.unmet = (select count(*) from dependency d where d.child = new.job_id and not d.met) then
        return new;
    end if;
    raise exception 'node: the plan never changes, and the rest is written by triggers only' using errcode = 'ZH002';
end $$;
create or replace trigger guard_update before update on node for each row
    when (pg_trigger_depth() = 0 or old.job_id <> new.job_id or old.tenant <> new.tenant or old.workflow_id <> new.workflow_id
          or old.fatal <> new.fatal or old.name is distinct from new.name or old.part is distinct from new.part)
    execute function guard_node();
-- A callback fires once and is deleted with its workflow.
create or replace trigger guard_update before update on callback for each row
    when ((old.job_id, old.tenant, old.workflow_id, old.fires) <> (new.job_id, new.tenant, new.workflow_id, new.fires)
          or old.step_id is distinct from new.step_id or old.fired_at is not null or old.due_at is not null and new.due_at is null
          or new.fired_at is null and old.document::text is distinct from new.document::text)
    execute function refuse_by_hand();
create or replace trigger guard_update before update on dependency for each row
    when (pg_trigger_depth() = 0 or old.met or old.child <> new.child or old.parent <> new.parent
          or old.tenant <> new.tenant or old.on_failure <> new.on_failure)
    execute function refuse_by_hand();

-- Workflows: start, add to, cancel, resume. A plan is one document:
--     {"workflow": {"id", "kind", "generator", "on_failure", "key", …}, "jobs": [… as for enqueue_many],
--      "nodes": [{"id", "name", "part", "fatal"}], "edges": [{"child", "parent", "on_failure"}],
--      "callbacks": [{"step", "fires": "success" or "failure", "job": as for enqueue_many, with its id}]}
-- and "behind": a job of the workflow whose dependents also wait for the new jobs; and "plain": true if the caller vouches for
-- the jobs as for those of enqueue_many.

-- Record the dependencies, then enqueue: the jobs find their nodes and wait from the start. The row of the workflow is locked,
-- or not yet visible to others.
create or replace function plan_nodes(p_flow uuid, p_plan json, p_tenant text, p_actor text) returns void
language plpgsql set search_path from current as $$
declare
    v_behind uuid[];   -- new jobs that are behind a failed one
    v_bad    record;
begin
    with recursive edge as materialized (
        select e.child, e.parent from json_to_recordset(p_plan -> 'edges') as e(child uuid, parent uuid, on_failure text)
         where e.on_failure <> 'continue'
    ), behind(id) as (
        select e.child from edge e join node n on n.job_id = e.parent
         where n.status in ('failed', 'dead', 'cancelled', 'skipped')
        union
        select e.child from behind b join edge e on e.parent = b.id
    )
    select coalesce(array_agg(id), '{}') into v_behind from behind;
    insert into dependency (child, parent, tenant, on_failure, met)
    select e.child, e.parent, p_tenant, e.on_failure,
           coalesce(n.status = 'succeeded' or e.on_failure = 'continue' and n.status <> 'open', false)
           or e.on_failure = 'continue' and e.parent = any (v_behind)
      from json_to_recordset(p_plan -> 'edges') as e(child uuid, parent uuid, on_failure text)
      left join node n on n.job_id = e.parent;
    insert into node (job_id, tenant, workflow_id, name, part, fatal, status, unmet)
    select o.id, p_tenant, p_flow, o.name, o.part, coalesce(o.fatal, false),
           case when o.id = any (v_behind) or w.stopped then 'skipped' else 'open' end, coalesce(u.times, 0)
      from json_to_recordset(p_plan -> 'nodes') as o(id uuid, name text, part text, fatal boolean)
      join workflow w on w.id = p_flow
      left join (select e.child, count(*)::integer as times
                   from json_to_recordset(p_plan -> 'edges') as e(child uuid, parent uuid)
                   join dependency d on d.child = e.child and d.parent = e.parent
                  where not d.met group by e.child) u on u.child = o.id;
    if p_plan ->> 'behind' is not null then
        -- They already wait for the job that adds these, so none can have been released.
        insert into dependency (child, parent, tenant, on_failure)
        select d.child, o.id, p_tenant, d.on_failure
          from dependency d cross join json_to_recordset(p_plan -> 'nodes') as o(id uuid)
         where d.parent = (p_plan ->> 'behind')::uuid and d.tenant = p_tenant and not d.met;
        update node n set unmet = (select count(*) from dependency d where d.child = n.job_id and not d.met)
         where n.job_id in (select d.child from dependency d where d.parent = (p_plan ->> 'behind')::uuid and not d.met)
           and n.workflow_id = p_flow;
    end if;
    insert into callback (job_id, tenant, workflow_id, step_id, fires, document)
    select (c.job ->> 'id')::uuid, p_tenant, p_flow, c.step, c.fires, c.job
      from json_to_recordset(p_plan -> 'callbacks') as c(step uuid, fires text, job json);
    -- All or nothing: one refused job refuses the others.
    select e.reason, e.detail into v_bad
      from enqueue_many(p_plan -> 'jobs', p_tenant, p_actor, coalesce((p_plan ->> 'plain')::boolean, false)) e
     where not e.created limit 1;
    if found then
        raise exception 'a job of the workflow was refused: %', coalesce(v_bad.detail, v_bad.reason) using errcode = 'ZH031';
    end if;
    if exists (select from json_to_recordset(p_plan -> 'edges') as e(child uuid, parent uuid)
                where not exists (select from node n where n.job_id = e.parent and n.workflow_id = p_flow)) then
        raise exception 'a job can wait only for jobs of its own workflow' using errcode = 'ZH032';
    end if;
end $$;

-- Start a workflow from a plan: {"workflow": …, "jobs": …, "nodes": …, "edges": …, "callbacks": …}. All jobs are enqueued or
-- none. Starting it again with the same key returns the existing workflow.
create or replace function start_workflow(plan json, for_tenant text default null, actor text default null)
returns table (id uuid, created boolean, reason text) language plpgsql security definer set search_path from current as $$
declare
    v_tenant text := coalesce(start_workflow.for_tenant, nullif(scope(), '*'), 'default');
    v_actor  text := coalesce(nullif(start_workflow.actor, ''), actor());
    v_now    timestamptz := clock_now();
    v_flow   workflow;
    v_hash   text;
begin
    perform enter(v_tenant);
    v_flow := json_populate_record(null::workflow, start_workflow.plan -> 'workflow');
    insert into workflow as w (id, tenant, kind, generator, on_failure, key, plan_hash, correlation_id, parent_id,
                               enqueued_by, source_system, created_at)
    values (coalesce(v_flow.id, uuid7()), v_tenant, v_flow.kind, coalesce(v_flow.generator, v_actor),
            coalesce(v_flow.on_failure, 'skip'), v_flow.key, coalesce(v_flow.plan_hash, ''), v_flow.correlation_id,
            v_flow.parent_id, coalesce(v_flow.enqueued_by, v_actor), coalesce(v_flow.source_system, 'sql'), v_now)
    on conflict (tenant, kind, key) where key is not null do nothing returning w.id into id;
    if not found then
        select w.id, w.plan_hash into id, v_hash from workflow w
         where w.tenant = v_tenant and w.kind = v_flow.kind and w.key = v_flow.key;
        created := false;
        reason := case when v_hash = v_flow.plan_hash then 'duplicate_key' else 'idempotency_conflict' end;
        return next;
        return;
    end if;
    perform plan_nodes(id, start_workflow.plan, v_tenant, v_actor);
    created := true;
    return next;
end $$;

-- Add jobs to a workflow that has not ended. All jobs are enqueued or none.
create or replace function add_to_workflow(workflow uuid, plan json, for_tenant text default null, actor text default null)
returns table (id uuid, created boolean, reason text) language plpgsql security definer set search_path from current as $$
declare
    v_scope text := enter(add_to_workflow.for_tenant);
    v_over  boolean;
    v_whose text;
begin
    perform check_isolation();
    select w.finished_at is not null, w.tenant into v_over, v_whose from workflow w
     where w.id = add_to_workflow.workflow and (v_scope = '*' or w.tenant = v_scope) for update;
    if not found or v_over then
        return query select add_to_workflow.workflow, false, case when v_over then 'workflow_over' else 'not_found' end;
        return;
    end if;
    if exists (select from json_to_recordset(add_to_workflow.plan -> 'nodes') as o(name text)
                join node n on n.workflow_id = add_to_workflow.workflow and n.name = o.name) then
        return query select add_to_workflow.workflow, false, 'name_taken';
        return;
    end if;
    perform plan_nodes(add_to_workflow.workflow, add_to_workflow.plan, v_whose, coalesce(nullif(add_to_workflow.actor, ''), actor()));
    return query select add_to_workflow.workflow, true, null::text;
end $$;

-- Create the jobs of callbacks that are due. Returns how many. A refused job (a full tenant, a pause) is retried later.
create or replace function fire_callbacks(want integer default 1000, for_tenant text default '*') returns integer
language plpgsql security definer set search_path from current as $$
declare
    v_now    timestamptz := clock_now();
    v_scope  text := enter(fire_callbacks.for_tenant, 'workflows');
    v_due    callback[];
    v_one    callback;
    v_made   boolean;
    v_count  integer := 0;
begin
    if halted() then
        return 0;
    end if;
    v_due := array(
        select c from callback c
         where c.due_at <= v_now and c.due_at is not null and c.fired_at is null and (v_scope = '*' or c.tenant = v_scope)
         order by c.due_at limit fire_callbacks.want for update skip locked);
    foreach v_one in array v_due loop
        begin
            select e.created into v_made from enqueue_many(json_build_array(v_one.document), v_one.tenant, 'workflow ' || v_one.workflow_id) e;
        exception when others then
            v_made := false;
        end;
        perform enter(fire_callbacks.for_tenant, 'workflows');   -- again: creating a job switches to its tenant
        if v_made then
            update callback c set fired_at = v_now, document = null where c.job_id = v_one.job_id;
            v_count := v_count + 1;
        else
            update callback c set due_at = v_now + interval '30 seconds' where c.job_id = v_one.job_id;
        end if;
    end loop;
    return v_count;
end $$;

-- Cancel every job of a workflow that has not ended, running jobs included.
create or replace function cancel_workflow(workflow uuid, reason text default null, actor text default null,
                                           for_tenant text default null)
returns table (id uuid, jobs integer, refused boolean, refusal text)
language plpgsql security definer set search_path from current as $$
declare
    v_scope text := enter(cancel_workflow.for_tenant, cancel_workflow.actor);
    v_jobs  uuid[];
begin
    id := cancel_workflow.workflow;
    jobs := 0;
    perform from workflow w where w.id = cancel_workflow.workflow and (v_scope = '*' or w.tenant = v_scope);
    if not found then
        refused := true;
        refusal := 'not_found';
        return next;
        return;
    end if;
    loop
        -- Locks the jobs first, then the workflow, like every transaction that ends a job. Then once more: jobs may have been
        -- added.
        select array_agg(h.id) into v_jobs from (
            select s.id from node n join job_state s on s.id = n.job_id
             where n.workflow_id = cancel_workflow.workflow
               and s.state in ('queued', 'leased', 'in_progress', 'retry_waiting', 'waiting_for_approval')
             order by s.id for update of s) h;
        exit when v_jobs is null;
        jobs := jobs + (select count(*) from operate('cancel', v_jobs, cancel_workflow.reason, cancel_workflow.actor, v_scope) o
                         where not o.refused);
    end loop;
    refused := jobs = 0;
    refusal := case when jobs = 0 then 'already_finished' end;
    if jobs > 0 then
        update workflow w set cancelled_at = clock_now() where w.id = cancel_workflow.workflow and w.cancelled_at is null;
    end if;
    return next;
end $$;

-- Redrive the dead letters of a workflow; the jobs held back behind them are released.
create or replace function resume_workflow(workflow uuid, reason text default null, actor text default null,
                                           for_tenant text default null)
returns table (id uuid, jobs integer, refused boolean, refusal text)
language plpgsql security definer set search_path from current as $$
declare
    v_scope text := enter(resume_workflow.for_tenant, resume_workflow.actor);
    v_jobs  uuid[];
begin
    id := resume_workflow.workflow;
    jobs := 0;
    perform from workflow w where w.id = resume_workflow.workflow and (v_scope = '*' or w.tenant = v_scope);
    if found then
        select array_agg(n.job_id) into v_jobs from node n where n.workflow_id = resume_workflow.workflow and n.status = 'dead';
        jobs := (select count(*) from operate('redrive', v_jobs, resume_workflow.reason, resume_workflow.actor, v_scope) o
                  where not o.refused);
        refusal := case when jobs = 0 then 'nothing_to_resume' end;
    else
        refusal := 'not_found';
    end if;
    refused := refusal is not null;
    return next;
end $$;
