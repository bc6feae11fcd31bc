-- For how long finished jobs are kept (DP-16), how far the sweeps have come, and what was used (HK-5).

-- The most specific one decides alone (domain/retention.py). Seconds after the end of a job; null is for ever.
create table retention (
    tenant      text             not null,   -- '*': every tenant's jobs
    kind        text             not null,   -- '*': any
    state       text             not null,   -- '*': any but dead letters, which are named or stay
    clean_after double precision,
    purge_after double precision,
    declared    boolean          not null default false,   -- in a program; what an operator sets stands before it
    set_by      text             not null,
    created_at  timestamptz      not null,
    updated_at  timestamptz      not null,
    primary key (tenant, kind, state),
    constraint tenant_named  check (ascii(tenant) > 32 and length(tenant) <= 100),
    constraint kind_named    check (ascii(kind) > 32 and length(kind) <= 100),
    constraint state_known   check (state in ('*', 'succeeded', 'failed', 'cancelled', 'dead_letter')),
    constraint ages_bounded  check (clean_after between 0 and 3162240000 and purge_after between 0 and 3162240000),
    constraint clean_first   check (clean_after <= purge_after),
    constraint set_by_named  check (ascii(set_by) > 32)
);

-- A pass walks jobs in the order of their ids, which is that of their making, a slice at a time; `reached` is how far it
-- has come. Whoever has its turn next has the earliest `again_at`.
create table retention_pass (
    tenant   text        not null,
    kind     text        not null,
    state    text        not null,
    verb     text        not null,
    reached  uuid        not null default '00000000-0000-0000-0000-000000000000',
    looked   bigint      not null default 0,   -- since it began at the first job
    again_at timestamptz not null,
    restart_at timestamptz,                    -- when it begins at the first job again: some end long after they were made
    held     bigint      not null default 0,   -- since it began: due, and their ledger not read by all who read it
    held_by  text,
    primary key (tenant, kind, state, verb),
    constraint verb_known check (verb in ('clean', 'purge'))
);
create index retention_next on retention_pass (again_at);

-- When the tables that are only worked with are pruned next. One row.
create table upkeep (
    id       boolean     not null primary key default true check (id),
    prune_at timestamptz not null
);
insert into upkeep (prune_at) values ('epoch');

-- Sums by day, UTC, in whole numbers: microseconds, and millionths of a unit of cost. They stay when the jobs go.
create table usage (
    tenant    text   not null,
    day       date   not null,
    kind      text   not null,
    enqueued  bigint not null default 0,
    started   bigint not null default 0,
    succeeded bigint not null default 0,
    failed    bigint not null default 0,
    crashed   bigint not null default 0,
    dead      bigint not null default 0,
    cancelled bigint not null default 0,
    expired   bigint not null default 0,
    run_time  bigint not null default 0,
    wait_time bigint not null default 0,
    cost      bigint not null default 0,
    primary key (tenant, day, kind)
);

-- How far the ledger has been counted. No row: nobody has asked, and nothing is counted.
create table usage_place (
    id         boolean     not null primary key default true check (id),
    cursor     text,
    updated_at timestamptz not null
);

-- A job that goes takes along what says that an event made it.
create index delivery_by_job on delivery (job_id) where job_id is not null;
-- And what was told to it alone.
create index app_event_by_job on app_event (job_id) where job_id is not null;
