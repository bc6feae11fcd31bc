-- Calls that join into one job, and limits that refuse new jobs.

ALTER TABLE holdfast_content ADD COLUMN since INTEGER;   -- First call of a debounced job, or the start of a throttle's period.
ALTER TABLE holdfast_job_limit ADD COLUMN refuse INTEGER NOT NULL DEFAULT 0;   -- Whether new jobs are refused while the rate has nothing left.
