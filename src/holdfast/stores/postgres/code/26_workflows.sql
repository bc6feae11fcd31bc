-- What may not be done to workflows, and the one state that is not yet known to last when it is entered.

-- `failed` nearly always passes on at once, in the same transaction; whether it has is known when that commits.
create or replace function advance_failed() returns trigger
language plpgsql security definer set search_path from current as $$
begin
    if exists (select from job_state s where s.id = new.id and s.state = 'failed') then
        perform advance_workflows(array[new.id]);
    end if;
    return null;
end $$;
drop trigger if exists advance_failed on job_state;
create constraint trigger advance_failed after update on job_state deferrable initially deferred
    for each row when (new.state = 'failed' and old.state <> 'failed' and new.workflow_id is not null)
    execute function advance_failed();

-- A job that waits for its parents is released by their ends, by nothing else. Called by record_transition.
create or replace function refuse_release(p_job uuid) returns void language plpgsql set search_path from current as $$
begin
    if exists (select from node n where n.job_id = p_job and (n.unmet > 0 or n.standing = 'skipped')) then
        raise exception 'job % waits for its parents', p_job
            using errcode = 'ZH002', hint = 'select * from dependency where child = … shows which.';
    end if;
end $$;

-- Standings, counts and what was met follow from the jobs: triggers keep them. At depth 0 it is somebody by hand.
create or replace function refuse_by_hand() returns trigger language plpgsql as $$
begin
    raise exception '%: what was planned never changes, and the rest is written by triggers only', tg_table_name
        using errcode = 'ZH002';
end $$;
create or replace trigger judge_update before update on workflow for each row
    when ((old.id, old.tenant, old.kind, old.generator, old.on_failure, old.plan_hash, old.enqueued_by, old.source_system,
           old.created_at) <> (new.id, new.tenant, new.kind, new.generator, new.on_failure, new.plan_hash, new.enqueued_by,
           new.source_system, new.created_at)
          or old.key is distinct from new.key or old.correlation_id is distinct from new.correlation_id
          or old.parent_id is distinct from new.parent_id
          or old.cancelled_at is not null and old.cancelled_at is distinct from new.cancelled_at
          or pg_trigger_depth() = 0 and (old.finished_at is distinct from new.finished_at
              or (old.stopped, old.total, old.open, old.succeeded, old.failed, old.dead, old.cancelled, old.skipped)
              <> (new.stopped, new.total, new.open, new.succeeded, new.failed, new.dead, new.cancelled, new.skipped)))
    execute function refuse_by_hand();
create or replace trigger judge_update before update on node for each row
    when (pg_trigger_depth() = 0 or old.job_id <> new.job_id or old.tenant <> new.tenant or old.workflow_id <> new.workflow_id
          or old.fatal <> new.fatal or old.name is distinct from new.name or old.part is distinct from new.part)
    execute function refuse_by_hand();
create or replace trigger judge_update before update on dependency for each row
    when (pg_trigger_depth() = 0 or old.met or old.child <> new.child or old.parent <> new.parent
          or old.tenant <> new.tenant or old.on_failure <> new.on_failure)
    execute function refuse_by_hand();
create or replace trigger judge_delete after delete on node
    referencing old table as gone for each statement execute function judge_delete();
create or replace trigger refuse_delete before delete on workflow for each statement execute function refuse_change();
create or replace trigger refuse_delete before delete on dependency for each statement execute function refuse_change();
create or replace trigger refuse_truncate before truncate on workflow for each statement execute function refuse_change();
create or replace trigger refuse_truncate before truncate on node for each statement execute function refuse_change();
create or replace trigger refuse_truncate before truncate on dependency for each statement execute function refuse_change();
