-- Calls that join into one job, and limits that refuse new jobs.

alter table content add column since timestamptz;   -- First call of a debounced job, or the start of a throttle's period.
alter table job_limit add column refuse boolean not null default false;   -- Whether new jobs are refused while the rate has nothing left.
