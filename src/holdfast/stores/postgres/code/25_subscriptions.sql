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
