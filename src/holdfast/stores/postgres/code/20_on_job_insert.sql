-- A job's facts have been written: give each its state and the first row of its ledger.
create or replace function on_job_insert() returns trigger language plpgsql set search_path from current as $$
declare
    v_now timestamptz := clock_now();
    v_xid bigint := pg_current_xact_id()::text::bigint;
    v_tagged boolean;
    v_queues text[];
begin
    insert into job_state (id, tenant, kind, queue, state, priority, position,
                           max_retries, max_crashes, due_at, deadline_at)
    select id, tenant, kind, queue, 'queued', priority, nextval('position_seq') * 100,
           max_retries, max_crashes, case when process_after > v_now then process_after end, deadline_at
      from added;
    insert into event (xid, job_id, tenant, kind, verb, from_state, to_state, attempt, at, actor)
    select v_xid, id, tenant, kind, 'enqueue', null, 'queued', 0, v_now, enqueued_by
      from added;
    select bool_or(a.tags <> '{}'),
           array_agg(distinct a.queue) filter (where a.process_after is null or a.process_after <= v_now)
      into v_tagged, v_queues from added a;
    if v_tagged then
        insert into job_tag (tenant, tag, job_id)
        select distinct a.tenant, t.tag, a.id from added a, unnest(a.tags) as t(tag);
    end if;
    if v_queues is not null then
        perform rouse(q) from unnest(v_queues) q;
    end if;
    return null;
end $$;

create or replace trigger on_insert after insert on job
    referencing new table as added
    for each statement execute function on_job_insert();
