-- Locks that only our own roles can take (docs/adr/0048). Advisory locks need no privilege: any login could hold one of ours.

-- Empty tables that are locked as a whole. A lock on a table is waited for in turn, and gives its transaction no id.
create table lock_dispatch ();
create table lock_seal ();
create table lock_subscription_0 ();
create table lock_subscription_1 ();
create table lock_subscription_2 ();
create table lock_subscription_3 ();
create table lock_subscription_4 ();
create table lock_subscription_5 ();
create table lock_subscription_6 ();
create table lock_subscription_7 ();

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
