-- --- steps and events ---

-- A wait is finished by an update; an insert that conflicts with a finished row would be a REPLACE.
CREATE TRIGGER holdfast_guard_step_insert BEFORE INSERT ON holdfast_step
BEGIN
    SELECT RAISE(ABORT, 'immutable: a finished step cannot be written again')
      FROM holdfast_step t WHERE t.job_id = NEW.job_id AND t.n = NEW.n
       AND (t.ended_at IS NOT NULL OR t.name <> NEW.name OR t.kind <> NEW.kind OR t.tenant <> NEW.tenant);
    SELECT RAISE(ABORT, 'immutable: a step must belong to an existing job')
     WHERE NOT EXISTS (SELECT 1 FROM holdfast_job j WHERE j.id = NEW.job_id AND j.tenant = NEW.tenant);
    SELECT RAISE(ABORT, 'immutable: only the decision of its approval can finish this step')
     WHERE NEW.kind = 'approval' AND NEW.ended_at IS NOT NULL;
    SELECT RAISE(ABORT, 'immutable: steps are written only by operations, which check the lease of the job')
     WHERE (SELECT now FROM holdfast_clock) IS NULL;
END;

CREATE TRIGGER holdfast_refuse_step_update AFTER UPDATE ON holdfast_step WHEN (SELECT now FROM holdfast_clock) IS NULL
BEGIN
    SELECT RAISE(ABORT, 'immutable: steps are written only by operations, which check the lease of the job');
END;

CREATE TRIGGER holdfast_refuse_checkpoint_insert BEFORE INSERT ON holdfast_checkpoint WHEN (SELECT now FROM holdfast_clock) IS NULL
BEGIN
    SELECT RAISE(ABORT, 'immutable: checkpoints are written only by operations, which check the lease of the job');
END;
CREATE TRIGGER holdfast_refuse_checkpoint_update BEFORE UPDATE ON holdfast_checkpoint WHEN (SELECT now FROM holdfast_clock) IS NULL
BEGIN
    SELECT RAISE(ABORT, 'immutable: checkpoints are written only by operations, which check the lease of the job');
END;
-- The rows are those that a job's insert writes (holdfast_on_job_tags). Operations are trusted, so that an enqueue does not read them again.
CREATE TRIGGER holdfast_guard_tag_insert BEFORE INSERT ON holdfast_job_tag
WHEN (SELECT now FROM holdfast_clock) IS NULL
     AND NOT EXISTS (SELECT 1 FROM holdfast_job j, json_each(j.tags) t WHERE j.id = NEW.job_id AND j.tenant = NEW.tenant
                        AND (t.value = NEW.tag OR instr(t.value, ':') > 0 AND substr(t.value, 1, instr(t.value, ':')) || '*' = NEW.tag))
     AND NOT EXISTS (SELECT 1 FROM holdfast_job j, json_each(coalesce(j.uses, '[]')) u WHERE j.id = NEW.job_id AND j.tenant = NEW.tenant
                        AND u.value LIKE 'key:%' AND ' ' || u.value = NEW.tag)
BEGIN
    SELECT RAISE(ABORT, 'immutable: the tags of a job are written when it is created');
END;
CREATE TRIGGER holdfast_guard_tag_delete BEFORE DELETE ON holdfast_job_tag
WHEN EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.id = OLD.job_id AND s.state <> 'cleaned')
BEGIN
    SELECT RAISE(ABORT, 'immutable: the tags of a job are deleted only after it is cleaned');
END;

-- Re-encrypting the same result is allowed: of the ciphertext only the form and the length can be checked here.
CREATE TRIGGER holdfast_guard_step_update BEFORE UPDATE ON holdfast_step
WHEN OLD.ended_at IS NOT NULL AND NOT coalesce(
         (OLD.error, OLD.tries, OLD.attempt, OLD.started_at, OLD.wake_at, OLD.ended_at, OLD.shape, OLD.wanted)
         IS (NEW.error, NEW.tries, NEW.attempt, NEW.started_at, NEW.wake_at, NEW.ended_at, NEW.shape, NEW.wanted)
         AND json_extract(OLD.value, '$."$holdfast".key') <> json_extract(NEW.value, '$."$holdfast".key')
         AND (length(json_extract(OLD.value, '$."$holdfast".sealed')) = length(json_extract(NEW.value, '$."$holdfast".sealed'))
              AND NEW.value = json_object('$holdfast', json_object('key', json_extract(NEW.value, '$."$holdfast".key'),
                                                                   'sealed', json_extract(NEW.value, '$."$holdfast".sealed')))
              -- Stored by a handler: the references differ only in the digest.
              OR substr(json_extract(OLD.value, '$."$holdfast".stored'), 1, length(json_extract(OLD.value, '$."$holdfast".stored')) - 64)
                 = substr(json_extract(NEW.value, '$."$holdfast".stored'), 1, length(json_extract(NEW.value, '$."$holdfast".stored')) - 64)
              AND NEW.value = json_object('$holdfast', json_object('key', json_extract(NEW.value, '$."$holdfast".key'),
                                                                   'stored', json_extract(NEW.value, '$."$holdfast".stored'),
                                                                   'size', json_extract(NEW.value, '$."$holdfast".size')))), 0)
     OR OLD.job_id <> NEW.job_id OR OLD.n <> NEW.n OR OLD.tenant <> NEW.tenant
     OR OLD.name <> NEW.name OR OLD.kind <> NEW.kind
BEGIN
    SELECT RAISE(ABORT, 'immutable: a finished step cannot be written again');
END;

CREATE TRIGGER holdfast_guard_app_event_insert BEFORE INSERT ON holdfast_app_event
WHEN EXISTS (SELECT 1 FROM holdfast_app_event e WHERE e.id = NEW.id)
     OR (NEW.key IS NOT NULL
         AND EXISTS (SELECT 1 FROM holdfast_app_event e WHERE e.tenant = NEW.tenant AND e.name = NEW.name AND e.key = NEW.key))
BEGIN
    SELECT RAISE(ABORT, 'already exists: this event was sent before');
END;

-- --- deletion ---

-- A file that a step or a checkpoint no longer refers to has to be deleted: the step was saved again, forgotten or cleaned.
CREATE TRIGGER holdfast_orphan_checkpoint_update AFTER UPDATE OF value ON holdfast_checkpoint
WHEN OLD.value LIKE '{"$holdfast":{%"stored":"artifact:%'
BEGIN
    INSERT INTO holdfast_orphaned_file (tenant, ref, job_id, at, again_at)
    SELECT OLD.tenant, o.ref, OLD.job_id, p.now, p.now
      FROM holdfast_present p, (SELECT json_extract(OLD.value, '$."$holdfast".stored') AS ref) o
     WHERE o.ref LIKE 'artifact://%/' || OLD.job_id || '/%'
    ON CONFLICT DO NOTHING;
END;
CREATE TRIGGER holdfast_orphan_checkpoint_delete AFTER DELETE ON holdfast_checkpoint
WHEN OLD.value LIKE '{"$holdfast":{%"stored":"artifact:%'
BEGIN
    INSERT INTO holdfast_orphaned_file (tenant, ref, job_id, at, again_at)
    SELECT OLD.tenant, o.ref, OLD.job_id, p.now, p.now
      FROM holdfast_present p, (SELECT json_extract(OLD.value, '$."$holdfast".stored') AS ref) o
     WHERE o.ref LIKE 'artifact://%/' || OLD.job_id || '/%'
    ON CONFLICT DO NOTHING;
END;
CREATE TRIGGER holdfast_orphan_step_update AFTER UPDATE OF value ON holdfast_step
WHEN OLD.value LIKE '{"$holdfast":{%"stored":"artifact:%'
BEGIN
    INSERT INTO holdfast_orphaned_file (tenant, ref, job_id, at, again_at)
    SELECT OLD.tenant, o.ref, OLD.job_id, p.now, p.now
      FROM holdfast_present p, (SELECT json_extract(OLD.value, '$."$holdfast".stored') AS ref) o
     WHERE o.ref LIKE 'artifact://%/' || OLD.job_id || '/%'
    ON CONFLICT DO NOTHING;
END;
CREATE TRIGGER holdfast_orphan_step_delete AFTER DELETE ON holdfast_step
WHEN OLD.value LIKE '{"$holdfast":{%"stored":"artifact:%'
BEGIN
    INSERT INTO holdfast_orphaned_file (tenant, ref, job_id, at, again_at)
    SELECT OLD.tenant, o.ref, OLD.job_id, p.now, p.now
      FROM holdfast_present p, (SELECT json_extract(OLD.value, '$."$holdfast".stored') AS ref) o
     WHERE o.ref LIKE 'artifact://%/' || OLD.job_id || '/%'
    ON CONFLICT DO NOTHING;
END;
