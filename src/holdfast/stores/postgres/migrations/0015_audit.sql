-- The audit trail (HF-4, CX-4): what was done to anything but a job, and the seals over all of it.

create sequence action_seq;

-- One row for each thing that was done to the configuration, by whomever: the ledger of what is no job's.
create table action (
    seq       bigint      not null primary key default nextval('action_seq'),
    xid       bigint      not null default pg_current_xact_id()::text::bigint,
    tenant    text        not null,
    at        timestamptz not null,
    actor     text        not null,
    verb      text        not null,
    subject   text        not null,   -- what kind of thing: limit, agent, schedule, …
    name      text        not null,   -- which
    changed   jsonb,                  -- {"column": value}, or [before, after]
    first_seq bigint,                 -- of a purge: the smallest and the greatest number of the events that went
    last_seq  bigint,
    constraint range_of_purge check ((verb = 'purge') = (first_seq is not null) and (first_seq is null) = (last_seq is null))
);
create index action_by_tenant on action (tenant, seq);
create index action_by_xid on action (xid);
create index action_of_purge on action (last_seq, first_seq) where first_seq is not null;

-- A block of committed events and actions, hashed together with the block before. What is sealed so far: every event up to
-- `floor` that `snapshot` sees (and all up to `base`, where the database was moved to another server), actions likewise.
create table seal (
    number       bigint      not null primary key,
    tenant       text        not null default '*',
    previous     text        not null,   -- the digest of the one before; of the first: zeros
    digest       text        not null,
    events       bytea       not null,   -- for each event its number in 8 bytes and its digest in 32
    actions      bytea       not null,
    event_count  integer     not null,
    action_count integer     not null,
    first_seq    bigint,
    last_seq     bigint,
    floor        bigint      not null,
    action_floor bigint      not null,
    base         bigint      not null,
    snapshot     text,
    sealed_at    timestamptz not null,
    version      text        not null,   -- of the library that sealed
    xid          bigint,
    constraint of_all          check (tenant = '*'),
    constraint number_counted  check (number > 0),
    constraint digests_whole   check (length(previous) = 64 and length(digest) = 64),
    constraint events_counted  check (octet_length(events) = 40 * event_count),
    constraint actions_counted check (octet_length(actions) = 40 * action_count),
    constraint something       check (event_count + action_count > 0)
);
alter table seal alter column events set storage external, alter column actions set storage external;   -- nothing to compress
create index seal_by_seq on seal (last_seq);

-- They say who does it now.
drop function if exists register_agent(text, text, text, integer, integer, jsonb, integer, double precision, boolean, text);
drop function if exists enable_agent(text, integer, text);
drop function if exists remove_executor(text);
drop function if exists resume_subscription(text, boolean, text);
drop function if exists delete_subscription(text, text);
drop function if exists reset_consumer(text, boolean, text);
drop function if exists remove_consumer(text, text);
