-- Unfinished jobs that require a version of the application (31) or certain code (30), by the first character of `executor`. That
-- of other jobs is a label, which begins with a larger one.
CREATE INDEX IF NOT EXISTS holdfast_job_by_requirement ON holdfast_job_state (executor, tenant, id) WHERE executor < ' ' AND finished_at IS NULL;
CREATE INDEX IF NOT EXISTS holdfast_step_patch ON holdfast_step (tenant, name, started_at) WHERE kind = 'patch';
