-- What may go, and when: retention's own ways through the guards, and nobody else's (CX-4, DP-16).

drop trigger if exists refuse_delete on artifact;
drop trigger if exists refuse_delete on fire;
drop trigger if exists refuse_delete on delivery;
drop trigger if exists refuse_delete on workflow;
drop trigger if exists refuse_delete on dependency;

-- Of a cleaned job, or of one that is gone.
create or replace function judge_artifact_delete() returns trigger language plpgsql set search_path from current as $$
begin
    if exists (select from job_state s join gone g on s.id = g.job_id where s.state <> 'cleaned') then
        raise exception 'artifact: rows are never changed (delete refused)' using errcode = 'ZH002';
    end if;
    return null;
end $$;
create or replace trigger judge_delete after delete on artifact
    referencing old table as gone for each statement execute function judge_artifact_delete();

-- What became of a time goes with its job, or a month after it: by then its schedule is past it, and does not fire it again.
create or replace function judge_fire_delete() returns trigger language plpgsql set search_path from current as $$
begin
    if exists (select from gone g
                where not (g.job_id is not null and not exists (select from job j where j.id = g.job_id))
                  and (g.due_at > clock_now() - interval '30 days' or g.status = 'waiting'
                       or exists (select from job_state s where s.id = g.job_id and s.finished_at is null))) then
        raise exception 'fire: rows are never changed (delete refused)' using errcode = 'ZH002';
    end if;
    return null;
end $$;
create or replace trigger judge_delete after delete on fire
    referencing old table as gone for each statement execute function judge_fire_delete();

-- So does what became of an event.
create or replace function judge_delivery_delete() returns trigger language plpgsql set search_path from current as $$
begin
    if exists (select from gone g
                where not (g.job_id is not null and not exists (select from job j where j.id = g.job_id))
                  and g.at > clock_now() - interval '30 days') then
        raise exception 'delivery: rows are never changed (delete refused)' using errcode = 'ZH002';
    end if;
    return null;
end $$;
create or replace trigger judge_delete after delete on delivery
    referencing old table as gone for each statement execute function judge_delivery_delete();

-- Who waited for whom is forgotten with either; a workflow with the last of its jobs.
create or replace function judge_dependency_delete() returns trigger language plpgsql set search_path from current as $$
begin
    if exists (select from gone g where exists (select from job_state s where s.id = g.child)
                                    and exists (select from job_state s where s.id = g.parent)) then
        raise exception 'dependency: rows are never changed (delete refused)' using errcode = 'ZH002';
    end if;
    return null;
end $$;
create or replace trigger judge_delete after delete on dependency
    referencing old table as gone for each statement execute function judge_dependency_delete();

create or replace function judge_workflow_delete() returns trigger language plpgsql set search_path from current as $$
begin
    if exists (select from gone g where g.finished_at is null or exists (select from node n where n.workflow_id = g.id)) then
        raise exception 'workflow: rows are never changed (delete refused)' using errcode = 'ZH002';
    end if;
    return null;
end $$;
create or replace trigger judge_delete after delete on workflow
    referencing old table as gone for each statement execute function judge_workflow_delete();

-- A token is of no use when its gate is decided; for a week it can be told from one that never was.
create or replace function judge_token_delete() returns trigger language plpgsql set search_path from current as $$
begin
    if exists (select from gate t join gone g on t.id = g.gate_id
                where t.decided_at is null or t.decided_at > clock_now() - interval '7 days') then
        raise exception 'gate_token: rows are never deleted while their gate exists' using errcode = 'ZH002';
    end if;
    return null;
end $$;
create or replace trigger judge_delete after delete on gate_token
    referencing old table as gone for each statement execute function judge_token_delete();

-- Sums are added to, and never go: they are all that is left of what was purged.
create or replace function judge_usage() returns trigger language plpgsql as $$
begin
    if tg_op = 'DELETE' or (new.tenant, new.day, new.kind) <> (old.tenant, old.day, old.kind)
       or least(new.enqueued - old.enqueued, new.started - old.started, new.succeeded - old.succeeded, new.failed - old.failed,
                new.crashed - old.crashed, new.dead - old.dead, new.cancelled - old.cancelled, new.expired - old.expired,
                new.run_time - old.run_time, new.wait_time - old.wait_time, new.cost - old.cost) < 0 then
        raise exception 'usage: what was counted is never taken back' using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger judge_usage before update or delete on usage for each row execute function judge_usage();
create or replace trigger refuse_truncate before truncate on usage for each statement execute function refuse_change();
create or replace trigger refuse_delete before delete on usage_place for each statement execute function refuse_change();
create or replace trigger refuse_truncate before truncate on usage_place for each statement execute function refuse_change();
create or replace trigger refuse_delete before delete on upkeep for each statement execute function refuse_change();
create or replace trigger refuse_truncate before truncate on upkeep for each statement execute function refuse_change();
