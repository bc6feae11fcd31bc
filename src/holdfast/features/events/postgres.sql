-- What may not be done to subscriptions and to what became of events, whoever asks.

create or replace trigger refuse_update before update on delivery for each statement execute function refuse_change();
create or replace trigger refuse_truncate before truncate on delivery for each statement execute function refuse_change();

-- An event that made a job made one that is there, of that tenant.
create or replace function judge_delivery() returns trigger language plpgsql set search_path from current as $$
begin
    if not exists (select from job j where j.id = new.job_id and j.tenant = new.tenant) then
        raise exception 'event % made job %, which is not there', new.event, new.job_id using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger judge_insert before insert on delivery
    for each row when (new.job_id is not null) execute function judge_delivery();

create or replace function refuse_subscription_change() returns trigger language plpgsql as $$
begin
    raise exception 'subscription %: what it is called and whose it is never changes', old.name using errcode = 'ZH002';
end $$;
create or replace trigger refuse_rename before update on subscription for each row
    when (old.id <> new.id or old.tenant <> new.tenant or old.name <> new.name or old.created_at <> new.created_at)
    execute function refuse_subscription_change();

-- Events that make jobs (DP-13). What an event makes is decided in Python (features/events/model.py); one transaction of
-- the caller's reads the events, enqueues the jobs and moves the subscription's place on. So a crash leaves all or nothing,
-- and the key of `delivery` keeps an event to one job whatever else goes wrong.

create or replace function save_subscription(id uuid, name text, pattern text, job_kind text, kind text default null,
    match json default null, job_options json default '{}', max_depth integer default 5, beginning boolean default false,
    declared boolean default false, actor text default null, for_tenant text default null)
returns table (created boolean, refused boolean, refusal text)
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
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
    refused := not created and not save_subscription.declared;
    refusal := case when refused then 'subscription_exists' end;
    if not created and not refused then
        -- A program declares it anew: what it wants and makes may have changed, its place has not; unless it now reads
        -- the other kind of events, in which that place means nothing.
        update subscription s
           set pattern = save_subscription.pattern, kind = save_subscription.kind, match = save_subscription.match,
               job_kind = save_subscription.job_kind, job_options = save_subscription.job_options,
               max_depth = save_subscription.max_depth, declared = true, updated_at = v_now,
               cursor = case when (s.pattern like 'job.%') = (save_subscription.pattern like 'job.%') then s.cursor else v_place end
         where s.tenant = v_scope and s.name = save_subscription.name
           and (s.pattern, s.kind, s.match::text, s.job_kind, s.job_options::text, s.max_depth, s.declared)
               is distinct from (save_subscription.pattern, save_subscription.kind, save_subscription.match::text,
                                 save_subscription.job_kind, save_subscription.job_options::text,
                                 save_subscription.max_depth::smallint, true);
    end if;
    return next;
end $$;

-- The place after all that is committed: of the ledger, or of the application's events.
create or replace function place_now(ledger boolean) returns text
language plpgsql volatile set search_path from current as $$
declare
    v_last bigint;
begin
    if ledger then
        select last_value into v_last from event_seq;
        return v_last || ';' || pg_current_snapshot()::text;
    end if;
    select last_value into v_last from app_event_seq;
    return 'a' || v_last || ';' || pg_current_snapshot()::text;
end $$;

-- Whoever looks for it keeps what it missed meanwhile for later. Who paused it first stands.
create or replace function pause_subscription(name text, reason text default null, actor text default null,
                                              for_tenant text default null)
returns boolean
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
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

-- Go on: with what was missed, or (`skip`) from now on.
create or replace function resume_subscription(name text, skip boolean default false, for_tenant text default null, actor text default null)
returns boolean
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_scope text := enter(resume_subscription.for_tenant, resume_subscription.actor);
begin
    update subscription s
       set paused_at = null, paused_by = null, paused_reason = null, updated_at = clock_now(),
           cursor = case when resume_subscription.skip then place_now(s.pattern like 'job.%') else s.cursor end
     where s.tenant = v_scope and s.name = resume_subscription.name;
    return found;
end $$;

create or replace function delete_subscription(name text, for_tenant text default null, actor text default null) returns boolean
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_scope text := enter(delete_subscription.for_tenant, delete_subscription.actor);
begin
    delete from subscription s where s.tenant = v_scope and s.name = delete_subscription.name;
    return found;
end $$;

-- Those that are not paused: what every worker asks for now and then, and mostly there are none.
create or replace function active_subscriptions(for_tenant text default null)
returns table (tenant text, name text, id uuid)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare
    v_scope text := enter(active_subscriptions.for_tenant);
begin
    return query select s.tenant, s.name, s.id from subscription s
     where s.paused_at is null and (v_scope = '*' or s.tenant = v_scope) and not halted() order by 1, 2;
end $$;

-- Have a subscription to oneself until the end of the transaction; no row: somebody else has, or there is nothing to do.
-- The lock is on a table and not on the row, which would give this transaction an id: the snapshot that the events are read
-- with would then take what this transaction writes for seen. Subscriptions that share one of the eight tables are fed one
-- after the other.
create or replace function hold_subscription(name text, for_tenant text default null)
returns setof subscription
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_scope text := enter(hold_subscription.for_tenant);
begin
    if try_lock(format('lock_subscription_%s', mutex_of(0, 8, concat_ws(chr(31), v_scope, hold_subscription.name)))::regclass) then
        return query select s.* from subscription s
         where s.tenant = v_scope and s.name = hold_subscription.name and s.paused_at is null and not halted();
    end if;
end $$;

-- Of these events, those that have had their fate.
create or replace function delivered(subscription uuid, events text[], for_tenant text default null) returns setof text
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
begin
    perform enter(delivered.for_tenant);
    return query select d.event from delivery d
     where d.subscription_id = delivered.subscription and d.event = any (delivered.events);
end $$;

-- Move on from the place one came from, with what became of the events between. In the transaction that enqueued.
create or replace function advance_subscription(subscription uuid, was text, cursor text, deliveries json default '[]',
                                                for_tenant text default null)
returns void
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
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
        raise exception 'the subscription was changed at the same time' using errcode = 'ZH040';
    end if;
end $$;

-- It came to nothing, for this reason, and is tried again: said, so that somebody may look.
create or replace function subscription_failed(subscription uuid, failure text, for_tenant text default null) returns void
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_scope text := enter(subscription_failed.for_tenant);
begin
    update subscription s set failure = subscription_failed.failure, failed_at = clock_now()
     where s.id = subscription_failed.subscription and s.tenant = v_scope;
end $$;

-- --- consumers ---

create or replace function reset_consumer(consumer text, beginning boolean default true, for_tenant text default null, actor text default null)
returns boolean
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_scope text := enter(reset_consumer.for_tenant, reset_consumer.actor);
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

create or replace function remove_consumer(consumer text, for_tenant text default null, actor text default null) returns boolean
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_scope text := enter(remove_consumer.for_tenant, remove_consumer.actor);
begin
    delete from consumer c where c.tenant = v_scope and c.name = remove_consumer.consumer;
    return found;
end $$;
