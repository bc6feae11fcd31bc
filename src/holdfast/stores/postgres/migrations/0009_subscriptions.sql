-- Events that make jobs, retries that are jobs of their own, and who may execute.

-- A job is tried again in place, or (retry_as) by a successor, which names it in retry_of: one, whoever makes it. Depth is
-- how many subscriptions lie behind a job. All three are null for nearly every job, and take no room.
alter table job add column retry_as text, add column retry_of uuid, add column depth smallint,
    add constraint retry_as_known check (retry_as = 'new_job'),
    add constraint depth_counted check (depth between 1 and 1000);
create unique index retried_once on job (retry_of) where retry_of is not null;

-- What a worker serves, and how much at a time, so that it can be said why a job waits. Null: not told.
alter table lease add column queues text[], add column slots integer;
drop function if exists open_lease(text, interval, text, text, uuid, text[]);

-- What applications tell can be read in commit order, too, as the ledger is. Those who were there before come first. The
-- cause is the job whose handler told it.
drop trigger if exists refuse_update on app_event;   -- it comes back with the code
create sequence app_event_seq;
alter table app_event add column seq bigint, add column xid bigint, add column cause_id uuid;
select set_config('holdfast.tenant', '*', true);
update app_event e set seq = o.n, xid = 3
  from (select id, row_number() over (order by sent_at, id) as n from app_event) o where o.id = e.id;
select setval('app_event_seq', coalesce((select max(seq) from app_event), 0) + 1, false);
select set_config('holdfast.tenant', '', true);
alter table app_event alter column seq set default nextval('app_event_seq'), alter column seq set not null,
    alter column xid set default pg_current_xact_id()::text::bigint, alter column xid set not null;
create unique index app_event_in_order on app_event (seq);
create index app_event_by_xid on app_event (xid);
drop function if exists send_event(text, json, text, uuid, text, text, uuid);

-- Which events make which jobs. Its place in the events is kept here, as a consumer's is.
create table subscription (
    id            uuid        not null primary key,
    tenant        text        not null,            -- whose events; '*' is every tenant's, and the job is the event's tenant's
    name          text        not null,
    pattern       text        not null,            -- job.<verb>, or the name of an application event; * is anything
    kind          text,                            -- of the job whose event it is
    match         json,                            -- values that the event must have
    job_kind      text        not null,
    job_options   json        not null default '{}',   -- queue, priority, payload, … of the jobs made
    max_depth     smallint    not null,
    cursor        text,                            -- null: at the beginning
    declared      boolean     not null,            -- in a program, which sees to it
    paused_at     timestamptz,
    paused_by     text,
    paused_reason text,
    failure       text,                            -- why the last look came to nothing
    failed_at     timestamptz,
    made          bigint      not null default 0,
    refused       bigint      not null default 0,
    created_by    text        not null,
    created_at    timestamptz not null,
    updated_at    timestamptz not null,
    constraint name_named     check (ascii(name) > 32 and length(name) <= 100),
    constraint tenant_named   check (ascii(tenant) > 32 and length(tenant) <= 100),
    constraint pattern_named  check (ascii(pattern) > 32 and length(pattern) <= 500),
    constraint job_kind_named check (ascii(job_kind) > 32 and length(job_kind) <= 100),
    constraint job_is_object  check (json_typeof(job_options) = 'object'),
    constraint depth_bounded  check (max_depth between 1 and 100),
    constraint paused_by_whom check ((paused_at is null) = (paused_by is null)),
    constraint failure_dated  check ((failure is null) = (failed_at is null))
);
create unique index subscription_named on subscription (tenant, name);

-- What became of an event that a subscription wanted: a job, or a refusal. The key keeps it to one.
create table delivery (
    subscription_id uuid        not null,
    event           text        not null,          -- its number in the ledger, or the id of an application event
    tenant          text        not null,
    job_id          uuid,
    refusal         text,
    depth           smallint    not null,
    at              timestamptz not null,
    primary key (subscription_id, event),
    constraint one_fate check ((job_id is null) = (refusal is not null))
);
create index delivery_newest on delivery (subscription_id, at, event);
create index delivery_refused on delivery (subscription_id, at, event) where refusal is not null;

-- Who may execute (DP-6). Empty: whoever can open a lease. The list is that of the whole substrate.
create table executor (
    label    text        not null primary key,
    tenant   text        not null default '*',
    role     text        not null,
    added_by text        not null,
    added_at timestamptz not null,
    constraint label_named  check (ascii(label) > 32 and length(label) <= 100),
    constraint of_all       check (tenant = '*'),
    constraint role_known   check (role in ('executor', 'generator'))
);
