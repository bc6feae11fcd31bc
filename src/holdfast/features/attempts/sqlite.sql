-- The log of an attempt is written in parts while the attempt runs and never changed: after the attempt has ended, the
-- database refuses further parts. Existing parts are checked first, since a REPLACE would not fire the delete trigger.
CREATE TRIGGER holdfast_guard_attempt_log_insert BEFORE INSERT ON holdfast_attempt_log
BEGIN
    SELECT RAISE(ABORT, 'immutable: a log is written only while its attempt runs')
     WHERE NOT EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.id = NEW.job_id AND s.tenant = NEW.tenant AND s.attempt = NEW.attempt
                          AND s.state = 'in_progress');
    SELECT RAISE(ABORT, 'immutable: a log part cannot be written twice')
      FROM holdfast_attempt_log l WHERE l.job_id = NEW.job_id AND l.attempt = NEW.attempt AND l.n = NEW.n;
END;

-- Re-encrypting the same lines with another key is allowed.
CREATE TRIGGER holdfast_guard_attempt_log_update BEFORE UPDATE ON holdfast_attempt_log
WHEN (OLD.job_id, OLD.tenant, OLD.attempt, OLD.n, OLD.at, OLD.ref) IS NOT (NEW.job_id, NEW.tenant, NEW.attempt, NEW.n, NEW.at, NEW.ref)
     OR OLD.lines NOT LIKE '{"$holdfast":%' OR NEW.lines NOT LIKE '{"$holdfast":%'
     OR NOT coalesce(
         json_extract(OLD.lines, '$."$holdfast".key') <> json_extract(NEW.lines, '$."$holdfast".key')
         AND length(json_extract(OLD.lines, '$."$holdfast".sealed')) = length(json_extract(NEW.lines, '$."$holdfast".sealed'))
         AND NEW.lines = json_object('$holdfast', json_object('key', json_extract(NEW.lines, '$."$holdfast".key'),
                                                              'sealed', json_extract(NEW.lines, '$."$holdfast".sealed'))), 0)
BEGIN
    SELECT RAISE(ABORT, 'immutable: log parts are never changed');
END;
