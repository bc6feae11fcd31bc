-- What the worker needs, and indexes that cost it less.

-- Ascending: new ids go to the end of an index. A scan for the newest simply runs backwards.
DROP INDEX job_by_tenant;
DROP INDEX job_by_kind;
DROP INDEX job_by_queue;
DROP INDEX job_by_agent;
DROP INDEX job_by_correlation;
DROP INDEX job_by_parent;
DROP INDEX job_by_workflow;
CREATE INDEX job_by_tenant ON job (tenant, id);
CREATE INDEX job_by_kind ON job (tenant, kind, id);
CREATE INDEX job_by_queue ON job (tenant, queue, id);
CREATE INDEX job_by_agent ON job (tenant, agent, id) WHERE agent IS NOT NULL;
CREATE INDEX job_by_correlation ON job (tenant, correlation_id, id) WHERE correlation_id IS NOT NULL;
CREATE INDEX job_by_parent ON job (tenant, parent_id, id) WHERE parent_id IS NOT NULL;
CREATE INDEX job_by_workflow ON job (tenant, workflow_id, id) WHERE workflow_id IS NOT NULL;

-- Held jobs are few, and found by `held`.
DROP INDEX by_state;
DROP INDEX held;
CREATE INDEX by_state ON job_state (tenant, state, id) WHERE state NOT IN ('leased', 'in_progress');
CREATE INDEX held ON job_state (lease) WHERE state IN ('leased', 'in_progress');

-- The kinds a worker has handlers for, so that it can be said which jobs wait for nobody. Null: whatever there is.
ALTER TABLE lease ADD COLUMN kinds TEXT;

-- How often a job was taken from under a lease (cancelled): its worker looks here, at one row, not at its jobs.
CREATE TABLE recall (
    lease TEXT    NOT NULL PRIMARY KEY,
    times INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
