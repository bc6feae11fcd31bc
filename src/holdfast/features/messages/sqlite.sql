-- A message is for an existing job of its tenant, and never replaced.
CREATE TRIGGER holdfast_guard_message_insert BEFORE INSERT ON holdfast_message
BEGIN
    SELECT RAISE(ABORT, 'immutable: the message is for a job that does not exist')
     WHERE NOT EXISTS (SELECT 1 FROM holdfast_job j WHERE j.id = NEW.job_id AND j.tenant = NEW.tenant);
    SELECT RAISE(ABORT, 'already exists: this message was sent before')
     WHERE EXISTS (SELECT 1 FROM holdfast_message m WHERE m.id = NEW.id)
        OR NEW.key IS NOT NULL
           AND EXISTS (SELECT 1 FROM holdfast_message m WHERE m.job_id = NEW.job_id AND m.name = NEW.name AND m.key = NEW.key);
END;
