-- What may not be done to the tables at all, whoever asks (CX-3, CX-4, SC-5).

DROP TRIGGER IF EXISTS judge_artifact_insert;
CREATE TRIGGER judge_artifact_insert BEFORE INSERT ON artifact
WHEN EXISTS (SELECT 1 FROM artifact a WHERE a.job_id = NEW.job_id AND a.attempt = NEW.attempt AND a.name = NEW.name)
BEGIN
    SELECT RAISE(ABORT, 'already exists: there is an artifact of this name');
END;

-- A state row is born with its job and only then. REPLACE deletes what is in its way without asking the delete
-- triggers (an `INSERT OR REPLACE INTO job` hands that on to this insert), so a row in its way is looked for first.
-- One that says whose retry it is takes over from a failed job that wants it, and names it (SC-6).
DROP TRIGGER IF EXISTS judge_job_insert;
DROP TRIGGER IF EXISTS judge_state_insert;
CREATE TRIGGER judge_state_insert BEFORE INSERT ON job_state
WHEN NEW.state <> 'queued' OR NEW.attempt <> 0
     OR NOT EXISTS (SELECT 1 FROM job j WHERE j.n = NEW.n AND j.id = NEW.id AND j.tenant = NEW.tenant AND j.kind = NEW.kind
                     AND j.agent IS NEW.agent
                     AND (j.retry_of IS NULL
                          OR EXISTS (SELECT 1 FROM job p JOIN job_state o ON o.n = p.n WHERE p.id = j.retry_of AND p.tenant = j.tenant
                                        AND p.kind = j.kind AND p.retry_as = 'new_job' AND o.state = 'failed'
                                        AND json_extract(o.note, '$.retried_as') = j.id)))
     OR EXISTS (SELECT 1 FROM job_state s WHERE s.n = NEW.n)
     OR EXISTS (SELECT 1 FROM event e WHERE e.job_id = NEW.id)
BEGIN
    SELECT CASE
        WHEN EXISTS (SELECT 1 FROM job_state s WHERE s.n = NEW.n) OR EXISTS (SELECT 1 FROM event e WHERE e.job_id = NEW.id)
            THEN RAISE(ABORT, 'already exists: there is a job with this id')
        WHEN EXISTS (SELECT 1 FROM job j WHERE j.n = NEW.n AND j.id = NEW.id AND j.retry_of IS NOT NULL)
            THEN RAISE(ABORT, 'immutable: a job cannot be a retry of one that is no failed job of its kind and tenant that is retried so')
        ELSE RAISE(ABORT, 'immutable: job_state is written by triggers only; insert into job')
    END;
END;

-- An event continues its job's ledger and leads to where the job is now, so nobody can write one that did not happen.
-- One that leads nowhere says that a waiting job was rescheduled or moved: it says what the job's note says, and is the
-- first to, unless a verb is at work: what it put off meanwhile may be given the same time again.
DROP TRIGGER IF EXISTS judge_event_insert;
CREATE TRIGGER judge_event_insert BEFORE INSERT ON event
WHEN (NEW.from_state IS NEW.to_state
      AND (NEW.meta IS NULL
           OR NOT coalesce(CASE NEW.verb
               WHEN 'reschedule' THEN NEW.to_state = 'queued' AND NEW.meta IS
                   (SELECT s.note FROM job_state s WHERE s.id = NEW.job_id AND json_extract(s.note, '$.rescheduled') IS NOT NULL)
               WHEN 'move' THEN (NEW.to_state = 'queued' OR NEW.to_state = 'retry_waiting') AND NEW.meta IS
                   (SELECT json_extract(s.note, '$.moved') FROM job_state s WHERE s.id = NEW.job_id)
               END, 0)
           OR ((SELECT now FROM clock) IS NULL
               AND NEW.meta IS (SELECT e.meta FROM event e WHERE e.job_id = NEW.job_id ORDER BY e.seq DESC LIMIT 1))))
     OR NOT EXISTS (SELECT 1 FROM job_state s WHERE s.id = NEW.job_id AND s.state = NEW.to_state AND s.tenant = NEW.tenant)
     OR NEW.from_state IS NOT (SELECT e.to_state FROM event e WHERE e.job_id = NEW.job_id ORDER BY e.seq DESC LIMIT 1)
BEGIN
    SELECT RAISE(ABORT, 'immutable: the ledger is written by triggers only');
END;

DROP TRIGGER IF EXISTS refuse_event_update;
CREATE TRIGGER refuse_event_update BEFORE UPDATE ON event
BEGIN
    SELECT RAISE(ABORT, 'immutable: ledger rows are never changed');
END;

DROP TRIGGER IF EXISTS judge_event_delete;
CREATE TRIGGER judge_event_delete BEFORE DELETE ON event
WHEN EXISTS (SELECT 1 FROM job_state s WHERE s.id = OLD.job_id) OR OLD.seq = (SELECT max(seq) FROM event)
BEGIN
    SELECT RAISE(ABORT, 'immutable: ledger rows are never deleted while their job exists, nor the newest of all');
END;

-- A job's facts are fixed; retention may empty the payload of a cleaned one, and a payload that is sealed may be sealed with
-- another key, as was written down before (27_payloads.sql). Nothing else.
DROP TRIGGER IF EXISTS refuse_job_update;
CREATE TRIGGER refuse_job_update BEFORE UPDATE OF n, id, tenant, kind, queue, priority, process_after, deadline_at, max_retries,
    max_crashes, backoff, idempotency_key, content_key, tags, agent, correlation_id, causation_id, parent_id, workflow_id,
    external_ref, enqueued_by, source_system, created_at, uses, retry_as, retry_of, depth ON job
BEGIN
    SELECT RAISE(ABORT, 'immutable: what was asked for never changes');
END;

DROP TRIGGER IF EXISTS judge_payload_update;
CREATE TRIGGER judge_payload_update BEFORE UPDATE OF payload ON job
WHEN (NEW.payload <> '{}' OR NOT EXISTS (SELECT 1 FROM job_state s WHERE s.n = OLD.n AND s.state = 'cleaned'))
     AND NOT coalesce(
        (SELECT r.from_key = json_extract(OLD.payload, '$."$holdfast".key') AND r.to_key = json_extract(NEW.payload, '$."$holdfast".key')
           FROM resealed r WHERE r.job_id = OLD.id ORDER BY r.n DESC LIMIT 1)
        AND json_remove(NEW.payload, '$."$holdfast".key', '$."$holdfast".sealed', '$."$holdfast".stored') = '{"$holdfast":{}}'
        AND (json_extract(OLD.payload, '$."$holdfast".stored') IS NULL) = (json_extract(NEW.payload, '$."$holdfast".stored') IS NULL)
        AND length(json_extract(OLD.payload, '$."$holdfast".sealed')) IS length(json_extract(NEW.payload, '$."$holdfast".sealed')), 0)
BEGIN
    SELECT RAISE(ABORT, 'immutable: the payload never changes');
END;

-- A job leaves whole or not at all: first its state (cleaned only), then its facts, then its ledger.
DROP TRIGGER IF EXISTS judge_state_delete;
CREATE TRIGGER judge_state_delete BEFORE DELETE ON job_state WHEN OLD.state <> 'cleaned'
BEGIN
    SELECT RAISE(ABORT, 'immutable: only a cleaned job can be purged');
END;

DROP TRIGGER IF EXISTS judge_job_delete;
CREATE TRIGGER judge_job_delete BEFORE DELETE ON job
WHEN EXISTS (SELECT 1 FROM job_state s WHERE s.n = OLD.n)
BEGIN
    SELECT RAISE(ABORT, 'immutable: a job is never deleted while it has a state');
END;

DROP TRIGGER IF EXISTS refuse_artifact_update;
CREATE TRIGGER refuse_artifact_update BEFORE UPDATE ON artifact
BEGIN
    SELECT RAISE(ABORT, 'immutable: artifacts are added, never changed');
END;

DROP TRIGGER IF EXISTS refuse_artifact_delete;
CREATE TRIGGER refuse_artifact_delete BEFORE DELETE ON artifact
WHEN EXISTS (SELECT 1 FROM job_state s WHERE s.id = OLD.job_id AND s.state <> 'cleaned')
BEGIN
    SELECT RAISE(ABORT, 'immutable: artifacts are added, never removed');
END;

-- New jobs get their state when a verb signs off, so the clock is signed only as a verb does it: with the number
-- from which on jobs are new.
DROP TRIGGER IF EXISTS judge_signing;
CREATE TRIGGER judge_signing BEFORE UPDATE OF now, floor ON clock
WHEN NEW.now IS NOT NULL AND NEW.floor IS NOT (SELECT coalesce(max(n), 0) FROM job_state)
BEGIN
    SELECT RAISE(ABORT, 'immutable: the clock is signed by verbs only');
END;

-- The triggers read the time and the writer from the clock: without its one row they would record nothing.
DROP TRIGGER IF EXISTS refuse_clock_delete;
CREATE TRIGGER refuse_clock_delete BEFORE DELETE ON clock
BEGIN
    SELECT RAISE(ABORT, 'immutable: the clock has one row');
END;
