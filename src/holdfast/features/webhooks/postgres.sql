-- What may not be done to endpoints and to the log of their deliveries, whoever asks; and what is told when one is disabled,
-- or when times of a schedule were missed: events of the application, since the ledger is about jobs.

create or replace function refuse_endpoint_change() returns trigger language plpgsql as $$
begin
    raise exception 'endpoint %: what it is called and whose it is never changes', old.name using errcode = 'ZH002';
end $$;
create or replace trigger refuse_rename before update on endpoint for each row
    when (old.id <> new.id or old.tenant <> new.tenant or old.name <> new.name or old.created_at <> new.created_at)
    execute function refuse_endpoint_change();
create or replace trigger refuse_truncate before truncate on endpoint for each statement execute function refuse_change();

create or replace function tell_disabled() returns trigger language plpgsql set search_path from current as $$
begin
    insert into app_event (id, tenant, name, data, sent_by, sent_at)
    values (uuid7(), new.tenant, 'endpoint.disabled',
            json_build_object('endpoint', new.name, 'reason', new.disabled_reason, 'by', new.disabled_by),
            new.disabled_by, new.disabled_at);
    return null;
end $$;
create or replace trigger tell_disabled after update of disabled_at on endpoint for each row
    when (old.disabled_at is null and new.disabled_at is not null) execute function tell_disabled();

-- The log goes with its endpoint.
create or replace function on_endpoint_removed() returns trigger language plpgsql set search_path from current as $$
begin
    delete from endpoint_delivery d where d.endpoint_id = old.id;
    return null;
end $$;
create or replace trigger on_delete after delete on endpoint for each row execute function on_endpoint_removed();

create or replace trigger refuse_update before update on endpoint_delivery for each statement execute function refuse_change();
create or replace trigger refuse_truncate before truncate on endpoint_delivery for each statement execute function refuse_change();

create or replace function judge_endpoint_delivery() returns trigger language plpgsql set search_path from current as $$
begin
    if not exists (select from endpoint e where e.id = new.endpoint_id and e.tenant = new.tenant) then
        raise exception 'something was delivered to endpoint %, which is not there', new.endpoint_id using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger judge_insert before insert on endpoint_delivery for each row execute function judge_endpoint_delivery();

create or replace function tell_missed() returns trigger language plpgsql set search_path from current as $$
begin
    insert into app_event (id, tenant, name, data, sent_by, sent_at)
    select uuid7(), new.tenant, 'schedule.missed',
           json_build_object('schedule', s.name, 'schedule_id', s.id, 'kind', s.kind, 'count', new.count,
               'first', to_char(coalesce(new.since_at, new.due_at) at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
               'last', to_char(new.due_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')),
           new.actor, new.at
      from schedule s where s.id = new.schedule_id;
    return null;
end $$;
create or replace trigger tell_missed after insert on fire for each row when (new.status = 'missed') execute function tell_missed();

-- Endpoints (JF-9, SC-15). Their subscriptions are saved by the caller, in the same transaction
-- (features/webhooks/operations.py); that they rest while an endpoint is disabled, and go with it, is seen to here.

create or replace function add_endpoint(id uuid, name text, url text, secrets text[], wants text[], kind text default null,
                                        job_options json default '{}', actor text default null, for_tenant text default null)
returns boolean
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(add_endpoint.for_tenant, nullif(add_endpoint.actor, ''));
begin
    insert into endpoint (id, tenant, name, url, secrets, wants, kind, job_options, created_by, created_at, updated_at)
    values (add_endpoint.id, v_scope, add_endpoint.name, add_endpoint.url, add_endpoint.secrets, add_endpoint.wants,
            add_endpoint.kind, add_endpoint.job_options, actor(), v_now, v_now)
    on conflict (tenant, name) do nothing;
    return found;
end $$;

create or replace function change_endpoint(name text, url text, secrets text[], wants text[], kind text default null,
                                           job_options json default '{}', actor text default null, for_tenant text default null)
returns boolean
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_scope text := enter(change_endpoint.for_tenant, nullif(change_endpoint.actor, ''));
begin
    update endpoint e
       set url = change_endpoint.url, secrets = change_endpoint.secrets, wants = change_endpoint.wants,
           kind = change_endpoint.kind, job_options = change_endpoint.job_options, updated_at = clock_now()
     where e.tenant = v_scope and e.name = change_endpoint.name;
    return found;
end $$;

-- Nothing more is made for it; what is made already finds it disabled. Who was first stands.
create or replace function disable_endpoint(name text, reason text, actor text default null, for_tenant text default null)
returns boolean
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(disable_endpoint.for_tenant, nullif(disable_endpoint.actor, ''));
begin
    perform pause_subscription(n, disable_endpoint.reason, null, v_scope) from endpoint_subscriptions(disable_endpoint.name) n;
    update endpoint e
       set disabled_at = coalesce(e.disabled_at, v_now), disabled_by = coalesce(e.disabled_by, actor()),
           disabled_reason = case when e.disabled_at is null then disable_endpoint.reason else e.disabled_reason end,
           updated_at = v_now
     where e.tenant = v_scope and e.name = disable_endpoint.name;
    return found;
end $$;

create or replace function enable_endpoint(name text, skip boolean default false, actor text default null, for_tenant text default null)
returns boolean
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_scope text := enter(enable_endpoint.for_tenant, nullif(enable_endpoint.actor, ''));
begin
    perform resume_subscription(n, enable_endpoint.skip, v_scope) from endpoint_subscriptions(enable_endpoint.name) n;
    update endpoint e set disabled_at = null, disabled_by = null, disabled_reason = null, updated_at = clock_now()
     where e.tenant = v_scope and e.name = enable_endpoint.name;
    return found;
end $$;

create or replace function remove_endpoint(name text, actor text default null, for_tenant text default null) returns boolean
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_scope text := enter(remove_endpoint.for_tenant, nullif(remove_endpoint.actor, ''));
begin
    perform delete_subscription(n, v_scope) from endpoint_subscriptions(remove_endpoint.name) n;
    delete from endpoint e where e.tenant = v_scope and e.name = remove_endpoint.name;
    return found;
end $$;

create or replace function endpoint_subscriptions(p_name text) returns setof text language sql immutable
as $$ select unnest(array['endpoint:' || p_name, 'endpoint:' || p_name || ':told']) $$;

-- What became of an attempt. The oldest go: those behind the newest so many, and of the oldest few those past their time.
create or replace function note_endpoint_delivery(id uuid, endpoint uuid, message text, type text, job uuid, attempt integer,
    status integer, error_code text, duration_ms integer, excerpt text, kept integer default 1000, kept_for interval default '30 days',
    for_tenant text default null)
returns boolean
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(note_endpoint_delivery.for_tenant);
begin
    insert into endpoint_delivery (id, tenant, endpoint_id, message, type, job_id, attempt, status, error_code, duration_ms, excerpt, at)
    select note_endpoint_delivery.id, e.tenant, e.id, note_endpoint_delivery.message, note_endpoint_delivery.type,
           note_endpoint_delivery.job, note_endpoint_delivery.attempt, note_endpoint_delivery.status,
           note_endpoint_delivery.error_code, note_endpoint_delivery.duration_ms, note_endpoint_delivery.excerpt, v_now
      from endpoint e where e.id = note_endpoint_delivery.endpoint and e.tenant = v_scope;
    if not found then
        return false;
    end if;
    delete from endpoint_delivery d where d.endpoint_id = note_endpoint_delivery.endpoint and d.id <= (
        select o.id from endpoint_delivery o where o.endpoint_id = note_endpoint_delivery.endpoint
         order by o.id desc offset note_endpoint_delivery.kept limit 1);
    delete from endpoint_delivery d where d.at < v_now - note_endpoint_delivery.kept_for and d.id = any (array(
        select o.id from endpoint_delivery o where o.endpoint_id = note_endpoint_delivery.endpoint order by o.id limit 100));
    return true;
end $$;
