-- What becomes of a workflow when one of its jobs comes to another state (DP-14). Called by the triggers of job_state,
-- in the transaction of whoever moved the job, so that no parent has ended without its children knowing.
--
-- Whoever moves jobs of a workflow takes the row of the workflow, after those of the jobs and before those of the
-- children: the ends of two parents are worked out one after the other, each seeing what the other has done. Jobs that
-- are only taken up do not come here and wait for nobody. (Somebody who ends a child at the very moment in which it is
-- released may be told of a deadlock, and tries again.)
--
-- A job stands open, succeeded, failed, dead (may be redriven), cancelled or skipped. Skipped jobs wait like those with
-- unmet parents, since the dead letter they are behind may be redriven; once nothing can bring them back they are
-- cancelled, all at once.

-- Let jobs stand otherwise, and keep the counts of their workflow.
create or replace function stand(p_flow uuid, p_jobs uuid[], p_standing text, p_now timestamptz) returns void
language plpgsql set search_path from current
    set enable_nestloop = on set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
begin
    if coalesce(cardinality(p_jobs), 0) = 0 then
        return;
    end if;
    with was as materialized (
        select n.job_id, n.standing from node n where n.job_id = any (p_jobs) and n.standing <> p_standing
    ), stands as (
        update node n set standing = p_standing from was where n.job_id = was.job_id
    ), less as materialized (
        select count(*)::integer as moved, (count(*) filter (where standing = 'open'))::integer as open,
               (count(*) filter (where standing = 'succeeded'))::integer as succeeded,
               (count(*) filter (where standing = 'failed'))::integer as failed,
               (count(*) filter (where standing = 'dead'))::integer as dead,
               (count(*) filter (where standing = 'cancelled'))::integer as cancelled,
               (count(*) filter (where standing = 'skipped'))::integer as skipped from was
    )
    update workflow w
       set open = w.open - l.open + case p_standing when 'open' then l.moved else 0 end,
           succeeded = w.succeeded - l.succeeded + case p_standing when 'succeeded' then l.moved else 0 end,
           failed = w.failed - l.failed + case p_standing when 'failed' then l.moved else 0 end,
           dead = w.dead - l.dead + case p_standing when 'dead' then l.moved else 0 end,
           cancelled = w.cancelled - l.cancelled + case p_standing when 'cancelled' then l.moved else 0 end,
           skipped = w.skipped - l.skipped + case p_standing when 'skipped' then l.moved else 0 end,
           finished_at = case when w.open - l.open + case p_standing when 'open' then l.moved else 0 end = 0
                              then coalesce(w.finished_at, p_now) end
      from less l where w.id = p_flow and l.moved > 0;
end $$;

-- These parents are waited for no longer; answers the children that wait for nobody now.
create or replace function meet(p_parents uuid[], p_whatever boolean) returns uuid[]
language plpgsql set search_path from current
    set enable_nestloop = on set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
    v_ready uuid[];
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

create or replace function advance_workflow(p_flow uuid, p_jobs uuid[], p_now timestamptz) returns void
language plpgsql set search_path from current set plan_cache_mode = force_generic_plan
    set enable_nestloop = on set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
    v_good   uuid[];
    v_failed uuid[];
    v_dead   uuid[];
    v_gone   uuid[];
    v_bad    uuid[];
    v_back   uuid[];
    v_again  uuid[];
    v_ready  uuid[] := '{}';
    v_others uuid[];
    v_queues text[];
    v_flow   workflow;
    v_was    boolean;
begin
    select array_agg(c.id) filter (where c.now_is = 'succeeded'), array_agg(c.id) filter (where c.now_is = 'failed'),
           array_agg(c.id) filter (where c.now_is = 'dead'), array_agg(c.id) filter (where c.now_is = 'cancelled'),
           array_agg(c.id) filter (where c.now_is = 'open' and c.was <> 'open'),
           array_agg(c.id) filter (where c.now_is = 'open' and c.was = 'open')
      into v_good, v_failed, v_dead, v_gone, v_back, v_again
      from (select n.job_id as id, n.standing as was,
                   case s.state when 'succeeded' then 'succeeded' when 'failed' then 'failed' when 'dead_letter' then 'dead'
                                when 'cancelled' then 'cancelled' else 'open' end as now_is
              from node n join job_state s on s.id = n.job_id
             where n.job_id = any (p_jobs) and n.standing <> 'skipped' and s.state <> 'cleaned') c
     where c.was <> c.now_is or c.was = 'open';
    v_bad := v_failed || v_dead || v_gone;
    perform stand(p_flow, v_good, 'succeeded', p_now);
    perform stand(p_flow, v_failed, 'failed', p_now);
    perform stand(p_flow, v_dead, 'dead', p_now);
    perform stand(p_flow, v_gone, 'cancelled', p_now);
    perform stand(p_flow, v_back, 'open', p_now);
    select w.* into v_flow from workflow w where w.id = p_flow;
    v_was := v_flow.stopped;
    v_ready := meet(v_good, true);

    if v_bad is not null then
        v_ready := v_ready || meet(v_bad, false);
        with recursive behind(id) as (
            select d.child from dependency d join node n on n.job_id = d.child
             where d.parent = any (v_bad) and not d.met and n.standing = 'open'
            union
            select d.child from behind b join dependency d on d.parent = b.id join node n on n.job_id = d.child
             where not d.met and d.on_failure <> 'continue' and n.standing = 'open'
        )
        select array_agg(id) into v_others from behind;
        perform stand(p_flow, v_others, 'skipped', p_now);
        v_ready := v_ready || meet(v_others, false);
        update node n set stops = true
         where n.job_id = any (v_bad)
           and (n.fatal or exists (select from dependency d where d.parent = n.job_id and d.on_failure = 'stop'));
        if found then
            v_flow.stopped := true;
        end if;
    end if;
    if v_back is not null then
        update node n set stops = false where n.job_id = any (v_back) and n.stops;
        v_flow.stopped := exists (select from node n where n.workflow_id = p_flow and n.stops);
        if not v_flow.stopped then
            -- What is behind nothing bad any more comes back.
            with recursive blocked(id) as (
                select d.child from node n join job_state s on s.id = n.job_id join dependency d on d.parent = n.job_id
                 where n.workflow_id = p_flow and not d.met and d.on_failure <> 'continue'
                   and (n.standing in ('failed', 'dead', 'cancelled')
                        -- Skipped, and then ended by somebody: that one does not come back.
                        or n.standing = 'skipped' and s.state not in ('queued', 'retry_waiting'))
                union
                select d.child from blocked b join dependency d on d.parent = b.id
                 where not d.met and d.on_failure <> 'continue'
            )
            select array_agg(id) into v_others from blocked;
            select array_agg(n.job_id) into v_others from node n join job_state s on s.id = n.job_id
             where n.workflow_id = p_flow and n.standing = 'skipped' and s.state in ('queued', 'retry_waiting')
               and not (n.job_id = any (coalesce(v_others, '{}')));
            perform stand(p_flow, v_others, 'open', p_now);
            v_ready := v_ready || v_others;
        end if;
    end if;
    if v_flow.stopped <> v_was then
        update workflow w set stopped = v_flow.stopped where w.id = p_flow;
    end if;

    if v_flow.stopped and (not v_was or v_again is not null) then
        -- What waits is held back; what runs goes on, and is held when it comes to wait. Locked rows are in the hands of
        -- somebody who takes them up, or who will come here after us.
        select array_agg(h.id) into v_others from (
            select s.id from node n join job_state s on s.id = n.job_id
             where n.workflow_id = p_flow and n.standing = 'open' and (not v_was or n.job_id = any (v_again))
               and not (n.job_id = any (coalesce(v_back, '{}')))
               and s.state in ('queued', 'retry_waiting')
             order by s.id for update of s skip locked) h;
        -- Also those that a limit holds back: else it would let them go on.
        update job_state s set due_at = 'infinity', note = '{"held": "parents"}', held_by = null
         where s.id = any (v_others) and (s.due_at is distinct from 'infinity' or s.held_by is not null);
        perform stand(p_flow, v_others, 'skipped', p_now);
    end if;

    if cardinality(v_ready) > 0 then
        with free as materialized (
            select s.id from job_state s join node n on n.job_id = s.id
             where s.id = any (v_ready) and n.unmet = 0 and n.standing = 'open' and s.due_at = 'infinity'
               and s.state in ('queued', 'retry_waiting') and s.note ->> 'held' = 'parents'
             order by s.id for update of s
        ), released as (
            update job_state s
               set due_at = case when s.state = 'retry_waiting' then p_now
                                 when j.process_after > p_now then j.process_after end,
                   note = nullif(s.note - 'held', '{}')
              from free f join job j on j.id = f.id where s.id = f.id
            returning s.queue, s.due_at
        )
        select array_agg(distinct queue) filter (where due_at is null) into v_queues from released;
        perform rouse(q) from unnest(v_queues) q;
    end if;

    if v_good is not null or v_bad is not null then
        perform from workflow w where w.id = p_flow and w.open = 0 and w.dead = 0 and w.skipped > 0;
        if found then
            update job_state s
               set state = 'cancelled', due_at = null, finished_at = p_now,
                   note = '{"reason": "skipped: a job before it failed or was cancelled"}'
             where s.id in (select n.job_id from node n where n.workflow_id = p_flow and n.standing = 'skipped')
               and s.state in ('queued', 'retry_waiting');
        end if;
    end if;
end $$;

create or replace function advance_workflows(p_jobs uuid[]) returns void
language plpgsql set search_path from current
    set enable_nestloop = on set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
    v_now  timestamptz := clock_now();
    v_flow record;
begin
    perform from workflow w where w.id in (select n.workflow_id from node n where n.job_id = any (p_jobs))
      order by w.id for update;
    -- A new statement, and with it what those have done who had the rows before us.
    for v_flow in
        select n.workflow_id as id, array_agg(n.job_id) as jobs from node n
         where n.job_id = any (p_jobs) group by 1 order by 1
    loop
        perform advance_workflow(v_flow.id, v_flow.jobs, v_now);
    end loop;
end $$;
