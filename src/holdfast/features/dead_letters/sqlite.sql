-- Groups of dead letters: which jobs are dead letters, with which error, and how many there are, for every way into and out of
-- the state. Operations name the group in the note; a hand-written transition is grouped by its error code, since SQL cannot
-- normalise a message here. The count is written first, then the row: the guards below allow counting only in between.
--
-- This also checks retries as new jobs: a job that has a successor never runs again and never becomes a dead letter. It is one
-- trigger because each trigger adds cost to every transition (36.3 and 37.6 microseconds per job, claim and settle).
CREATE TRIGGER holdfast_keep_dead_letters AFTER UPDATE OF state ON holdfast_job_state
WHEN ((NEW.state = 'dead_letter' OR OLD.state = 'dead_letter') AND OLD.state <> NEW.state)
     OR (OLD.state = 'failed' AND NEW.state = 'retry_waiting' AND EXISTS (SELECT 1 FROM holdfast_job j WHERE j.retry_of = OLD.id))
BEGIN
    SELECT RAISE(ABORT, 'immutable: the job was retried as a new job and cannot run again')
     WHERE OLD.state = 'failed' AND EXISTS (SELECT 1 FROM holdfast_job j WHERE j.retry_of = OLD.id);
    INSERT INTO holdfast_dead_letter_group (tenant, fingerprint, kind, error_code, error_message, frame, sample_job, first_at, last_at,
                                   times, open, last_job)
    SELECT NEW.tenant, b.fingerprint, NEW.kind, NEW.error_code, NEW.error_message, json_extract(NEW.note, '$.frame'), NEW.id,
           p.now, p.now, 0, 0, NEW.id
      FROM holdfast_present p, (SELECT coalesce(json_extract(NEW.note, '$.fingerprint'), 'code:' || NEW.kind || ':' || NEW.error_code) AS fingerprint) b
     WHERE NEW.state = 'dead_letter'
       AND NOT EXISTS (SELECT 1 FROM holdfast_dead_letter_group g WHERE g.tenant = NEW.tenant AND g.fingerprint = b.fingerprint);
    UPDATE holdfast_dead_letter_group
       SET error_code = NEW.error_code, error_message = NEW.error_message, sample_job = NEW.id, last_job = NEW.id,
           last_at = max(last_at, (SELECT now FROM holdfast_present)), times = times + 1, open = open + 1
     WHERE NEW.state = 'dead_letter' AND tenant = NEW.tenant
       AND fingerprint = coalesce(json_extract(NEW.note, '$.fingerprint'), 'code:' || NEW.kind || ':' || NEW.error_code);
    INSERT INTO holdfast_dead_letter (job_id, tenant, fingerprint, kind, queue, dead_at)
    SELECT NEW.id, NEW.tenant, coalesce(json_extract(NEW.note, '$.fingerprint'), 'code:' || NEW.kind || ':' || NEW.error_code),
           NEW.kind, NEW.queue, now FROM holdfast_present WHERE NEW.state = 'dead_letter';
    UPDATE holdfast_dead_letter_group SET open = open - 1, last_job = NEW.id
     WHERE NEW.state <> 'dead_letter'
       AND (tenant, fingerprint) = (SELECT l.tenant, l.fingerprint FROM holdfast_dead_letter l WHERE l.job_id = NEW.id);
    DELETE FROM holdfast_dead_letter WHERE job_id = NEW.id AND NEW.state <> 'dead_letter';
END;

-- A group's count rises when a job has just become a dead letter and is not in a group yet, and falls when one has just left.
CREATE TRIGGER holdfast_guard_dead_letter_group_insert BEFORE INSERT ON holdfast_dead_letter_group
WHEN NEW.times <> 0 OR NEW.open <> 0
     OR EXISTS (SELECT 1 FROM holdfast_dead_letter_group g WHERE g.tenant = NEW.tenant AND g.fingerprint = NEW.fingerprint)
     OR EXISTS (SELECT 1 FROM holdfast_dead_letter l WHERE l.job_id = NEW.last_job)
     OR NOT EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.id = NEW.last_job AND s.tenant = NEW.tenant AND s.kind = NEW.kind AND s.state = 'dead_letter')
BEGIN
    SELECT RAISE(ABORT, 'immutable: groups of dead letters are maintained by triggers');
END;

CREATE TRIGGER holdfast_guard_dead_letter_group_update BEFORE UPDATE OF tenant, fingerprint, kind, error_code, error_message, frame,
    sample_job, first_at, last_at, times, open, last_job ON holdfast_dead_letter_group
WHEN NOT (NEW.tenant = OLD.tenant AND NEW.fingerprint = OLD.fingerprint AND NEW.kind = OLD.kind AND NEW.frame IS OLD.frame
          AND NEW.first_at = OLD.first_at
          -- Retention removes the error message of a sample job that it has purged.
          AND CASE WHEN NEW.error_message = '[purged]' AND NEW.open = OLD.open AND NEW.times = OLD.times THEN
                   (NEW.error_code, NEW.sample_job, NEW.last_at, NEW.last_job) = (OLD.error_code, OLD.sample_job, OLD.last_at, OLD.last_job)
                   AND NOT EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.id = OLD.sample_job)
              WHEN NEW.open = OLD.open + 1 THEN
                   NEW.times = OLD.times + 1 AND NEW.sample_job = NEW.last_job
                   AND NOT EXISTS (SELECT 1 FROM holdfast_dead_letter l WHERE l.job_id = NEW.last_job)
                   AND EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.id = NEW.last_job AND s.tenant = NEW.tenant AND s.kind = NEW.kind AND s.state = 'dead_letter')
              ELSE NEW.open = OLD.open - 1 AND NEW.times = OLD.times AND NEW.last_at = OLD.last_at AND NEW.sample_job = OLD.sample_job
                   AND NEW.error_code = OLD.error_code AND NEW.error_message = OLD.error_message
                   AND EXISTS (SELECT 1 FROM holdfast_dead_letter l JOIN holdfast_job_state s ON s.id = l.job_id WHERE l.job_id = NEW.last_job
                                  AND l.tenant = NEW.tenant AND l.fingerprint = NEW.fingerprint AND s.state <> 'dead_letter') END)
BEGIN
    SELECT RAISE(ABORT, 'immutable: groups of dead letters are maintained by triggers');
END;

CREATE TRIGGER holdfast_guard_dead_letter_insert BEFORE INSERT ON holdfast_dead_letter
WHEN EXISTS (SELECT 1 FROM holdfast_dead_letter l WHERE l.job_id = NEW.job_id)
     OR NOT EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.id = NEW.job_id AND s.tenant = NEW.tenant AND s.state = 'dead_letter')
     OR NOT EXISTS (SELECT 1 FROM holdfast_dead_letter_group g WHERE g.tenant = NEW.tenant AND g.fingerprint = NEW.fingerprint AND g.last_job = NEW.job_id)
BEGIN
    SELECT RAISE(ABORT, 'immutable: dead letters are maintained by triggers');
END;

CREATE TRIGGER holdfast_guard_dead_letter_delete BEFORE DELETE ON holdfast_dead_letter
WHEN EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.id = OLD.job_id AND s.state = 'dead_letter')
BEGIN
    SELECT RAISE(ABORT, 'immutable: dead letters cannot be deleted; redrive or discard the job');
END;

-- Bulk operations: the request never changes, an ended operation never changes, and states only move forward.
CREATE TRIGGER holdfast_guard_operation_update BEFORE UPDATE ON holdfast_operation
WHEN OLD.state <> 'running' OR NEW.id <> OLD.id OR NEW.tenant <> OLD.tenant OR NEW.action <> OLD.action OR NEW.wanted <> OLD.wanted
     OR NEW.reason IS NOT OLD.reason OR NEW.rate IS NOT OLD.rate OR NEW.max_attempts IS NOT OLD.max_attempts OR NEW.run_at IS NOT OLD.run_at OR NEW.total <> OLD.total
     OR NEW.created_by <> OLD.created_by OR NEW.created_at <> OLD.created_at OR NEW.done < OLD.done OR NEW.refused < OLD.refused
     OR (OLD.place IS NOT NULL AND (NEW.place IS NULL OR NEW.place > OLD.place))
BEGIN
    SELECT RAISE(ABORT, 'immutable: the request of an operation cannot change, and its counts only grow');
END;

-- A replacement job refers to a dead letter of its own tenant and kind that was discarded for it.
CREATE TRIGGER holdfast_guard_redriven_as_insert BEFORE INSERT ON holdfast_redriven_as
WHEN NOT EXISTS (SELECT 1 FROM holdfast_job n JOIN holdfast_job o ON o.id = NEW.job_id AND o.tenant = n.tenant AND o.kind = n.kind
                   JOIN holdfast_job_state s ON s.n = o.n AND s.state = 'cancelled'
                  WHERE n.id = NEW.new_id AND n.tenant = NEW.tenant AND n.id <> o.id)
     OR EXISTS (SELECT 1 FROM holdfast_redriven_as r WHERE r.job_id = NEW.job_id OR r.new_id = NEW.new_id)
BEGIN
    SELECT RAISE(ABORT, 'immutable: the dead letter was not redriven as this job');
END;
