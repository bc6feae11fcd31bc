-- Enqueue a batch in the given order. One row out for each row in: the id of the job, whether it is new, and the reason if it
-- is not. Rows without keys, nearly all of them, go straight to the insert; the others are checked one by one before it, and
-- so are those for an agent that refuses some.

-- Lock all keys of a batch in one global order, so that two batches never deadlock. The rows are decided afterwards in the
-- order of the batch, as its author expects.
create or replace function lock_keys(p_jobs json, p_tenant text) returns void
language plpgsql set search_path from current as $$
declare v_row record;
begin
    -- The nil id means unused. A refused row leaves it so for the next one.
    for v_row in
        select distinct j ->> 'kind' as kind, j ->> 'key' as key from json_array_elements(p_jobs) j
         where j ->> 'key' is not null order by 1, 2
    loop
        insert into idempotency as i (tenant, kind, key, job_id, payload_hash)
        values (p_tenant, v_row.kind, v_row.key, '00000000-0000-0000-0000-000000000000', '') on conflict do nothing;
    end loop;
    for v_row in
        select distinct j ->> 'content_key' as key from json_array_elements(p_jobs) j
         where j ->> 'content_key' is not null order by 1
    loop
        insert into content as c (tenant, key, job_id)
        values (p_tenant, v_row.key, '00000000-0000-0000-0000-000000000000') on conflict do nothing;
        perform from content c where c.tenant = p_tenant and c.key = v_row.key for update;
    end loop;
end $$;

-- The existing job for one about to be enqueued, found by its key or its content; null if there is none. The keys are locked,
-- so the result stays valid. A job that will be `p_refused` takes no key.
create or replace function existing_job(
    p_tenant text, p_id uuid, p_kind text, p_key text, p_content text, p_waiting_only boolean, p_hash text,
    p_refused boolean, out existing uuid, out reason text) language plpgsql set search_path from current as $$
declare v_hash text;
begin
    if p_key is not null then
        if p_refused then
            perform from idempotency i where i.tenant = p_tenant and i.kind = p_kind and i.key = p_key
                and i.job_id = '00000000-0000-0000-0000-000000000000';
        else
            update idempotency i set job_id = p_id, payload_hash = p_hash
             where i.tenant = p_tenant and i.kind = p_kind and i.key = p_key
               and i.job_id = '00000000-0000-0000-0000-000000000000';
        end if;
        if not found then
            select i.job_id, i.payload_hash into existing, v_hash
              from idempotency i where i.tenant = p_tenant and i.kind = p_kind and i.key = p_key;
            reason := case when v_hash = p_hash then 'duplicate_key' else 'idempotency_conflict' end;
            return;
        end if;
    end if;
    if p_content is not null then
        select c.job_id into existing from content c where c.tenant = p_tenant and c.key = p_content;
        -- Taken, but without a state: it is an earlier row of this very batch.
        if existing = '00000000-0000-0000-0000-000000000000'
           or exists (select from job_state s where s.id = existing
                       and not (s.state in ('queued', 'leased', 'in_progress', 'retry_waiting', 'waiting_for_approval')
                                and (not p_waiting_only or (s.state = 'queued' and s.attempt = 0)))) then
            if not p_refused then
                update content c set job_id = p_id where c.tenant = p_tenant and c.key = p_content;
            end if;
            existing := null;
        else
            reason := 'duplicate_content';
            update idempotency i set job_id = existing, payload_hash = p_hash
             where i.tenant = p_tenant and i.kind = p_kind and i.key = p_key;
        end if;
    end if;
end $$;

-- Give every job of a batch an id, a child the values it inherits from its parent unless it has its own, and an agent's job
-- the values of its agent. The parts are concatenated as text: a payload must stay exactly as it was sent.
create or replace function complete(p_jobs json, p_tenant text, p_agents jsonb, p_now timestamptz) returns json
language plpgsql set search_path from current as $$
declare v_jobs json;
begin
    if p_agents is null and not exists (select from json_array_elements(p_jobs) j
                                         where j ->> 'id' is null or j ->> 'parent_id' is not null) then
        return p_jobs;
    end if;
    select coalesce(json_agg((
               select json_object_agg(k, v) from (
                   select 'id' as k, to_json(coalesce(j ->> 'id', uuid7()::text)) as v
                   union all
                   select 'correlation_id', to_json(coalesce(j ->> 'correlation_id', p.correlation_id, p.id::text))
                    where coalesce(j ->> 'correlation_id', p.correlation_id, p.id::text) is not null
                   union all
                   select 'workflow_id', to_json(coalesce(j ->> 'workflow_id', p.workflow_id::text))
                    where coalesce(j ->> 'workflow_id', p.workflow_id::text) is not null
                   union all
                   select 'depth', to_json(coalesce((j ->> 'depth')::smallint, p.depth)) where p.depth is not null
                   union all
                   select key, value from json_each(agent_parts(j, a, p_now)) where a.id is not null
                   union all
                   select key, value from json_each(j)
                    where key not in ('id', 'correlation_id', 'workflow_id') and (key <> 'depth' or p.depth is null)
                      and (a.id is null or key not in ('max_attempts', 'max_crashes', 'backoff', 'deadline_at', 'deadline_in'))) parts
           ) order by ord), '[]') into v_jobs
      from json_array_elements(p_jobs) with ordinality as e(j, ord)
      -- The limit keeps it a lookup by key: the planner does not know the length of the list and would read all jobs for it.
      left join lateral (select * from job
                          where id = (j ->> 'parent_id')::uuid and tenant = p_tenant limit 1) p on true
      left join lateral jsonb_populate_record(null::agent, p_agents -> (j ->> 'agent')) a on true;
    return v_jobs;
end $$;

-- Enqueue a batch of jobs, given as a JSON array. Returns one row per job, in order. With `plain` the caller guarantees that
-- every job has an id and none has a key, a content key, a parent or an agent: nothing is checked before the insert and no
-- rows are returned.
create or replace function enqueue_many(jobs json, for_tenant text default null, actor text default null,
                                        plain boolean default false)
returns table (id uuid, state state, created boolean, reason text, detail text)
language plpgsql security definer set search_path from current set plan_cache_mode = force_generic_plan as $$
declare
    v_now    timestamptz := clock_now();
    v_tenant text := coalesce(enqueue_many.for_tenant, nullif(scope(), '*'), 'default');
    v_actor  text := coalesce(nullif(enqueue_many.actor, ''), actor());
    v_skip   jsonb := '{}';   -- ordinal -> {id, reason, detail} of the rows that are not inserted
    v_agents jsonb;
    v_agent  agent;
    v_row    record;
    v_answer record;
    v_reason text;
begin
    perform enter(v_tenant);
    if json_typeof(jobs) is distinct from 'array' then
        raise exception 'enqueue_many takes a JSON array of jobs' using errcode = 'ZH010';
    end if;
    if not enqueue_many.plain then
        if position('"agent"' in jobs::text) > 0 then   -- much faster than parsing all of them
            v_agents := agents_of(jobs, v_tenant);
        end if;
        jobs := complete(jobs, v_tenant, v_agents, v_now);
        perform lock_keys(jobs, v_tenant);
        if v_agents is not null and not exists (
               select from json_array_elements(jobs) j, jsonb_populate_record(null::agent, v_agents -> (j ->> 'agent')) a
                where agent_refusal(a, j ->> 'kind', octet_length((j -> 'payload')::text)) is not null) then
            v_agents := null;   -- no agent refuses any
        end if;
        for v_row in
            select ord, j ->> 'kind' as kind, j ->> 'key' as key, j ->> 'content_key' as content, j ->> 'agent' as agent,
                   octet_length((j -> 'payload')::text) as bytes,
                   coalesce((j ->> 'content_waiting_only')::boolean, false) as waiting_only,
                   (j ->> 'id')::uuid as id, (j ->> 'parent_id')::uuid as parent_id,
                   coalesce(j ->> 'payload_hash', md5(coalesce(j -> 'payload', '{}')::jsonb::text)) as hash
              from json_array_elements(jobs) with ordinality as e(j, ord)
             where coalesce(j ->> 'key', j ->> 'content_key', j ->> 'parent_id') is not null or v_agents ? (j ->> 'agent')
             order by ord
        loop
            if v_row.parent_id is not null
               and not exists (select from job p where p.id = v_row.parent_id and p.tenant = v_tenant) then
                v_skip := v_skip || jsonb_build_object(v_row.ord::text, jsonb_build_object('reason', 'parent_not_found'));
                continue;
            end if;
            v_reason := null;
            if v_agents ? v_row.agent then
                v_agent := jsonb_populate_record(null::agent, v_agents -> v_row.agent);
                v_reason := agent_refusal(v_agent, v_row.kind, v_row.bytes);
            end if;
            -- An existing job is returned even if the new one would be refused.
            select * into v_answer from existing_job(v_tenant, v_row.id, v_row.kind, v_row.key, v_row.content,
                                                     v_row.waiting_only, v_row.hash, v_reason is not null);
            if v_answer.existing is not null then
                v_skip := v_skip || jsonb_build_object(v_row.ord::text,
                    jsonb_build_object('id', v_answer.existing, 'reason', v_answer.reason));
            elsif v_reason is not null then
                v_skip := v_skip || jsonb_build_object(v_row.ord::text, jsonb_build_object(
                    'reason', v_reason, 'detail', agent_message(v_agent, v_reason, v_row.kind, v_row.bytes)));
            end if;
        end loop;
    end if;

    insert into job (id, tenant, kind, queue, payload, priority, run_at, deadline_at, max_attempts,
                     max_crashes, backoff, idempotency_key, content_key, tags, agent, correlation_id,
                     causation_id, parent_id, workflow_id, external_ref, enqueued_by, source_system, created_at, uses,
                     retry_as, depth, executor)
    select j.id, v_tenant, j.kind, coalesce(j.queue, 'default'), coalesce(j.payload, '{}'), coalesce(j.priority, 0::smallint),
           coalesce(j.run_at, v_now + make_interval(secs => j.delay)),
           coalesce(j.deadline_at, v_now + make_interval(secs => j.deadline_in)),
           coalesce(j.max_attempts, 10::smallint), coalesce(j.max_crashes, 3::smallint), j.backoff,
           j.key, j.content_key, coalesce(j.tags, '{}'), j.agent, j.correlation_id, j.causation_id, j.parent_id,
           j.workflow_id, j.external_ref, coalesce(j.enqueued_by, v_actor), coalesce(j.source_system, 'sql'), v_now, j.uses,
           case when j.workflow_id is null then j.retry_as end, j.depth, j.executor
      from rows from (json_to_recordset(jobs) as (
               id uuid, kind text, queue text, payload json, priority smallint, run_at timestamptz,
               delay double precision, deadline_at timestamptz, deadline_in double precision, max_attempts smallint, max_crashes smallint,
               backoff jsonb, key text, content_key text, tags text[], agent text, correlation_id text,
               causation_id text, parent_id uuid, workflow_id uuid, external_ref text, enqueued_by text,
               source_system text, uses text[], retry_as text, depth smallint, executor text)) with ordinality as j
     where v_skip = '{}' or not v_skip ? j.ordinality::text;

    if not enqueue_many.plain then
        if position('_ref"' in jobs::text) > 0 then   -- URIs of their inputs and outputs
            insert into reference (job_id, tenant, source_ref, target_ref, payload_ref)
            select (j ->> 'id')::uuid, v_tenant, j ->> 'source_ref', j ->> 'target_ref', j ->> 'payload_ref'
              from json_array_elements(jobs) with ordinality as e(j, ord)
             where not v_skip ? ord::text and coalesce(j ->> 'source_ref', j ->> 'target_ref', j ->> 'payload_ref') is not null;
        end if;
        return query
        select case when v_skip ? ord::text then (v_skip -> ord::text ->> 'id')::uuid else (j ->> 'id')::uuid end,
               case when v_skip ? ord::text
                    then (select s.state from job_state s where s.id = (v_skip -> ord::text ->> 'id')::uuid)
                    else 'queued' end::state,
               not v_skip ? ord::text,
               v_skip -> ord::text ->> 'reason',
               v_skip -> ord::text ->> 'detail'
          from json_array_elements(jobs) with ordinality as e(j, ord)
         order by ord;
    end if;
end $$;

-- Enqueue a batch of jobs that differ only in their payloads: the shared facts are sent and parsed once. As with `plain`, the
-- caller guarantees that they have no key, no content key and no parent. They may have an agent: the jobs that it refuses are
-- returned by their number in the batch.
create or replace function enqueue_alike(shared json, ids uuid[], payloads json, for_tenant text default null)
returns table (n integer, reason text, detail text)
language plpgsql security definer set search_path from current set plan_cache_mode = force_generic_plan as $$
declare
    v_now    timestamptz := clock_now();
    v_tenant text := coalesce(enqueue_alike.for_tenant, nullif(scope(), '*'), 'default');
    v_actor  text := actor();
    v_agent  agent;
    v_most   integer;   -- bytes
    v_reason text;
begin
    perform enter(v_tenant);
    if json_array_length(payloads) <> cardinality(ids) then
        raise exception 'enqueue_alike needs one payload per id' using errcode = 'ZH010';
    end if;
    if shared ->> 'agent' is not null then
        v_agent := agent_now(v_tenant, shared ->> 'agent');
        v_most := v_agent.max_payload_bytes;
        v_reason := agent_refusal(v_agent, shared ->> 'kind', null);
        if v_reason is not null then
            return query select g, v_reason, agent_message(v_agent, v_reason, shared ->> 'kind', null)
              from generate_series(1, cardinality(ids)) g;
            return;
        end if;
        if v_agent.id is not null then
            shared := complete(json_build_array(shared), v_tenant, jsonb_build_object(v_agent.id, v_agent), v_now) -> 0;
        end if;
    end if;
    insert into job (id, tenant, kind, queue, payload, priority, run_at, deadline_at, max_attempts, max_crashes,
                     backoff, tags, agent, correlation_id, causation_id, workflow_id, external_ref,
                     enqueued_by, source_system, created_at, uses, retry_as, executor)
    select i.id, v_tenant, j.kind, coalesce(j.queue, 'default'), i.payload, coalesce(j.priority, 0::smallint),
           coalesce(j.run_at, v_now + make_interval(secs => j.delay)),
           coalesce(j.deadline_at, v_now + make_interval(secs => j.deadline_in)),
           coalesce(j.max_attempts, 10::smallint), coalesce(j.max_crashes, 3::smallint), j.backoff,
           coalesce(j.tags, '{}'), j.agent, j.correlation_id, j.causation_id, j.workflow_id, j.external_ref,
           coalesce(j.enqueued_by, v_actor), coalesce(j.source_system, 'sql'), v_now, j.uses,
           case when j.workflow_id is null then j.retry_as end, j.executor
      from json_to_record(shared) as j (
               kind text, queue text, priority smallint, run_at timestamptz, delay double precision,
               deadline_at timestamptz, deadline_in double precision, max_attempts smallint, max_crashes smallint,
               backoff jsonb, tags text[],
               agent text, correlation_id text, causation_id text, workflow_id uuid, external_ref text,
               enqueued_by text, source_system text, uses text[], retry_as text, executor text),
           rows from (unnest(ids), json_array_elements(payloads)) as i(id, payload)
     where v_most is null or octet_length(i.payload::text) <= v_most;
    if v_most is not null then
        return query
        select i.n::integer, 'agent_payload_limit',
               agent_message(v_agent, 'agent_payload_limit', null, octet_length(i.payload::text))
          from json_array_elements(payloads) with ordinality as i(payload, n)
         where octet_length(i.payload::text) > v_most;
    end if;
end $$;

-- Enqueue one job that has only a kind, a queue, a priority and a payload, like most jobs that come one at a time: no JSON
-- document to parse, and no result. The trigger of `job` checks it and gives it its state, as for every other job.
create or replace function enqueue_one(id uuid, kind text, queue text, payload json, priority smallint, max_attempts smallint,
                                       max_crashes smallint, enqueued_by text, source_system text, for_tenant text) returns void
language plpgsql security definer set search_path from current as $$
#variable_conflict use_variable
declare v_tenant text := for_tenant;
begin
    if for_tenant <> '*' and for_tenant <> '' and pinned_tenant() is null
       and current_setting('session_replication_role') <> 'replica' then
        v_tenant := set_config('holdfast.tenant', for_tenant, true);   -- all that enter() does for one tenant
    else
        v_tenant := enter(coalesce(for_tenant, nullif(scope(), '*'), 'default'));
    end if;
    insert into job (id, tenant, kind, queue, payload, priority, max_attempts, max_crashes, enqueued_by, source_system, created_at)
    values (id, v_tenant, kind, queue, payload, priority, max_attempts, max_crashes, enqueued_by, source_system,
            (select coalesce(c.stopped, clock_timestamp() + c.shift) from clock c));   -- clock_now(), inlined
end $$;
