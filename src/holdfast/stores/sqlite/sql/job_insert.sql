-- After the facts of jobs are written: give each job its state and the first row of its ledger. A batch of an operation gets
-- them all at once when the operation finishes: one trigger program per batch instead of one per row, which SQLite would have
-- to set up each time. Without an operation it happens at once, row by row.
--
-- SQLite clears the registers of a trigger program before it evaluates the WHEN clause. So the long program for hand-written
-- inserts is behind a view: the rows of operations pay for the short one only.
CREATE VIEW holdfast_hand_written_job AS SELECT * FROM holdfast_job;
CREATE TRIGGER holdfast_on_job_insert AFTER INSERT ON holdfast_job WHEN (SELECT now FROM holdfast_clock) IS NULL
BEGIN
    INSERT INTO holdfast_hand_written_job SELECT * FROM holdfast_job WHERE n = NEW.n;
END;

CREATE TRIGGER holdfast_on_hand_written_job INSTEAD OF INSERT ON holdfast_hand_written_job
BEGIN
    -- What Python refuses before the insert: times outside of the UTC years 1 to 9999, malformed lists and objects, and
    -- documents nested more than 100 levels deep (a bracket opens each level; SQLite itself reads no more than 1,000).
    SELECT CASE
        WHEN NEW.run_at NOT BETWEEN -62135596800000000 AND 253402300799999999
             OR NEW.deadline_at NOT BETWEEN -62135596800000000 AND 253402300799999999
             OR NEW.created_at NOT BETWEEN -62135596800000000 AND 253402300799999999
        THEN RAISE(ABORT, 'time out of range: use the years 1 to 9999, in UTC')
        WHEN NEW.tags <> '[]' AND (NOT json_valid(NEW.tags) OR json_type(NEW.tags) <> 'array')
             OR NEW.backoff IS NOT NULL AND (NOT json_valid(NEW.backoff) OR json_type(NEW.backoff) <> 'object')
        THEN RAISE(ABORT, 'CHECK constraint failed: tags must be a list of texts, backoff an object')
        WHEN NEW.tags <> '[]' AND EXISTS (SELECT 1 FROM json_each(NEW.tags) WHERE type <> 'text')
        THEN RAISE(ABORT, 'CHECK constraint failed: tags must be a list of texts')
        WHEN length(NEW.payload) > 200 AND length(NEW.payload) - length(replace(replace(NEW.payload, '[', ''), '{', '')) > 100
             AND EXISTS (WITH RECURSIVE level(value, depth) AS (
                     SELECT NEW.payload, 1 UNION ALL
                     SELECT e.value, level.depth + 1 FROM level, json_each(level.value) e
                      WHERE e.type IN ('object', 'array') AND level.depth <= 100)
                 SELECT 1 FROM level WHERE depth > 100)
        THEN RAISE(ABORT, 'payload too deep: it is nested more than 100 levels deep')
    END;
    -- Operations check this first and return a message; this is for hand-written inserts.
    SELECT RAISE(ABORT, 'paused: no jobs of this kind are accepted while the pause lasts')
     WHERE (SELECT ruled FROM holdfast_dispatch WHERE id = 1) AND NEW.retry_of IS NULL
       AND EXISTS (SELECT 1 FROM holdfast_pause w WHERE w.refuse_enqueue AND (w.until IS NULL OR w.until > (SELECT now FROM holdfast_present))
                      AND (w.tenant = '*' OR w.tenant = NEW.tenant)
                      AND CASE w.scope WHEN 'all' THEN 1 WHEN 'queue' THEN w.name = NEW.queue WHEN 'kind' THEN w.name = NEW.kind
                                       ELSE w.name IS NEW.agent END);
    -- Payload rules, if there are any. Operations check them first and report the path of the key; this is for hand-written
    -- inserts. RAISE takes only a literal before SQLite 3.47. A retry was accepted with its first attempt. The same holds for
    -- unregistered tenants; a notice of an approval belongs to the job that asks.
    SELECT CASE
        WHEN d.registered AND NEW.retry_of IS NULL AND NOT EXISTS (SELECT 1 FROM holdfast_tenant t WHERE t.tenant = NEW.tenant)
             AND NOT (NEW.source_system = 'holdfast' AND EXISTS (
                 SELECT 1 FROM holdfast_approval g WHERE g.job_id = NEW.parent_id AND g.tenant = NEW.tenant AND g.notify = NEW.kind))
        THEN RAISE(ABORT, 'tenant unregistered: only registered tenants may have jobs')
        WHEN d.tenant_required AND NEW.tenant = 'default' AND NEW.retry_of IS NULL
        THEN RAISE(ABORT, 'tenant required: name a tenant; `default` counts as none')
        WHEN d.required <> '[]' AND EXISTS (SELECT 1 FROM holdfast_lacking_job l WHERE l.n = NEW.n AND l.fact = 'key')
        THEN RAISE(ABORT, 'key required: a policy for its kind or tenant refuses jobs without an idempotency key')
        WHEN d.required <> '[]' AND EXISTS (SELECT 1 FROM holdfast_lacking_job l WHERE l.n = NEW.n AND l.fact = 'executor')
        THEN RAISE(ABORT, 'executor required: a policy for its kind or tenant refuses jobs without an executor')
        WHEN d.required <> '[]' AND EXISTS (SELECT 1 FROM holdfast_lacking_job l WHERE l.n = NEW.n AND l.fact = 'agent')
        THEN RAISE(ABORT, 'agent required: a policy for its kind or tenant refuses jobs without an agent')
        WHEN d.unknown_kinds = 'refuse' AND EXISTS (SELECT 1 FROM holdfast_unregistered_job u WHERE u.n = NEW.n AND u.registry = 'kind')
        THEN RAISE(ABORT, 'kind unregistered: only registered kinds of jobs are accepted')
        WHEN d.unknown_agents = 'refuse' AND EXISTS (SELECT 1 FROM holdfast_unregistered_job u WHERE u.n = NEW.n AND u.registry = 'agent')
        THEN RAISE(ABORT, 'agent unregistered: only registered agents may have jobs')
        WHEN EXISTS (
            SELECT 1 FROM holdfast_payload_rule r WHERE (r.tenant = NEW.tenant OR r.tenant = '*') AND (r.kind = NEW.kind OR r.kind = '*')
               AND length(CAST(NEW.payload AS BLOB)) > r.max_bytes AND NEW.retry_of IS NULL)
        THEN RAISE(ABORT, 'payload over limit: it is larger than a rule for its kind or tenant allows')
        WHEN EXISTS (
            SELECT 1 FROM holdfast_payload_rule r, json_each(r.forbidden) f, json_tree(NEW.payload) t
             WHERE (r.tenant = NEW.tenant OR r.tenant = '*') AND (r.kind = NEW.kind OR r.kind = '*') AND r.signal_only
               AND typeof(t.key) = 'text' AND lower(t.key) = f.value AND NEW.retry_of IS NULL)
        THEN RAISE(ABORT, 'payload forbidden: it has a key that a rule for its kind or tenant forbids')
        END FROM holdfast_dispatch d WHERE d.id = 1 AND d.ruled;
    INSERT OR IGNORE INTO holdfast_unregistered_name (tenant, registry, name, first_at)
    SELECT u.tenant, u.registry, u.name, (SELECT now FROM holdfast_present) FROM holdfast_unregistered_job u
     WHERE (SELECT ruled FROM holdfast_dispatch WHERE id = 1) AND u.n = NEW.n
       AND (SELECT count(*) FROM holdfast_unregistered_name k WHERE k.tenant = u.tenant AND k.registry = u.registry) < 1000;
    -- Operations check this first, using a stored count (stores/sqlite/insert_checks.py); here the jobs are counted.
    SELECT RAISE(ABORT, 'tenant full: it has its maximum number of waiting jobs')
     WHERE (SELECT ruled FROM holdfast_dispatch) AND EXISTS (SELECT 1 FROM holdfast_tenant t WHERE t.tenant = NEW.tenant AND t.max_pending
               <= (SELECT count(*) FROM holdfast_job_state s WHERE s.tenant = NEW.tenant AND s.state IN ('queued', 'retry_waiting')
                      AND s.state NOT IN ('leased', 'in_progress'))
                  + (SELECT count(*) FROM holdfast_job_state s WHERE s.tenant = NEW.tenant AND s.state IN ('leased', 'in_progress')
                        AND (SELECT running_counts FROM holdfast_dispatch WHERE id = 1)));
    SELECT RAISE(ABORT, 'workflow over: it has ended; start another workflow or resume it first')
     WHERE EXISTS (SELECT 1 FROM holdfast_workflow w WHERE w.id = NEW.workflow_id AND w.tenant = NEW.tenant AND w.finished_at IS NOT NULL);
    INSERT INTO holdfast_node (job_id, tenant, workflow_id, status, fatal)
    SELECT NEW.id, NEW.tenant, w.id, CASE w.stopped WHEN 0 THEN 'open' ELSE 'skipped' END, w.on_failure = 'stop'
      FROM holdfast_workflow w WHERE w.id = NEW.workflow_id AND w.tenant = NEW.tenant
        ON CONFLICT (job_id) DO NOTHING;
    UPDATE holdfast_workflow SET total = total + 1, open = open + (o.status = 'open'), skipped = skipped + (o.status = 'skipped'),
           finished_at = CASE WHEN open + (o.status = 'open') = 0 THEN (SELECT now FROM holdfast_present) END
      FROM holdfast_node o WHERE o.job_id = NEW.id AND o.workflow_id = holdfast_workflow.id AND holdfast_workflow.id = NEW.workflow_id;
    INSERT INTO holdfast_job_state (n, id, tenant, kind, queue, state, priority, position, max_attempts, max_crashes, due_at, deadline_at, agent,
                           workflow_id, note, retries, crashes, executor)
    VALUES (NEW.n, NEW.id, NEW.tenant, NEW.kind, NEW.queue, 'queued', NEW.priority, NEW.n * 100, NEW.max_attempts, NEW.max_crashes,
            CASE WHEN NEW.workflow_id IS NOT NULL AND EXISTS (SELECT 1 FROM holdfast_node o WHERE o.job_id = NEW.id AND (o.unmet > 0 OR o.status = 'skipped'))
                 THEN 9223372036854775807
                 WHEN NEW.run_at IS NOT NULL AND NEW.run_at > (SELECT now FROM holdfast_present)
                 THEN NEW.run_at END, NEW.deadline_at, NEW.agent,
            CASE WHEN NEW.workflow_id IS NOT NULL THEN (SELECT o.workflow_id FROM holdfast_node o WHERE o.job_id = NEW.id) END,
            CASE WHEN NEW.workflow_id IS NOT NULL AND EXISTS (SELECT 1 FROM holdfast_node o WHERE o.job_id = NEW.id AND (o.unmet > 0 OR o.status = 'skipped'))
                 THEN '{"held": "parents"}' END,
            CASE WHEN NEW.retry_of IS NULL THEN 0 ELSE (SELECT p.retries FROM holdfast_job_state p WHERE p.id = NEW.retry_of) END,
            CASE WHEN NEW.retry_of IS NULL THEN 0 ELSE (SELECT p.crashes FROM holdfast_job_state p WHERE p.id = NEW.retry_of) END, NEW.executor);
    INSERT INTO holdfast_event (job_id, tenant, kind, type, to_state, attempt, at, actor)
    VALUES (NEW.id, NEW.tenant, NEW.kind, 'enqueue', 'queued', 0, NEW.created_at, NEW.enqueued_by);
END;

-- A job with a workflow id joins that workflow. Planned jobs already have their node and are counted.
CREATE TRIGGER holdfast_on_workflow_job AFTER INSERT ON holdfast_job WHEN NEW.workflow_id IS NOT NULL AND (SELECT now FROM holdfast_clock) IS NOT NULL
     AND NOT EXISTS (SELECT 1 FROM holdfast_node o WHERE o.job_id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'workflow over: it has ended; start another workflow or resume it first')
     WHERE EXISTS (SELECT 1 FROM holdfast_workflow w WHERE w.id = NEW.workflow_id AND w.tenant = NEW.tenant AND w.finished_at IS NOT NULL);
    INSERT INTO holdfast_node (job_id, tenant, workflow_id, status, fatal)
    SELECT NEW.id, NEW.tenant, w.id, CASE w.stopped WHEN 0 THEN 'open' ELSE 'skipped' END, w.on_failure = 'stop'
      FROM holdfast_workflow w WHERE w.id = NEW.workflow_id AND w.tenant = NEW.tenant
        ON CONFLICT (job_id) DO NOTHING;
    UPDATE holdfast_workflow SET total = total + 1, open = open + (o.status = 'open'), skipped = skipped + (o.status = 'skipped'),
           finished_at = CASE WHEN open + (o.status = 'open') = 0 THEN (SELECT now FROM holdfast_present) END
      FROM holdfast_node o WHERE o.job_id = NEW.id AND o.workflow_id = holdfast_workflow.id AND holdfast_workflow.id = NEW.workflow_id;
END;

-- Every job without a state whose number is above the highest one when the operation began. A job that has a ledger is being
-- purged and is left alone.
CREATE TRIGGER holdfast_on_sign_off AFTER UPDATE OF now ON holdfast_clock
WHEN OLD.now IS NOT NULL AND NEW.now IS NULL AND EXISTS (SELECT 1 FROM holdfast_job j WHERE j.n > OLD.floor)
BEGIN
    SELECT CASE
        WHEN d.registered AND EXISTS (
            SELECT 1 FROM holdfast_job j WHERE j.n > OLD.floor AND j.retry_of IS NULL
               AND NOT EXISTS (SELECT 1 FROM holdfast_tenant t WHERE t.tenant = j.tenant)
               AND NOT (j.source_system = 'holdfast' AND EXISTS (
                   SELECT 1 FROM holdfast_approval g WHERE g.job_id = j.parent_id AND g.tenant = j.tenant AND g.notify = j.kind)))
        THEN RAISE(ABORT, 'tenant unregistered: only registered tenants may have jobs')
        WHEN d.tenant_required AND EXISTS (
            SELECT 1 FROM holdfast_job j WHERE j.n > OLD.floor AND j.tenant = 'default' AND j.retry_of IS NULL AND j.source_system <> 'holdfast')
        THEN RAISE(ABORT, 'tenant required: name a tenant; `default` counts as none')
        WHEN d.required <> '[]' AND EXISTS (SELECT 1 FROM holdfast_lacking_job l WHERE l.n > OLD.floor AND l.fact = 'key')
        THEN RAISE(ABORT, 'key required: a policy for its kind or tenant refuses jobs without an idempotency key')
        WHEN d.required <> '[]' AND EXISTS (SELECT 1 FROM holdfast_lacking_job l WHERE l.n > OLD.floor AND l.fact = 'executor')
        THEN RAISE(ABORT, 'executor required: a policy for its kind or tenant refuses jobs without an executor')
        WHEN d.required <> '[]' AND EXISTS (SELECT 1 FROM holdfast_lacking_job l WHERE l.n > OLD.floor AND l.fact = 'agent')
        THEN RAISE(ABORT, 'agent required: a policy for its kind or tenant refuses jobs without an agent')
        WHEN d.unknown_kinds = 'refuse' AND EXISTS (
            SELECT 1 FROM holdfast_unregistered_job u WHERE u.n > OLD.floor AND u.registry = 'kind')
        THEN RAISE(ABORT, 'kind unregistered: only registered kinds of jobs are accepted')
        WHEN d.unknown_agents = 'refuse' AND EXISTS (
            SELECT 1 FROM holdfast_unregistered_job u WHERE u.n > OLD.floor AND u.registry = 'agent')
        THEN RAISE(ABORT, 'agent unregistered: only registered agents may have jobs')
        WHEN EXISTS (
            SELECT 1 FROM holdfast_job j, holdfast_payload_rule r WHERE j.n > OLD.floor AND j.retry_of IS NULL AND (r.tenant = j.tenant OR r.tenant = '*')
               AND (r.kind = j.kind OR r.kind = '*') AND length(CAST(j.payload AS BLOB)) > r.max_bytes)
        THEN RAISE(ABORT, 'payload over limit: it is larger than a rule for its kind or tenant allows')
        WHEN EXISTS (
            SELECT 1 FROM holdfast_job j, holdfast_payload_rule r, json_each(r.forbidden) f, json_tree(j.payload) t
             WHERE j.n > OLD.floor AND j.retry_of IS NULL AND (r.tenant = j.tenant OR r.tenant = '*')
               AND (r.kind = j.kind OR r.kind = '*') AND r.signal_only AND typeof(t.key) = 'text' AND lower(t.key) = f.value)
        THEN RAISE(ABORT, 'payload forbidden: it has a key that a rule for its kind or tenant forbids')
        END FROM holdfast_dispatch d WHERE d.id = 1 AND d.ruled;
    INSERT INTO holdfast_job_state (n, id, tenant, kind, queue, state, priority, position, max_attempts, max_crashes, due_at, deadline_at, agent,
                           workflow_id, note, retries, crashes, executor)
    SELECT j.n, j.id, j.tenant, j.kind, j.queue, 'queued', j.priority, j.n * 100, j.max_attempts, j.max_crashes,
           CASE WHEN j.workflow_id IS NOT NULL AND EXISTS (SELECT 1 FROM holdfast_node o WHERE o.job_id = j.id AND (o.unmet > 0 OR o.status = 'skipped'))
                THEN 9223372036854775807
                WHEN j.run_at > OLD.now THEN j.run_at END, j.deadline_at, j.agent,
           CASE WHEN j.workflow_id IS NOT NULL THEN (SELECT o.workflow_id FROM holdfast_node o WHERE o.job_id = j.id) END,
           CASE WHEN j.workflow_id IS NOT NULL AND EXISTS (SELECT 1 FROM holdfast_node o WHERE o.job_id = j.id AND (o.unmet > 0 OR o.status = 'skipped'))
                THEN '{"held": "parents"}' END,
           CASE WHEN j.retry_of IS NULL THEN 0 ELSE (SELECT p.retries FROM holdfast_job_state p WHERE p.id = j.retry_of) END,
           CASE WHEN j.retry_of IS NULL THEN 0 ELSE (SELECT p.crashes FROM holdfast_job_state p WHERE p.id = j.retry_of) END, j.executor
      FROM holdfast_job j
     WHERE j.n > OLD.floor AND NOT EXISTS (SELECT 1 FROM holdfast_event e WHERE e.job_id = j.id)
     ORDER BY j.n;
    INSERT INTO holdfast_event (job_id, tenant, kind, type, to_state, attempt, at, actor)
    SELECT j.id, j.tenant, j.kind, 'enqueue', 'queued', 0, j.created_at, j.enqueued_by
      FROM holdfast_job_state s JOIN holdfast_job j ON j.n = s.n
     WHERE s.n > OLD.floor
     ORDER BY s.n;
END;

-- The tags of a job, `name:*` for each label `name:value`, and its limit key after a space, with which no tag begins. Tags of
-- traces are never searched for (docs/adr/0024).
CREATE TRIGGER holdfast_on_job_tags AFTER INSERT ON holdfast_job WHEN NEW.tags <> '[]' OR NEW.uses IS NOT NULL
BEGIN
    INSERT OR IGNORE INTO holdfast_job_tag (tenant, tag, job_id) SELECT NEW.tenant, value, NEW.id FROM json_each(NEW.tags)
     WHERE value NOT LIKE 'trace:%' AND value NOT LIKE 'tracestate:%';
    INSERT OR IGNORE INTO holdfast_job_tag (tenant, tag, job_id)
    SELECT NEW.tenant, substr(value, 1, instr(value, ':')) || '*', NEW.id FROM json_each(NEW.tags)
     WHERE instr(value, ':') > 0 AND value NOT LIKE 'trace:%' AND value NOT LIKE 'tracestate:%';
    INSERT OR IGNORE INTO holdfast_job_tag (tenant, tag, job_id)
    SELECT NEW.tenant, ' ' || value, NEW.id FROM json_each(coalesce(NEW.uses, '[]')) WHERE value LIKE 'key:%';
END;
