-- Calls that join into one job, and limits that refuse new jobs.

alter table content add column since timestamptz;   -- First call of a debounced job, or the start of a throttle's period.
alter table dispatch add column refusing text[];   -- Limits that refuse new jobs while their rate has nothing left.
