-- Rules that every writer of templates, schedules and fired times has to obey.

create or replace trigger refuse_delete before delete on schedule for each statement execute function refuse_change();

-- Versions have no gaps, and the kind of a template never changes: another kind needs another template.
create or replace function guard_template() returns trigger language plpgsql set search_path from current as $$
begin
    if new.version <> coalesce((select max(t.version) from template t where t.tenant = new.tenant and t.name = new.name), 0) + 1 then
        raise exception 'template %: the next version must be one more than the newest', new.name using errcode = 'ZH002';
    end if;
    if exists (select from template t where t.tenant = new.tenant and t.name = new.name and t.kind <> new.kind) then
        raise exception 'template %: the kind cannot change; create another template', new.name using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger guard_insert before insert on template for each row execute function guard_template();

-- A program that writes a new version at each start must not fill the table: the newest 1,000 versions of a template are kept.
create or replace function guard_template_delete() returns trigger language plpgsql set search_path from current as $$
begin
    if old.version > (select max(t.version) from template t where t.tenant = old.tenant and t.name = old.name) - 1000 then
        raise exception 'template %: its newest 1,000 versions are never deleted', old.name using errcode = 'ZH002';
    end if;
    return old;
end $$;
create or replace trigger guard_delete before delete on template for each row execute function guard_template_delete();

create or replace function guard_schedule() returns trigger language plpgsql as $$
begin
    if (new.id, new.tenant, new.created_at, new.created_by) is distinct from (old.id, old.tenant, old.created_at, old.created_by)
       or old.state = 'deleted' then
        raise exception 'schedule %: its identity cannot change, and a deleted schedule cannot change at all', old.id
            using errcode = 'ZH002';
    end if;
    -- Times move forward unless the schedule was redefined: a time that has been fired is not fired again.
    if new.revision = old.revision and new.next_fire_at < old.next_fire_at or new.revision < old.revision then
        raise exception 'schedule %: its next time cannot move back', old.id using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger guard_update before update on schedule for each row execute function guard_schedule();

-- A time is decided once. A waiting time can become a job; a fired time is marked when its job has ended.
create or replace function guard_fire() returns trigger language plpgsql as $$
begin
    if to_jsonb(new) - '{status,job_id,error_code,error_message,at,ended}'::text[]
       <> to_jsonb(old) - '{status,job_id,error_code,error_message,at,ended}'::text[]
       or old.status <> 'waiting' and (new.status, new.job_id, new.at, new.error_code) is distinct from
                                      (old.status, old.job_id, old.at, old.error_code)
       or old.ended and not new.ended then
        raise exception 'schedule %: the result of time % cannot change', old.schedule_id, old.due_at using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger guard_update before update on fire for each row execute function guard_fire();

create or replace function guard_fire_insert() returns trigger language plpgsql set search_path from current as $$
begin
    if not exists (select from schedule s where s.id = new.schedule_id and s.tenant = new.tenant)
       or new.job_id is not null and not exists (select from job j where j.id = new.job_id and j.tenant = new.tenant) then
        raise exception 'fire: the schedule or the job does not exist in tenant %', new.tenant using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger guard_insert before insert on fire for each row execute function guard_fire_insert();

-- A job is made from one template version or schedule, of its own tenant; the row is deleted with the job.
create or replace function guard_made_from() returns trigger language plpgsql set search_path from current as $$
begin
    if not exists (select from job j where j.id = new.job_id and j.tenant = new.tenant)
       or new.template is not null and not exists (
              select from template t where t.tenant = new.tenant and t.name = new.template and t.version = new.template_version)
       or new.schedule_id is not null and not exists (
              select from schedule s where s.id = new.schedule_id and s.tenant = new.tenant) then
        raise exception 'made_from: job %, its template version or its schedule does not exist in its tenant', new.job_id
            using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger guard_insert before insert on made_from for each row execute function guard_made_from();

-- Templates and schedules. Python computes the times; this file applies a complete decision, and only if the schedule has not
-- changed since the decision. The schedule's row is locked meanwhile, its next time advances in the transaction that creates
-- the jobs, and (schedule, time) is a key: so a time is fired once, whichever worker fires it.

-- Add a version to a template, unless it equals the newest one. Returns the version, or why it was refused.
create or replace function put_template(name text, kind text, payload json, options jsonb, removed boolean default false,
                                        actor text default null, for_tenant text default null,
                                        out version integer, out reason text)
language plpgsql security definer set search_path from current as $$
declare
    v_scope text := enter(put_template.for_tenant, put_template.actor);
    v_last  template;
begin
    perform lock_mutex(mutex_of(5184, 64, concat_ws(chr(31), v_scope, put_template.name)));
    select t.* into v_last from template t where t.tenant = v_scope and t.name = put_template.name order by t.version desc limit 1;
    version := v_last.version;
    if put_template.removed and (v_last.version is null or v_last.removed) then
        reason := 'template_not_found';
        return;
    elsif put_template.removed then
        put_template.kind := v_last.kind;
        put_template.payload := v_last.payload;
        put_template.options := v_last.options;
    elsif v_last.kind <> put_template.kind then
        reason := 'template_kind';
        return;
    elsif not v_last.removed and v_last.payload::text = put_template.payload::text and v_last.options = put_template.options then
        return;
    end if;
    version := coalesce(v_last.version, 0) + 1;
    insert into template (tenant, name, version, kind, payload, options, removed, created_by, created_at)
    values (v_scope, put_template.name, version, put_template.kind, put_template.payload, put_template.options,
            put_template.removed, actor(), clock_now());
    delete from template t where t.tenant = v_scope and t.name = put_template.name and t.version <= put_template.version - 1000;
end $$;

-- Enqueue jobs made from a template version; each records its origin.
create or replace function enqueue_made(jobs json, template text, version integer, for_tenant text default null)
returns table (id uuid, state state, created boolean, reason text, detail text)
language plpgsql security definer set search_path from current as $$
declare
    v_tenant text := enter(coalesce(enqueue_made.for_tenant, nullif(scope(), '*'), 'default'));
    v_row    record;
begin
    for v_row in select * from enqueue_many(jobs, v_tenant) loop
        if v_row.created then
            insert into made_from (job_id, tenant, template, template_version)
            values (v_row.id, v_tenant, enqueue_made.template, enqueue_made.version);
        end if;
        id := v_row.id; state := v_row.state; created := v_row.created; reason := v_row.reason; detail := v_row.detail;
        return next;
    end loop;
end $$;

-- Create a schedule from the given columns. Returns false if the name is taken.
create or replace function add_schedule(definition json, actor text default null, for_tenant text default null) returns boolean
language plpgsql security definer set search_path from current as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(add_schedule.for_tenant, add_schedule.actor);
begin
    insert into schedule (id, tenant, name, state, timing, zone, kind, template, payload, options, missed, overlap, jitter,
                          declared_by, declared_hash, anchor_at, next_fire_at, attend_at, created_by, created_at,
                          updated_by, updated_at)
    select coalesce(d.id, uuid7()), v_scope, d.name, d.state, d.timing, d.zone, d.kind, d.template, d.payload, d.options,
           d.missed, d.overlap, d.jitter, d.declared_by, d.declared_hash, d.anchor_at, d.next_fire_at, d.attend_at,
           actor(), v_now, actor(), v_now
      from json_to_record(definition) as d (
               id uuid, name text, state text, timing text, zone text, kind text, template text, payload json, options jsonb,
               missed text, overlap text, jitter double precision, declared_by text, declared_hash text,
               anchor_at timestamptz, next_fire_at timestamptz, attend_at timestamptz)
    on conflict (tenant, name) where state <> 'deleted' do nothing;
    return found;
end $$;

-- Redefine, pause, resume or delete a schedule. `revision` is the one that the caller read. Returns false if the schedule has
-- changed since.
create or replace function change_schedule(schedule uuid, revision integer, definition json, actor text default null,
                                           for_tenant text default null) returns boolean
language plpgsql security definer set search_path from current as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(change_schedule.for_tenant, change_schedule.actor);
begin
    update schedule s
       set state = d.state, timing = d.timing, zone = d.zone, kind = d.kind, template = d.template, payload = d.payload,
           options = d.options, missed = d.missed, overlap = d.overlap, jitter = d.jitter, declared_by = d.declared_by,
           declared_hash = d.declared_hash, anchor_at = d.anchor_at, next_fire_at = d.next_fire_at, attend_at = d.attend_at,
           undeclared_at = case when d.declared_hash is not distinct from s.declared_hash then s.undeclared_at end,
           problem = null, revision = s.revision + 1, updated_by = actor(), updated_at = v_now
      from json_to_record(definition) as d (
               state text, timing text, zone text, kind text, template text, payload json, options jsonb,
               missed text, overlap text, jitter double precision, declared_by text, declared_hash text,
               anchor_at timestamptz, next_fire_at timestamptz, attend_at timestamptz)
     where s.id = change_schedule.schedule and (v_scope = '*' or s.tenant = v_scope)
       and s.revision = change_schedule.revision and s.state <> 'deleted';
    return found;
end $$;

-- Update which schedules a program declares in its code. Returns those that it no longer declares, once each.
create or replace function declare_schedules(declared_by text, names text[], for_tenant text default null)
returns table (name text) language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(declare_schedules.for_tenant, 'scheduler');
begin
    update schedule s set undeclared_at = null
     where s.tenant = v_scope and s.declared_by = declare_schedules.declared_by and s.state <> 'deleted'
       and s.name = any (names) and s.undeclared_at is not null;
    return query
    update schedule s set undeclared_at = clock_now()
     where s.tenant = v_scope and s.declared_by = declare_schedules.declared_by and s.state <> 'deleted'
       and not s.name = any (names) and s.undeclared_at is null
    returning s.name;
end $$;

-- Fired times whose jobs have ended are marked, so that only the unmarked ones have to be read to see whether one is running.
create or replace function still_running(p_schedule uuid) returns boolean
language plpgsql set search_path from current set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
begin
    update fire f set ended = true
     where f.schedule_id = p_schedule and f.status = 'fired' and not f.ended
       and not exists (select from job_state s where s.id = f.job_id
                        and s.state in ('queued', 'leased', 'in_progress', 'retry_waiting', 'waiting_for_approval'))
       -- A job that started a workflow has ended when the workflow has.
       and not exists (select from workflow w where w.parent_id = f.job_id and w.parent_id is not null and w.finished_at is null);
    return exists (select from fire f where f.schedule_id = p_schedule and f.status = 'fired' and not f.ended);
end $$;

-- Create the job of one time, and record the result. The job of a skipped time is in the ledger and cancelled at once.
create or replace function make_fire(p_schedule schedule, p_due timestamptz, p_manual boolean, p_job json, p_version integer,
                                     p_skip boolean, p_now timestamptz, out status text, out job uuid, out code text, out detail text)
language plpgsql set search_path from current as $$
declare
    v_actor  text := actor();
    v_answer record;
begin
    begin
        select e.* into v_answer from enqueue_many(json_build_array(p_job), p_schedule.tenant, v_actor) e;
    exception when sqlstate 'ZH057' or sqlstate 'ZH067' or sqlstate 'ZH068' or sqlstate 'ZH069' or sqlstate 'ZH072'
              or sqlstate 'ZH076' or sqlstate 'ZH077' or sqlstate 'ZH078' then
        -- The tenant is full, a name is not registered, or a policy requires more: recorded here, and other schedules continue.
        select null::uuid as id, false as created, refusal_reason(sqlstate) as reason, sqlerrm as detail into v_answer;
    end;
    if v_answer.id is null or not v_answer.created then
        status := 'failed';
        code := coalesce(v_answer.reason, 'refused');
        detail := v_answer.detail;
    else
        status := case when p_skip then 'skipped' else 'fired' end;
        job := v_answer.id;
        insert into made_from (job_id, tenant, template, template_version, schedule_id, schedule, due_at)
        values (job, p_schedule.tenant, case when p_version is not null then p_schedule.template end, p_version,
                p_schedule.id, p_schedule.name, p_due);
        if p_skip then
            update job_state s set state = 'cancelled', finished_at = p_now, due_at = null,
                   note = jsonb_build_object('reason', 'skipped', 'schedule', p_schedule.name)
             where s.id = job;
        end if;
    end if;
    insert into fire as f (schedule_id, due_at, manual, tenant, status, job_id, error_code, error_message, actor, at)
    values (p_schedule.id, p_due, p_manual, p_schedule.tenant, make_fire.status, job, code, detail, v_actor, p_now)
    on conflict (schedule_id, due_at, manual) do update
       set status = excluded.status, job_id = excluded.job_id, error_code = excluded.error_code,
           error_message = excluded.error_message, at = excluded.at
     where f.status = 'waiting';
end $$;

-- Apply decisions about due times. Returns one row per decision whose schedule had not changed since.
create or replace function fire_schedules(decisions json, for_tenant text default '*')
returns table (schedule uuid, fired integer) language plpgsql security definer set search_path from current as $$
declare
    v_now      timestamptz := clock_now();
    v_scope    text;
    v_decision record;
    v_schedule schedule;
    v_fire     record;
    v_made     record;
    v_running  boolean;
    v_waiting  integer;
    v_due      timestamptz;
begin
    for v_decision in
        select d.* from json_to_recordset(decisions) as d (
                   schedule uuid, revision integer, expected timestamptz, next_fire_at timestamptz, attend_at timestamptz,
                   problem text, firings json, spare json)
         order by d.schedule
    loop
        v_scope := enter(fire_schedules.for_tenant, 'scheduler');   -- again: creating a job switches to its tenant
        exit when halted();
        select s.* into v_schedule from schedule s
         where s.id = v_decision.schedule and (v_scope = '*' or s.tenant = v_scope) and s.state = 'active'
           and s.revision = v_decision.revision and s.next_fire_at is not distinct from v_decision.expected
           for update skip locked;
        continue when not found;
        fired := 0;
        v_running := still_running(v_schedule.id);
        select count(*) into v_waiting from fire f where f.schedule_id = v_schedule.id and f.status = 'waiting';
        if v_waiting > 0 and not v_running and v_decision.spare is not null then
            select min(f.due_at) into v_due from fire f where f.schedule_id = v_schedule.id and f.status = 'waiting';
            v_made := make_fire(v_schedule, v_due, false, v_decision.spare -> 'job',
                                (v_decision.spare ->> 'template_version')::integer, false, v_now);
            v_waiting := v_waiting - 1;
            v_running := v_made.status = 'fired';
            fired := fired + v_running::integer;
        end if;
        for v_fire in
            select f.* from json_to_recordset(v_decision.firings) as f (
                       due_at timestamptz, action text, job json, template_version integer, count integer,
                       since_at timestamptz, code text, message text)
             order by f.due_at
        loop
            if v_fire.action <> 'fire' then
                insert into fire (schedule_id, due_at, tenant, status, count, since_at, error_code, error_message, actor, at)
                values (v_schedule.id, v_fire.due_at, v_schedule.tenant, v_fire.action, v_fire.count, v_fire.since_at,
                        v_fire.code, v_fire.message, actor(), v_now)
                on conflict do nothing;
            elsif v_schedule.overlap = 'queue' and (v_running or v_waiting > 0) and v_waiting < 100 then
                insert into fire (schedule_id, due_at, tenant, status, actor, at)
                values (v_schedule.id, v_fire.due_at, v_schedule.tenant, 'waiting', actor(), v_now)
                on conflict do nothing;
                v_waiting := v_waiting + 1;
            -- The key decides: a time that has a row is done.
            elsif not exists (select from fire f where f.schedule_id = v_schedule.id and f.due_at = v_fire.due_at and not f.manual) then
                v_made := make_fire(v_schedule, v_fire.due_at, false, v_fire.job, v_fire.template_version,
                                    v_schedule.overlap <> 'allow' and (v_running or v_waiting > 0), v_now);
                v_running := v_running or v_made.status = 'fired';
                fired := fired + (v_made.status = 'fired')::integer;
            end if;
        end loop;
        update schedule s
           set next_fire_at = v_decision.next_fire_at,
               last_fire_at = coalesce((select max(f.due_at) from json_to_recordset(v_decision.firings) as f (due_at timestamptz, action text)
                                         where f.action <> 'missed'), s.last_fire_at),
               problem = v_decision.problem,
               state = case when v_decision.next_fire_at is null and v_waiting = 0 then 'ended' else 'active' end,
               attend_at = case when v_waiting > 0 then least(v_decision.attend_at, v_now + interval '1 second')
                                when v_decision.next_fire_at is not null then v_decision.attend_at end
         where s.id = v_schedule.id;
        schedule := v_schedule.id;
        return next;
    end loop;
end $$;

-- Run a schedule now, in addition to its times. With an overlap policy other than `allow` it is refused while one runs, unless
-- `anyway`.
create or replace function run_schedule(schedule uuid, job json, template_version integer default null, anyway boolean default false,
                                        actor text default null, for_tenant text default null, out id uuid, out reason text, out detail text)
language plpgsql security definer set search_path from current as $$
declare
    v_now      timestamptz := clock_now();
    v_scope    text := enter(run_schedule.for_tenant, run_schedule.actor);
    v_schedule schedule;
    v_made     record;
    v_due      timestamptz;
begin
    perform check_isolation();   -- two runs at once would both find that none is running
    select s.* into v_schedule from schedule s
     where s.id = run_schedule.schedule and (v_scope = '*' or s.tenant = v_scope) and s.state <> 'deleted' for update;
    if not found then
        reason := 'schedule_not_found';
    elsif v_schedule.overlap <> 'allow' and not run_schedule.anyway and still_running(v_schedule.id) then
        reason := 'schedule_running';
    else
        -- A time of its own, even if two calls come in the same instant.
        select greatest(v_now, max(f.due_at) + interval '1 microsecond') into v_due
          from fire f where f.schedule_id = v_schedule.id and f.manual;
        v_made := make_fire(v_schedule, v_due, true, run_schedule.job, run_schedule.template_version, false, v_now);
        id := v_made.job;
        reason := v_made.code;
        detail := v_made.detail;
    end if;
end $$;
