-- Guards on payload rules, references and encrypted content.

-- Hand-written rules are checked too; and `ruled` stays set: without it no rule would be checked.
-- Rules of approvals do not concern new jobs.
DROP TRIGGER IF EXISTS on_rule;
CREATE TRIGGER on_rule AFTER INSERT ON payload_rule
WHEN (NEW.signal_only OR NEW.classification = 'restricted'
      OR coalesce(NEW.max_bytes, NEW.max_result_bytes, NEW.store, NEW.replaceable) IS NOT NULL)
     AND NOT (SELECT ruled FROM dispatch WHERE id = 1)
BEGIN
    UPDATE dispatch SET ruled = 1;
END;

DROP TRIGGER IF EXISTS on_rule_change;
CREATE TRIGGER on_rule_change AFTER UPDATE ON payload_rule
WHEN (NEW.signal_only OR NEW.classification = 'restricted'
      OR coalesce(NEW.max_bytes, NEW.max_result_bytes, NEW.store, NEW.replaceable) IS NOT NULL)
     AND NOT (SELECT ruled FROM dispatch WHERE id = 1)
BEGIN
    UPDATE dispatch SET ruled = 1;
END;

DROP TRIGGER IF EXISTS keep_ruled;
CREATE TRIGGER keep_ruled BEFORE UPDATE OF ruled ON dispatch WHEN OLD.ruled AND NOT NEW.ruled
BEGIN
    SELECT RAISE(ABORT, 'immutable: dispatch.ruled cannot be turned off once it is set');
END;

-- References are set when the job is created and never change.
DROP TRIGGER IF EXISTS judge_reference_insert;
CREATE TRIGGER judge_reference_insert BEFORE INSERT ON reference
WHEN NOT EXISTS (SELECT 1 FROM job j WHERE j.id = NEW.job_id AND j.tenant = NEW.tenant)
     OR EXISTS (SELECT 1 FROM reference r WHERE r.job_id = NEW.job_id)
BEGIN
    SELECT RAISE(ABORT, 'immutable: references are written once, when the job is created');
END;

DROP TRIGGER IF EXISTS refuse_reference_update;
CREATE TRIGGER refuse_reference_update BEFORE UPDATE ON reference
BEGIN
    SELECT RAISE(ABORT, 'immutable: references are never changed');
END;

DROP TRIGGER IF EXISTS judge_reference_delete;
CREATE TRIGGER judge_reference_delete BEFORE DELETE ON reference
WHEN EXISTS (SELECT 1 FROM job_state s WHERE s.id = OLD.job_id)
BEGIN
    SELECT RAISE(ABORT, 'immutable: a reference is never deleted while its job exists');
END;

-- An encrypted value names its key: {"$holdfast": {"key": …, "sealed": …}}, or "stored" if the ciphertext is stored elsewhere.
-- That the content is the same, and belongs to this job, is guaranteed by the authenticated encryption: without the key no one
-- can produce a valid value.
DROP TRIGGER IF EXISTS judge_resealed_insert;
CREATE TRIGGER judge_resealed_insert BEFORE INSERT ON resealed
WHEN NEW.n <> 1 + (SELECT count(*) FROM resealed r WHERE r.job_id = NEW.job_id)
     OR NOT EXISTS (SELECT 1 FROM job j WHERE j.id = NEW.job_id AND j.tenant = NEW.tenant
                       AND json_extract(j.payload, '$."$holdfast".key') = NEW.from_key)
BEGIN
    SELECT RAISE(ABORT, 'immutable: the payload is not encrypted with this key, or this is not its next re-encryption');
END;

DROP TRIGGER IF EXISTS refuse_resealed_update;
CREATE TRIGGER refuse_resealed_update BEFORE UPDATE ON resealed
BEGIN
    SELECT RAISE(ABORT, 'immutable: the record of a re-encryption never changes');
END;

DROP TRIGGER IF EXISTS judge_resealed_delete;
CREATE TRIGGER judge_resealed_delete BEFORE DELETE ON resealed
WHEN EXISTS (SELECT 1 FROM job_state s WHERE s.id = OLD.job_id)
BEGIN
    SELECT RAISE(ABORT, 'immutable: the record of a re-encryption never changes');
END;
