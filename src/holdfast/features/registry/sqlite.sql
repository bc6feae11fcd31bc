-- Jobs whose kind or agent is not registered, where the deployment does not accept that. Built-in kinds need no registration;
-- retries and notices of approvals were accepted with the job that they belong to.
CREATE VIEW holdfast_unregistered_job AS
SELECT j.n, j.tenant, 'kind' AS registry, j.kind AS name FROM holdfast_job j
 WHERE (SELECT unknown_kinds FROM holdfast_dispatch WHERE id = 1) <> 'accept' AND j.retry_of IS NULL
   AND j.kind NOT IN ('http.request', 'webhook.deliver', 'report.generate', 'connector.http.request',
                      'connector.webhook.deliver', 'connector.report.generate')
   AND NOT EXISTS (SELECT 1 FROM holdfast_registered_kind k WHERE k.name = j.kind)
   AND NOT (j.source_system = 'holdfast' AND EXISTS (
       SELECT 1 FROM holdfast_approval g WHERE g.job_id = j.parent_id AND g.tenant = j.tenant AND g.notify = j.kind))
UNION ALL
SELECT j.n, j.tenant, 'agent', j.agent FROM holdfast_job j
 WHERE (SELECT unknown_agents FROM holdfast_dispatch WHERE id = 1) <> 'accept' AND j.retry_of IS NULL AND j.agent IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM holdfast_agent a WHERE a.tenant = j.tenant AND a.id = j.agent);

-- Jobs that lack a fact that the policies require.
CREATE VIEW holdfast_lacking_job AS
SELECT j.n, f.value AS fact FROM holdfast_dispatch d, holdfast_job j, json_each('["key", "executor", "agent"]') f
 WHERE d.id = 1 AND d.required <> '[]' AND j.retry_of IS NULL
   AND CASE f.value WHEN 'key' THEN j.idempotency_key WHEN 'executor' THEN j.executor ELSE j.agent END IS NULL
   AND j.kind NOT IN ('http.request', 'webhook.deliver', 'report.generate', 'connector.http.request',
                      'connector.webhook.deliver', 'connector.report.generate')
   AND EXISTS (SELECT 1 FROM json_each(d.required) r
                WHERE r.value IN (f.value || ' *', f.value || ' tenant:' || j.tenant, f.value || ' kind:' || j.kind))
   AND NOT (j.source_system = 'holdfast' AND EXISTS (
       SELECT 1 FROM holdfast_approval g WHERE g.job_id = j.parent_id AND g.tenant = j.tenant AND g.notify = j.kind));

-- A hand-written event: where the deployment refuses unregistered types, its type must be registered and the keys that its
-- schema requires must be present. `send_event` checks the whole schema before the insert.
CREATE TRIGGER holdfast_guard_event_type BEFORE INSERT ON holdfast_app_event
WHEN (SELECT unknown_events FROM holdfast_dispatch WHERE id = 1) = 'refuse'
     AND NEW.name NOT LIKE 'job.%' AND NEW.name <> 'schedule.missed' AND NEW.name <> 'endpoint.disabled'
BEGIN
    SELECT RAISE(ABORT, 'event type unregistered: only registered types of events are accepted')
     WHERE NOT EXISTS (SELECT 1 FROM holdfast_registered_event t WHERE t.name = NEW.name);
    SELECT RAISE(ABORT, 'event data invalid: a key that the schema of this event type requires is missing')
     WHERE EXISTS (SELECT 1 FROM holdfast_registered_event t, json_each(t.schema, '$.required') r
                    WHERE t.name = NEW.name AND t.schema IS NOT NULL
                      AND NOT EXISTS (SELECT 1 FROM json_each(NEW.data) d WHERE d.key = r.value));
END;
