-- Guards: changes that the tables refuse from every writer.

-- A state row is created with its job and only then. REPLACE deletes conflicting rows without firing the delete triggers (an
-- `INSERT OR REPLACE INTO job` passes that on to this insert), so conflicting rows are checked first. A job with retry_of is
-- the successor of a failed job whose kind retries as a new job.
CREATE TRIGGER holdfast_guard_state_insert BEFORE INSERT ON holdfast_job_state
WHEN NEW.state <> 'queued' OR NEW.attempt <> 0
     OR NOT EXISTS (SELECT 1 FROM holdfast_job j WHERE j.n = NEW.n AND j.id = NEW.id AND j.tenant = NEW.tenant AND j.kind = NEW.kind
                     AND j.agent IS NEW.agent AND j.executor IS NEW.executor
                     AND (j.retry_of IS NULL
                          OR EXISTS (SELECT 1 FROM holdfast_job p JOIN holdfast_job_state o ON o.n = p.n WHERE p.id = j.retry_of AND p.tenant = j.tenant
                                        AND p.kind = j.kind AND p.retry_as = 'new_job' AND o.state = 'failed'
                                        AND json_extract(o.note, '$.retried_as') = j.id)))
     OR EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.n = NEW.n)
     OR EXISTS (SELECT 1 FROM holdfast_event e WHERE e.job_id = NEW.id)
BEGIN
    SELECT CASE
        WHEN EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.n = NEW.n) OR EXISTS (SELECT 1 FROM holdfast_event e WHERE e.job_id = NEW.id)
            THEN RAISE(ABORT, 'already exists: there is a job with this id')
        WHEN EXISTS (SELECT 1 FROM holdfast_job j WHERE j.n = NEW.n AND j.id = NEW.id AND j.retry_of IS NOT NULL)
            THEN RAISE(ABORT, 'immutable: retry_of must name a failed job of the same kind and tenant with retry_as = new_job')
        ELSE RAISE(ABORT, 'immutable: job_state is written by triggers only; insert into job')
    END;
END;

-- An event continues its job's ledger and leads to the job's current state, so no client can write one that did not happen. An
-- event that keeps the state records that a waiting job was rescheduled or moved: it must match the job's note and be the
-- first to do so, unless an operation is running: a job that it postponed meanwhile may get the same time again.
CREATE TRIGGER holdfast_guard_event_insert BEFORE INSERT ON holdfast_event
WHEN (NEW.from_state IS NEW.to_state
      AND (NEW.meta IS NULL
           OR NOT coalesce(CASE NEW.type
               WHEN 'reschedule' THEN NEW.to_state = 'queued' AND NEW.meta IS
                   (SELECT s.note FROM holdfast_job_state s WHERE s.id = NEW.job_id AND json_extract(s.note, '$.rescheduled') IS NOT NULL)
               WHEN 'move' THEN (NEW.to_state = 'queued' OR NEW.to_state = 'retry_waiting') AND NEW.meta IS
                   (SELECT json_extract(s.note, '$.moved') FROM holdfast_job_state s WHERE s.id = NEW.job_id)
               WHEN 'replace' THEN (NEW.to_state = 'queued' OR NEW.to_state = 'retry_waiting') AND NEW.meta IS
                   (SELECT json_extract(s.note, '$.replaced') FROM holdfast_job_state s WHERE s.id = NEW.job_id)
               END, 0)
           OR ((SELECT now FROM holdfast_clock) IS NULL
               AND NEW.meta IS (SELECT e.meta FROM holdfast_event e WHERE e.job_id = NEW.job_id ORDER BY e.seq DESC LIMIT 1))))
     OR NOT EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.id = NEW.job_id AND s.state = NEW.to_state AND s.tenant = NEW.tenant)
     OR NEW.from_state IS NOT (SELECT e.to_state FROM holdfast_event e WHERE e.job_id = NEW.job_id ORDER BY e.seq DESC LIMIT 1)
BEGIN
    SELECT RAISE(ABORT, 'immutable: the ledger is written by triggers only');
END;

CREATE TRIGGER holdfast_guard_event_delete BEFORE DELETE ON holdfast_event
WHEN EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.id = OLD.job_id) OR OLD.seq = (SELECT max(seq) FROM holdfast_event)
BEGIN
    SELECT RAISE(ABORT, 'immutable: ledger rows are never deleted while their job exists, and the newest row never is');
END;

-- A job's facts never change, with four exceptions: retention empties the payload of a cleaned job, an encrypted payload may
-- be re-encrypted as announced (features/payloads/sqlite.sql), an operator may replace the payload of a waiting job as its
-- newest event records, and the external reference may change, which is recorded as an action.
CREATE TRIGGER holdfast_refuse_job_update BEFORE UPDATE OF n, id, tenant, kind, queue, priority, run_at, deadline_at, max_attempts,
    max_crashes, backoff, idempotency_key, content_key, tags, agent, correlation_id, causation_id, parent_id, workflow_id,
    enqueued_by, source_system, created_at, uses, retry_as, retry_of, depth, executor ON holdfast_job
BEGIN
    SELECT RAISE(ABORT, 'immutable: the facts of a job never change');
END;

CREATE TRIGGER holdfast_guard_reference_update BEFORE UPDATE OF external_ref ON holdfast_job WHEN length(NEW.external_ref) > 255
BEGIN
    SELECT RAISE(ABORT, 'immutable: an external reference has at most 255 characters');
END;

CREATE TRIGGER holdfast_guard_payload_update BEFORE UPDATE OF payload ON holdfast_job
WHEN (NEW.payload <> '{}' OR NOT EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.n = OLD.n AND s.state = 'cleaned'))
     AND NOT coalesce(
        (SELECT r.from_key = json_extract(OLD.payload, '$."$holdfast".key') AND r.to_key = json_extract(NEW.payload, '$."$holdfast".key')
           FROM holdfast_resealed r WHERE r.job_id = OLD.id ORDER BY r.n DESC LIMIT 1)
        AND json_remove(NEW.payload, '$."$holdfast".key', '$."$holdfast".sealed', '$."$holdfast".stored') = '{"$holdfast":{}}'
        AND (json_extract(OLD.payload, '$."$holdfast".stored') IS NULL) = (json_extract(NEW.payload, '$."$holdfast".stored') IS NULL)
        AND length(json_extract(OLD.payload, '$."$holdfast".sealed')) IS length(json_extract(NEW.payload, '$."$holdfast".sealed')), 0)
     AND NOT coalesce(
        (SELECT e.type = 'replace' AND (e.to_state = 'queued' OR e.to_state = 'retry_waiting')
                AND json_extract(e.meta, '$.size') = length(CAST(NEW.payload AS BLOB))
           FROM holdfast_event e WHERE e.job_id = OLD.id ORDER BY e.seq DESC LIMIT 1), 0)
BEGIN
    SELECT RAISE(ABORT, 'immutable: the payload never changes');
END;

-- A job is deleted completely or not at all: first its state (cleaned only), then its facts, then its ledger.
CREATE TRIGGER holdfast_guard_state_delete BEFORE DELETE ON holdfast_job_state WHEN OLD.state <> 'cleaned'
BEGIN
    SELECT RAISE(ABORT, 'immutable: only a cleaned job can be purged');
END;

CREATE TRIGGER holdfast_guard_job_delete BEFORE DELETE ON holdfast_job
WHEN EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.n = OLD.n)
BEGIN
    SELECT RAISE(ABORT, 'immutable: a job is never deleted while it has a state');
END;

-- New jobs get their state when an operation finishes, so the clock row can be signed only as an operation does it: with the
-- number above which jobs are new.
CREATE TRIGGER holdfast_guard_signing BEFORE UPDATE OF now, floor ON holdfast_clock
WHEN NEW.now IS NOT NULL AND NEW.floor IS NOT (SELECT coalesce(max(n), 0) FROM holdfast_job_state)
BEGIN
    SELECT RAISE(ABORT, 'immutable: only operations sign the clock');
END;

-- The triggers read the time and the actor from the clock row: without it they would record nothing.
CREATE TRIGGER holdfast_refuse_clock_delete BEFORE DELETE ON holdfast_clock
BEGIN
    SELECT RAISE(ABORT, 'immutable: the clock must keep its one row');
END;

-- A result is written once, when its job succeeds. Retention deletes that of a cleaned job; an encrypted one may be
-- re-encrypted. Nothing else is allowed.
CREATE TRIGGER holdfast_guard_result_insert BEFORE INSERT ON holdfast_result
WHEN NOT EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.id = NEW.job_id AND s.tenant = NEW.tenant AND s.state = 'succeeded')
     OR ((SELECT now FROM holdfast_clock) IS NULL AND EXISTS (SELECT 1 FROM holdfast_result r WHERE r.job_id = NEW.job_id))
BEGIN
    SELECT RAISE(ABORT, 'immutable: a result is written once, when its job succeeds');
END;

CREATE TRIGGER holdfast_guard_result_update BEFORE UPDATE ON holdfast_result
WHEN NEW.job_id IS NOT OLD.job_id OR NEW.tenant IS NOT OLD.tenant OR NOT coalesce(
        json_extract(OLD.value, '$."$holdfast".key') <> json_extract(NEW.value, '$."$holdfast".key')
        AND json_remove(NEW.value, '$."$holdfast".key', '$."$holdfast".sealed', '$."$holdfast".stored') = '{"$holdfast":{}}'
        AND (json_extract(OLD.value, '$."$holdfast".stored') IS NULL) = (json_extract(NEW.value, '$."$holdfast".stored') IS NULL)
        AND length(json_extract(OLD.value, '$."$holdfast".sealed')) IS length(json_extract(NEW.value, '$."$holdfast".sealed'))
        AND NEW.ref IS CASE WHEN OLD.ref LIKE 'artifact://%' THEN coalesce(json_extract(NEW.value, '$."$holdfast".stored'), OLD.ref)
                            ELSE OLD.ref END, 0)
BEGIN
    SELECT RAISE(ABORT, 'immutable: a result never changes');
END;

-- A lease is renewed, ended once, and marked as swept when no job refers to it. The values it was opened with never change, an
-- ended lease stays ended, and a lease that holds jobs cannot be deleted.
CREATE TRIGGER holdfast_guard_lease_update BEFORE UPDATE ON holdfast_lease
WHEN NEW.id IS NOT OLD.id OR NEW.tenant IS NOT OLD.tenant OR NEW.holder IS NOT OLD.holder OR NEW.opened_at IS NOT OLD.opened_at
     OR (OLD.ended_at IS NOT NULL AND (NEW.ended_at IS NOT OLD.ended_at OR NEW.ended_why IS NOT OLD.ended_why
                                       OR NEW.until IS NOT OLD.until OR NEW.renewed_at IS NOT OLD.renewed_at
                                       OR NEW.renewals IS NOT OLD.renewals))
     OR (OLD.swept_at IS NOT NULL AND NEW.swept_at IS NOT OLD.swept_at)
     OR (NEW.swept_at IS NOT NULL AND OLD.swept_at IS NULL AND EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.lease = OLD.id))
BEGIN
    SELECT RAISE(ABORT, 'immutable: the initial values and the end of a lease cannot change');
END;

-- A renewal by hand does not shorten a lease: then a running job could be declared lost. Nor is it dated in the future: such a
-- lease would be corrected as after the clock was set back. Operations do that, and are trusted.
CREATE TRIGGER holdfast_guard_lease_renewal BEFORE UPDATE OF until, renewed_at, renewals ON holdfast_lease
WHEN (SELECT now FROM holdfast_clock) IS NULL
     AND (NEW.until < OLD.until OR NEW.renewed_at < OLD.renewed_at OR NEW.renewals < OLD.renewals
          OR (NEW.renewed_at > OLD.renewed_at AND NEW.renewed_at > (SELECT now FROM holdfast_present) + 1000000))
BEGIN
    SELECT RAISE(ABORT, 'immutable: a renewal cannot shorten a lease, nor be dated in the past or in the future');
END;

CREATE TRIGGER holdfast_guard_lease_delete BEFORE DELETE ON holdfast_lease WHEN EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.lease = OLD.id)
BEGIN
    SELECT RAISE(ABORT, 'immutable: a lease that holds jobs cannot be deleted');
END;

-- Nothing that decides how a job runs may change without a ledger row that records it. Operations are trusted and recorded as
-- what they are; this is for hand-written SQL. An update that keeps the state writes a row only if a job was moved or
-- rescheduled or its payload replaced; otherwise a waiting job may be held back or released, as operations do it. Transitions
-- change the counts in defined ways only.
--
-- The rules are behind a view, like those for hand-written jobs (job_insert.sql): operations pay for the short trigger only.
CREATE VIEW holdfast_hand_written_change AS
SELECT
    id, tenant, kind, agent, workflow_id, state, priority, position, queue, retries, crashes, max_attempts, due_at,
    deadline_at, started_at, finished_at, settled_by, error_code, error_message, approval_id, note, held_by,
    state AS was_state, priority AS was_priority, position AS was_position, queue AS was_queue, retries AS was_retries,
    crashes AS was_crashes, max_attempts AS was_max_attempts, due_at AS was_due_at, deadline_at AS was_deadline_at,
    started_at AS was_started_at, finished_at AS was_finished_at, settled_by AS was_settled_by, error_code AS was_error_code,
    error_message AS was_error_message, approval_id AS was_approval_id, note AS was_note, held_by AS was_held_by
  FROM holdfast_job_state;
CREATE TRIGGER holdfast_guard_in_place_change AFTER UPDATE OF queue, priority, position, retries, crashes, max_attempts, due_at, deadline_at, started_at,
    finished_at, settled_by, error_code, error_message, approval_id, note, held_by ON holdfast_job_state
WHEN (SELECT now FROM holdfast_clock) IS NULL
BEGIN
    INSERT INTO holdfast_hand_written_change VALUES (
        NEW.id, NEW.tenant, NEW.kind, NEW.agent, NEW.workflow_id, NEW.state, NEW.priority, NEW.position, NEW.queue,
        NEW.retries, NEW.crashes, NEW.max_attempts, NEW.due_at, NEW.deadline_at, NEW.started_at, NEW.finished_at,
        NEW.settled_by, NEW.error_code, NEW.error_message, NEW.approval_id, NEW.note, NEW.held_by, OLD.state, OLD.priority,
        OLD.position, OLD.queue, OLD.retries, OLD.crashes, OLD.max_attempts, OLD.due_at, OLD.deadline_at, OLD.started_at,
        OLD.finished_at, OLD.settled_by, OLD.error_code, OLD.error_message, OLD.approval_id, OLD.note, OLD.held_by);
END;

CREATE TRIGGER holdfast_on_hand_written_change INSTEAD OF INSERT ON holdfast_hand_written_change
BEGIN
    SELECT RAISE(ABORT, 'immutable: limits, counts, times and positions of a job cannot change without a recorded transition')
     WHERE NEW.queue <> NEW.was_queue OR NEW.deadline_at IS NOT NEW.was_deadline_at
        OR ((NEW.priority <> NEW.was_priority OR NEW.position <> NEW.was_position)
            AND (json_extract(NEW.note, '$.moved') IS NULL
                 OR json_extract(NEW.note, '$.moved') IS json_extract(NEW.was_note, '$.moved')
                 OR NEW.state <> NEW.was_state OR NEW.state NOT IN ('queued', 'retry_waiting')))
        OR (NEW.started_at IS NOT NEW.was_started_at AND (NEW.state = NEW.was_state OR NEW.state <> 'in_progress'))
        OR (NEW.state = NEW.was_state
            AND (NEW.finished_at IS NOT NEW.was_finished_at OR NEW.settled_by IS NOT NEW.was_settled_by
                 OR NEW.error_code IS NOT NEW.was_error_code OR NEW.error_message IS NOT NEW.was_error_message
                 OR NEW.approval_id IS NOT NEW.was_approval_id))
        OR (NOT (NEW.was_state = 'dead_letter' AND NEW.state = 'queued') AND (
            (NEW.max_attempts <> NEW.was_max_attempts
             AND (NEW.note IS NEW.was_note OR json_extract(NEW.note, '$.rescheduled') IS NULL OR NEW.state <> 'queued'
                  OR json_extract(NEW.note, '$.moved') IS NOT NULL))
            OR (NEW.retries <> NEW.was_retries
                AND NOT (NEW.retries = NEW.was_retries + 1 AND NEW.was_state = 'failed' AND NEW.state = 'retry_waiting'))
            OR (NEW.crashes <> NEW.was_crashes
                AND NOT (NEW.crashes = NEW.was_crashes + 1 AND NEW.state <> NEW.was_state
                         AND (NEW.was_state = 'failed' OR (NEW.was_state = 'in_progress' AND NEW.state = 'failed'))))));

    SELECT RAISE(ABORT, 'immutable: what holds back a job, and its note, cannot change without a recorded transition')
     WHERE NEW.state = NEW.was_state
       AND (NEW.due_at IS NOT NEW.was_due_at OR NEW.note IS NOT NEW.was_note OR NEW.held_by IS NOT NEW.was_held_by)
       AND NOT coalesce(CASE
        -- Retried as a new job.
        WHEN NEW.state = 'failed' THEN
            NEW.due_at IS NEW.was_due_at AND NEW.held_by IS NEW.was_held_by AND json_remove(NEW.note, '$.retried_as') = '{}'
            AND json_extract(NEW.note, '$.retried_as') IS NOT NULL AND json_extract(NEW.was_note, '$.retried_as') IS NULL
            AND EXISTS (SELECT 1 FROM holdfast_job j WHERE j.id = NEW.id AND j.retry_as = 'new_job')
        WHEN NEW.state <> 'queued' AND NEW.state <> 'retry_waiting' THEN 0
        -- Moved, or with another payload, which is recorded.
        WHEN NEW.due_at IS NEW.was_due_at AND NEW.held_by IS NEW.was_held_by
             AND json_extract(NEW.note, '$.moved') IS NOT json_extract(NEW.was_note, '$.moved')
             AND json_extract(NEW.note, '$.moved') IS NOT NULL
             AND json_remove(NEW.note, '$.moved') = json_remove(coalesce(NEW.was_note, '{}'), '$.moved') THEN 1
        WHEN NEW.due_at IS NEW.was_due_at AND NEW.held_by IS NEW.was_held_by
             AND json_extract(NEW.note, '$.replaced') IS NOT json_extract(NEW.was_note, '$.replaced')
             AND json_extract(NEW.note, '$.replaced') IS NOT NULL
             AND json_remove(NEW.note, '$.replaced')
                 = json_remove(coalesce(NEW.was_note, '{}'), '$.moved', '$.rescheduled', '$.replaced') THEN 1
        -- Held for its parents or released by them: only the trigger that advances a workflow does so.
        WHEN NEW.workflow_id IS NOT NULL AND EXISTS (SELECT 1 FROM holdfast_round) AND NEW.held_by IS NULL
             AND (NEW.due_at = 9223372036854775807 AND json(NEW.note) = '{"held":"parents"}'
                  OR NEW.was_due_at = 9223372036854775807 AND NEW.was_held_by IS NULL
                     AND json_extract(NEW.was_note, '$.held') = 'parents'
                     AND coalesce(json(NEW.note), '{}') = json_remove(NEW.was_note, '$.held')) THEN 1
        WHEN NEW.state <> 'queued' THEN 0
        -- Rescheduled, which is recorded. What is held back cannot be: its time is not known.
        WHEN json_extract(NEW.note, '$.rescheduled') IS NOT NULL THEN
            NEW.note IS NOT NEW.was_note AND NEW.held_by IS NEW.was_held_by
            AND json_extract(NEW.note, '$.moved') IS NULL AND json_extract(NEW.note, '$.held') IS NULL
            AND coalesce(NEW.due_at, 0) < 9223372036854775807 AND coalesce(NEW.was_due_at, 0) < 9223372036854775807
        -- Parked for a limit, a pause or a reservation that exists.
        WHEN NEW.was_due_at IS NULL AND NEW.due_at = 9223372036854775807 THEN
            json(NEW.note) = json_object('held', 'limit', 'by', NEW.held_by) AND json_valid(NEW.held_by)
            AND EXISTS (
                SELECT 1 FROM (SELECT json_extract(NEW.held_by, '$[0]') AS tenant, json_extract(NEW.held_by, '$[1]') AS scope,
                                      json_extract(NEW.held_by, '$[2]') AS name WHERE json_valid(NEW.held_by)) b
                 WHERE NEW.held_by = json_array(b.tenant, b.scope, b.name) AND (b.tenant = '*' OR b.tenant = NEW.tenant)
                   AND CASE b.scope WHEN 'all' THEN b.name = '*' WHEN 'queue' THEN b.name = NEW.queue WHEN 'kind' THEN b.name = NEW.kind
                                    WHEN 'tenant' THEN b.name = NEW.tenant WHEN 'agent' THEN b.name = NEW.agent
                                    ELSE EXISTS (SELECT 1 FROM holdfast_job j, json_each(j.uses) u
                                                  WHERE j.id = NEW.id AND u.value = b.scope || ':' || b.name) END
                   AND (EXISTS (SELECT 1 FROM holdfast_job_limit l WHERE l.tenant = b.tenant AND l.scope = b.scope
                                   AND (l.name = b.name OR l.name = '*'))
                        OR EXISTS (SELECT 1 FROM holdfast_pause w WHERE w.tenant = b.tenant AND w.scope = b.scope AND w.name = b.name)
                        OR b.scope = 'resource' AND EXISTS (
                            SELECT 1 FROM holdfast_reservation r WHERE r.tenant = b.tenant AND r.scope = b.scope AND r.name = b.name
                               AND r.state = 'active')))
        WHEN NEW.held_by IS NOT NEW.was_held_by THEN
            NEW.was_due_at = 9223372036854775807 AND NEW.due_at IS NULL AND NEW.note IS NULL AND NEW.held_by IS NULL
        -- Due, or its agent is enabled.
        WHEN NEW.due_at IS NULL THEN
            NEW.was_due_at <= (SELECT now FROM holdfast_present) AND (NEW.note IS NULL OR NEW.note IS NEW.was_note)
            OR json_extract(NEW.was_note, '$.held') = 'agent_disabled' AND NEW.was_due_at IS NOT NULL AND NEW.note IS NULL
        ELSE NEW.was_due_at IS NULL AND NEW.due_at <= (SELECT now FROM holdfast_present) + 600000000
             AND json(NEW.note) = '{"held":"agent_disabled"}'
             AND EXISTS (SELECT 1 FROM holdfast_agent a WHERE a.tenant = NEW.tenant AND a.id = NEW.agent AND a.disabled_at IS NOT NULL)
        END, 0);
END;
