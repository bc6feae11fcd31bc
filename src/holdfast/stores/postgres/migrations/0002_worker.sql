-- What the worker needs, and indexes that cost it less.

-- Ascending: new ids go to the end of an index and fill its pages; descending ones went to the front of their group
-- and split pages in halves. A scan for the newest simply runs backwards.
drop index job_by_tenant, job_by_kind, job_by_queue, job_by_agent, job_by_correlation, job_by_parent, job_by_workflow;
create index job_by_tenant on job (tenant, id);
create index job_by_kind on job (tenant, kind, id);
create index job_by_queue on job (tenant, queue, id);
create index job_by_agent on job (tenant, agent, id) where agent is not null;
create index job_by_correlation on job (tenant, correlation_id, id) where correlation_id is not null;
create index job_by_parent on job (tenant, parent_id, id) where parent_id is not null;
create index job_by_workflow on job (tenant, workflow_id, id) where workflow_id is not null;

-- Held jobs are few, and found by `held`: to enter and leave by_state too was a sixth of the cost of a job. The
-- predicates speak of states because readers may not see leases.
drop index by_state, held;
create index by_state on job_state (tenant, state, id) where state not in ('leased', 'in_progress');
create index held on job_state (lease) where state in ('leased', 'in_progress');

-- How often a job was taken from under a lease (cancelled): its worker looks here, at one row, not at its jobs. Not a
-- column of the lease, which belongs to another tenant (every one) than whoever cancels.
create table recall (
    lease uuid    not null primary key,
    times integer not null
);

-- Jobs whose end somebody is waiting for just now. Only for these is a notification sent.
create table watch (
    job_id uuid        not null primary key,
    tenant text        not null,
    until  timestamptz not null
);
create index watch_until on watch (until);

-- The kinds a worker has handlers for, so that it can be said which jobs wait for nobody. Null: whatever there is.
alter table lease add column kinds text[];

-- As they were given: jsonb makes 1e23 an integer, which is another number (see docs/adr/0006).
alter table result alter column value type json using value::json;
alter table checkpoint alter column value type json using value::json;
drop function if exists settle_many(uuid, uuid[], integer[], text[], jsonb[], text);
drop function if exists save_checkpoint(uuid, uuid, integer, text, jsonb, text);

drop function if exists open_lease(text, interval, text, text, uuid);
-- Its answer has one column more.
drop function if exists claim_many(uuid, text[], integer, boolean, text[], text);
