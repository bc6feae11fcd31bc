-- Rules that every writer of webhooks and their delivery log has to obey. Disabling a webhook, and missing the times of a
-- schedule, send application events, since the ledger is only about jobs.

create or replace function report_disabled() returns trigger language plpgsql set search_path from current as $$
begin
    insert into app_event (id, tenant, name, data, sent_by, sent_at)
    values (uuid7(), new.tenant, 'webhook.disabled',
            json_build_object('webhook', new.name, 'reason', new.disabled_reason, 'by', new.disabled_by),
            new.disabled_by, new.disabled_at);
    return null;
end $$;
create or replace trigger report_disabled after update of disabled_at on webhook for each row
    when (old.disabled_at is null and new.disabled_at is not null) execute function report_disabled();

-- The delivery log is deleted with its webhook.
create or replace function on_webhook_removed() returns trigger language plpgsql set search_path from current as $$
begin
    delete from webhook_delivery d where d.webhook_id = old.id;
    return null;
end $$;
create or replace trigger on_delete after delete on webhook for each row execute function on_webhook_removed();

create or replace function guard_webhook_delivery() returns trigger language plpgsql set search_path from current as $$
begin
    if not exists (select from webhook e where e.id = new.webhook_id and e.tenant = new.tenant) then
        raise exception 'webhook_delivery: webhook % does not exist', new.webhook_id using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger guard_insert before insert on webhook_delivery for each row execute function guard_webhook_delivery();

create or replace function report_missed() returns trigger language plpgsql set search_path from current as $$
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
create or replace trigger report_missed after insert on fire for each row when (new.status = 'missed') execute function report_missed();

-- Webhooks. The caller saves their subscriptions in the same transaction (features/webhooks/operations.py). This file pauses
-- the subscriptions while a webhook is disabled and deletes them with it.

-- Create a webhook. Returns false if the name is taken.
create or replace function add_webhook(id uuid, name text, url text, secrets text[], wants text[], kind text default null,
                                        job_options json default '{}', actor text default null, for_tenant text default null)
returns boolean language plpgsql security definer set search_path from current as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(add_webhook.for_tenant, nullif(add_webhook.actor, ''));
begin
    insert into webhook (id, tenant, name, url, secrets, wants, kind, job_options, created_by, created_at, updated_at)
    values (add_webhook.id, v_scope, add_webhook.name, add_webhook.url, add_webhook.secrets, add_webhook.wants,
            add_webhook.kind, add_webhook.job_options, actor(), v_now, v_now)
    on conflict (tenant, name) do nothing;
    return found;
end $$;

-- Replace a webhook's URL, secrets and events. Returns false if it does not exist.
create or replace function change_webhook(name text, url text, secrets text[], wants text[], kind text default null,
                                           job_options json default '{}', actor text default null, for_tenant text default null)
returns boolean language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(change_webhook.for_tenant, nullif(change_webhook.actor, ''));
begin
    update webhook e
       set url = change_webhook.url, secrets = change_webhook.secrets, wants = change_webhook.wants,
           kind = change_webhook.kind, job_options = change_webhook.job_options, updated_at = clock_now()
     where e.tenant = v_scope and e.name = change_webhook.name;
    return found;
end $$;

-- Disable a webhook: no new deliveries are created, and pending ones are not sent. If it is already disabled, the first reason
-- and actor are kept.
create or replace function disable_webhook(name text, reason text, actor text default null, for_tenant text default null)
returns boolean language plpgsql security definer set search_path from current as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(disable_webhook.for_tenant, nullif(disable_webhook.actor, ''));
begin
    perform pause_subscription(n, disable_webhook.reason, null, v_scope) from webhook_subscriptions(disable_webhook.name) n;
    update webhook e
       set disabled_at = coalesce(e.disabled_at, v_now), disabled_by = coalesce(e.disabled_by, actor()),
           disabled_reason = case when e.disabled_at is null then disable_webhook.reason else e.disabled_reason end,
           updated_at = v_now
     where e.tenant = v_scope and e.name = disable_webhook.name;
    return found;
end $$;

-- Enable a webhook. Events that arrived meanwhile are delivered, unless `skip`. Returns false if it does not exist.
create or replace function enable_webhook(name text, skip boolean default false, actor text default null, for_tenant text default null)
returns boolean language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(enable_webhook.for_tenant, nullif(enable_webhook.actor, ''));
begin
    perform resume_subscription(n, enable_webhook.skip, v_scope) from webhook_subscriptions(enable_webhook.name) n;
    update webhook e set disabled_at = null, disabled_by = null, disabled_reason = null, updated_at = clock_now()
     where e.tenant = v_scope and e.name = enable_webhook.name;
    return found;
end $$;

-- Delete a webhook with its delivery log and subscriptions. Returns false if it does not exist.
create or replace function remove_webhook(name text, actor text default null, for_tenant text default null) returns boolean
language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(remove_webhook.for_tenant, nullif(remove_webhook.actor, ''));
begin
    perform delete_subscription(n, v_scope) from webhook_subscriptions(remove_webhook.name) n;
    delete from webhook e where e.tenant = v_scope and e.name = remove_webhook.name;
    return found;
end $$;

create or replace function webhook_subscriptions(p_name text) returns setof text language sql immutable
as $$ select unnest(array['webhook:' || p_name, 'webhook:' || p_name || ':app_events']) $$;

-- Record the result of a delivery attempt. Deletes the oldest entries: those beyond the maximum number, and of the oldest few
-- those that have expired.
create or replace function note_webhook_delivery(id uuid, webhook uuid, message text, type text, job uuid, attempt integer,
    status integer, error_code text, duration_ms integer, excerpt text, kept integer default 1000, kept_for interval default '30 days',
    for_tenant text default null) returns boolean language plpgsql security definer set search_path from current as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(note_webhook_delivery.for_tenant);
begin
    perform check_span('kept_for', note_webhook_delivery.kept_for);
    insert into webhook_delivery (id, tenant, webhook_id, message, type, job_id, attempt, status, error_code, duration_ms, excerpt, at)
    select note_webhook_delivery.id, e.tenant, e.id, note_webhook_delivery.message, note_webhook_delivery.type,
           note_webhook_delivery.job, note_webhook_delivery.attempt, note_webhook_delivery.status,
           note_webhook_delivery.error_code, note_webhook_delivery.duration_ms, note_webhook_delivery.excerpt, v_now
      from webhook e where e.id = note_webhook_delivery.webhook and e.tenant = v_scope;
    if not found then
        return false;
    end if;
    delete from webhook_delivery d where d.webhook_id = note_webhook_delivery.webhook and d.id <= (
        select o.id from webhook_delivery o where o.webhook_id = note_webhook_delivery.webhook
         order by o.id desc offset note_webhook_delivery.kept limit 1);
    delete from webhook_delivery d where d.at < v_now - note_webhook_delivery.kept_for and d.id = any (array(
        select o.id from webhook_delivery o where o.webhook_id = note_webhook_delivery.webhook order by o.id limit 100));
    return true;
end $$;
