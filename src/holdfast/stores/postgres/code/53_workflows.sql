-- Workflows (DP-14): start, add to, cancel, resume. A plan is one document:
--   {"workflow": {"id", "kind", "generator", "on_failure", "key", …}, "jobs": [… as for enqueue_many],
--    "nodes": [{"id", "name", "part", "fatal"}], "edges": [{"child", "parent", "on_failure"}]}
-- and "plain": true where the caller vouches for the jobs as for those of enqueue_many.

-- Write down who waits for whom, then enqueue: the jobs find their nodes and wait from the beginning. The row of the
-- workflow is locked, or nobody else's yet.
create or replace function plan_nodes(p_flow uuid, p_plan json, p_tenant text, p_actor text) returns void
language plpgsql set search_path from current as $$
declare
    v_behind uuid[];   -- new ones that are behind something that failed
    v_bad    record;
begin
    with recursive edge as materialized (
        select e.child, e.parent from json_to_recordset(p_plan -> 'edges') as e(child uuid, parent uuid, on_failure text)
         where e.on_failure <> 'continue'
    ), behind(id) as (
        select e.child from edge e join node n on n.job_id = e.parent
         where n.standing in ('failed', 'dead', 'cancelled', 'skipped')
        union
        select e.child from behind b join edge e on e.parent = b.id
    )
    select coalesce(array_agg(id), '{}') into v_behind from behind;
    insert into dependency (child, parent, tenant, on_failure, met)
    select e.child, e.parent, p_tenant, e.on_failure,
           coalesce(n.standing = 'succeeded' or e.on_failure = 'continue' and n.standing <> 'open', false)
           or e.on_failure = 'continue' and e.parent = any (v_behind)
      from json_to_recordset(p_plan -> 'edges') as e(child uuid, parent uuid, on_failure text)
      left join node n on n.job_id = e.parent;
    insert into node (job_id, tenant, workflow_id, name, part, fatal, standing, unmet)
    select o.id, p_tenant, p_flow, o.name, o.part, coalesce(o.fatal, false),
           case when o.id = any (v_behind) or w.stopped then 'skipped' else 'open' end, coalesce(u.times, 0)
      from json_to_recordset(p_plan -> 'nodes') as o(id uuid, name text, part text, fatal boolean)
      join workflow w on w.id = p_flow
      left join (select e.child, count(*)::integer as times
                   from json_to_recordset(p_plan -> 'edges') as e(child uuid, parent uuid)
                   join dependency d on d.child = e.child and d.parent = e.parent
                  where not d.met group by e.child) u on u.child = o.id;
    -- All or nothing: a job that is refused takes the others with it.
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

create or replace function start_workflow(plan json, for_tenant text default null, actor text default null)
returns table (id uuid, created boolean, reason text)
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
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

-- More jobs for a workflow that is not over.
create or replace function add_to_workflow(workflow uuid, plan json, for_tenant text default null, actor text default null)
returns table (id uuid, created boolean, reason text)
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_scope text := enter(add_to_workflow.for_tenant);
    v_over  boolean;
    v_whose text;
begin
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

-- Cancel whatever of it has not ended, what runs as well.
create or replace function cancel_workflow(workflow uuid, reason text default null, actor text default null,
                                           for_tenant text default null)
returns table (id uuid, jobs integer, refused boolean, refusal text)
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
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
        -- The jobs first, then the workflow, as whoever ends one of them does. Then once more: some may have been added.
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

-- Redrive its dead letters; what was held back behind them comes back with that.
create or replace function resume_workflow(workflow uuid, reason text default null, actor text default null,
                                           for_tenant text default null)
returns table (id uuid, jobs integer, refused boolean, refusal text)
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_scope text := enter(resume_workflow.for_tenant, resume_workflow.actor);
    v_jobs  uuid[];
begin
    id := resume_workflow.workflow;
    jobs := 0;
    perform from workflow w where w.id = resume_workflow.workflow and (v_scope = '*' or w.tenant = v_scope);
    if found then
        select array_agg(n.job_id) into v_jobs from node n where n.workflow_id = resume_workflow.workflow and n.standing = 'dead';
        jobs := (select count(*) from operate('redrive', v_jobs, resume_workflow.reason, resume_workflow.actor, v_scope) o
                  where not o.refused);
        refusal := case when jobs = 0 then 'nothing_to_resume' end;
    else
        refusal := 'not_found';
    end if;
    refused := refusal is not null;
    return next;
end $$;
