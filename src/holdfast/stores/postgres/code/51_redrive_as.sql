-- Redrive a dead letter with another payload (DP-15): a new job in its place, and the old one is discarded and names it.
-- Asked again it answers the same job. `refusal` says why there is none.
create or replace function redrive_as(job uuid, new_id uuid, payload json, reason text default null, actor text default null,
                                      for_tenant text default null)
returns table (id uuid, created boolean, refusal text)
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(redrive_as.for_tenant, nullif(redrive_as.actor, ''));
    v_state state;
    v_job   job;
    v_own   job_state;
begin
    select s.state into v_state from job_state s
     where s.id = redrive_as.job and (v_scope = '*' or s.tenant = v_scope) for update;
    created := false;
    select r.new_id into id from redriven_as r where r.job_id = redrive_as.job and v_state is not null;
    refusal := case when id is not null then null when v_state is null then 'not_found'
                    when v_state <> 'dead_letter' then 'not_dead' end;
    if id is not null or refusal is not null then
        return next;
        return;
    end if;
    select j.* into v_job from job j where j.id = redrive_as.job;
    if v_job.workflow_id is not null then   -- others wait for that very job
        refusal := 'in_workflow';
        return next;
        return;
    end if;
    select s.* into v_own from job_state s where s.id = redrive_as.job;
    perform operate('discard', array[redrive_as.job],
                    'redriven as ' || redrive_as.new_id || coalesce(': ' || nullif(redrive_as.reason, ''), ''), actor(), v_job.tenant);
    -- All it was but what is new, whatever columns there come to be.
    v_job.id := redrive_as.new_id;
    v_job.payload := redrive_as.payload;
    v_job.queue := v_own.queue;
    v_job.priority := v_own.priority;
    v_job.max_retries := v_own.max_retries;
    v_job.process_after := null;
    v_job.retry_of := null;
    v_job.enqueued_by := actor();
    v_job.created_at := v_now;
    insert into job select (v_job).*;
    -- Whoever enqueues under its key, or the same again, comes to the job that stands for it now.
    update idempotency i set job_id = redrive_as.new_id
     where i.tenant = v_job.tenant and i.kind = v_job.kind and i.key = v_job.idempotency_key and i.job_id = redrive_as.job;
    update content c set job_id = redrive_as.new_id
     where c.tenant = v_job.tenant and c.key = v_job.content_key and c.job_id = redrive_as.job;
    insert into redriven_as (job_id, tenant, new_id, by, at)
    values (redrive_as.job, v_job.tenant, redrive_as.new_id, actor(), v_now);
    perform enter(redrive_as.for_tenant);
    id := redrive_as.new_id;
    created := true;
    return next;
end $$;

-- One that takes the place of another names a dead letter of its tenant and kind that was given up for it.
create or replace function judge_redriven_as() returns trigger language plpgsql set search_path from current as $$
begin
    if not exists (select from job n join job o on o.id = new.job_id and o.tenant = n.tenant and o.kind = n.kind
                    join job_state s on s.id = o.id and s.state = 'cancelled'
                    where n.id = new.new_id and n.tenant = new.tenant and n.id <> o.id) then
        raise exception 'job % was not redriven as %', new.job_id, new.new_id using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger judge_insert before insert on redriven_as for each row execute function judge_redriven_as();
create or replace trigger refuse_update before update on redriven_as for each statement execute function refuse_change();
create or replace trigger refuse_truncate before truncate on redriven_as for each statement execute function refuse_change();
