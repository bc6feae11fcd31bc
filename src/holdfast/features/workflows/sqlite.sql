-- Updates a workflow when one of its jobs changes state, in the transaction that moved the job, so that no parent ends without
-- its children being updated. The rules are explained in features/workflows/postgres.sql. There is one writer at a time here,
-- so nothing has to be locked.
--
-- The transitions of an operation are collected and processed together when it finishes: `failed` may have been left by then,
-- and a thousand parents that ended in one batch are one round. For hand-written SQL every statement is a round. A statement
-- in a trigger cannot begin with WITH, hence the views.

CREATE TRIGGER holdfast_notify_workflow AFTER UPDATE OF state ON holdfast_job_state
WHEN NEW.workflow_id IS NOT NULL AND OLD.state <> NEW.state AND NEW.state <> 'leased' AND NEW.state <> 'in_progress'
     AND NEW.state <> 'cleaned'
BEGIN
    INSERT INTO holdfast_moved (job_id) VALUES (NEW.id) ON CONFLICT DO NOTHING;
END;

CREATE TRIGGER holdfast_moved_by_hand AFTER INSERT ON holdfast_moved WHEN (SELECT now FROM holdfast_clock) IS NULL AND NEW.was IS NULL
BEGIN
    INSERT INTO holdfast_round (id) VALUES (1) ON CONFLICT DO NOTHING;
END;

-- Before the update: what the trigger does is still signed by the operation.
CREATE TRIGGER holdfast_moved_by_operation BEFORE UPDATE OF now ON holdfast_clock
WHEN OLD.now IS NOT NULL AND NEW.now IS NULL AND EXISTS (SELECT 1 FROM holdfast_moved)
BEGIN
    INSERT INTO holdfast_round (id) VALUES (1) ON CONFLICT DO NOTHING;
END;

-- The counts of a workflow follow from the statuses of its nodes.
CREATE TRIGGER holdfast_count_node_status AFTER UPDATE OF status ON holdfast_node WHEN OLD.status <> NEW.status
     -- Jobs that have just moved are counted together.
     AND NOT EXISTS (SELECT 1 FROM holdfast_moved m WHERE m.job_id = NEW.job_id AND m.was = OLD.status AND m.now_is = NEW.status)
BEGIN
    UPDATE holdfast_workflow
       SET open = open - (OLD.status = 'open') + (NEW.status = 'open'),
           succeeded = succeeded - (OLD.status = 'succeeded') + (NEW.status = 'succeeded'),
           failed = failed - (OLD.status = 'failed') + (NEW.status = 'failed'),
           dead = dead - (OLD.status = 'dead') + (NEW.status = 'dead'),
           cancelled = cancelled - (OLD.status = 'cancelled') + (NEW.status = 'cancelled'),
           skipped = skipped - (OLD.status = 'skipped') + (NEW.status = 'skipped'),
           finished_at = CASE WHEN open - (OLD.status = 'open') + (NEW.status = 'open') = 0
                              THEN coalesce(finished_at, (SELECT now FROM holdfast_present)) END
     WHERE id = NEW.workflow_id;
    INSERT INTO holdfast_ready (job_id) SELECT NEW.job_id WHERE OLD.status = 'skipped' AND NEW.status = 'open' ON CONFLICT DO NOTHING;
END;

-- Starting from the moved jobs, not the other way round: a planner without statistics might read all nodes. The children of
-- jobs that have just ended, and how many of their parents this end satisfies.
CREATE VIEW holdfast_newly_met AS
SELECT d.child, count(*) AS times FROM holdfast_moved m CROSS JOIN holdfast_dependency d ON d.parent = m.job_id
 WHERE d.met = 0 AND (m.now_is = 'succeeded' OR (m.now_is <> 'open' AND d.on_failure = 'continue'))
 GROUP BY d.child;

-- Jobs that are now behind a job that has just failed, directly or not.
CREATE VIEW holdfast_behind AS
WITH RECURSIVE reached (id) AS (
    SELECT d.child FROM holdfast_moved m CROSS JOIN holdfast_dependency d ON d.parent = m.job_id CROSS JOIN holdfast_node o ON o.job_id = d.child
     WHERE m.now_is IN ('failed', 'dead', 'cancelled') AND d.met = 0 AND d.on_failure <> 'continue' AND o.status = 'open'
    UNION
    SELECT d.child FROM reached r CROSS JOIN holdfast_dependency d ON d.parent = r.id CROSS JOIN holdfast_node o ON o.job_id = d.child
     WHERE d.met = 0 AND d.on_failure <> 'continue' AND o.status = 'open'
)
SELECT id FROM reached;

-- Jobs that are behind a failed one in workflows of which a job has come back.
CREATE VIEW holdfast_came_back AS
SELECT DISTINCT o.workflow_id AS id FROM holdfast_moved m CROSS JOIN holdfast_node o ON o.job_id = m.job_id
 WHERE m.now_is = 'open' AND m.was <> 'open';
CREATE VIEW holdfast_blocked AS
WITH RECURSIVE reached (id) AS (
    SELECT d.child FROM holdfast_came_back w CROSS JOIN holdfast_node o ON o.workflow_id = w.id CROSS JOIN holdfast_dependency d ON d.parent = o.job_id
     WHERE d.met = 0 AND d.on_failure <> 'continue'
       AND (o.status IN ('failed', 'dead', 'cancelled')
            -- A skipped job that an operator ended does not come back.
            OR (o.status = 'skipped' AND NOT EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.id = o.job_id
                                                          AND s.state IN ('queued', 'retry_waiting'))))
    UNION
    SELECT d.child FROM reached r CROSS JOIN holdfast_dependency d ON d.parent = r.id WHERE d.met = 0 AND d.on_failure <> 'continue'
)
SELECT id FROM reached;

-- Waiting jobs of workflows that have just been stopped, and jobs that returned to waiting in a stopped one.
CREATE VIEW holdfast_to_hold AS
SELECT o.job_id AS id FROM holdfast_workflow w CROSS JOIN holdfast_node o ON o.workflow_id = w.id
 WHERE w.id IN (SELECT p.workflow_id FROM holdfast_moved m CROSS JOIN holdfast_node p ON p.job_id = m.job_id WHERE p.stops = 1)
   AND w.stopped = 0 AND o.status = 'open'
   AND o.job_id NOT IN (SELECT m.job_id FROM holdfast_moved m WHERE m.now_is = 'open' AND m.was <> 'open')
UNION
SELECT m.job_id FROM holdfast_moved m CROSS JOIN holdfast_node o ON o.job_id = m.job_id CROSS JOIN holdfast_workflow w ON w.id = o.workflow_id
 WHERE m.was = 'open' AND m.now_is = 'open' AND w.stopped = 1;

CREATE TRIGGER holdfast_advance AFTER INSERT ON holdfast_round
BEGIN
    -- The new statuses. A skipped job stays skipped when it is finally cancelled.
    UPDATE holdfast_moved SET was = (SELECT o.status FROM holdfast_node o WHERE o.job_id = holdfast_moved.job_id),
           now_is = (SELECT CASE s.state WHEN 'succeeded' THEN 'succeeded' WHEN 'failed' THEN 'failed' WHEN 'dead_letter' THEN 'dead'
                                 WHEN 'cancelled' THEN 'cancelled' ELSE 'open' END FROM holdfast_job_state s WHERE s.id = holdfast_moved.job_id);
    DELETE FROM holdfast_moved WHERE was IS NULL OR was = 'skipped' OR (was = now_is AND was <> 'open');
    INSERT INTO holdfast_moved (job_id, was, now_is) SELECT id, 'open', 'skipped' FROM holdfast_behind WHERE true ON CONFLICT DO NOTHING;
    UPDATE holdfast_node SET status = (SELECT m.now_is FROM holdfast_moved m WHERE m.job_id = holdfast_node.job_id), stops = 0
     WHERE job_id IN (SELECT job_id FROM holdfast_moved WHERE was <> now_is);
    UPDATE holdfast_node SET stops = 1
     WHERE job_id IN (SELECT job_id FROM holdfast_moved WHERE was <> now_is AND now_is IN ('failed', 'dead', 'cancelled'))
       AND (fatal = 1 OR EXISTS (SELECT 1 FROM holdfast_dependency d WHERE d.parent = holdfast_node.job_id AND d.on_failure = 'stop'));
    UPDATE holdfast_workflow
       SET open = open + c.n_open, succeeded = succeeded + c.n_succeeded, failed = failed + c.n_failed, dead = dead + c.n_dead,
           cancelled = cancelled + c.n_cancelled, skipped = skipped + c.n_skipped,
           finished_at = CASE WHEN holdfast_workflow.open + c.n_open = 0 THEN coalesce(finished_at, (SELECT now FROM holdfast_present)) END
      FROM (SELECT o.workflow_id, sum(m.now_is = 'open') - sum(m.was = 'open') AS n_open,
                   sum(m.now_is = 'succeeded') - sum(m.was = 'succeeded') AS n_succeeded,
                   sum(m.now_is = 'failed') - sum(m.was = 'failed') AS n_failed,
                   sum(m.now_is = 'dead') - sum(m.was = 'dead') AS n_dead,
                   sum(m.now_is = 'cancelled') - sum(m.was = 'cancelled') AS n_cancelled,
                   sum(m.now_is = 'skipped') - sum(m.was = 'skipped') AS n_skipped
              FROM holdfast_moved m CROSS JOIN holdfast_node o ON o.job_id = m.job_id GROUP BY o.workflow_id) c
     WHERE c.workflow_id = holdfast_workflow.id
       AND holdfast_workflow.id IN (SELECT o.workflow_id FROM holdfast_moved m CROSS JOIN holdfast_node o ON o.job_id = m.job_id);
    INSERT INTO holdfast_ready (job_id, times) SELECT child, times FROM holdfast_newly_met;
    UPDATE holdfast_node SET unmet = unmet - (SELECT r.times FROM holdfast_ready r WHERE r.job_id = holdfast_node.job_id)
     WHERE job_id IN (SELECT job_id FROM holdfast_ready WHERE times > 0);
    UPDATE holdfast_dependency SET met = 1
     WHERE met = 0 AND (child, parent) IN (
               SELECT d.child, d.parent FROM holdfast_moved m CROSS JOIN holdfast_dependency d ON d.parent = m.job_id
                WHERE d.met = 0 AND (m.now_is = 'succeeded' OR (m.now_is <> 'open' AND d.on_failure = 'continue')));

    -- Redriven: jobs that are no longer behind a failed one come back, unless another failure has stopped the workflow.
    UPDATE holdfast_workflow SET stopped = EXISTS (SELECT 1 FROM holdfast_node o WHERE o.workflow_id = holdfast_workflow.id AND o.stops = 1)
     WHERE stopped = 1 AND id IN (SELECT id FROM holdfast_came_back);
    UPDATE holdfast_node SET status = 'open'
     WHERE workflow_id IN (SELECT w.id FROM holdfast_came_back b JOIN holdfast_workflow w ON w.id = b.id WHERE w.stopped = 0
                              AND NOT EXISTS (SELECT 1 FROM holdfast_node o WHERE o.workflow_id = w.id AND o.stops = 1))
       AND status = 'skipped' AND job_id NOT IN (SELECT id FROM holdfast_blocked)
       AND EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.id = holdfast_node.job_id AND s.state IN ('queued', 'retry_waiting'));

    -- Stopped: waiting jobs are held back. Running jobs continue, and are held if they return to waiting.
    UPDATE holdfast_job_state SET due_at = 9223372036854775807, note = '{"held": "parents"}', held_by = NULL
     WHERE id IN (SELECT id FROM holdfast_to_hold) AND state IN ('queued', 'retry_waiting')
       AND (due_at IS NOT 9223372036854775807 OR held_by IS NOT NULL);
    UPDATE holdfast_node SET status = 'skipped'
     WHERE job_id IN (SELECT h.id FROM holdfast_to_hold h CROSS JOIN holdfast_job_state s ON s.id = h.id WHERE s.state IN ('queued', 'retry_waiting'));
    UPDATE holdfast_workflow SET stopped = 1
     WHERE stopped = 0 AND id IN (SELECT p.workflow_id FROM holdfast_moved m CROSS JOIN holdfast_node p ON p.job_id = m.job_id WHERE p.stops = 1);

    UPDATE holdfast_job_state
       SET due_at = CASE WHEN state = 'retry_waiting' THEN (SELECT now FROM holdfast_present)
                         ELSE (SELECT j.run_at FROM holdfast_job j WHERE j.n = holdfast_job_state.n
                                  AND j.run_at > (SELECT now FROM holdfast_present)) END,
           note = nullif(json_remove(note, '$.held'), '{}')
     WHERE id IN (SELECT r.job_id FROM holdfast_ready r CROSS JOIN holdfast_node o ON o.job_id = r.job_id WHERE o.unmet = 0 AND o.status = 'open')
       AND due_at = 9223372036854775807 AND state IN ('queued', 'retry_waiting') AND json_extract(note, '$.held') = 'parents';

    -- The workflow has ended, and nothing can bring back what was skipped.
    UPDATE holdfast_job_state
       SET state = 'cancelled', due_at = NULL, finished_at = (SELECT now FROM holdfast_present),
           note = '{"reason":"skipped: a job before it failed or was cancelled"}'
     WHERE id IN (SELECT o.job_id FROM holdfast_node o WHERE o.status = 'skipped' AND o.workflow_id IN (
                      SELECT w.id FROM holdfast_moved m CROSS JOIN holdfast_node p ON p.job_id = m.job_id CROSS JOIN holdfast_workflow w ON w.id = p.workflow_id
                       WHERE m.now_is <> 'open' AND w.open = 0 AND w.dead = 0 AND w.skipped > 0))
       AND state IN ('queued', 'retry_waiting');

    -- Callbacks whose end has come are due from now on; a worker creates their jobs.
    UPDATE holdfast_callback SET due_at = (SELECT now FROM holdfast_present)
     WHERE due_at IS NULL AND fires = 'success' AND workflow_id IN (SELECT o.workflow_id FROM holdfast_moved m CROSS JOIN holdfast_node o ON o.job_id = m.job_id)
       AND (step_id IN (SELECT m.job_id FROM holdfast_moved m WHERE m.now_is = 'succeeded' AND m.was <> m.now_is)
            OR (step_id IS NULL AND EXISTS (SELECT 1 FROM holdfast_workflow w WHERE w.id = holdfast_callback.workflow_id AND w.total = w.succeeded)));
    UPDATE holdfast_callback SET due_at = (SELECT now FROM holdfast_present), failed_job = f.id, error_code = f.error_code, error_message = f.error_message
      FROM (SELECT s.id, s.error_code, s.error_message, c.job_id AS callback
              FROM holdfast_moved m CROSS JOIN holdfast_node p ON p.job_id = m.job_id CROSS JOIN holdfast_callback c ON c.workflow_id = p.workflow_id
             CROSS JOIN holdfast_job_state s ON s.id = coalesce(c.step_id, (
                       SELECT o.job_id FROM holdfast_node o CROSS JOIN holdfast_job_state e ON e.id = o.job_id
                        WHERE o.workflow_id = c.workflow_id AND o.status IN ('failed', 'dead') ORDER BY e.finished_at, e.id LIMIT 1))
             WHERE c.due_at IS NULL AND c.fires = 'failure'
               AND ((c.step_id = m.job_id AND m.now_is IN ('failed', 'dead') AND m.was <> m.now_is)
                    OR (c.step_id IS NULL AND EXISTS (SELECT 1 FROM holdfast_workflow w WHERE w.id = c.workflow_id AND w.open = 0)))) f
     WHERE holdfast_callback.job_id = f.callback AND holdfast_callback.due_at IS NULL;
    DELETE FROM holdfast_ready;
    DELETE FROM holdfast_moved;
    DELETE FROM holdfast_round;
END;

-- Only the ends of its parents release a job that waits for them.
CREATE TRIGGER holdfast_guard_release BEFORE UPDATE OF due_at ON holdfast_job_state
WHEN OLD.workflow_id IS NOT NULL AND OLD.due_at = 9223372036854775807 AND NEW.due_at IS NOT OLD.due_at
     AND (NEW.state = 'queued' OR NEW.state = 'retry_waiting')
     AND EXISTS (SELECT 1 FROM holdfast_node o WHERE o.job_id = OLD.id AND (o.unmet > 0 OR o.status = 'skipped'))
BEGIN
    SELECT RAISE(ABORT, 'immutable: only the ends of its parents release a job that waits for them');
END;

CREATE TRIGGER holdfast_refuse_workflow_update BEFORE UPDATE OF id, tenant, kind, generator, on_failure, key, plan_hash, correlation_id,
    parent_id, enqueued_by, source_system, created_at ON holdfast_workflow
BEGIN
    SELECT RAISE(ABORT, 'immutable: the plan of a workflow never changes');
END;
CREATE TRIGGER holdfast_refuse_node_update BEFORE UPDATE OF job_id, tenant, workflow_id, name, part, fatal ON holdfast_node
BEGIN
    SELECT RAISE(ABORT, 'immutable: the plan of a workflow never changes');
END;
-- The status of a job follows from its state; only skipped is independent.
CREATE TRIGGER holdfast_guard_node_status BEFORE UPDATE OF status, unmet, stops ON holdfast_node WHEN NOT EXISTS (SELECT 1 FROM holdfast_round)
     -- A job that adds jobs at run time makes the jobs behind it wait for them: the number follows from the dependencies.
     AND (NEW.status <> OLD.status OR NEW.stops <> OLD.stops
          OR NEW.unmet <> (SELECT count(*) FROM holdfast_dependency d WHERE d.child = NEW.job_id AND d.met = 0))
BEGIN
    SELECT RAISE(ABORT, 'immutable: nodes are written by triggers only');
END;
CREATE TRIGGER holdfast_guard_dependency BEFORE UPDATE ON holdfast_dependency
WHEN OLD.met = 1 OR OLD.child <> NEW.child OR OLD.parent <> NEW.parent OR OLD.tenant <> NEW.tenant
     OR OLD.on_failure <> NEW.on_failure OR NOT EXISTS (SELECT 1 FROM holdfast_round)
BEGIN
    SELECT RAISE(ABORT, 'immutable: dependencies are written by triggers only');
END;
-- Only a round writes the scratch tables.
CREATE TRIGGER holdfast_guard_round BEFORE INSERT ON holdfast_round WHEN NOT EXISTS (SELECT 1 FROM holdfast_moved)
BEGIN
    SELECT RAISE(ABORT, 'immutable: the scratch tables are written by triggers only');
END;

-- Other jobs wait for this very job.
CREATE TRIGGER holdfast_refuse_retry_in_workflow BEFORE INSERT ON holdfast_job WHEN NEW.workflow_id IS NOT NULL AND NEW.retry_as IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'retried in place: jobs of a workflow cannot be retried as new jobs');
END;

CREATE TRIGGER holdfast_guard_callback_update BEFORE UPDATE ON holdfast_callback
WHEN NEW.job_id <> OLD.job_id OR NEW.tenant <> OLD.tenant OR NEW.workflow_id <> OLD.workflow_id OR NEW.fires <> OLD.fires
     OR NEW.step_id IS NOT OLD.step_id OR OLD.fired_at IS NOT NULL OR (OLD.due_at IS NOT NULL AND NEW.due_at IS NULL)
     OR (NEW.fired_at IS NULL AND NEW.document IS NOT OLD.document)
BEGIN
    SELECT RAISE(ABORT, 'immutable: the plan of a callback never changes, and it fires once');
END;
