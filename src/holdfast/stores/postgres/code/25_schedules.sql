-- What may not be done to templates, schedules and what became of their times, whoever asks.

create or replace trigger refuse_update before update on template for each statement execute function refuse_change();
create or replace trigger refuse_truncate before truncate on template for each statement execute function refuse_change();
create or replace trigger refuse_update before update on made_from for each statement execute function refuse_change();
create or replace trigger refuse_truncate before truncate on made_from for each statement execute function refuse_change();
create or replace trigger refuse_delete before delete on schedule for each statement execute function refuse_change();
create or replace trigger refuse_truncate before truncate on schedule for each statement execute function refuse_change();
create or replace trigger refuse_truncate before truncate on fire for each statement execute function refuse_change();

-- Versions have no gaps, and a template stays with its kind: another kind is another template.
create or replace function judge_template() returns trigger language plpgsql set search_path from current as $$
begin
    if new.version <> coalesce((select max(t.version) from template t where t.tenant = new.tenant and t.name = new.name), 0) + 1 then
        raise exception 'template %: versions are added one after the other', new.name using errcode = 'ZH002';
    end if;
    if exists (select from template t where t.tenant = new.tenant and t.name = new.name and t.kind <> new.kind) then
        raise exception 'template %: it stays with its kind', new.name using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger judge_insert before insert on template for each row execute function judge_template();

-- A program that puts something new each time it starts must not fill the table: of a template the newest 1,000 versions are kept.
create or replace function judge_template_delete() returns trigger language plpgsql set search_path from current as $$
begin
    if old.version > (select max(t.version) from template t where t.tenant = old.tenant and t.name = old.name) - 1000 then
        raise exception 'template %: its newest 1,000 versions are never deleted', old.name using errcode = 'ZH002';
    end if;
    return old;
end $$;
create or replace trigger judge_delete before delete on template for each row execute function judge_template_delete();

create or replace function judge_schedule() returns trigger language plpgsql as $$
begin
    if (new.id, new.tenant, new.created_at, new.created_by) is distinct from (old.id, old.tenant, old.created_at, old.created_by)
       or old.state = 'deleted' then
        raise exception 'schedule %: what it is never changes, and a deleted one not at all', old.id using errcode = 'ZH002';
    end if;
    -- Times go forward unless somebody gave it others: what has been fired is not fired again.
    if new.revision = old.revision and new.next_fire_at < old.next_fire_at or new.revision < old.revision then
        raise exception 'schedule %: its times go forward only', old.id using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger judge_update before update on schedule for each row execute function judge_schedule();

-- A time is made a job of, or not, once. One that waits becomes a job; a job that is over is marked so.
create or replace function judge_fire() returns trigger language plpgsql as $$
begin
    if to_jsonb(new) - '{status,job_id,error_code,error_message,at,ended}'::text[]
       <> to_jsonb(old) - '{status,job_id,error_code,error_message,at,ended}'::text[]
       or old.status <> 'waiting' and (new.status, new.job_id, new.at, new.error_code) is distinct from
                                      (old.status, old.job_id, old.at, old.error_code)
       or old.ended and not new.ended then
        raise exception 'schedule %: what became of % never changes', old.schedule_id, old.due_at using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger judge_update before update on fire for each row execute function judge_fire();

create or replace function judge_fire_insert() returns trigger language plpgsql set search_path from current as $$
begin
    if not exists (select from schedule s where s.id = new.schedule_id and s.tenant = new.tenant)
       or new.job_id is not null and not exists (select from job j where j.id = new.job_id and j.tenant = new.tenant) then
        raise exception 'fire: there is no such schedule, or no such job, in tenant %', new.tenant using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger judge_insert before insert on fire for each row execute function judge_fire_insert();

-- A job was made from one thing, and of its own tenant; it is forgotten with the job.
create or replace function judge_made_from() returns trigger language plpgsql set search_path from current as $$
begin
    if not exists (select from job j where j.id = new.job_id and j.tenant = new.tenant)
       or new.template is not null and not exists (
              select from template t where t.tenant = new.tenant and t.name = new.template and t.version = new.template_version)
       or new.schedule_id is not null and not exists (
              select from schedule s where s.id = new.schedule_id and s.tenant = new.tenant) then
        raise exception 'job %: there is nothing it could have been made from so', new.job_id using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger judge_insert before insert on made_from for each row execute function judge_made_from();
create or replace trigger judge_delete after delete on made_from
    referencing old table as gone for each statement execute function judge_delete();
