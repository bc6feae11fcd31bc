-- The ledger: one event per transition, in the same transaction, for every writer. The event type is derived from the row
-- alone, so that hand-written transitions get one too. VALUES instead of SELECT: because the ledger has an insert guard,
-- SQLite would first put selected rows into a temporary table, at twice the cost of all the rest.
DROP TRIGGER IF EXISTS holdfast_record_transition;
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
                       CASE WHEN NEW.settled_by IS NOT OLD.lease THEN CASE NEW.error_code WHEN 'worker_lost' THEN 'lapse' ELSE 'fail' END
                            -- The worker that shows the lease reports that its own process died, and counts it as a crash.
                            WHEN NEW.crashes > OLD.crashes THEN 'crash'
                            ELSE 'fail' END
                   WHEN 'waiting_for_approval' THEN
                       CASE WHEN NEW.error_code IN ('deadline_passed', 'approval_expired') THEN 'expire' ELSE 'deny' END
                   ELSE 'expire' END
               WHEN 'retry_waiting' THEN CASE OLD.state WHEN 'failed' THEN 'retry' WHEN 'retry_waiting' THEN
                       CASE WHEN json_extract(NEW.note, '$.moved') IS NOT NULL THEN 'move' ELSE 'replace' END ELSE 'snooze' END
               WHEN 'queued' THEN CASE OLD.state
                   WHEN 'leased' THEN CASE WHEN json_extract(NEW.note, '$.reason') = 'lease_lapsed' THEN 'lapse' ELSE 'release' END
                   WHEN 'retry_waiting' THEN
                       CASE WHEN json_extract(NEW.note, '$.rescheduled') IS NOT NULL THEN 'reschedule' ELSE 'due' END
                   WHEN 'queued' THEN CASE WHEN json_extract(NEW.note, '$.moved') IS NOT NULL THEN 'move'
                                           WHEN json_extract(NEW.note, '$.rescheduled') IS NULL AND json_extract(NEW.note, '$.replaced') IS NOT NULL
                                           THEN 'replace' ELSE 'reschedule' END
                   WHEN 'dead_letter' THEN 'redrive'
                   ELSE CASE json_extract(NEW.note, '$.verdict') WHEN 'denied' THEN 'deny' WHEN 'expired' THEN 'expire' ELSE 'approve' END END
               WHEN 'dead_letter' THEN 'bury'
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

-- Checks every update of a state row. The pairs are those of engine/states.py: a test tries every ordered pair. RAISE takes
-- only a literal before SQLite 3.47, so each refusal that names two states is spelled out. One trigger for all checks, because
-- each trigger adds cost: transitions that are not in the table; an attempt ended without its lease (only a cancellation, or a
-- reaper that is right about a lost lease, may do that); a job claimed under a lease that is not live, or claimed from another
-- worker; attempts that are not counted one by one; a job that waits for an approval and continues, or fails, without a
-- decision.
DROP TRIGGER IF EXISTS holdfast_judge_transition;
CREATE TRIGGER holdfast_judge_transition BEFORE UPDATE OF state, lease, attempt ON holdfast_job_state
WHEN (OLD.state <> NEW.state AND NOT coalesce(CASE OLD.state
        WHEN 'queued' THEN NEW.state = 'leased' OR NEW.state = 'in_progress' OR NEW.state = 'failed' OR NEW.state = 'cancelled'
        WHEN 'leased' THEN NEW.state = 'queued' OR NEW.state = 'in_progress' OR NEW.state = 'failed' OR NEW.state = 'cancelled'
        WHEN 'in_progress' THEN NEW.state = 'succeeded' OR NEW.state = 'failed' OR NEW.state = 'retry_waiting' OR NEW.state = 'cancelled' OR NEW.state = 'waiting_for_approval'
        WHEN 'succeeded' THEN NEW.state = 'cleaned'
        WHEN 'failed' THEN NEW.state = 'retry_waiting' OR NEW.state = 'dead_letter' OR NEW.state = 'cleaned'
        WHEN 'retry_waiting' THEN NEW.state = 'queued' OR NEW.state = 'failed' OR NEW.state = 'cancelled'
        WHEN 'dead_letter' THEN NEW.state = 'queued' OR NEW.state = 'cancelled'
        WHEN 'cancelled' THEN NEW.state = 'cleaned'
        WHEN 'waiting_for_approval' THEN NEW.state = 'queued' OR NEW.state = 'failed' OR NEW.state = 'cancelled'
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
        WHEN 'queued succeeded' THEN RAISE(ABORT, 'illegal transition queued -> succeeded')
        WHEN 'queued retry_waiting' THEN RAISE(ABORT, 'illegal transition queued -> retry_waiting')
        WHEN 'queued dead_letter' THEN RAISE(ABORT, 'illegal transition queued -> dead_letter')
        WHEN 'queued cleaned' THEN RAISE(ABORT, 'illegal transition queued -> cleaned')
        WHEN 'queued waiting_for_approval' THEN RAISE(ABORT, 'illegal transition queued -> waiting_for_approval')
        WHEN 'leased succeeded' THEN RAISE(ABORT, 'illegal transition leased -> succeeded')
        WHEN 'leased retry_waiting' THEN RAISE(ABORT, 'illegal transition leased -> retry_waiting')
        WHEN 'leased dead_letter' THEN RAISE(ABORT, 'illegal transition leased -> dead_letter')
        WHEN 'leased cleaned' THEN RAISE(ABORT, 'illegal transition leased -> cleaned')
        WHEN 'leased waiting_for_approval' THEN RAISE(ABORT, 'illegal transition leased -> waiting_for_approval')
        WHEN 'in_progress queued' THEN RAISE(ABORT, 'illegal transition in_progress -> queued')
        WHEN 'in_progress leased' THEN RAISE(ABORT, 'illegal transition in_progress -> leased')
        WHEN 'in_progress dead_letter' THEN RAISE(ABORT, 'illegal transition in_progress -> dead_letter')
        WHEN 'in_progress cleaned' THEN RAISE(ABORT, 'illegal transition in_progress -> cleaned')
        WHEN 'succeeded queued' THEN RAISE(ABORT, 'illegal transition succeeded -> queued')
        WHEN 'succeeded leased' THEN RAISE(ABORT, 'illegal transition succeeded -> leased')
        WHEN 'succeeded in_progress' THEN RAISE(ABORT, 'illegal transition succeeded -> in_progress')
        WHEN 'succeeded failed' THEN RAISE(ABORT, 'illegal transition succeeded -> failed')
        WHEN 'succeeded retry_waiting' THEN RAISE(ABORT, 'illegal transition succeeded -> retry_waiting')
        WHEN 'succeeded dead_letter' THEN RAISE(ABORT, 'illegal transition succeeded -> dead_letter')
        WHEN 'succeeded cancelled' THEN RAISE(ABORT, 'illegal transition succeeded -> cancelled')
        WHEN 'succeeded waiting_for_approval' THEN RAISE(ABORT, 'illegal transition succeeded -> waiting_for_approval')
        WHEN 'failed queued' THEN RAISE(ABORT, 'illegal transition failed -> queued')
        WHEN 'failed leased' THEN RAISE(ABORT, 'illegal transition failed -> leased')
        WHEN 'failed in_progress' THEN RAISE(ABORT, 'illegal transition failed -> in_progress')
        WHEN 'failed succeeded' THEN RAISE(ABORT, 'illegal transition failed -> succeeded')
        WHEN 'failed cancelled' THEN RAISE(ABORT, 'illegal transition failed -> cancelled')
        WHEN 'failed waiting_for_approval' THEN RAISE(ABORT, 'illegal transition failed -> waiting_for_approval')
        WHEN 'retry_waiting leased' THEN RAISE(ABORT, 'illegal transition retry_waiting -> leased')
        WHEN 'retry_waiting in_progress' THEN RAISE(ABORT, 'illegal transition retry_waiting -> in_progress')
        WHEN 'retry_waiting succeeded' THEN RAISE(ABORT, 'illegal transition retry_waiting -> succeeded')
        WHEN 'retry_waiting dead_letter' THEN RAISE(ABORT, 'illegal transition retry_waiting -> dead_letter')
        WHEN 'retry_waiting cleaned' THEN RAISE(ABORT, 'illegal transition retry_waiting -> cleaned')
        WHEN 'retry_waiting waiting_for_approval' THEN RAISE(ABORT, 'illegal transition retry_waiting -> waiting_for_approval')
        WHEN 'dead_letter leased' THEN RAISE(ABORT, 'illegal transition dead_letter -> leased')
        WHEN 'dead_letter in_progress' THEN RAISE(ABORT, 'illegal transition dead_letter -> in_progress')
        WHEN 'dead_letter succeeded' THEN RAISE(ABORT, 'illegal transition dead_letter -> succeeded')
        WHEN 'dead_letter failed' THEN RAISE(ABORT, 'illegal transition dead_letter -> failed')
        WHEN 'dead_letter retry_waiting' THEN RAISE(ABORT, 'illegal transition dead_letter -> retry_waiting')
        WHEN 'dead_letter cleaned' THEN RAISE(ABORT, 'illegal transition dead_letter -> cleaned')
        WHEN 'dead_letter waiting_for_approval' THEN RAISE(ABORT, 'illegal transition dead_letter -> waiting_for_approval')
        WHEN 'cancelled queued' THEN RAISE(ABORT, 'illegal transition cancelled -> queued')
        WHEN 'cancelled leased' THEN RAISE(ABORT, 'illegal transition cancelled -> leased')
        WHEN 'cancelled in_progress' THEN RAISE(ABORT, 'illegal transition cancelled -> in_progress')
        WHEN 'cancelled succeeded' THEN RAISE(ABORT, 'illegal transition cancelled -> succeeded')
        WHEN 'cancelled failed' THEN RAISE(ABORT, 'illegal transition cancelled -> failed')
        WHEN 'cancelled retry_waiting' THEN RAISE(ABORT, 'illegal transition cancelled -> retry_waiting')
        WHEN 'cancelled dead_letter' THEN RAISE(ABORT, 'illegal transition cancelled -> dead_letter')
        WHEN 'cancelled waiting_for_approval' THEN RAISE(ABORT, 'illegal transition cancelled -> waiting_for_approval')
        WHEN 'cleaned queued' THEN RAISE(ABORT, 'illegal transition cleaned -> queued')
        WHEN 'cleaned leased' THEN RAISE(ABORT, 'illegal transition cleaned -> leased')
        WHEN 'cleaned in_progress' THEN RAISE(ABORT, 'illegal transition cleaned -> in_progress')
        WHEN 'cleaned succeeded' THEN RAISE(ABORT, 'illegal transition cleaned -> succeeded')
        WHEN 'cleaned failed' THEN RAISE(ABORT, 'illegal transition cleaned -> failed')
        WHEN 'cleaned retry_waiting' THEN RAISE(ABORT, 'illegal transition cleaned -> retry_waiting')
        WHEN 'cleaned dead_letter' THEN RAISE(ABORT, 'illegal transition cleaned -> dead_letter')
        WHEN 'cleaned cancelled' THEN RAISE(ABORT, 'illegal transition cleaned -> cancelled')
        WHEN 'cleaned waiting_for_approval' THEN RAISE(ABORT, 'illegal transition cleaned -> waiting_for_approval')
        WHEN 'waiting_for_approval leased' THEN RAISE(ABORT, 'illegal transition waiting_for_approval -> leased')
        WHEN 'waiting_for_approval in_progress' THEN RAISE(ABORT, 'illegal transition waiting_for_approval -> in_progress')
        WHEN 'waiting_for_approval succeeded' THEN RAISE(ABORT, 'illegal transition waiting_for_approval -> succeeded')
        WHEN 'waiting_for_approval retry_waiting' THEN RAISE(ABORT, 'illegal transition waiting_for_approval -> retry_waiting')
        WHEN 'waiting_for_approval dead_letter' THEN RAISE(ABORT, 'illegal transition waiting_for_approval -> dead_letter')
        WHEN 'waiting_for_approval cleaned' THEN RAISE(ABORT, 'illegal transition waiting_for_approval -> cleaned')
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

DROP TRIGGER IF EXISTS holdfast_judge_identity;
CREATE TRIGGER holdfast_judge_identity BEFORE UPDATE OF n, id, tenant, kind, max_crashes, agent, workflow_id, executor ON holdfast_job_state
BEGIN
    SELECT RAISE(ABORT, 'immutable: number, id, tenant, kind, agent, executor and crash limit never change');
END;
