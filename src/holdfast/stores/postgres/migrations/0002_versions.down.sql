-- lost if exists (select from job_state where ascii(executor) < 32 and finished_at is null): jobs that require a version or other code
drop index if exists job_by_requirement, step_patch;
alter table lease drop column app_version, drop column code, drop column pins;
