-- Groups of dead letters: which jobs are dead letters, with which error, and how many there are. The ledger's trigger
-- (transition.sql) maintains them for every way into and out of the state, hand-written updates included: it reads the rows of
-- every transition anyway and calls this function when one of them was failed or dead.

-- Groups are locked in the order of their fingerprints, so that two concurrent transactions do not deadlock.
create or replace function dead_letters_on_transition(p_buried uuid[], p_left uuid[], p_now timestamptz) returns void
language plpgsql set search_path from current
    set enable_nestloop = on set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare v_row record;
begin
    with gone as (
        delete from dead_letter l where l.job_id = any (p_left) returning l.tenant, l.fingerprint, l.job_id)
    , counted as (
        select g.tenant, g.fingerprint, count(*) as n, max(g.job_id::text)::uuid as job from gone g group by 1, 2)
    , locked as materialized (
        select o.tenant, o.fingerprint, c.n, c.job
          from counted c join dead_letter_group o on o.tenant = c.tenant and o.fingerprint = c.fingerprint
         order by 1, 2 for update of o)
    update dead_letter_group o set open = o.open - k.n, last_job = k.job
      from locked k where o.tenant = k.tenant and o.fingerprint = k.fingerprint;

    for v_row in
        select s.tenant, f.fingerprint, s.kind, count(*) as n, max(s.id::text)::uuid as job, array_agg(s.id) as jobs,
               array_agg(s.queue) as queues, min(f.frame) as frame
          from job_state s, lateral (
               select coalesce(s.note ->> 'fingerprint', fingerprint(s.kind, s.error_code, s.error_message)) as fingerprint,
                      s.note ->> 'frame' as frame) f
         where s.id = any (p_buried) group by 1, 2, 3 order by 1, 2
    loop
        insert into dead_letter_group as o (tenant, fingerprint, kind, error_code, error_message, frame, sample_job, first_at,
                                            last_at, times, open, last_job)
        select s.tenant, v_row.fingerprint, s.kind, s.error_code, s.error_message, v_row.frame, s.id, p_now, p_now,
               v_row.n, v_row.n, s.id
          from job_state s where s.id = v_row.job
        on conflict (tenant, fingerprint) do update
           set error_code = excluded.error_code, error_message = excluded.error_message, sample_job = excluded.sample_job,
               last_at = greatest(o.last_at, excluded.last_at), times = o.times + excluded.times, open = o.open + excluded.open,
               last_job = excluded.last_job;
        insert into dead_letter (job_id, tenant, fingerprint, kind, queue, dead_at)
        select j.id, v_row.tenant, v_row.fingerprint, v_row.kind, j.queue, p_now from unnest(v_row.jobs, v_row.queues) as j(id, queue);
    end loop;
end $$;

-- Transitions of jobs insert and delete the rows; people write only the note of a group.
create or replace trigger refuse_insert before insert on dead_letter for each statement execute function refuse_insert();
create or replace trigger refuse_insert before insert on dead_letter_group for each statement execute function refuse_insert();

create or replace function refuse_recount() returns trigger language plpgsql as $$
begin
    if pg_trigger_depth() < 2 then
        raise exception '% is maintained by triggers (% refused)', tg_table_name, lower(tg_op)
            using errcode = 'ZH002', hint = 'Redrive or discard the dead letters; only the note of a group can be written.';
    end if;
    return coalesce(new, old);
end $$;
create or replace trigger refuse_delete before delete on dead_letter for each row execute function refuse_recount();
-- Retention removes the error message of a sample job that it has purged.
create or replace function refuse_group_recount() returns trigger language plpgsql set search_path from current as $$
begin
    if new.error_message = '[purged]' and to_jsonb(new) - 'error_message' = to_jsonb(old) - 'error_message'
       and not exists (select from job_state s where s.id = old.sample_job) or pg_trigger_depth() > 1 then
        return new;
    end if;
    raise exception '% is maintained by triggers (% refused)', tg_table_name, lower(tg_op)
        using errcode = 'ZH002', hint = 'Redrive or discard the dead letters; only the note of a group can be written.';
end $$;
create or replace trigger refuse_recount before update on dead_letter_group for each row
    when (to_jsonb(new) - '{note,noted_by,noted_at}'::text[] <> to_jsonb(old) - '{note,noted_by,noted_at}'::text[])
    execute function refuse_group_recount();
-- A group without open dead letters may be deleted, as retention does.

-- Set the note on a group of dead letters; an empty note removes it. Returns false if there is no such group.
create or replace function note_dead_letters(fingerprint text, note text, actor text default null, for_tenant text default null)
returns boolean language plpgsql security definer set search_path from current as $$
declare
    v_scope text := enter(note_dead_letters.for_tenant, nullif(note_dead_letters.actor, ''));
    v_note  text := nullif(note_dead_letters.note, '');
begin
    update dead_letter_group g
       set note = v_note, noted_by = case when v_note is not null then actor() end,
           noted_at = case when v_note is not null then clock_now() end
     where g.tenant = v_scope and g.fingerprint = note_dead_letters.fingerprint;
    return found;
end $$;

-- Bulk operations: actions on many jobs, executed in small batches by any worker. The jobs of a batch and the progress of the
-- operation are written in one transaction, so a process that dies has done all of a batch or nothing. The worker on an
-- operation holds its row, so no two process the same batch. The caller finds the next jobs (stores/bulk.py). This file checks
-- again that they match the request, because a worker may do to jobs what only an administrator may request.

-- Start a bulk operation on the jobs that match `wanted` (JSON). Workers execute it in batches. Starting it again with the
-- same id does nothing. Redriven jobs do not start before `at`, or before the `delay` from now has passed.
create or replace function start_operation(id uuid, action text, wanted text, total bigint, capped boolean, reason text default null,
    max_attempts integer default null, rate double precision default null, actor text default null, for_tenant text default null,
    at timestamptz default null, delay interval default null) returns void
language plpgsql security definer set search_path from current as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(start_operation.for_tenant, nullif(start_operation.actor, ''));
begin
    perform check_span('delay', start_operation.delay);
    if out_of_time(coalesce(start_operation.at, v_now + start_operation.delay)) then
        perform refuse_time('the time');
    end if;
    insert into operation (id, tenant, action, wanted, reason, max_attempts, rate, total, capped, next_at, created_by, created_at,
                           updated_at, run_at)
    values (start_operation.id, v_scope, start_operation.action, (start_operation.wanted::json)::text, nullif(start_operation.reason, ''),
            start_operation.max_attempts, start_operation.rate, start_operation.total, start_operation.capped, v_now, actor(),
            v_now, v_now, coalesce(start_operation.at, v_now + start_operation.delay))
    on conflict (id) do nothing;
end $$;

-- When the next batch of an operation is due: now if the last one was in the future, because the clock was set back.
create or replace function batch_due(p_next timestamptz, p_last timestamptz, p_now timestamptz) returns timestamptz
language sql immutable
return case when p_last > p_now + interval '5 s' then least(p_next, p_now) else p_next end;

-- Return the number of seconds until the next batch of a bulk operation is due, or null. Every worker polls this; usually
-- there is none.
create or replace function next_operation(for_tenant text default null) returns double precision
language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(next_operation.for_tenant);
begin
    -- `greatest` ignores nulls: without the count, no operation would read as one that is due now.
    return (select case when count(*) > 0 then greatest(0, extract(epoch from min(batch_due(o.next_at, o.updated_at, clock_now())) - clock_now())) end from operation o
             where o.state = 'running' and (v_scope = '*' or o.tenant = v_scope) and not halted());
end $$;

-- Lock the next due operation, or a given one, until the end of the transaction.
create or replace function hold_operation(only_id uuid default null, for_tenant text default null) returns setof operation
language plpgsql security definer set search_path from current as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(hold_operation.for_tenant);
begin
    return query
    select o.* from operation o
     where o.state = 'running' and batch_due(o.next_at, o.updated_at, v_now) <= v_now and (v_scope = '*' or o.tenant = v_scope)
       and (hold_operation.only_id is null or o.id = hold_operation.only_id)
     order by o.next_at limit 1 for update skip locked;
end $$;

-- Ids sort by time, so a time range is an id range: the smallest id possible at a moment.
create or replace function first_id(moment timestamptz) returns uuid language sql immutable
return (lpad(to_hex(floor(extract(epoch from moment) * 1000)::bigint), 12, '0') || '70008000000000000000')::uuid;

-- Whether a job matches the request.
create or replace function is_wanted(p_job uuid, p_wanted json, p_tenant text) returns boolean
language plpgsql stable set search_path from current as $$
begin
    return exists (
        select from jobs j
         where j.id = p_job and (p_tenant = '*' or j.tenant = p_tenant)
           -- The columns whose filter has the same name, compared as text: ids and numbers have one form. Not the whole row, whose
           -- payload may be large.
           and not exists (select from json_each_text(p_wanted) w
                             join (values ('state', j.state::text), ('kind', j.kind), ('domain', j.domain), ('queue', j.queue),
                                          ('agent', j.agent), ('executor', j.executor), ('external_ref', j.external_ref),
                                          ('correlation_id', j.correlation_id), ('parent_id', j.parent_id::text),
                                          ('workflow_id', j.workflow_id::text), ('part', j.part), ('template', j.template),
                                          ('template_version', j.template_version::text), ('schedule', j.schedule)) c(key, value)
                               on c.key = w.key
                            where c.value is distinct from w.value)
           and (p_wanted ->> 'scheduled_for' is null or j.scheduled_for = (p_wanted ->> 'scheduled_for')::timestamptz)
           and (p_wanted ->> 'since' is null or j.id >= first_id((p_wanted ->> 'since')::timestamptz))
           and (p_wanted ->> 'until' is null or j.id < first_id((p_wanted ->> 'until')::timestamptz))
           and (p_wanted ->> 'key' is null
                or exists (select from idempotency i where i.tenant = j.tenant and i.key = p_wanted ->> 'key' and i.job_id = j.id))
           and (p_wanted ->> 'limit_key' is null or 'key:' || (p_wanted ->> 'limit_key') = any (j.uses))
           and (p_wanted ->> 'tag' is null
                or not exists (select from json_array_elements_text(p_wanted -> 'tag') t
                                where t not in (select tag_entries(j.tags, null))))
           and (p_wanted ->> 'any_tag' is null
                or exists (select from json_array_elements_text(p_wanted -> 'any_tag') t
                            where t in (select tag_entries(j.tags, null))))
           and (p_wanted ->> 'fingerprint' is null
                or exists (select from dead_letter l where l.job_id = j.id and l.fingerprint = p_wanted ->> 'fingerprint')));
end $$;

-- Execute a batch of a locked operation and advance its position. With `over` the operation ends. Returns how many jobs
-- changed.
create or replace function do_operation(operation uuid, jobs uuid[], last uuid, over boolean, for_tenant text default null)
returns integer language plpgsql security definer set search_path from current as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(do_operation.for_tenant);
    v_op    operation;
    v_jobs  uuid[];
    v_said  jsonb;
    v_done  integer := 0;
    v_no    integer;
    v_row   record;
begin
    select o.* into v_op from operation o
     where o.id = do_operation.operation and (v_scope = '*' or o.tenant = v_scope) for update;
    if v_op.id is null or v_op.state <> 'running' or batch_due(v_op.next_at, v_op.updated_at, v_now) > v_now or cardinality(do_operation.jobs) > 1000 then
        raise exception 'operation %: it is not running, no batch is due yet, or the batch is too large', do_operation.operation
            using errcode = 'ZH053';
    end if;
    perform from job_state s where s.id = any (do_operation.jobs) order by s.id for update;
    -- Each job is processed once: jobs up to the saved position are skipped. The filter is read only if there are jobs, so an
    -- operation whose filter cannot be parsed can still be ended.
    v_jobs := case when cardinality(do_operation.jobs) = 0 then '{}' else
        array(select j.id from unnest(do_operation.jobs) as j(id)
               where (v_op.place is null or j.id < v_op.place) and is_wanted(j.id, v_op.wanted::json, v_op.tenant)) end;
    v_no := cardinality(do_operation.jobs) - cardinality(v_jobs);
    v_said := case when v_no > 0 then jsonb_build_object('not_wanted', v_no) else '{}' end;   -- no longer matching
    for v_row in
        select a.reason, count(*) as n, array_agg(a.id) as jobs from operate(v_op.action, v_jobs, v_op.reason, v_op.created_by, v_op.tenant, v_op.max_attempts, v_op.id) a
         group by 1
    loop
        if v_row.reason is null then
            v_done := v_row.n;
            if v_op.run_at > v_now then
                perform from reschedule_many(v_row.jobs, v_op.run_at, null, null, v_op.reason, v_op.created_by, v_op.tenant);
            end if;
        else
            v_said := v_said || jsonb_build_object(v_row.reason, v_row.n);
        end if;
    end loop;
    v_no := cardinality(do_operation.jobs) - v_done;
    select v_op.refusals || coalesce(jsonb_object_agg(k.key, coalesce((v_op.refusals ->> k.key)::bigint, 0) + k.value::bigint), '{}')
      into v_said from jsonb_each_text(v_said) k;
    update operation o
       set done = o.done + v_done, refused = o.refused + v_no, refusals = v_said, place = coalesce(do_operation.last, o.place),
           next_at = v_now + make_interval(secs => coalesce(cardinality(do_operation.jobs) / o.rate, 0)), updated_at = v_now,
           state = case when do_operation.over then 'done' else 'running' end,
           finished_at = case when do_operation.over then v_now end
     where o.id = v_op.id;
    return v_done;
end $$;

-- Cancel a bulk operation; batches that were done stay done. Returns false if it does not exist or has ended.
create or replace function cancel_operation(id uuid, reason text default null, actor text default null, for_tenant text default null)
returns boolean language plpgsql security definer set search_path from current as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(cancel_operation.for_tenant, nullif(cancel_operation.actor, ''));
begin
    update operation o
       set state = 'cancelled', finished_at = v_now, updated_at = v_now, cancelled_by = actor(),
           cancelled_reason = nullif(cancel_operation.reason, '')
     where o.id = cancel_operation.id and o.state = 'running' and (v_scope = '*' or o.tenant = v_scope);
    return found;
end $$;

-- A request never changes, an ended operation never changes, and states only move forward.
create or replace function guard_operation() returns trigger language plpgsql as $$
begin
    if old.state <> 'running' then
        raise exception 'operation %: it has ended and cannot change', old.id using errcode = 'ZH002';
    end if;
    raise exception 'operation %: the request cannot change, and its counts only grow', old.id using errcode = 'ZH002';
end $$;
create or replace trigger guard_update before update on operation for each row
    when (old.state <> 'running' or old.id <> new.id or old.tenant <> new.tenant or old.action <> new.action
          or old.wanted <> new.wanted or old.reason is distinct from new.reason or old.rate is distinct from new.rate
          or old.max_attempts is distinct from new.max_attempts or old.run_at is distinct from new.run_at or old.total <> new.total or old.created_by <> new.created_by
          or old.created_at <> new.created_at or new.done < old.done or new.refused < old.refused
          or (old.place is not null and (new.place is null or new.place > old.place)))
    execute function guard_operation();
-- An operation that ended long ago may be deleted, as retention does.

-- Redrive a dead letter with another payload: a new job takes its place, and the old job is discarded and refers to it.
-- Calling it again returns the same job. `refusal` says why no job was created.
create or replace function redrive_as(job uuid, new_id uuid, payload json, reason text default null, actor text default null,
                                      for_tenant text default null) returns table (id uuid, created boolean, refusal text)
language plpgsql security definer set search_path from current as $$
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
    if v_job.workflow_id is not null then   -- other jobs wait for this very job
        refusal := 'in_workflow';
        return next;
        return;
    end if;
    select s.* into v_own from job_state s where s.id = redrive_as.job;
    perform operate('discard', array[redrive_as.job],
                    'redriven as ' || redrive_as.new_id || coalesce(': ' || nullif(redrive_as.reason, ''), ''), actor(), v_job.tenant);
    -- Copies every column except the new ones, including columns added later.
    v_job.id := redrive_as.new_id;
    v_job.payload := redrive_as.payload;
    v_job.queue := v_own.queue;
    v_job.priority := v_own.priority;
    v_job.max_attempts := v_own.max_attempts;
    v_job.run_at := null;
    v_job.retry_of := null;
    v_job.enqueued_by := actor();
    v_job.created_at := v_now;
    insert into job select (v_job).*;
    -- Enqueueing with its idempotency key, or with the same content, now returns the new job.
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

-- A replacement job refers to a dead letter of its own tenant and kind that was discarded for it.
create or replace function guard_redriven_as() returns trigger language plpgsql set search_path from current as $$
begin
    if not exists (select from job n join job o on o.id = new.job_id and o.tenant = n.tenant and o.kind = n.kind
                    join job_state s on s.id = o.id and s.state = 'cancelled'
                    where n.id = new.new_id and n.tenant = new.tenant and n.id <> o.id) then
        raise exception 'redriven_as: job % was not redriven as %', new.job_id, new.new_id using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger guard_insert before insert on redriven_as for each row execute function guard_redriven_as();
