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
