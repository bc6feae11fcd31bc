-- What may not be done to the tables at all, whoever asks (CX-3, CX-4, SC-5).

-- Rows of job_state and event come from triggers only: at depth 1 somebody is inserting by hand.
create or replace function refuse_insert() returns trigger language plpgsql as $$
begin
    if pg_trigger_depth() < 2 then
        raise exception '% is written by triggers only', tg_table_name
            using errcode = 'ZH002', hint = 'Insert into job, or call enqueue(…).';
    end if;
    return null;
end $$;

create or replace trigger refuse_insert before insert on job_state for each statement execute function refuse_insert();
create or replace trigger refuse_insert before insert on event for each statement execute function refuse_insert();

create or replace function refuse_change() returns trigger language plpgsql as $$
begin
    raise exception '%: rows are never changed (% refused)', tg_table_name, lower(tg_op) using errcode = 'ZH002';
end $$;

create or replace trigger refuse_update before update on event for each statement execute function refuse_change();
create or replace trigger refuse_update before update on artifact for each statement execute function refuse_change();
create or replace trigger refuse_truncate before truncate on job for each statement execute function refuse_change();
create or replace trigger refuse_truncate before truncate on job_state for each statement execute function refuse_change();
create or replace trigger refuse_truncate before truncate on event for each statement execute function refuse_change();
create or replace trigger refuse_truncate before truncate on artifact for each statement execute function refuse_change();

-- A job's facts are fixed; retention may empty the payload of a cleaned one, and a payload that is sealed may be sealed with
-- another key, as was written down before (`resealed`). Nothing else.
create or replace function judge_job_update() returns trigger language plpgsql set search_path from current as $$
begin
    if to_jsonb(new) - 'payload' <> to_jsonb(old) - 'payload'
       or not (new.payload::text = '{}' and exists (select from job_state s where s.id = old.id and s.state = 'cleaned')
               or resealed_so(old.id, old.payload, new.payload)) then
        raise exception 'job %: what was asked for never changes (the payload neither)', old.id using errcode = 'ZH002';
    end if;
    return new;
end $$;

create or replace trigger judge_update before update on job for each row execute function judge_job_update();

-- A job leaves whole or not at all: first its state (cleaned only), then its facts, then its ledger.
create or replace function judge_state_delete() returns trigger language plpgsql as $$
begin
    if old.state <> 'cleaned' then
        raise exception 'job %: only a cleaned job can be purged, this one is %', old.id, old.state using errcode = 'ZH002';
    end if;
    return old;
end $$;

create or replace trigger judge_delete before delete on job_state for each row execute function judge_state_delete();

create or replace function judge_delete() returns trigger language plpgsql set search_path from current as $$
begin
    if exists (select from job_state s join gone g on s.id = g.job_id) then
        raise exception '%: rows are never deleted while their job exists', tg_table_name
            using errcode = 'ZH002', hint = 'Retention purges a cleaned job as a whole.';
    end if;
    return null;
end $$;

create or replace function judge_job_delete() returns trigger language plpgsql set search_path from current as $$
begin
    if exists (select from job_state s where s.id = old.id) then
        raise exception 'job %: never deleted while it has a state', old.id
            using errcode = 'ZH002', hint = 'Retention purges a cleaned job as a whole.';
    end if;
    return old;
end $$;

create or replace trigger judge_delete after delete on event
    referencing old table as gone for each statement execute function judge_delete();
create or replace trigger judge_delete before delete on job for each row execute function judge_job_delete();
