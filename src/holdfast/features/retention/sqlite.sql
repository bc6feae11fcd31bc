-- What may be deleted, and when: the exceptions in the guards that only retention may use.

-- The record of a scheduled time is deleted with its job, or a month after the time: by then its schedule has moved past it
-- and does not fire it again.
DROP TRIGGER IF EXISTS holdfast_judge_fire_delete;
CREATE TRIGGER holdfast_judge_fire_delete BEFORE DELETE ON holdfast_fire
WHEN NOT (OLD.job_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM holdfast_job j WHERE j.id = OLD.job_id))
     AND (OLD.due_at > (SELECT now FROM holdfast_present) - 30 * 86400000000 OR OLD.status = 'waiting'
          OR EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.id = OLD.job_id AND s.finished_at IS NULL))
BEGIN
    SELECT RAISE(ABORT, 'immutable: the record of a fired time or a delivery is kept with its job, or for a month');
END;

-- The same applies to the delivery of an event.
DROP TRIGGER IF EXISTS holdfast_judge_delivery_delete;
CREATE TRIGGER holdfast_judge_delivery_delete BEFORE DELETE ON holdfast_delivery
WHEN NOT (OLD.job_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM holdfast_job j WHERE j.id = OLD.job_id))
     AND OLD.at > (SELECT now FROM holdfast_present) - 30 * 86400000000
BEGIN
    SELECT RAISE(ABORT, 'immutable: delivery: rows are never changed');
END;

-- A dependency is deleted with either of its jobs; a workflow with the last of its jobs.
DROP TRIGGER IF EXISTS holdfast_judge_dependency_delete;
CREATE TRIGGER holdfast_judge_dependency_delete BEFORE DELETE ON holdfast_dependency
WHEN EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.id = OLD.child) AND EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.id = OLD.parent)
BEGIN
    SELECT RAISE(ABORT, 'immutable: dependencies are never deleted');
END;

DROP TRIGGER IF EXISTS holdfast_judge_workflow_delete;
CREATE TRIGGER holdfast_judge_workflow_delete BEFORE DELETE ON holdfast_workflow
WHEN OLD.finished_at IS NULL OR EXISTS (SELECT 1 FROM holdfast_node o WHERE o.workflow_id = OLD.id)
BEGIN
    SELECT RAISE(ABORT, 'immutable: workflows are never deleted');
END;

-- A token is useless once its approval is decided. It is kept for a week, so that it can be told from one that never existed.
DROP TRIGGER IF EXISTS holdfast_judge_token_delete;
CREATE TRIGGER holdfast_judge_token_delete BEFORE DELETE ON holdfast_approval_token
WHEN EXISTS (SELECT 1 FROM holdfast_approval g WHERE g.id = OLD.approval_id
                AND (g.decided_at IS NULL OR g.decided_at > (SELECT now FROM holdfast_present) - 7 * 86400000000))
BEGIN
    SELECT RAISE(ABORT, 'immutable: a token is never deleted while its approval exists');
END;

-- Usage sums only grow and are never deleted: they are all that remains of purged jobs.
DROP TRIGGER IF EXISTS holdfast_judge_usage_insert;
CREATE TRIGGER holdfast_judge_usage_insert BEFORE INSERT ON holdfast_usage
WHEN (SELECT now FROM holdfast_clock) IS NULL
     AND EXISTS (SELECT 1 FROM holdfast_usage u WHERE u.tenant = NEW.tenant AND u.day = NEW.day AND u.kind = NEW.kind)
BEGIN
    SELECT RAISE(ABORT, 'immutable: usage sums cannot be reduced or deleted');
END;

DROP TRIGGER IF EXISTS holdfast_judge_usage_update;
CREATE TRIGGER holdfast_judge_usage_update BEFORE UPDATE ON holdfast_usage
WHEN NEW.tenant <> OLD.tenant OR NEW.day <> OLD.day OR NEW.kind <> OLD.kind
     OR min(NEW.enqueued - OLD.enqueued, NEW.started - OLD.started, NEW.succeeded - OLD.succeeded, NEW.failed - OLD.failed,
            NEW.crashed - OLD.crashed, NEW.dead - OLD.dead, NEW.cancelled - OLD.cancelled, NEW.expired - OLD.expired,
            NEW.run_time - OLD.run_time, NEW.wait_time - OLD.wait_time, NEW.cost - OLD.cost) < 0
BEGIN
    SELECT RAISE(ABORT, 'immutable: usage sums cannot be reduced or deleted');
END;

DROP TRIGGER IF EXISTS holdfast_refuse_usage_delete;
CREATE TRIGGER holdfast_refuse_usage_delete BEFORE DELETE ON holdfast_usage
BEGIN
    SELECT RAISE(ABORT, 'immutable: usage sums cannot be reduced or deleted');
END;

-- Counting begins once and continues from its cursor.
DROP TRIGGER IF EXISTS holdfast_refuse_usage_place_delete;
CREATE TRIGGER holdfast_refuse_usage_place_delete BEFORE DELETE ON holdfast_usage_place
BEGIN
    SELECT RAISE(ABORT, 'immutable: the position of the usage counter cannot move back or be deleted');
END;

DROP TRIGGER IF EXISTS holdfast_refuse_upkeep_delete;
CREATE TRIGGER holdfast_refuse_upkeep_delete BEFORE DELETE ON holdfast_upkeep
BEGIN
    SELECT RAISE(ABORT, 'immutable: upkeep must keep its one row');
END;

DROP TRIGGER IF EXISTS holdfast_judge_usage_place;
CREATE TRIGGER holdfast_judge_usage_place BEFORE UPDATE ON holdfast_usage_place
WHEN coalesce(CAST(NEW.cursor AS INTEGER), 0) < coalesce(CAST(OLD.cursor AS INTEGER), 0)
BEGIN
    SELECT RAISE(ABORT, 'immutable: the position of the usage counter cannot move back or be deleted');
END;
