-- What an agent's registration means for a job about to be enqueued. Operations check this first and return a message; this is
-- for hand-written inserts. RAISE takes only a literal before SQLite 3.47. A retry was accepted with its first attempt: if its
-- agent has been disabled since, it waits.
CREATE TRIGGER holdfast_guard_agent AFTER INSERT ON holdfast_job WHEN NEW.agent IS NOT NULL AND NEW.retry_of IS NULL
BEGIN
    SELECT CASE
        WHEN a.disabled_at IS NOT NULL THEN RAISE(ABORT, 'agent disabled: it accepts no jobs until it is enabled')
        WHEN a.kind <> NEW.kind THEN RAISE(ABORT, 'agent kind mismatch: it runs only jobs of another kind')
        WHEN length(CAST(NEW.payload AS BLOB)) > a.max_payload_bytes
            THEN RAISE(ABORT, 'agent payload limit: the payload is larger than the agent accepts')
        WHEN a.max_wait IS NOT NULL AND (NEW.deadline_at IS NULL OR NEW.deadline_at
                > max((SELECT now FROM holdfast_present), coalesce(NEW.run_at, 0)) + CAST(a.max_wait * 1000000 AS INTEGER) + 1)
            THEN RAISE(ABORT, 'agent wait limit: the job needs a deadline within its agent''s maximum wait')
    END
      FROM holdfast_agent a WHERE a.tenant = NEW.tenant AND a.id = NEW.agent;
END;

CREATE TRIGGER holdfast_refuse_agent_delete BEFORE DELETE ON holdfast_agent
BEGIN
    SELECT RAISE(ABORT, 'immutable: agents cannot be deleted; disable the agent instead');
END;

-- Executors: the labels that may open leases. While none is registered, every label may. A label with the role `generator`
-- plans work and never executes it.
CREATE TRIGGER holdfast_guard_lease_insert BEFORE INSERT ON holdfast_lease
WHEN EXISTS (SELECT 1 FROM holdfast_executor WHERE label > '') OR (SELECT listed_only FROM holdfast_dispatch WHERE id = 1)
BEGIN
    SELECT RAISE(ABORT, 'executor refused: it is a generator, which plans work and does not execute it')
     WHERE EXISTS (SELECT 1 FROM holdfast_executor e WHERE e.label = NEW.name AND e.role = 'generator');
    SELECT RAISE(ABORT, 'executor refused: the label is not registered as an executor')
     WHERE NOT EXISTS (SELECT 1 FROM holdfast_executor e WHERE e.label = NEW.name);
END;

CREATE TRIGGER holdfast_guard_lease_name BEFORE UPDATE OF name ON holdfast_lease WHEN NEW.name <> OLD.name
     AND (EXISTS (SELECT 1 FROM holdfast_executor WHERE label > '') OR (SELECT listed_only FROM holdfast_dispatch WHERE id = 1))
BEGIN
    SELECT RAISE(ABORT, 'executor refused: the label is not registered as an executor')
     WHERE NOT EXISTS (SELECT 1 FROM holdfast_executor e WHERE e.label = NEW.name AND e.role = 'executor');
END;
