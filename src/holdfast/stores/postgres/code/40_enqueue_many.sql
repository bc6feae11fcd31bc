-- Enqueue a batch, in the order given. One row out for each row in: the id of the job that stands for it,
-- whether it is new, and the reason when it is not. Rows without keys, which is nearly all of them, go
-- straight to the insert; the others are settled one by one before it.

-- What a key says of one job about to be enqueued: the job that already stands for it, or null to go on.
create or replace function standing_job(
    p_tenant text, p_id uuid, p_kind text, p_key text, p_content text, p_waiting_only boolean, p_hash text,
    out standing uuid, out reason text)
language plpgsql set search_path from current as $$
declare
    v_hash text;
begin
    if p_key is not null then
        insert into idempotency as i (tenant, kind, key, job_id, payload_hash)
        values (p_tenant, p_kind, p_key, p_id, p_hash) on conflict do nothing;
        if not found then
            -- A statement of its own: it must see what the transaction we waited for has committed.
            select i.job_id, i.payload_hash into standing, v_hash
              from idempotency i where i.tenant = p_tenant and i.kind = p_kind and i.key = p_key;
            reason := case when v_hash = p_hash then 'duplicate_key' else 'idempotency_conflict' end;
            return;
        end if;
    end if;
    if p_content is not null then
        insert into content as c (tenant, key, job_id) values (p_tenant, p_content, p_id) on conflict do nothing;
        if not found then
            select c.job_id into standing from content c
             where c.tenant = p_tenant and c.key = p_content for update;
            -- No state row yet: it is further up in this very batch.
            if exists (select from job_state s where s.id = standing
                        and not (s.state in ('queued', 'leased', 'in_progress', 'retry_waiting', 'waiting_for_approval')
                                 and (not p_waiting_only or (s.state = 'queued' and s.attempt = 0)))) then
                update content c set job_id = p_id where c.tenant = p_tenant and c.key = p_content;
                standing := null;
            else
                reason := 'duplicate_content';
                update idempotency i set job_id = standing
                 where i.tenant = p_tenant and i.kind = p_kind and i.key = p_key;
            end if;
        end if;
    end if;
end $$;

create or replace function enqueue_many(jobs jsonb, for_tenant text default null, actor text default null)
returns table (id uuid, state state, created boolean, reason text)
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_now    timestamptz := clock_now();
    v_tenant text := coalesce(enqueue_many.for_tenant, nullif(scope(), '*'), 'default');
    v_actor  text := coalesce(nullif(enqueue_many.actor, ''), actor());
    v_skip   jsonb := '{}';   -- ordinal -> {id, reason} of the rows that are not to be inserted
    v_row    record;
    v_parent record;
    v_answer record;
begin
    perform enter(v_tenant);
    if jsonb_typeof(jobs) is distinct from 'array' then
        raise exception 'enqueue_many takes a JSON array of jobs' using errcode = 'ZH010';
    end if;
    -- Ids and inheritance first (rarely needed), since the keys below point at ids.
    if exists (select from jsonb_array_elements(jobs) j where not j ? 'id' or j ? 'parent_id') then
        select coalesce(jsonb_agg(jsonb_build_object('id', coalesce(j ->> 'id', uuid7()::text))
                                  || jsonb_strip_nulls(jsonb_build_object(
                                         'correlation_id', coalesce(p.correlation_id, p.id::text),
                                         'workflow_id', p.workflow_id))
                                  || j order by ord), '[]') into jobs
          from jsonb_array_elements(jobs) with ordinality as e(j, ord)
          left join job p on p.id = (j ->> 'parent_id')::uuid and p.tenant = v_tenant;
    end if;
    for v_row in
        select ord, j ->> 'kind' as kind, j ->> 'key' as key, j ->> 'content_key' as content,
               coalesce((j ->> 'content_waiting_only')::boolean, false) as waiting_only,
               (j ->> 'id')::uuid as id, (j ->> 'parent_id')::uuid as parent_id,
               md5(coalesce(j -> 'payload', '{}')::text) as hash
          from jsonb_array_elements(jobs) with ordinality as e(j, ord)
         where j ? 'key' or j ? 'content_key' or j ? 'parent_id'
         order by j ->> 'kind', j ->> 'key', j ->> 'content_key', ord   -- one order for everybody: no deadlock
    loop
        if v_row.parent_id is not null
           and not exists (select from job p where p.id = v_row.parent_id and p.tenant = v_tenant) then
            v_skip := v_skip || jsonb_build_object(v_row.ord::text, jsonb_build_object('reason', 'parent_not_found'));
            continue;
        end if;
        select * into v_answer from standing_job(
            v_tenant, v_row.id, v_row.kind, v_row.key, v_row.content, v_row.waiting_only, v_row.hash);
        if v_answer.standing is not null then
            v_skip := v_skip || jsonb_build_object(v_row.ord::text,
                jsonb_build_object('id', v_answer.standing, 'reason', v_answer.reason));
        end if;
    end loop;

    insert into job (id, tenant, kind, queue, payload, priority, process_after, deadline_at, max_retries,
                     max_crashes, backoff, idempotency_key, content_key, tags, agent, correlation_id,
                     causation_id, parent_id, workflow_id, external_ref, enqueued_by, source_system, created_at)
    select j.id, v_tenant, j.kind, coalesce(j.queue, 'default'), coalesce(j.payload, '{}'), coalesce(j.priority, 0::smallint),
           coalesce(j.process_after, v_now + make_interval(secs => j.delay)), j.deadline_at,
           coalesce(j.max_retries, 4::smallint), coalesce(j.max_crashes, 3::smallint), j.backoff,
           j.key, j.content_key, coalesce(j.tags, '{}'), j.agent, j.correlation_id, j.causation_id, j.parent_id,
           j.workflow_id, j.external_ref, coalesce(j.enqueued_by, v_actor), coalesce(j.source_system, 'sql'), v_now
      from rows from (jsonb_to_recordset(jobs) as (
               id uuid, kind text, queue text, payload jsonb, priority smallint, process_after timestamptz,
               delay double precision, deadline_at timestamptz, max_retries smallint, max_crashes smallint,
               backoff jsonb, key text, content_key text, tags text[], agent text, correlation_id text,
               causation_id text, parent_id uuid, workflow_id uuid, external_ref text, enqueued_by text,
               source_system text)) with ordinality as j
     where v_skip = '{}' or not v_skip ? j.ordinality::text;

    if v_skip = '{}' then
        return query select (j ->> 'id')::uuid, 'queued'::state, true, null::text from jsonb_array_elements(jobs) j;
    else
        return query
        select coalesce((v_skip -> ord::text ->> 'id')::uuid, case when not v_skip ? ord::text then (j ->> 'id')::uuid end),
               case when v_skip ? ord::text then s.state else 'queued' end,
               not v_skip ? ord::text,
               v_skip -> ord::text ->> 'reason'
          from jsonb_array_elements(jobs) with ordinality as e(j, ord)
          left join job_state s on s.id = (v_skip -> ord::text ->> 'id')::uuid
         order by ord;
    end if;
end $$;
