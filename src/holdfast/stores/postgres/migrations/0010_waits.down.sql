-- lost if exists (select from step where branch is not null): the steps in branches of a handler
-- lost if exists (select from step where awaits is not null and ended_at is null): waits for jobs
alter table step drop column branch;
alter table step drop column awaits;
