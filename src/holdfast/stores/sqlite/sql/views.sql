-- The current actor and time; the clock's own time if no operation has set one.
CREATE VIEW holdfast_present AS
SELECT coalesce(actor, 'sql') AS actor,
       coalesce(now, stopped, CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER) + shift) AS now
  FROM holdfast_clock;

CREATE VIEW holdfast_jobs AS
SELECT j.id, j.tenant, j.kind, j.queue, s.state, s.attempt, s.retries, s.crashes, s.max_attempts, s.max_crashes,
       s.priority, s.position, nullif(s.due_at, 9223372036854775807) AS due_at, s.started_at, s.finished_at, s.error_code,
       CASE WHEN s.error_message <> 'what is said of a restricted job''s failure is not kept' AND (SELECT ruled FROM holdfast_dispatch WHERE id = 1) AND EXISTS (
                SELECT 1 FROM holdfast_payload_rule r WHERE r.classification = 'restricted' AND (r.tenant = j.tenant OR r.tenant = '*')
                   AND (r.kind = j.kind OR r.kind = '*')) THEN '[restricted]' ELSE s.error_message END AS error_message,
       j.created_at, j.run_at, j.deadline_at,
       -- Hidden if a rule restricts it; workers read payloads from the table.
       CASE WHEN (SELECT ruled FROM holdfast_dispatch WHERE id = 1) AND EXISTS (
                SELECT 1 FROM holdfast_payload_rule r WHERE r.classification = 'restricted' AND (r.tenant = j.tenant OR r.tenant = '*')
                   AND (r.kind = j.kind OR r.kind = '*')) THEN '"[restricted]"' ELSE j.payload END AS payload, j.backoff, j.idempotency_key, j.content_key, j.tags,
       j.agent, j.correlation_id, j.causation_id, j.parent_id, j.workflow_id, j.external_ref,
       j.enqueued_by, j.source_system, j.uses, j.retry_as, j.retry_of, j.depth,
       -- From the ledger, so that no write pays for them.
       (SELECT e.at FROM holdfast_event e WHERE e.job_id = j.id ORDER BY e.seq DESC LIMIT 1) AS updated_at,
       (SELECT e.at FROM holdfast_event e WHERE e.job_id = j.id AND e.from_state = 'in_progress' AND e.type IN ('fail', 'lease_expired', 'crash')
         ORDER BY e.seq DESC LIMIT 1) AS last_error_at,
       f.source_ref, f.target_ref, f.payload_ref, j.executor,
       (SELECT e.at FROM holdfast_event e WHERE e.job_id = j.id AND e.to_state = 'queued' AND coalesce(e.from_state, '') <> 'queued'
         ORDER BY e.seq DESC LIMIT 1) AS queued_at,
       (SELECT e.actor FROM holdfast_event e WHERE e.job_id = j.id AND e.to_state IN ('leased', 'in_progress')
           AND coalesce(e.from_state, '') <> e.to_state ORDER BY e.seq DESC LIMIT 1) AS worker,
       k.domain, m.template, m.template_version, m.schedule_id, m.schedule, m.due_at AS scheduled_for, w.part
  FROM holdfast_job j JOIN holdfast_job_state s ON s.n = j.n LEFT JOIN holdfast_reference f ON f.job_id = j.id
  LEFT JOIN holdfast_registered_kind k ON k.name = j.kind LEFT JOIN holdfast_made_from m ON m.job_id = j.id LEFT JOIN holdfast_node w ON w.job_id = j.id;

-- For dashboards: jobs that may start now, running jobs, and jobs that need an operator. The columns are part of the
-- interface; times are microseconds since 1970.
CREATE VIEW holdfast_backlog AS
SELECT s.tenant, s.queue, s.kind, count(*) AS waiting
  FROM holdfast_job_state s WHERE s.state = 'queued' AND s.due_at IS NULL GROUP BY s.tenant, s.queue, s.kind;

CREATE VIEW holdfast_in_progress AS
SELECT s.tenant, s.queue, s.kind, count(*) AS running, min(s.started_at) AS oldest_started_at
  FROM holdfast_job_state s WHERE s.state IN ('leased', 'in_progress') GROUP BY s.tenant, s.queue, s.kind;

CREATE VIEW holdfast_dead_letter_open AS
SELECT s.tenant, s.queue, s.kind, s.error_code, count(*) AS dead, min(s.finished_at) AS first_at, max(s.finished_at) AS last_at
  FROM holdfast_job_state s WHERE s.state = 'dead_letter' AND s.state NOT IN ('leased', 'in_progress')
 GROUP BY s.tenant, s.queue, s.kind, s.error_code;

-- An attempt is two rows of the ledger: the one that started it and the first one after. A skipped time of a schedule has a
-- job that never ran: its record has the number 0. `log` is the reference of a program's output, or 'database'.
CREATE VIEW holdfast_attempts AS
SELECT b.job_id, b.tenant, b.kind, b.attempt, b.actor AS worker, b.at AS started_at, e.at AS ended_at,
       CASE e.type WHEN 'succeed' THEN 'succeeded' WHEN 'fail' THEN 'failed' WHEN 'lease_expired' THEN 'crashed' WHEN 'crash' THEN 'crashed'
                   WHEN 'ask' THEN 'suspended' WHEN 'snooze' THEN 'suspended' WHEN 'cancel' THEN 'cancelled' END AS outcome,
       json_extract(e.meta, '$.error_code') AS error_code,
       -- Messages of a kind that became restricted later are hidden like its payloads.
       CASE WHEN (json_extract(e.meta, '$.error_message') <> 'what is said of a restricted job''s failure is not kept' AND (SELECT ruled FROM holdfast_dispatch WHERE id = 1) AND EXISTS (
                SELECT 1 FROM holdfast_payload_rule r WHERE r.classification = 'restricted' AND (r.tenant = b.tenant OR r.tenant = '*')
                   AND (r.kind = b.kind OR r.kind = '*'))) THEN '[restricted]' ELSE json_extract(e.meta, '$.error_message') END AS error_message,
       json_extract(e.meta, '$.exit_code') AS exit_code,
       CASE WHEN (SELECT ruled FROM holdfast_dispatch WHERE id = 1) AND EXISTS (
                SELECT 1 FROM holdfast_payload_rule r WHERE r.classification = 'restricted' AND (r.tenant = b.tenant OR r.tenant = '*')
                   AND (r.kind = b.kind OR r.kind = '*'))
             AND (json_extract(e.meta, '$.log') IS NOT NULL
                  OR EXISTS (SELECT 1 FROM holdfast_attempt_log l WHERE l.job_id = b.job_id AND l.attempt = b.attempt)) THEN '[restricted]'
            ELSE coalesce(json_extract(e.meta, '$.log'),
                          (SELECT l.ref FROM holdfast_attempt_log l WHERE l.job_id = b.job_id AND l.attempt = b.attempt AND l.ref IS NOT NULL
                            ORDER BY l.n DESC LIMIT 1),
                          (SELECT 'database' FROM holdfast_attempt_log l WHERE l.job_id = b.job_id AND l.attempt = b.attempt LIMIT 1)) END AS log,
       CASE WHEN (json_extract(e.meta, '$.error_message') <> 'what is said of a restricted job''s failure is not kept' AND (SELECT ruled FROM holdfast_dispatch WHERE id = 1) AND EXISTS (
                SELECT 1 FROM holdfast_payload_rule r WHERE r.classification = 'restricted' AND (r.tenant = b.tenant OR r.tenant = '*')
                   AND (r.kind = b.kind OR r.kind = '*'))) AND json_extract(e.meta, '$.traceback') IS NOT NULL THEN '[restricted]'
            ELSE json_extract(e.meta, '$.traceback') END AS traceback, b.seq AS started_seq,
       CASE WHEN (SELECT ruled FROM holdfast_dispatch WHERE id = 1) AND EXISTS (
                SELECT 1 FROM holdfast_payload_rule r WHERE r.classification = 'restricted' AND (r.tenant = b.tenant OR r.tenant = '*')
                   AND (r.kind = b.kind OR r.kind = '*')) THEN '"[restricted]"'
            ELSE coalesce((SELECT v.payload FROM holdfast_replaced_payload v WHERE v.job_id = b.job_id AND v.attempt >= b.attempt
                            ORDER BY v.attempt LIMIT 1), (SELECT j.payload FROM holdfast_job j WHERE j.id = b.job_id)) END AS payload,
       json_extract(b.meta, '$.version') AS version
  FROM holdfast_event b
  LEFT JOIN holdfast_event e ON e.seq = (SELECT min(n.seq) FROM holdfast_event n
                                 WHERE n.job_id = b.job_id AND n.seq > b.seq AND n.from_state = 'in_progress')
 WHERE b.to_state = 'in_progress'
UNION ALL
SELECT c.job_id, c.tenant, c.kind, 0, c.actor, c.at, c.at, 'skipped', NULL, NULL, NULL, NULL, NULL, c.seq,
       (SELECT j.payload FROM holdfast_jobs j WHERE j.id = c.job_id), NULL
  FROM holdfast_event c
 WHERE c.type = 'cancel' AND c.attempt = 0 AND json_extract(c.meta, '$.reason') = 'skipped'
   AND json_extract(c.meta, '$.schedule') IS NOT NULL;

-- Jobs that require more than a label: in `executor` they have character 31 (30 with a
-- fingerprint) and a JSON array of the version of the application, the fingerprint of the code and the label; null is any.
CREATE VIEW holdfast_requirement AS
SELECT s.n, s.id, s.tenant, s.kind, s.queue, s.state, s.note, s.executor AS text, json_extract(substr(s.executor, 2), '$[0]') AS version,
       json_extract(substr(s.executor, 2), '$[1]') AS code, json_extract(substr(s.executor, 2), '$[2]') AS executor
  FROM holdfast_job_state s WHERE s.executor < ' ' AND s.finished_at IS NULL;
