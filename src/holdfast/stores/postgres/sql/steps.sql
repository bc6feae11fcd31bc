-- Act under a lease and return the tenant of a job that it holds in this attempt; null if it no longer does. The state row of
-- the job is locked against a change of holder, but not rewritten.
create or replace function tenant_of_held(p_job uuid, p_lease uuid, p_attempt integer, p_tenant text) returns text
language plpgsql set search_path from current as $$
begin
    perform act_under(p_lease, p_tenant);
    return (select s.tenant from job_state s
             where s.id = p_job and s.lease is not distinct from p_lease
               and s.attempt = p_attempt and s.state is not distinct from 'in_progress'
               for share);
end $$;

-- Save progress under a name. Returns false if this lease no longer holds the attempt.
create or replace function save_checkpoint(job uuid, lease uuid, attempt integer, name text, value json,
                                           for_tenant text default null) returns boolean
language plpgsql security definer set search_path from current as $$
declare
    v_now    timestamptz := clock_now();
    v_tenant text := tenant_of_held(save_checkpoint.job, save_checkpoint.lease, save_checkpoint.attempt,
                                    save_checkpoint.for_tenant);
begin
    if v_tenant is null then
        return false;
    end if;
    insert into checkpoint as c (job_id, tenant, name, value, attempt, saved_at)
    values (save_checkpoint.job, v_tenant, save_checkpoint.name, save_checkpoint.value, save_checkpoint.attempt, v_now)
    on conflict (job_id, name) do update
       set value = excluded.value, attempt = excluded.attempt, saved_at = excluded.saved_at,
           saves = case when c.attempt = excluded.attempt then c.saves + 1 else 1 end;
    if save_checkpoint.value::text like '{"$holdfast":%' then
        delete from orphaned_file l where l.tenant = v_tenant and l.job_id = save_checkpoint.job
           and l.ref = save_checkpoint.value -> '$holdfast' ->> 'stored';
    end if;
    return true;
end $$;

-- Record that a file is about to be stored for a step or a checkpoint. It is on the list of files to delete until the step is
-- saved: if the worker dies in between, the file is deleted within a day.
create or replace function note_upload(job uuid, lease uuid, attempt integer, ref text, for_tenant text default null)
returns boolean language plpgsql security definer set search_path from current as $$
declare
    v_now    timestamptz := clock_now();
    v_tenant text := tenant_of_held(note_upload.job, note_upload.lease, note_upload.attempt, note_upload.for_tenant);
begin
    if v_tenant is null then
        return false;
    end if;
    insert into orphaned_file (tenant, ref, job_id, at, again_at)
    values (v_tenant, note_upload.ref, note_upload.job, v_now, v_now + interval '1 day')
    on conflict do nothing;
    return true;
end $$;

-- A file that a step or a checkpoint no longer refers to returns to that list: the step was saved again, forgotten or cleaned.
create or replace function orphan_part() returns trigger language plpgsql security definer set search_path from current as $$
begin
    insert into orphaned_file (tenant, ref, job_id, at, again_at)
    select old.tenant, o.ref, old.job_id, clock_now(), clock_now()
      from (select old.value -> '$holdfast' ->> 'stored') o(ref)
     where o.ref like 'artifact://%/' || old.job_id || '/%'
    on conflict do nothing;
    return null;
end $$;
create or replace trigger orphan_part after update or delete on checkpoint for each row
    when (old.value::text like '{"$holdfast":{%"stored":"artifact:%') execute function orphan_part();
create or replace trigger orphan_part after update or delete on step for each row
    when (old.value::text like '{"$holdfast":{%"stored":"artifact:%') execute function orphan_part();

-- Record a file that an attempt created. Accepted while this lease holds the job, and shortly after it has ended the attempt.
-- Returns false otherwise.
create or replace function add_artifact(job uuid, lease uuid, attempt integer, name text, ref text, meta jsonb default null,
                                        for_tenant text default null) returns boolean
language plpgsql security definer set search_path from current as $$
declare
    v_now    timestamptz := clock_now();
    v_tenant text;
begin
    perform act_under(add_artifact.lease, add_artifact.for_tenant);
    select s.tenant into v_tenant from job_state s
     where s.id = add_artifact.job and s.attempt = add_artifact.attempt
       and add_artifact.lease in (s.lease, s.settled_by)
       for share;
    if not found then
        return false;
    end if;
    insert into artifact as a (job_id, tenant, attempt, name, ref, meta, at)
    values (add_artifact.job, v_tenant, add_artifact.attempt, add_artifact.name, add_artifact.ref, add_artifact.meta, v_now);
    return true;
end $$;

-- Durable steps: the results of a handler's calls are stored, so that a later attempt does not repeat them.
--
-- A finished step is one row, written once (save_steps). A handler that sleeps, waits for an event or requests an approval
-- suspends its job: that is a settlement, and what the job waits for is written with it (suspend, called by settle_many). A
-- sent event finds the waits it fulfils by index, and a new wait searches for events sent before; a lock on the event's name
-- keeps the two from missing each other.

-- Save the results of durable calls. `entries`: [{"job", "attempt", "n", "name", "kind", "value", "error", "tries", "took"},
-- …]. Returns only exceptions: `stale` means that this lease no longer holds the attempt and nothing was written; `kept` means
-- that the step had already finished (its event did arrive), with the stored value.
create or replace function save_steps(lease uuid, entries json, for_tenant text default null)
returns table (job_id uuid, n integer, fate text, value json)
language plpgsql security definer set search_path from current set plan_cache_mode = force_generic_plan
    set enable_seqscan = off set jit = off as $$
declare v_now timestamptz := clock_now();
begin
    perform act_under(save_steps.lease, save_steps.for_tenant);
    return query
    with offered as materialized (
        select distinct on (e.job, e.attempt, e.n) e.*
          from json_to_recordset(save_steps.entries) as e(
                   job uuid, attempt integer, n integer, name text, kind text, value json, error json,
                   tries smallint, took double precision)
         order by e.job, e.attempt, e.n
    ), held as materialized (
        -- Locked against a change of holder, in the order in which every batch locks; not rewritten.
        select s.id, s.tenant, s.attempt from job_state s
         where s.id = any (array(select o.job from offered o)) and s.lease is not distinct from save_steps.lease
           and s.state is not distinct from 'in_progress'
         order by s.id for share
    ), saved as (
        insert into step as t (job_id, n, tenant, name, kind, value, error, tries, attempt, started_at, ended_at)
        select o.job, o.n, h.tenant, o.name, o.kind, o.value, o.error, coalesce(o.tries, 1::smallint), o.attempt,
               v_now - make_interval(secs => coalesce(o.took, 0)), v_now
          from offered o join held h on h.id = o.job and h.attempt = o.attempt
        on conflict (job_id, n) do update
           set value = excluded.value, error = excluded.error, tries = excluded.tries, attempt = excluded.attempt,
               ended_at = excluded.ended_at, name = excluded.name, kind = excluded.kind
         where t.ended_at is null
        returning t.job_id, t.n
    )
    -- The table of all steps is never joined, whatever the planner prefers: stored values are looked up one by one.
    select o.job, o.n, case when h.id is null then 'stale' else 'kept' end,
           case when h.id is not null then (select t.value from step t where t.job_id = o.job and t.n = o.n) end
      from offered o
      left join held h on h.id = o.job and h.attempt = o.attempt
     where not exists (select from saved d where d.job_id = o.job and d.n = o.n);
    if position('"stored":"artifact:' in save_steps.entries::text) > 0 then
        delete from orphaned_file l using json_to_recordset(save_steps.entries) as e(job uuid, n integer), step t
         where t.job_id = e.job and t.n = e.n and t.tenant = l.tenant and t.job_id = l.job_id
           and t.value -> '$holdfast' ->> 'stored' = l.ref;
    end if;
end $$;

-- The names that a wait matches on, sorted, as text: waits with the same names have the same shape.
create or replace function shape_of(wanted jsonb) returns text language sql immutable
return case when wanted is not null
       then (select coalesce(jsonb_agg(k order by k collate "C"), '[]')::text from jsonb_object_keys(wanted) k) end;

-- The part of an event that a wait matches on: those names with their values, null if missing. As canonical text: 7.0 is 7.
create or replace function projection(data jsonb, shape text) returns text language sql immutable
return case when shape is not null then
    (select coalesce(jsonb_object_agg(k, case jsonb_typeof(data -> k) when 'number' then to_jsonb(trim_scale((data ->> k)::numeric))
                                         else data -> k end), '{}')::text
       from jsonb_array_elements_text(shape::jsonb) k) end;

create or replace function event_document(e app_event) returns json language sql stable
return json_build_object('id', e.id, 'name', e.name, 'data', e.data, 'sent_by', e.sent_by,
    'sent_at', to_char(e.sent_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'));

-- The first event that fulfils a waiting step, if it has been sent.
create or replace function event_for(p_job uuid, p_n integer, p_since timestamptz) returns app_event
language plpgsql set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare v_event app_event;
begin
    select e.* into v_event from step t join app_event e
        on e.tenant = t.tenant and e.name = t.name and e.sent_at >= p_since
       and (e.job_id is null or e.job_id = t.job_id) and projection(e.data::jsonb, t.shape) = t.wanted
     where t.job_id = p_job and t.n = p_n
       -- An event that this job has already received does not count.
       and not exists (select from step u where u.job_id = p_job and u.kind = 'event' and u.value ->> 'id' = e.id::text)
     order by e.sent_at, e.id limit 1;
    return v_event;
end $$;

-- The oldest open transaction that has sent an event; null if there is none.
create or replace function oldest_sender() returns bigint language plpgsql set search_path from current as $$
begin
    return (select min(x::text::bigint) from pg_snapshot_xip(pg_current_snapshot()) x
             where (x::text::bigint & 4294967295) in (
                   select t.transactionid::text::bigint from pg_locks t join pg_locks r on r.virtualtransaction = t.virtualtransaction
                    where t.locktype = 'transactionid' and t.granted and t.mode = 'ExclusiveLock'
                      and r.locktype = 'relation' and r.relation = 'app_event'::regclass and r.mode = 'RowExclusiveLock'
                      and r.database = (select d.oid from pg_database d where d.datname = current_database())));
end $$;

-- A job that starts to wait for an event and a transaction that sends it do not see each other until both have committed.
-- Neither waits for the other: the sender's transaction may stay open for hours. Instead the wait is checked again after its
-- commit, and once more when all senders have ended that may have searched for waits before. Returns how many jobs continue.
create or replace function recheck_waits(p_scope text, p_now timestamptz, p_want integer) returns integer
language plpgsql set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
    v_wait   record;
    v_job    record;
    v_event  app_event;
    v_bound  bigint;
    v_oldest bigint;
    v_asked  boolean := false;
    v_count  integer := 0;
begin
    for v_wait in
        select w.* from unsure_wait w where w.check_at <= p_now and (p_scope = '*' or w.tenant = p_scope)
         order by w.check_at limit p_want for update skip locked
    loop
        if not v_asked then
            -- After the waits are read and before the events: later senders see the waits.
            v_bound := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
            v_oldest := oldest_sender();
            v_asked := true;
        end if;
        select s.id, s.queue, s.state = 'retry_waiting' and t.ended_at is null and t.wake_at = s.due_at as waits, t.name
          into v_job from job_state s left join step t on t.job_id = s.id and t.n = v_wait.n
         where s.id = v_wait.job_id for update of s skip locked;
        if not found and exists (select from job_state s where s.id = v_wait.job_id) then
            continue;   -- another transaction is writing to the job: checked again next time
        end if;
        if v_job.waits is true then
            v_event := event_for(v_wait.job_id, v_wait.n, v_wait.since);
            if v_event.id is not null then
                update step t set value = event_document(v_event), ended_at = p_now where t.job_id = v_wait.job_id and t.n = v_wait.n;
                update job_state s set state = 'queued', due_at = null, note = jsonb_build_object('event', v_job.name)
                 where s.id = v_wait.job_id;
                perform notify_listeners(v_job.queue);
                v_count := v_count + 1;
            elsif v_oldest < coalesce(v_wait.bound, v_bound) then
                update unsure_wait w
                   set bound = coalesce(v_wait.bound, v_bound),
                       check_at = p_now + case when v_wait.bound is null then interval '1 s' else interval '5 s' end
                 where w.job_id = v_wait.job_id and w.n = v_wait.n;
                continue;
            end if;
        end if;
        delete from unsure_wait w where w.job_id = v_wait.job_id and w.n = v_wait.n;
    end loop;
    return v_count;
end $$;

-- The attempts of these jobs have just ended in order to wait: record what for. `details`: {"steps": steps to be stored with
-- it, "pause": {"n", "name", "kind", "until" | "delay", "tries", "error", "wanted", "since", "approval"}}.
create or replace function suspend(jobs uuid[], tenants text[], details json[], p_now timestamptz) returns void
language plpgsql set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
    v_wait  record;
    v_event app_event;
begin
    insert into step as t (job_id, n, tenant, name, kind, value, error, tries, attempt, started_at, ended_at)
    select o.id, e.n, o.tenant, e.name, e.kind, e.value, e.error, coalesce(e.tries, 1::smallint),
           (select s.attempt from job_state s where s.id = o.id),
           p_now - make_interval(secs => coalesce(e.took, 0)), p_now
      from unnest(suspend.jobs, suspend.tenants, suspend.details) as o(id, tenant, detail)
     cross join lateral json_to_recordset(coalesce(o.detail -> 'steps', '[]')) as e(
               n integer, name text, kind text, value json, error json, tries smallint, took double precision)
    -- A step that was to be retried: its handler has caught the last failure and continued.
    on conflict (job_id, n) do update
       set value = excluded.value, error = excluded.error, tries = excluded.tries, attempt = excluded.attempt,
           ended_at = excluded.ended_at, name = excluded.name, kind = excluded.kind
     where t.ended_at is null;

    insert into step as t (job_id, n, tenant, name, kind, error, tries, attempt, started_at, wake_at, shape, wanted)
    select o.id, p.n, o.tenant, p.name, p.kind, p.error, coalesce(p.tries, 1::smallint), s.attempt, p_now, s.due_at,
           shape_of(p.wanted), projection(p.wanted, shape_of(p.wanted))
      from unnest(suspend.jobs, suspend.tenants, suspend.details) as o(id, tenant, detail)
     cross join lateral json_to_record(o.detail -> 'pause') as p(
               n integer, name text, kind text, error json, tries smallint, wanted jsonb)
      join job_state s on s.id = o.id
    on conflict (job_id, n) do update
       set error = excluded.error, tries = excluded.tries, attempt = excluded.attempt, wake_at = excluded.wake_at,
           shape = excluded.shape, wanted = excluded.wanted, name = excluded.name, kind = excluded.kind
     where t.ended_at is null;

    for v_wait in
        select t.job_id, t.n, t.tenant, t.name, t.shape, t.wanted, t.ended_at is not null as over, s.queue,
               j.created_at - make_interval(secs => coalesce((o.detail -> 'pause' ->> 'since')::float8, 0)) as since
          from unnest(suspend.jobs, suspend.details) as o(id, detail)
          join step t on t.job_id = o.id and t.n = (o.detail -> 'pause' ->> 'n')::integer
          join job_state s on s.id = o.id
          join job j on j.id = o.id
         where o.detail -> 'pause' ->> 'kind' = 'event'
    loop
        -- The event may have arrived after the handler read its stored steps: then the job does not sleep.
        if not v_wait.over then
            v_event := event_for(v_wait.job_id, v_wait.n, v_wait.since);
            if v_event.id is null then
                insert into unsure_wait (job_id, n, tenant, since, check_at)
                values (v_wait.job_id, v_wait.n, v_wait.tenant, v_wait.since, p_now)
                on conflict (job_id, n) do update set since = excluded.since, bound = null, check_at = excluded.check_at;
                continue;
            end if;
            update step t set value = event_document(v_event), ended_at = p_now where t.job_id = v_wait.job_id and t.n = v_wait.n;
        end if;
        update job_state s set state = 'queued', due_at = null, note = jsonb_build_object('event', v_wait.name)
         where s.id = v_wait.job_id;
        perform notify_listeners(v_wait.queue);
    end loop;

    if exists (select from unnest(suspend.details) d where d -> 'pause' -> 'approval' is not null) then
        perform approvals_on_suspend(suspend.jobs, suspend.tenants, suspend.details, p_now);
    end if;
end $$;

-- Send an application event: every job of the tenant that waits for an event of this name with these values continues, and
-- jobs that wait for it later find it. Sending it again with the same `key` or `event` id returns the existing event.
create or replace function send_event(name text, data json default '{}', key text default null, job uuid default null,
                                      actor text default null, for_tenant text default null, event uuid default null,
                                      cause uuid default null)
returns table (id uuid, created boolean, woke integer, refused boolean, reason text, detail text)
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
    v_now    timestamptz := clock_now();
    v_tenant text := coalesce(send_event.for_tenant, nullif(scope(), '*'), 'default');
    v_scope  text := enter(v_tenant, nullif(send_event.actor, ''));
    v_data   jsonb := send_event.data::jsonb;
    v_why    record;
    v_event  app_event;
    v_shape  text := '';
    v_wanted text;
    v_jobs   uuid[];
    v_places integer[];
    v_more   uuid[];
    v_more_places integer[];
    v_queues text[];
begin
    perform check_isolation();   -- an older snapshot misses jobs that have begun to wait (recheck_waits)
    if v_tenant = '*' then
        raise exception 'an event needs one tenant, not every tenant' using errcode = 'ZH010';
    end if;
    -- Webhook receivers trust the name: only the database may send events about jobs, schedules and webhooks.
    if starts_with(send_event.name, 'job.') or send_event.name in ('schedule.missed', 'webhook.disabled') then
        raise exception 'events named job.…, schedule.missed and webhook.disabled are reserved for Holdfast'
            using errcode = 'ZH010';
    end if;
    if too_deep(send_event.data::text) then
        raise exception 'the data of event % is nested more than 100 levels deep', send_event.name
            using errcode = 'ZH091', hint = 'Flatten it, or store it elsewhere and send a reference.';
    end if;
    select * into v_why from registry_on_event(v_tenant, send_event.name, v_data, v_now);
    if v_why.reason is null and send_event.job is not null
       and not exists (select from job_state s where s.id = send_event.job and s.tenant = v_tenant) then
        select 'not_found', format('no job %s in tenant %s', send_event.job, v_tenant) into v_why.reason, v_why.detail;
    end if;
    if v_why.reason is not null
       and not exists (select from app_event e where e.tenant = v_tenant
                          and (e.id = send_event.event or e.name = send_event.name and e.key = send_event.key)) then
        return query select null::uuid, false, 0, true, v_why.reason, v_why.detail;
        return;
    end if;
    insert into app_event as e (id, tenant, name, data, key, job_id, sent_by, sent_at, cause_id)
    values (coalesce(send_event.event, uuid7()), v_tenant, send_event.name, send_event.data, send_event.key, send_event.job, actor(), v_now,
            send_event.cause)
    on conflict do nothing
    returning e.* into v_event;
    if not found then
        -- Already sent with this key, or with this id by a call whose response was lost.
        return query select e.id, e.id is not distinct from send_event.event, 0, false, null::text, null::text from app_event e
         where e.tenant = v_tenant
           and (e.id = send_event.event or e.name = send_event.name and e.key = send_event.key);
        return;
    end if;
    -- Skips from shape to shape along the index: there are few shapes, however many jobs wait.
    loop
        select t.shape into v_shape from step t
         where t.tenant = v_tenant and t.name = send_event.name and t.kind = 'event' and t.ended_at is null
           and t.shape > v_shape
         order by t.shape limit 1;
        exit when not found;
        v_wanted := projection(v_data, v_shape);
        select array_agg(t.job_id), array_agg(t.n) into v_more, v_more_places from step t
         where t.tenant = v_tenant and t.name = send_event.name and t.kind = 'event' and t.ended_at is null
           and t.shape = v_shape and t.wanted = v_wanted and (send_event.job is null or t.job_id = send_event.job);
        v_jobs := v_jobs || v_more;
        v_places := v_places || v_more_places;
    end loop;
    woke := 0;
    if v_jobs is not null then
        perform from job_state s where s.id = any (v_jobs) order by s.id for update;
        -- The wait of a job that has ended meanwhile is closed too: it is not read again.
        update step t set value = event_document(v_event), ended_at = v_now
          from unnest(v_jobs, v_places) as o(job, n)
         where t.job_id = o.job and t.n = o.n and t.ended_at is null;
        -- Jobs that sleep until the event; the others are already running and will find it.
        with woken as (
            update job_state s set state = 'queued', due_at = null, note = jsonb_build_object('event', send_event.name)
             where s.id = any (v_jobs) and s.state = 'retry_waiting'
               and exists (select from step t where t.job_id = s.id and t.kind = 'event' and t.ended_at = v_now
                              and t.wake_at = s.due_at)
            returning s.queue
        )
        select count(*), array_agg(distinct queue) into woke, v_queues from woken;
        perform notify_listeners(q) from unnest(v_queues) q;
    end if;
    id := v_event.id;
    created := true;
    refused := false;
    return next;
end $$;

-- Delete the stored steps of a dead letter from position `to_place` on, so that its handler repeats them when it is redriven.
-- Returns how many were deleted; null if there is no such dead letter.
create or replace function rewind(job uuid, to_place integer, actor text default null, for_tenant text default null)
returns integer language plpgsql security definer set search_path from current as $$
declare
    v_scope text := enter(rewind.for_tenant, nullif(rewind.actor, ''));
    v_count integer;
begin
    perform from job_state s where s.id = rewind.job and (v_scope = '*' or s.tenant = v_scope)
        and s.state = 'dead_letter' for update;
    if not found then
        return null;
    end if;
    delete from step t where t.job_id = rewind.job and t.n >= rewind.to_place;
    get diagnostics v_count = row_count;
    return v_count;
end $$;

-- --- steps and events ---

create or replace function guard_step() returns trigger language plpgsql set search_path from current as $$
begin
    if tg_op = 'INSERT' then
        raise exception 'job %: only the decision of its approval can finish this step', new.job_id using errcode = 'ZH002';
    elsif old.ended_at is not null and sealed_alike(old.value, new.value) and to_jsonb(old) - 'value' = to_jsonb(new) - 'value' then
        return new;   -- the same result, re-encrypted (features/payloads/postgres.sql)
    elsif old.ended_at is not null or (old.job_id, old.n, old.tenant, old.name, old.kind) <> (new.job_id, new.n, new.tenant, new.name, new.kind) then
        raise exception 'job %: step % has finished and cannot be written again', old.job_id, old.n using errcode = 'ZH002';
    elsif not exists (select from approval g where g.job_id = old.job_id and g.n = old.n and g.tenant = old.tenant
                         and g.id::text = new.value ->> 'approval_id' and g.state = new.value ->> 'state'
                         and g.content_hash = new.value ->> 'content_hash' and g.decided_at = new.ended_at) then
        raise exception 'job %: only the decision of its approval can finish this step', old.job_id using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger guard_insert before insert on step for each row
    when (new.kind = 'approval' and new.ended_at is not null) execute function guard_step();
create or replace trigger guard_update before update on step for each row
    when (old.ended_at is not null or old.kind = 'approval' and new.ended_at is not null
          or old.job_id <> new.job_id or old.n <> new.n or old.tenant <> new.tenant or old.name <> new.name or old.kind <> new.kind)
    execute function guard_step();

-- --- deletion ---
