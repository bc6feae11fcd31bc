-- Guards on payload rules, references and encrypted content.

-- Hand-written rules are checked too; and `ruled` stays set: without it no rule would be checked.
-- Rules of approvals do not concern new jobs.
CREATE TRIGGER holdfast_on_rule AFTER INSERT ON holdfast_payload_rule
WHEN (NEW.signal_only OR NEW.classification = 'restricted'
      OR coalesce(NEW.max_bytes, NEW.max_result_bytes, NEW.store, NEW.replaceable) IS NOT NULL)
     AND NOT (SELECT ruled FROM holdfast_dispatch WHERE id = 1)
BEGIN
    UPDATE holdfast_dispatch SET ruled = 1;
END;

CREATE TRIGGER holdfast_on_rule_change AFTER UPDATE ON holdfast_payload_rule
WHEN (NEW.signal_only OR NEW.classification = 'restricted'
      OR coalesce(NEW.max_bytes, NEW.max_result_bytes, NEW.store, NEW.replaceable) IS NOT NULL)
     AND NOT (SELECT ruled FROM holdfast_dispatch WHERE id = 1)
BEGIN
    UPDATE holdfast_dispatch SET ruled = 1;
END;

CREATE TRIGGER holdfast_keep_ruled BEFORE UPDATE OF ruled ON holdfast_dispatch WHEN OLD.ruled AND NOT NEW.ruled
BEGIN
    SELECT RAISE(ABORT, 'immutable: dispatch.ruled cannot be turned off once it is set');
END;

-- References are set when the job is created, before it starts, and never change.
CREATE TRIGGER holdfast_guard_reference_insert BEFORE INSERT ON holdfast_reference
WHEN NOT EXISTS (SELECT 1 FROM holdfast_job j WHERE j.id = NEW.job_id AND j.tenant = NEW.tenant)
     OR EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.id = NEW.job_id AND (s.state <> 'queued' OR s.attempt > 0))
     OR EXISTS (SELECT 1 FROM holdfast_reference r WHERE r.job_id = NEW.job_id)
BEGIN
    SELECT RAISE(ABORT, 'immutable: references are written once, when the job is created');
END;

-- An encrypted value names its key: {"$holdfast": {"key": …, "sealed": …}}, or "stored" if the ciphertext is stored elsewhere.
-- That the content is the same, and belongs to this job, is guaranteed by the authenticated encryption: without the key no one
-- can produce a valid value.
CREATE TRIGGER holdfast_guard_resealed_insert BEFORE INSERT ON holdfast_resealed
WHEN NEW.n <> 1 + (SELECT count(*) FROM holdfast_resealed r WHERE r.job_id = NEW.job_id)
     OR NOT EXISTS (SELECT 1 FROM holdfast_job j WHERE j.id = NEW.job_id AND j.tenant = NEW.tenant
                       AND json_extract(j.payload, '$."$holdfast".key') = NEW.from_key)
BEGIN
    SELECT RAISE(ABORT, 'immutable: the payload is not encrypted with this key, or this is not its next re-encryption');
END;

-- A payload that an attempt ran with is kept when it is replaced. A re-encryption replaces nothing.
CREATE TRIGGER holdfast_keep_replaced_payload AFTER UPDATE OF payload ON holdfast_job
WHEN OLD.payload <> NEW.payload
     AND (SELECT e.type FROM holdfast_event e WHERE e.job_id = OLD.id ORDER BY e.seq DESC LIMIT 1) = 'replace'
     AND NOT coalesce((SELECT r.from_key = json_extract(OLD.payload, '$."$holdfast".key') AND r.to_key = json_extract(NEW.payload, '$."$holdfast".key')
                         FROM holdfast_resealed r WHERE r.job_id = OLD.id ORDER BY r.n DESC LIMIT 1), 0)
BEGIN
    INSERT INTO holdfast_replaced_payload (job_id, tenant, attempt, payload, at)
    SELECT s.id, s.tenant, s.attempt, OLD.payload, p.now FROM holdfast_job_state s, holdfast_present p
     WHERE s.n = OLD.n AND s.attempt > coalesce((SELECT max(r.attempt) FROM holdfast_replaced_payload r WHERE r.job_id = OLD.id), 0);
END;

CREATE TRIGGER holdfast_guard_replaced_insert BEFORE INSERT ON holdfast_replaced_payload
WHEN (SELECT now FROM holdfast_clock) IS NULL
     OR NOT EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.id = NEW.job_id AND s.tenant = NEW.tenant AND s.attempt = NEW.attempt)
     OR (SELECT e.type FROM holdfast_event e WHERE e.job_id = NEW.job_id ORDER BY e.seq DESC LIMIT 1) IS NOT 'replace'
     OR EXISTS (SELECT 1 FROM holdfast_replaced_payload r WHERE r.job_id = NEW.job_id AND r.attempt >= NEW.attempt)
BEGIN
    SELECT RAISE(ABORT, 'immutable: a replaced payload is written only when it is replaced');
END;

-- Re-encrypting the same payload with another key is allowed.
CREATE TRIGGER holdfast_guard_replaced_update BEFORE UPDATE ON holdfast_replaced_payload
WHEN (OLD.job_id, OLD.tenant, OLD.attempt, OLD.at) IS NOT (NEW.job_id, NEW.tenant, NEW.attempt, NEW.at) OR NOT coalesce(
        json_extract(OLD.payload, '$."$holdfast".key') <> json_extract(NEW.payload, '$."$holdfast".key')
        AND json_remove(NEW.payload, '$."$holdfast".key', '$."$holdfast".sealed', '$."$holdfast".stored') = '{"$holdfast":{}}'
        AND (json_extract(OLD.payload, '$."$holdfast".stored') IS NULL) = (json_extract(NEW.payload, '$."$holdfast".stored') IS NULL)
        AND length(json_extract(OLD.payload, '$."$holdfast".sealed')) IS length(json_extract(NEW.payload, '$."$holdfast".sealed')), 0)
BEGIN
    SELECT RAISE(ABORT, 'immutable: replaced payloads are never changed');
END;
