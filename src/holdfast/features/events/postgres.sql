-- Rules that every writer of subscriptions and deliveries has to obey.

-- A delivery that created a job names an existing job of its tenant.
create or replace function guard_delivery() returns trigger language plpgsql set search_path from current as $$
begin
    if not exists (select from job j where j.id = new.job_id and j.tenant = new.tenant) then
        raise exception 'delivery: event % refers to job %, which does not exist', new.event, new.job_id using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger guard_insert before insert on delivery
    for each row when (new.job_id is not null) execute function guard_delivery();

-- Events that create jobs. Python decides what an event creates (features/events/model.py); one transaction of the caller
-- reads the events, enqueues the jobs and advances the subscription's cursor. A crash leaves all of it or nothing, and the key
-- of `delivery` limits an event to one job per subscription whatever else fails.

-- Create a subscription, or update the one with this name. Returns whether it was created.
create or replace function save_subscription(id uuid, name text, pattern text, job_kind text, kind text default null,
    match json default null, job_options json default '{}', max_depth integer default 5, beginning boolean default false,
    declared boolean default false, actor text default null, for_tenant text default null)
returns table (created boolean)
language plpgsql security definer set search_path from current as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(save_subscription.for_tenant, nullif(save_subscription.actor, ''));
    v_place text := case when not save_subscription.beginning
                         then place_now(save_subscription.pattern like 'job.%') end;
begin
    insert into subscription as s (id, tenant, name, pattern, kind, match, job_kind, job_options, max_depth, cursor, declared,
                                   created_by, created_at, updated_at)
    values (save_subscription.id, v_scope, save_subscription.name, save_subscription.pattern, save_subscription.kind,
            save_subscription.match, save_subscription.job_kind, save_subscription.job_options, save_subscription.max_depth,
            v_place, save_subscription.declared, actor(), v_now, v_now)
    on conflict (tenant, name) do nothing;
    created := found;
    if not created then
        -- Its filter and its jobs may have changed, its cursor has not. Only if it now reads the other kind of events is its
        -- cursor reset, because the old one means nothing there.
        update subscription s
           set pattern = save_subscription.pattern, kind = save_subscription.kind, match = save_subscription.match,
               job_kind = save_subscription.job_kind, job_options = save_subscription.job_options,
               max_depth = save_subscription.max_depth, declared = save_subscription.declared, updated_at = v_now,
               cursor = case when (s.pattern like 'job.%') = (save_subscription.pattern like 'job.%') then s.cursor else v_place end
         where s.tenant = v_scope and s.name = save_subscription.name
           and (s.pattern, s.kind, s.match::text, s.job_kind, s.job_options::text, s.max_depth, s.declared)
               is distinct from (save_subscription.pattern, save_subscription.kind, save_subscription.match::text,
                                 save_subscription.job_kind, save_subscription.job_options::text,
                                 save_subscription.max_depth::smallint, save_subscription.declared);
    end if;
    return next;
end $$;

-- Return the cursor after everything committed so far: in the ledger, or in the application events.
create or replace function place_now(ledger boolean) returns text language plpgsql volatile set search_path from current as $$
declare v_last bigint;
begin
    if ledger then
        select last_value into v_last from event_seq;
        return v_last || ';' || ledger_snapshot()::text;
    end if;
    select last_value into v_last from app_event_seq;
    return 'a' || v_last || ';' || ledger_snapshot()::text;
end $$;

-- Pause a subscription. Events that arrive meanwhile are delivered when it resumes. If it is already paused, the first reason
-- and actor are kept.
create or replace function pause_subscription(name text, reason text default null, actor text default null,
                                              for_tenant text default null) returns boolean
language plpgsql security definer set search_path from current as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(pause_subscription.for_tenant, nullif(pause_subscription.actor, ''));
begin
    update subscription s
       set paused_at = coalesce(s.paused_at, v_now), paused_by = coalesce(s.paused_by, actor()),
           paused_reason = case when s.paused_at is null then nullif(pause_subscription.reason, '') else s.paused_reason end,
           updated_at = v_now
     where s.tenant = v_scope and s.name = pause_subscription.name;
    return found;
end $$;

-- Resume a subscription: with the events that arrived while it was paused, or with `skip` from now on.
create or replace function resume_subscription(name text, skip boolean default false, for_tenant text default null, actor text default null)
returns boolean language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(resume_subscription.for_tenant, resume_subscription.actor);
begin
    update subscription s
       set paused_at = null, paused_by = null, paused_reason = null, updated_at = clock_now(),
           cursor = case when resume_subscription.skip then place_now(s.pattern like 'job.%') else s.cursor end
     where s.tenant = v_scope and s.name = resume_subscription.name;
    return found;
end $$;

-- Delete a subscription. Returns false if it does not exist.
create or replace function delete_subscription(name text, for_tenant text default null, actor text default null) returns boolean
language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(delete_subscription.for_tenant, delete_subscription.actor);
begin
    delete from subscription s where s.tenant = v_scope and s.name = delete_subscription.name;
    return found;
end $$;

-- Return the subscriptions that are not paused. Every worker polls this; usually there are none.
create or replace function active_subscriptions(for_tenant text default null) returns table (tenant text, name text, id uuid)
language plpgsql set search_path from current as $$
declare v_scope text := enter(active_subscriptions.for_tenant);
begin
    return query select s.tenant, s.name, s.id from subscription s
     where s.paused_at is null and (v_scope = '*' or s.tenant = v_scope) and not halted() order by 1, 2;
end $$;

-- Lock a subscription until the end of the transaction. No row: another worker holds it, or there is nothing to do. The lock
-- is on a table and not on the row: a row lock would give this transaction an id, and the snapshot that the events are read
-- with would treat this transaction's own writes as seen. Subscriptions that share one of the eight tables are processed one
-- after the other.
create or replace function hold_subscription(name text, for_tenant text default null) returns setof subscription
language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(hold_subscription.for_tenant);
begin
    if try_lock(format('lock_subscription_%s', mutex_of(0, 8, concat_ws(chr(31), v_scope, hold_subscription.name)))::regclass) then
        return query select s.* from subscription s
         where s.tenant = v_scope and s.name = hold_subscription.name and s.paused_at is null and not halted();
    end if;
end $$;

-- Return those of these events that already have a delivery.
create or replace function delivered(subscription uuid, events text[], for_tenant text default null) returns setof text
language plpgsql security definer set search_path from current as $$
begin
    perform enter(delivered.for_tenant);
    return query select d.event from delivery d
     where d.subscription_id = delivered.subscription and d.event = any (delivered.events);
end $$;

-- Advance a subscription's cursor from `was` to `cursor`, and record the deliveries in between. Call it in the transaction
-- that enqueued the jobs.
create or replace function advance_subscription(subscription uuid, was text, cursor text, deliveries json default '[]',
                                                for_tenant text default null) returns void
language plpgsql security definer set search_path from current as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(advance_subscription.for_tenant);
begin
    insert into delivery (subscription_id, event, tenant, job_id, refusal, depth, at)
    select advance_subscription.subscription, d.event, d.tenant, d.job_id, d.refusal, d.depth, v_now
      from json_to_recordset(advance_subscription.deliveries) as d(
               event text, tenant text, job_id uuid, refusal text, depth smallint)
     where v_scope = '*' or d.tenant = v_scope;
    update subscription s
       set cursor = advance_subscription.cursor, failure = null, failed_at = null,
           made = s.made + (select count(*) from json_array_elements(advance_subscription.deliveries) d where d ->> 'job_id' is not null),
           refused = s.refused + (select count(*) from json_array_elements(advance_subscription.deliveries) d where d ->> 'refusal' is not null)
     where s.id = advance_subscription.subscription and s.tenant = v_scope
       and s.cursor is not distinct from advance_subscription.was and s.paused_at is null;
    if not found then
        raise exception 'another process advanced, changed or paused the subscription; the batch is retried' using errcode = 'ZH040';
    end if;
end $$;

-- Record why processing a subscription failed, so that operators can see it. It will be retried.
create or replace function subscription_failed(subscription uuid, failure text, for_tenant text default null) returns void
language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(subscription_failed.for_tenant);
begin
    update subscription s set failure = subscription_failed.failure, failed_at = clock_now()
     where s.id = subscription_failed.subscription and s.tenant = v_scope;
end $$;

-- --- consumers ---

-- Move a consumer's cursor to the beginning of the events, or with `beginning` false to the end. Returns false if it does not
-- exist.
create or replace function reset_consumer(consumer text, beginning boolean default true, for_tenant text default null, actor text default null)
returns boolean language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(reset_consumer.for_tenant, reset_consumer.actor);
begin
    update consumer c
       set updated_at = clock_now(),
           cursor = case when not reset_consumer.beginning then place_now(c.cursor not like 'a%')
                         when c.cursor like 'a%' then 'a0' else '0' end
     where c.tenant = v_scope and c.name = reset_consumer.consumer;
    if not found then
        return false;
    end if;
    perform note_action(v_scope, 'reset', 'consumer', reset_consumer.consumer, jsonb_build_object('beginning', reset_consumer.beginning));
    return true;
end $$;

-- Delete a consumer and its cursor. Returns false if it does not exist.
create or replace function remove_consumer(consumer text, for_tenant text default null, actor text default null) returns boolean
language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(remove_consumer.for_tenant, remove_consumer.actor);
begin
    delete from consumer c where c.tenant = v_scope and c.name = remove_consumer.consumer;
    return found;
end $$;
