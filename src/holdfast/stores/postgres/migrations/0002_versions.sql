-- Versions of applications: what a worker runs, and the jobs that only some versions may run.

alter table lease add column app_version text;   -- Version of the application that the worker runs; null: unknown.
alter table lease add column code text;   -- Fingerprint of the worker's handlers; null: unknown.
alter table lease add column pins text[];   -- Kinds whose started jobs stay with this version.
