-- What is known of tenants (JF-12): how many of their jobs may wait, and their share where queues are shared fairly. How
-- many may run, and how often, are limits of the scope `tenant`.
create table tenant (
    tenant      text        not null primary key,
    title       text,
    max_pending integer,                -- at most so many jobs wait; more are refused
    weight      integer,                -- its share against others; null is 1
    set_by      text        not null,
    created_at  timestamptz not null,
    updated_at  timestamptz not null,
    constraint tenant_named    check (ascii(tenant) > 32 and length(tenant) <= 100 and tenant <> '*'),
    constraint title_bounded   check (length(title) between 1 and 200),
    constraint pending_bounded check (max_pending between 0 and 100000000),
    constraint weight_bounded  check (weight between 1 and 1000)
);

-- How many jobs of a tenant with a cap wait. Whoever enqueues for it holds this row, and takes in what has changed since.
create table tenant_load (
    tenant     text        not null primary key,
    pending    bigint      not null,
    counted_at timestamptz not null   -- when they were last counted one by one
);

-- What has changed since: steps of jobs, which wait for nobody.
create table pending_change (
    tenant text    not null,
    change integer not null
);
create index pending_change_by_tenant on pending_change (tenant);

-- Whose turn it was last in a queue that is shared fairly, and how much of its share was left over.
create table fair_place (
    tenant    text    not null default '*',
    queue     text    not null,
    kinds     text    not null,   -- whom it is kept for: those who take these kinds; '' is any
    last      text    not null,
    left_over integer not null default 0,
    primary key (tenant, queue, kinds)
);

alter table dispatch
    add column capped boolean not null default false,   -- some tenant has a cap: steps of jobs are counted
    add column fair   text[];                           -- queues that tenants share fairly; '*' is all; null is none
