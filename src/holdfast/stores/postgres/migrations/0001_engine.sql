-- The tables of the engine. The runner has set search_path to the chosen schema, so nothing here names it.
--
--   job         what was asked for. Written once, never updated by the hot path.
--   job_state   where it is now. Narrow; one row a job; every index on it is partial or the key.
--   event       the ledger: one row a transition, written by triggers, never by hand.
--   lease       one row a worker process; a job names the lease that holds it.
--
-- Rows enter `job` only; triggers make the state row and the first event (code/20_on_job_insert.sql), and
-- an update of `job_state` is judged by row triggers (legality) and recorded by a statement trigger (ledger).
-- There is no foreign key between job, job_state and event: a row trigger per key and row costs more than the
-- whole ledger (docs/adr/0002). Their rows can only come and go together, which the triggers see to.

-- Text, not an enum: under row-level security a condition can use an index only if its operator is known not to
-- leak, and that of text is, that of enums is not. Listing by state would read every job of the tenant.
create domain state as text collate "C" constraint state_known check (value in (
    'queued', 'leased', 'in_progress', 'succeeded', 'failed', 'retry_waiting',
    'dead_letter', 'cancelled', 'cleaned', 'waiting_for_approval'
));

create sequence position_seq;
create sequence event_seq;

create table job (
    id               uuid        not null primary key,
    tenant           text        not null,
    kind             text        not null,
    queue            text        not null default 'default',
    payload          json        not null default '{}',  -- as it was sent: jsonb would turn 1e23 into digits
    priority         smallint    not null default 0,
    process_after    timestamptz,
    deadline_at      timestamptz,
    max_retries      smallint    not null default 4,
    max_crashes      smallint    not null default 3,
    backoff          jsonb,
    idempotency_key  text,
    content_key      text,
    tags             text[]      not null default '{}',
    agent            text,
    correlation_id   text,
    causation_id     text,
    parent_id        uuid,
    workflow_id      uuid,
    external_ref     text,
    enqueued_by      text        not null,
    source_system    text        not null,
    created_at       timestamptz not null,
    -- A name begins with something to see: the space is character 32.
    constraint kind_named          check (ascii(kind) > 32 and length(kind) <= 100),
    constraint queue_named         check (ascii(queue) > 32 and length(queue) <= 100),
    constraint tenant_named        check (ascii(tenant) > 32 and length(tenant) <= 100 and tenant <> '*'),
    constraint enqueued_by_named   check (ascii(enqueued_by) > 32),
    constraint source_system_named check (ascii(source_system) > 32),
    constraint retries_bounded     check (max_retries between 0 and 100),
    constraint crashes_bounded     check (max_crashes between 0 and 100)
);

-- Newest first is id descending: ids are UUIDv7 and sort by creation.
create index job_by_tenant on job (tenant, id desc);
create index job_by_kind on job (tenant, kind, id desc);
create index job_by_queue on job (tenant, queue, id desc);
create index job_by_agent on job (tenant, agent, id desc) where agent is not null;
create index job_by_correlation on job (tenant, correlation_id, id desc) where correlation_id is not null;
create index job_by_parent on job (tenant, parent_id, id desc) where parent_id is not null;
create index job_by_workflow on job (tenant, workflow_id, id desc) where workflow_id is not null;
create index job_by_external_ref on job (tenant, external_ref) where external_ref is not null;

-- In a table of its own, newest first like the rest; and the operators of arrays are no good under row-level security.
create table job_tag (
    tenant text not null,
    tag    text not null,
    job_id uuid not null,
    primary key (tenant, tag, job_id)
);

create table job_state (
    id             uuid        not null primary key,
    tenant         text        not null,
    kind           text        not null,
    queue          text        not null,
    state          state       not null,
    priority       smallint    not null,
    position       bigint      not null,
    attempt        integer     not null default 0,
    retries        smallint    not null default 0,
    crashes        smallint    not null default 0,
    max_retries    smallint    not null,
    max_crashes    smallint    not null,
    due_at         timestamptz,  -- not claimable before; null when claimable now
    deadline_at    timestamptz,
    lease          uuid,         -- who holds it
    settled_by     uuid,         -- the lease shown by whoever ended the last attempt
    gate_id        uuid,
    started_at     timestamptz,
    finished_at    timestamptz,
    error_code     text,
    error_message  text,
    note           jsonb,        -- the context of the last transition, copied into its event
    constraint finished_iff_terminal check (
        (state in ('succeeded', 'failed', 'dead_letter', 'cancelled', 'cleaned')) = (finished_at is not null)),
    constraint error_when_failed check (
        state not in ('failed', 'dead_letter') or (error_code is not null and error_message is not null)),
    constraint due_when_retry_waiting check (state <> 'retry_waiting' or due_at is not null),
    constraint gate_when_waiting check (state <> 'waiting_for_approval' or gate_id is not null),
    constraint lease_iff_held check ((state in ('leased', 'in_progress')) = (lease is not null)),
    constraint unsettled_while_held check (lease is null or settled_by is null),
    constraint retries_within_limit check (retries between 0 and max_retries and max_retries <= 100),
    constraint crashes_counted check (crashes >= 0 and max_crashes between 0 and 100),
    constraint attempt_counted check (attempt >= 0)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

create index claimable on job_state (queue, priority desc, position, id) where state = 'queued' and due_at is null;
create index not_yet_due on job_state (due_at) where due_at is not null and state in ('queued', 'retry_waiting');
create index past_deadline on job_state (deadline_at) where deadline_at is not null and state in ('queued', 'retry_waiting');
create index held on job_state (lease) where lease is not null;
create index by_state on job_state (tenant, state, id desc);

create table event (
    seq      bigint      not null default nextval('event_seq'),
    xid      bigint      not null default pg_current_xact_id()::text::bigint,
    job_id   uuid        not null,
    tenant   text        not null,
    kind     text        not null,
    verb     text        not null,
    from_state state,
    to_state   state     not null,
    attempt  integer     not null,
    at       timestamptz not null,
    actor    text        not null,
    meta     jsonb,
    primary key (seq)
);
create index event_by_job on event (job_id, seq);
-- Finding the rows of a few transactions that committed late: cheap to keep, since both columns only grow.
create index event_by_xid on event using brin (xid) with (pages_per_range = 32, autosummarize = on);

create table lease (
    id         uuid        not null primary key,
    tenant     text        not null,            -- the scope its jobs were claimed in; '*' is every tenant
    name       text        not null,
    holder     text        not null,
    until      timestamptz not null,
    opened_at  timestamptz not null,
    renewed_at timestamptz not null,
    ended_at   timestamptz,
    ended_why  text,
    swept_at   timestamptz,                     -- nothing names it any more
    constraint name_named check (ascii(name) > 32),
    constraint holder_named check (ascii(holder) > 32),
    constraint why_iff_ended check ((ended_at is null) = (ended_why is null))
);
create index lease_live on lease (until) where ended_at is null;
create index lease_unswept on lease (ended_at) where ended_at is not null and swept_at is null;

-- (tenant, kind, key) is claimed for ever; `job` can then be partitioned by time without losing uniqueness.
create table idempotency (
    tenant       text not null,
    kind         text not null,
    key          text not null,
    job_id       uuid not null,
    payload_hash text not null,
    primary key (tenant, kind, key)
);

-- The last job enqueued for a content key. Whether it is still active is asked of job_state under this row's lock.
create table content (
    tenant text not null,
    key    text not null,
    job_id uuid not null,
    primary key (tenant, key)
);

create table result (
    job_id  uuid  not null primary key,
    tenant  text  not null,
    value   jsonb,
    ref     text,
    constraint something check (value is not null or ref is not null)
);

create table checkpoint (
    job_id   uuid        not null,
    tenant   text        not null,
    name     text        not null,
    value    jsonb       not null,
    attempt  integer     not null,
    saved_at timestamptz not null,
    primary key (job_id, name)
);

create table artifact (
    job_id   uuid        not null,
    tenant   text        not null,
    attempt  integer     not null,
    name     text        not null,
    ref      text        not null,
    meta     jsonb,
    at       timestamptz not null,
    primary key (job_id, attempt, name)
);

create table consumer (
    tenant     text        not null,
    name       text        not null,
    cursor     text        not null,
    updated_at timestamptz not null,
    primary key (tenant, name)
);

-- Which numbered migrations have run, and a digest of the code that was laid over them.
create table migration (
    name       text        not null primary key,
    digest     text        not null,
    applied_at timestamptz not null default clock_timestamp()
);

-- The clock of the schema. One row. Tests shift or stop it; everywhere else it is the server's own.
create table clock (
    id      boolean  not null primary key default true check (id),
    shift   interval not null default '0',
    stopped timestamptz
);
insert into clock default values;
