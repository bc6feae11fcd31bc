-- Workflows (DP-14, SC-17): jobs that belong together, and which of them wait for which.

-- The counts are kept by whatever changes a node, so that its status is read from one row, however many jobs it has.
create table workflow (
    id             uuid        not null primary key,
    tenant         text        not null,
    kind           text        not null,
    generator      text        not null,               -- who planned it, and runs none of it
    on_failure     text        not null default 'skip',
    key            text,                               -- started twice with the same key, it is one
    plan_hash      text        not null default '',
    correlation_id text,
    parent_id      uuid,                               -- the job that started it
    enqueued_by    text        not null,
    source_system  text        not null,
    created_at     timestamptz not null,
    finished_at    timestamptz,
    cancelled_at   timestamptz,
    stopped        boolean     not null default false, -- a failure holds back all that waits
    total          integer     not null default 0,
    open           integer     not null default 0,
    succeeded      integer     not null default 0,
    failed         integer     not null default 0,
    dead           integer     not null default 0,     -- failed, and may be redriven
    cancelled      integer     not null default 0,
    skipped        integer     not null default 0,
    constraint kind_named         check (ascii(kind) > 32 and length(kind) <= 100),
    constraint tenant_named       check (ascii(tenant) > 32 and length(tenant) <= 100 and tenant <> '*'),
    constraint generator_named    check (ascii(generator) > 32 and length(generator) <= 255),
    constraint on_failure_known   check (on_failure in ('stop', 'continue', 'skip')),
    constraint counts_add_up      check (total = open + succeeded + failed + dead + cancelled + skipped
        and least(open, succeeded, failed, dead, cancelled, skipped) >= 0),
    constraint finished_when_over check ((finished_at is not null) = (total > 0 and open = 0))
);
create index workflow_by_tenant on workflow (tenant, id);
create unique index workflow_by_key on workflow (tenant, kind, key) where key is not null;

-- A job of a workflow: how it stands, and how many of its parents it still waits for.
create table node (
    job_id      uuid    not null primary key,
    tenant      text    not null,
    workflow_id uuid    not null,
    name        text,                                  -- null: joined by being a child of one of its jobs
    part        text,                                  -- the group or sub-workflow it is in: images, or images.large
    standing    text    not null default 'open',
    unmet       integer not null default 0,
    fatal       boolean not null default false,        -- its failure stops the workflow
    stops       boolean not null default false,        -- and has
    constraint standing_known check (standing in ('open', 'succeeded', 'failed', 'dead', 'cancelled', 'skipped')),
    constraint unmet_counted  check (unmet >= 0)
);
create index node_by_workflow on node (workflow_id, job_id);
create unique index node_by_name on node (workflow_id, name) where name is not null;

create table dependency (
    child      uuid    not null,
    parent     uuid    not null,
    tenant     text    not null,
    on_failure text    not null,
    met        boolean not null default false,         -- the child does not wait for this parent (any more)
    primary key (child, parent),
    constraint on_failure_known check (on_failure in ('stop', 'continue', 'skip')),
    constraint not_of_itself    check (child <> parent)
);
create index dependency_unmet on dependency (parent) where not met;
create index dependency_by_parent on dependency (parent, child);

-- Of jobs of workflows only: the trigger that sees a job end must know without looking.
alter table job_state add column workflow_id uuid;
