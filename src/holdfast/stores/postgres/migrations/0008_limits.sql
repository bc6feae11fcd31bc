-- Limits on what runs at once and how often (SC-16), reservations (SC-10), and queues in which waiting counts.

-- Names of what a job counts against besides its queue and kind: 'key:customer-7', 'resource:gpu-0'. Null: nothing.
alter table job add column uses text[];
alter table job add constraint uses_named check (
    cardinality(uses) between 1 and 20 and array_position(uses, null) is null
    and length(array_to_string(uses, '')) <= 4000);

-- The full limit that a parked job waits for, as text: see `bucket`.
alter table job_state add column held_by text;
create index parked on job_state (held_by, priority desc, position, id)
    where held_by is not null and due_at is not null and state = 'queued';

create table job_limit (
    tenant      text        not null,   -- whose jobs are counted; '*': those of every tenant together
    scope       text        not null,
    name        text        not null,   -- '*': each name by itself; the scope `all` has no other
    concurrency integer,                -- at most so many are leased or in progress
    rate        integer,                -- at most so many are begun
    per         double precision,       -- in so many seconds
    burst       integer,                -- and so many at once after a while without any
    set_by      text        not null,
    created_at  timestamptz not null,
    updated_at  timestamptz not null,
    primary key (tenant, scope, name),
    constraint tenant_named     check (ascii(tenant) > 32 and length(tenant) <= 100),
    constraint scope_known      check (scope in ('all', 'queue', 'kind', 'key', 'resource', 'agent', 'tenant')),
    constraint name_named       check (ascii(name) > 32 and length(name) <= 255 and (scope <> 'all' or name = '*')),
    constraint limits_something check (concurrency is not null or rate is not null),
    constraint concurrency_bounded check (concurrency between 0 and 1000000),
    constraint rate_whole       check ((rate is null) = (per is null) and (rate is null) = (burst is null)),
    constraint rate_bounded     check (rate between 1 and 1000000 and per between 0.001 and 31622400 and burst between 1 and 1000000)
);

-- One row a held job and limit on how many run. Written with the claim, gone with the step that frees the job.
create table place (
    tenant text not null,
    scope  text not null,
    name   text not null,
    job_id uuid not null,
    primary key (tenant, scope, name, job_id)
);
create index place_by_job on place (job_id);

-- The tokens of a rate. A bucket without a row is full. `wake_at`: somebody waits, and then there is a token again.
create table meter (
    tenant  text             not null,
    scope   text             not null,
    name    text             not null,
    tokens  double precision not null,
    at      timestamptz      not null,
    wake_at timestamptz,
    primary key (tenant, scope, name)
);
create index meter_wake on meter (wake_at) where wake_at is not null;

-- The right to use something directly, while no job is begun that would (SC-10).
create table reservation (
    id          uuid        not null primary key,
    tenant      text        not null,   -- whose jobs are kept from it; '*': everybody's
    scope       text        not null,
    name        text        not null,
    state       text        not null default 'waiting',
    holder      text        not null,
    reason      text,
    asked_at    timestamptz not null,
    reserved_at timestamptz,
    expires_at  timestamptz not null,
    ended_at    timestamptz,
    ended_by    text,
    ended_why   text,
    constraint tenant_named  check (ascii(tenant) > 32 and length(tenant) <= 100),
    constraint scope_known   check (scope in ('all', 'queue', 'resource')),
    constraint name_named    check (ascii(name) > 32 and length(name) <= 255 and (scope <> 'all' or name = '*')),
    constraint holder_named  check (ascii(holder) > 32),
    constraint state_known   check (state in ('waiting', 'active', 'released', 'expired', 'withdrawn')),
    constraint ended_iff_over check ((state in ('released', 'expired', 'withdrawn')) = (ended_at is not null)),
    constraint why_iff_ended check ((ended_at is null) = (ended_why is null)),
    constraint active_since  check (state <> 'active' or reserved_at is not null)
);
-- The rule itself: one at a time.
create unique index reservation_active on reservation (tenant, scope, name) where state = 'active';
create index reservation_open on reservation (asked_at) where state in ('waiting', 'active');
create index reservation_by_tenant on reservation (tenant, asked_at);

-- Queues in which a job that has waited for long comes to stand before others.
create table queue_setting (
    tenant     text             not null,
    queue      text             not null,
    aging      double precision not null,   -- seconds of waiting for one step
    aging_step smallint         not null default 1,
    aging_most smallint         not null default 100,   -- no job is raised above this priority
    set_by     text             not null,
    updated_at timestamptz      not null,
    primary key (tenant, queue),
    constraint tenant_named check (ascii(tenant) > 32 and length(tenant) <= 100),
    constraint queue_named  check (ascii(queue) > 32 and length(queue) <= 100),
    constraint aging_bounded check (aging between 0.001 and 31622400),
    constraint step_bounded check (aging_step between 1 and 32767)
);

-- What whoever takes jobs looks at first. One row: nothing is limited or reserved until it says so.
create table dispatch (
    id      boolean not null primary key default true check (id),
    limited boolean not null default false,
    swept   text    not null default ''   -- up to where the last look at parked jobs came
);
insert into dispatch default values;

create type limited as (
    tenant text, scope text, name text, concurrency integer, rate integer, per double precision, burst integer
);
