-- lost if exists (select 1 from holdfast_job_state where executor < ' ' and finished_at is null): jobs that require a version or other code
DROP INDEX IF EXISTS holdfast_job_by_requirement;
DROP INDEX IF EXISTS holdfast_step_patch;
ALTER TABLE holdfast_lease DROP COLUMN app_version;
ALTER TABLE holdfast_lease DROP COLUMN code;
ALTER TABLE holdfast_lease DROP COLUMN pins;
