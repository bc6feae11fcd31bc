-- Retry as a new job. Attempts of these jobs have just ended as `failed` in this transaction and will be retried. Jobs whose
-- kind creates a new job for each retry get a successor and stay `failed`; returns which. `how` says what is still to be
-- counted: a 'retry', a 'loss' of a worker, or nothing. It is part of the transaction that ended the attempt, so it can be
-- neither lost nor repeated; a unique key ensures one successor per job.
create or replace function retry_as_new(p_jobs uuid[], p_how text[], p_delays double precision[], p_now timestamptz)
returns uuid[] language plpgsql set search_path from current as $$
declare
    v_old    uuid[];
    v_new    uuid[];
    v_how    text[];
    v_delays double precision[];
begin
    select array_agg(o.id), array_agg(uuid7()), array_agg(o.how), array_agg(o.delay)
      into v_old, v_new, v_how, v_delays
      from unnest(p_jobs, p_how, p_delays) as o(id, how, delay)
     where (select j.retry_as from job j where j.id = o.id) is not null;
    if v_old is null then
        return null;
    end if;
    update job_state s
       set retries = s.retries + case o.how when 'retry' then 1 else 0 end,
           crashes = s.crashes + case o.how when 'loss' then 1 else 0 end,
           note = jsonb_build_object('retried_as', o.new)
      from unnest(v_old, v_new, v_how) as o(old, new, how)
     where s.id = o.old;
    -- The trigger on `job` copies the counts.
    insert into job (id, tenant, kind, queue, payload, priority, run_at, deadline_at, max_attempts, max_crashes, backoff,
                     idempotency_key, content_key, tags, agent, correlation_id, causation_id, parent_id, workflow_id,
                     external_ref, enqueued_by, source_system, created_at, uses, retry_as, retry_of, depth, executor)
    select o.new, j.tenant, j.kind, s.queue, j.payload, s.priority,
           case when o.delay > 0 then p_now + make_interval(secs => o.delay) end, j.deadline_at, s.max_attempts, j.max_crashes,
           j.backoff, j.idempotency_key, j.content_key, j.tags, j.agent, j.correlation_id, j.causation_id, j.parent_id,
           j.workflow_id, j.external_ref, 'retry of ' || j.id, j.source_system, p_now, j.uses, j.retry_as, j.id, j.depth, j.executor
      from unnest(v_old, v_new, v_delays) as o(old, new, delay)
      join job j on j.id = o.old join job_state s on s.id = o.old;
    insert into reference (job_id, tenant, source_ref, target_ref, payload_ref)
    select o.new, r.tenant, r.source_ref, r.target_ref, r.payload_ref
      from unnest(v_old, v_new) as o(old, new) join reference r on r.job_id = o.old;
    -- Enqueueing with their idempotency key, or with the same content, now returns the successor.
    update idempotency i set job_id = o.new
      from unnest(v_old, v_new) as o(old, new) join job j on j.id = o.old
     where i.tenant = j.tenant and i.kind = j.kind and i.key = j.idempotency_key and i.job_id = o.old;
    update content c set job_id = o.new
      from unnest(v_old, v_new) as o(old, new) join job j on j.id = o.old
     where c.tenant = j.tenant and c.key = j.content_key and c.job_id = o.old;
    return v_old;
end $$;

-- A successor follows a failed job whose kind retries as a new job, and continues its counts. Checked for every insert into
-- `job`, hand-written ones included; called by its trigger.
create or replace function take_over(p_new uuid, p_tenant text, p_kind text, p_old uuid) returns void
language plpgsql set search_path from current as $$
begin
    if not exists (select from job j where j.id = p_old and j.tenant = p_tenant and j.kind = p_kind and j.retry_as = 'new_job')
       or not exists (select from job_state s where s.id = p_old and s.state = 'failed' and s.note ->> 'retried_as' = p_new::text) then
        raise exception 'job % cannot be a retry of %: that is not a failed job of the same kind and tenant with retry_as = new_job',
            p_new, p_old
            using errcode = 'ZH002';
    end if;
    update job_state n set retries = p.retries, crashes = p.crashes, max_attempts = p.max_attempts
      from job_state p where p.id = p_old and n.id = p_new;
end $$;

-- A job that has a successor never runs again. Called by record_transition.
create or replace function refuse_rerun(p_job uuid) returns void language plpgsql set search_path from current as $$
begin
    if exists (select from job j where j.retry_of = p_job) then
        raise exception 'job %: it was retried as a new job and cannot run again', p_job using errcode = 'ZH002';
    end if;
end $$;
