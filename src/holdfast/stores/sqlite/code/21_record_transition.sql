-- The ledger: one event a transition, in the same transaction, whoever made it (CX-4). What happened is told from
-- the row alone, so that a step taken by hand is named as well as one of ours. VALUES, not SELECT: as the ledger has
-- a guard of its own, what is selected would be put into a table first, at twice the cost of all the rest.
DROP TRIGGER IF EXISTS record_transition;
CREATE TRIGGER record_transition AFTER UPDATE OF state, note ON job_state
WHEN OLD.state <> NEW.state
    -- Somebody has given a waiting job another time or another place: no step of its own, but to be told.
    OR (NEW.state = 'queued' AND NEW.note IS NOT OLD.note AND json_extract(NEW.note, '$.rescheduled') IS NOT NULL
        AND json_extract(NEW.note, '$.moved') IS NULL)
    OR ((NEW.state = 'queued' OR NEW.state = 'retry_waiting') AND NEW.note IS NOT OLD.note
        AND json_extract(NEW.note, '$.moved') IS NOT NULL
        AND json_extract(NEW.note, '$.moved') IS NOT json_extract(OLD.note, '$.moved'))
BEGIN
    INSERT INTO event (job_id, tenant, kind, verb, from_state, to_state, attempt, at, actor, meta)
    VALUES (NEW.id, NEW.tenant, NEW.kind,
           CASE NEW.state
               WHEN 'in_progress' THEN CASE OLD.state WHEN 'queued' THEN 'take' ELSE 'start' END
               WHEN 'succeeded' THEN 'succeed'
               WHEN 'leased' THEN 'claim'
               WHEN 'failed' THEN CASE OLD.state
                   -- Whoever shows the lease was not lost, whatever its handler calls the error.
                   WHEN 'in_progress' THEN
                       CASE WHEN NEW.settled_by IS NOT OLD.lease THEN CASE NEW.error_code WHEN 'worker_lost' THEN 'lapse' ELSE 'fail' END
                            -- Its own process is gone, says whoever shows the lease, and counts it as a crash.
                            WHEN NEW.crashes > OLD.crashes THEN 'crash'
                            ELSE 'fail' END
                   WHEN 'waiting_for_approval' THEN
                       CASE WHEN NEW.error_code IN ('deadline_passed', 'gate_expired') THEN 'expire' ELSE 'deny' END
                   ELSE 'expire' END
               WHEN 'retry_waiting' THEN CASE OLD.state WHEN 'failed' THEN 'retry' WHEN 'retry_waiting' THEN 'move' ELSE 'snooze' END
               WHEN 'queued' THEN CASE OLD.state
                   WHEN 'leased' THEN CASE WHEN json_extract(NEW.note, '$.reason') = 'lease_lapsed' THEN 'lapse' ELSE 'release' END
                   WHEN 'retry_waiting' THEN
                       CASE WHEN json_extract(NEW.note, '$.rescheduled') IS NOT NULL THEN 'reschedule' ELSE 'due' END
                   WHEN 'queued' THEN CASE WHEN json_extract(NEW.note, '$.moved') IS NOT NULL THEN 'move' ELSE 'reschedule' END
                   WHEN 'dead_letter' THEN 'redrive'
                   ELSE CASE json_extract(NEW.note, '$.verdict') WHEN 'denied' THEN 'deny' WHEN 'expired' THEN 'expire' ELSE 'approve' END END
               WHEN 'dead_letter' THEN 'bury'
               WHEN 'cancelled' THEN CASE OLD.state WHEN 'dead_letter' THEN 'discard' ELSE 'cancel' END
               WHEN 'waiting_for_approval' THEN 'ask'
               WHEN 'cleaned' THEN 'clean'
           END,
           OLD.state, NEW.state, NEW.attempt, (SELECT now FROM present), (SELECT actor FROM present),
           CASE WHEN OLD.state = NEW.state AND json_extract(NEW.note, '$.moved') IS NOT NULL THEN json_extract(NEW.note, '$.moved')
                WHEN NEW.state IN ('failed', 'dead_letter') THEN
                    json_set(coalesce(NEW.note, '{}'), '$.error_code', NEW.error_code, '$.error_message', NEW.error_message)
                WHEN NEW.state = 'retry_waiting' THEN json_set(coalesce(NEW.note, '{}'), '$.due_at',
                    strftime('%Y-%m-%dT%H:%M:%S', NEW.due_at / 1000000, 'unixepoch') || printf('.%03dZ', NEW.due_at / 1000 % 1000))
                -- A purge is checked against this list.
                WHEN NEW.state = 'cleaned' THEN json_set(coalesce(NEW.note, '{}'), '$.events',
                    (SELECT group_concat(e.seq) FROM event e WHERE e.job_id = NEW.id))
                ELSE NEW.note END);
END;
