-- Versions of applications: what a worker runs, and the jobs that only some versions may run.

ALTER TABLE holdfast_lease ADD COLUMN app_version TEXT;
ALTER TABLE holdfast_lease ADD COLUMN code TEXT;
ALTER TABLE holdfast_lease ADD COLUMN pins TEXT;
