-- Unfinished jobs that require a version of the application (31) or certain code (30), by the first character of `executor`.
create index concurrently job_by_requirement on job_state (ascii(executor), executor, tenant, id)
    where ascii(executor) < 32 and finished_at is null;
create index concurrently step_patch on step (tenant, name, started_at) where kind = 'patch';
