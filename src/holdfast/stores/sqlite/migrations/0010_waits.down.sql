-- lost if exists (select 1 from holdfast_step where branch is not null): the steps in branches of a handler
-- lost if exists (select 1 from holdfast_step where awaits is not null and ended_at is null): waits for jobs
DROP INDEX IF EXISTS holdfast_awaited;
ALTER TABLE holdfast_step DROP COLUMN branch;
ALTER TABLE holdfast_step DROP COLUMN awaits;
