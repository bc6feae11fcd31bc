-- Calls that join into one job.

ALTER TABLE holdfast_content ADD COLUMN since INTEGER;   -- First call of a debounced job, or the start of a throttle's period.
