-- Calls that join into one job.

alter table content add column since timestamptz;   -- First call of a debounced job, or the start of a throttle's period.
