-- A job's facts have been written: give it its state and the first row of its ledger.
DROP TRIGGER IF EXISTS on_job_insert;
CREATE TRIGGER on_job_insert AFTER INSERT ON job
BEGIN
    INSERT INTO job_state (n, id, tenant, kind, queue, state, priority, position, max_retries, max_crashes, due_at, deadline_at)
    VALUES (NEW.n, NEW.id, NEW.tenant, NEW.kind, NEW.queue, 'queued', NEW.priority, NEW.n * 100, NEW.max_retries, NEW.max_crashes,
            CASE WHEN NEW.process_after IS NOT NULL AND NEW.process_after > (SELECT now FROM present)
                 THEN NEW.process_after END, NEW.deadline_at);
    INSERT INTO event (job_id, tenant, kind, verb, to_state, attempt, at, actor)
    VALUES (NEW.id, NEW.tenant, NEW.kind, 'enqueue', 'queued', 0, NEW.created_at, NEW.enqueued_by);
END;

DROP TRIGGER IF EXISTS on_job_tags;
CREATE TRIGGER on_job_tags AFTER INSERT ON job WHEN NEW.tags <> '[]'
BEGIN
    INSERT OR IGNORE INTO job_tag (tenant, tag, job_id) SELECT NEW.tenant, value, NEW.id FROM json_each(NEW.tags);
END;
