-- Calls that join into one job, and limits that refuse new jobs.

ALTER TABLE holdfast_content ADD COLUMN since INTEGER;   -- First call of a debounced job, or the start of a throttle's period.
ALTER TABLE holdfast_dispatch ADD COLUMN refusing TEXT;   -- Limits that refuse new jobs while their rate has nothing left.
