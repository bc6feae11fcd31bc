-- Locks that only our own roles can take (docs/adr/0048). Advisory locks need no privilege: any login could hold one of ours.

-- Tables that are locked as a whole, and stay empty. A lock on a table is waited for in turn, and gives its transaction no id.
create table lock_dispatch (held boolean);
create table lock_seal (held boolean);
create table lock_subscription_0 (held boolean);
create table lock_subscription_1 (held boolean);
create table lock_subscription_2 (held boolean);
create table lock_subscription_3 (held boolean);
create table lock_subscription_4 (held boolean);
create table lock_subscription_5 (held boolean);
create table lock_subscription_6 (held boolean);
create table lock_subscription_7 (held boolean);

-- Rows that are locked one by one (28_locks.sql says which is for what). Never changed, so locking one leaves no dead row.
create table mutex (n integer not null primary key);
insert into mutex select generate_series(0, 5247);

-- Waits for an event that may have been sent while they began: they are checked again (recheck_waits, 48_steps.sql).
create table unsure_wait (
    job_id   uuid        not null,
    n        integer     not null,
    tenant   text        not null,
    since    timestamptz not null,   -- from when on events count
    bound    bigint,                 -- transactions from this one on have seen the wait
    check_at timestamptz not null,
    primary key (job_id, n)
);
create index unsure_wait_due on unsure_wait (check_at);

-- Jobs that the database itself makes and nothing refuses, while they are being inserted (give_notice). Else it is empty.
create table owed (job_id uuid not null primary key);

-- Any login of the database may LISTEN: what is said is a hash with this key (17_rouse.sql).
alter table dispatch add column signal_key text not null default gen_random_uuid()::text;
