-- The ledger: one event per transition, in the same transaction, for every writer. The event type is derived from the row
-- alone, so that hand-written transitions get one too. VALUES instead of SELECT: because the ledger has an insert guard,
-- SQLite would first put selected rows into a temporary table, at twice the cost of all the rest.
CREATE TRIGGER holdfast_record_transition AFTER UPDATE OF state, note ON holdfast_job_state
WHEN OLD.state <> NEW.state
    -- A waiting job got another time or position: not a transition, but it is recorded.
    OR (NEW.state = 'queued' AND NEW.note IS NOT OLD.note AND json_extract(NEW.note, '$.rescheduled') IS NOT NULL
        AND json_extract(NEW.note, '$.moved') IS NULL)
    OR ((NEW.state = 'queued' OR NEW.state = 'retry_waiting') AND NEW.note IS NOT OLD.note
        AND json_extract(NEW.note, '$.moved') IS NOT NULL
        AND json_extract(NEW.note, '$.moved') IS NOT json_extract(OLD.note, '$.moved'))
    OR ((NEW.state = 'queued' OR NEW.state = 'retry_waiting') AND NEW.note IS NOT OLD.note
        AND json_extract(NEW.note, '$.replaced') IS NOT NULL AND json_extract(NEW.note, '$.moved', '$.rescheduled') = '[null,null]'
        AND json_extract(NEW.note, '$.replaced') IS NOT json_extract(OLD.note, '$.replaced'))
BEGIN
    INSERT INTO holdfast_event (job_id, tenant, kind, type, from_state, to_state, attempt, at, actor, meta)
    VALUES (NEW.id, NEW.tenant, NEW.kind,
           CASE NEW.state
               WHEN 'in_progress' THEN CASE OLD.state WHEN 'queued' THEN 'take' ELSE 'start' END
               WHEN 'succeeded' THEN 'succeed'
               WHEN 'leased' THEN 'claim'
               WHEN 'failed' THEN CASE OLD.state
                   -- A worker that shows the lease was not lost, whatever its handler calls the error.
                   WHEN 'in_progress' THEN
                       CASE WHEN NEW.settled_by IS NOT OLD.lease THEN CASE NEW.error_code WHEN 'worker_lost' THEN 'lease_expired' ELSE 'fail' END
                            -- The worker that shows the lease reports that its own process died, and counts it as a crash.
                            WHEN NEW.crashes > OLD.crashes THEN 'crash'
                            ELSE 'fail' END
                   WHEN 'waiting_for_approval' THEN
                       CASE WHEN NEW.error_code IN ('deadline_passed', 'approval_expired') THEN 'expire' ELSE 'deny' END
                   ELSE 'expire' END
               WHEN 'retry_waiting' THEN CASE OLD.state WHEN 'failed' THEN 'retry' WHEN 'retry_waiting' THEN
                       CASE WHEN json_extract(NEW.note, '$.moved') IS NOT NULL THEN 'move' ELSE 'replace' END ELSE 'snooze' END
               WHEN 'queued' THEN CASE OLD.state
                   WHEN 'leased' THEN CASE WHEN json_extract(NEW.note, '$.reason') = 'lease_expired' THEN 'lease_expired' ELSE 'release' END
                   WHEN 'retry_waiting' THEN
                       CASE WHEN json_extract(NEW.note, '$.rescheduled') IS NOT NULL THEN 'reschedule' ELSE 'due' END
                   WHEN 'queued' THEN CASE WHEN json_extract(NEW.note, '$.moved') IS NOT NULL THEN 'move'
                                           WHEN json_extract(NEW.note, '$.rescheduled') IS NULL AND json_extract(NEW.note, '$.replaced') IS NOT NULL
                                           THEN 'replace' ELSE 'reschedule' END
                   WHEN 'dead_letter' THEN 'redrive'
                   ELSE CASE json_extract(NEW.note, '$.verdict') WHEN 'denied' THEN 'deny' WHEN 'expired' THEN 'expire' ELSE 'approve' END END
               WHEN 'dead_letter' THEN 'dead_letter'
               WHEN 'cancelled' THEN CASE OLD.state WHEN 'dead_letter' THEN 'discard' ELSE 'cancel' END
               WHEN 'waiting_for_approval' THEN 'ask'
               WHEN 'cleaned' THEN 'clean'
           END,
           OLD.state, NEW.state, NEW.attempt, (SELECT now FROM holdfast_present), (SELECT actor FROM holdfast_present),
           CASE WHEN OLD.state = NEW.state AND json_extract(NEW.note, '$.moved') IS NOT NULL THEN json_extract(NEW.note, '$.moved')
                WHEN OLD.state = NEW.state AND json_extract(NEW.note, '$.rescheduled') IS NULL AND json_extract(NEW.note, '$.replaced') IS NOT NULL
                THEN json_extract(NEW.note, '$.replaced')
                WHEN NEW.state IN ('failed', 'dead_letter') THEN
                    json_set(coalesce(NEW.note, '{}'), '$.error_code', NEW.error_code, '$.error_message', NEW.error_message)
                WHEN NEW.state = 'retry_waiting' THEN json_set(coalesce(NEW.note, '{}'), '$.due_at',
                    strftime('%Y-%m-%dT%H:%M:%S', NEW.due_at / 1000000, 'unixepoch') || printf('.%03dZ', NEW.due_at / 1000 % 1000))
                -- A purge is checked against this list.
                WHEN NEW.state = 'cleaned' THEN json_set(coalesce(NEW.note, '{}'), '$.events',
                    (SELECT group_concat(e.seq) FROM holdfast_event e WHERE e.job_id = NEW.id))
                ELSE NEW.note END);
END;

-- Checks every update of a state row. The pairs are those of engine/states.py, written here when the code is installed; RAISE
-- takes only a literal before SQLite 3.47. One trigger for all checks, because each trigger adds cost: transitions that are not in the table; an attempt ended without its lease (only a cancellation, or a
-- reaper that is right about a lost lease, may do that); a job claimed under a lease that is not live, or claimed from another
-- worker; attempts that are not counted one by one; a job that waits for an approval and continues, or fails, without a
-- decision.
CREATE TRIGGER holdfast_guard_transition BEFORE UPDATE OF state, lease, attempt ON holdfast_job_state
WHEN (OLD.state <> NEW.state AND NOT coalesce(CASE OLD.state
        WHEN NULL THEN NULL   -- {legal pairs}
    END, 0))
    OR (OLD.state = 'in_progress' AND NEW.settled_by IS NOT OLD.lease
        AND (NEW.state = 'succeeded' OR NEW.state = 'failed' OR NEW.state = 'retry_waiting'
             OR NEW.state = 'waiting_for_approval')
        AND (NEW.state <> 'failed' OR NEW.error_code IS NOT 'worker_lost'
             OR EXISTS (SELECT 1 FROM holdfast_lease l, holdfast_present p WHERE l.id = OLD.lease AND l.ended_at IS NULL AND l.until > p.now)))
    OR (NEW.lease IS NOT NULL AND NEW.lease IS NOT OLD.lease
        AND (OLD.lease IS NOT NULL OR NOT EXISTS (SELECT 1 FROM holdfast_lease l WHERE l.id = NEW.lease AND l.ended_at IS NULL AND l.name <> 'generator')))
    OR NEW.attempt <> OLD.attempt + (NEW.state = 'in_progress' AND OLD.state <> 'in_progress')
    OR (OLD.state = 'waiting_for_approval' AND NEW.state <> OLD.state AND NEW.approval_id IS NOT NULL)
    OR (OLD.state = 'waiting_for_approval' AND (NEW.state = 'queued' OR NEW.state = 'failed')
        AND NOT (NEW.state = 'failed' AND NEW.error_code IS 'deadline_passed' AND OLD.deadline_at IS NOT NULL
                 AND OLD.deadline_at <= (SELECT now FROM holdfast_present))
        AND NOT EXISTS (SELECT 1 FROM holdfast_approval g WHERE g.id = OLD.approval_id AND g.job_id = OLD.id AND g.tenant = OLD.tenant
                           AND CASE NEW.state
                               WHEN 'queued' THEN g.state = 'approved' OR (g.state IN ('denied', 'expired') AND g.on_deny = 'resume')
                               ELSE g.state IN ('denied', 'expired') AND g.on_deny = 'fail' END))
BEGIN
    SELECT CASE OLD.state || ' ' || NEW.state
        WHEN NULL THEN NULL   -- {illegal pairs}
    END;
    SELECT CASE
        WHEN NEW.lease IS NOT NULL AND NEW.lease IS NOT OLD.lease AND OLD.lease IS NOT NULL
            THEN RAISE(ABORT, 'stale lease: a held job cannot move to another lease')
        WHEN NEW.lease IS NOT NULL AND NEW.lease IS NOT OLD.lease
             AND NOT EXISTS (SELECT 1 FROM holdfast_lease l WHERE l.id = NEW.lease AND l.ended_at IS NULL)
            THEN RAISE(ABORT, 'stale lease: a job can only be claimed under a live lease')
        WHEN NEW.lease IS NOT NULL AND NEW.lease IS NOT OLD.lease
             AND EXISTS (SELECT 1 FROM holdfast_lease l WHERE l.id = NEW.lease AND l.name = 'generator')
            THEN RAISE(ABORT, 'generator only: a generator plans work and cannot claim jobs')
        WHEN NEW.attempt <> OLD.attempt + (NEW.state = 'in_progress' AND OLD.state <> 'in_progress')
            THEN RAISE(ABORT, 'immutable: attempt cannot change; only starting a job adds one')
        WHEN OLD.state = 'waiting_for_approval' AND NEW.approval_id IS NOT NULL
            THEN RAISE(ABORT, 'immutable: approval_id must be cleared when the job leaves waiting_for_approval')
        WHEN OLD.state = 'waiting_for_approval' AND NEW.state = 'queued'
            THEN RAISE(ABORT, 'illegal transition waiting_for_approval -> queued: its approval has no such decision')
        WHEN OLD.state = 'waiting_for_approval' AND NEW.state = 'failed'
            THEN RAISE(ABORT, 'illegal transition waiting_for_approval -> failed: its approval has no such decision')
        WHEN OLD.state = 'in_progress' AND NEW.state = 'failed' AND NEW.error_code IS 'worker_lost'
            THEN RAISE(ABORT, 'stale lease: a job cannot be declared lost while its lease is live')
        WHEN OLD.state = 'in_progress'
             AND (NEW.state = 'succeeded' OR NEW.state = 'failed' OR NEW.state = 'retry_waiting'
                  OR NEW.state = 'waiting_for_approval')
            THEN RAISE(ABORT, 'stale lease: ending an attempt needs the lease token of its holder')
        ELSE RAISE(ABORT, 'illegal transition to an unknown state')
    END;
END;

CREATE TRIGGER holdfast_guard_identity BEFORE UPDATE OF n, id, tenant, kind, max_crashes, agent, workflow_id ON holdfast_job_state
BEGIN
    SELECT RAISE(ABORT, 'immutable: number, id, tenant, kind, agent, executor and crash limit never change');
END;

-- What a job requires besides the label changes; the label does not.
CREATE TRIGGER holdfast_guard_executor BEFORE UPDATE OF executor ON holdfast_job_state
WHEN (CASE WHEN OLD.executor < ' ' THEN json_extract(substr(OLD.executor, 2), '$[2]') ELSE OLD.executor END)
     IS NOT (CASE WHEN NEW.executor < ' ' THEN json_extract(substr(NEW.executor, 2), '$[2]') ELSE NEW.executor END)
BEGIN
    SELECT RAISE(ABORT, 'immutable: number, id, tenant, kind, agent, executor and crash limit never change');
END;
