-- For how long finished jobs are kept (DP-16), how far the sweeps have come, and what was used (HK-5).

-- The most specific one decides alone (domain/retention.py). Seconds after the end of a job; null is for ever.
CREATE TABLE retention (
    tenant      TEXT    NOT NULL,   -- '*': every tenant's jobs
    kind        TEXT    NOT NULL,   -- '*': any
    state       TEXT    NOT NULL,   -- '*': any but dead letters, which are named or stay
    clean_after REAL,
    purge_after REAL,
    declared    INTEGER NOT NULL DEFAULT 0,   -- in a program; what an operator sets stands before it
    set_by      TEXT    NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    PRIMARY KEY (tenant, kind, state),
    CONSTRAINT tenant_named  CHECK (tenant >= '!' AND length(tenant) <= 100),
    CONSTRAINT kind_named    CHECK (kind >= '!' AND length(kind) <= 100),
    CONSTRAINT state_known   CHECK (state IN ('*', 'succeeded', 'failed', 'cancelled', 'dead_letter')),
    CONSTRAINT ages_bounded  CHECK (clean_after BETWEEN 0 AND 3162240000 AND purge_after BETWEEN 0 AND 3162240000),
    CONSTRAINT clean_first   CHECK (clean_after <= purge_after),
    CONSTRAINT set_by_named  CHECK (set_by >= '!')
) STRICT, WITHOUT ROWID;

-- A pass walks jobs in the order of their ids, which is that of their making, a slice at a time; `reached` is how far it
-- has come. Whoever has its turn next has the earliest `again_at`.
CREATE TABLE retention_pass (
    tenant   TEXT    NOT NULL,
    kind     TEXT    NOT NULL,
    state    TEXT    NOT NULL,
    verb     TEXT    NOT NULL,
    reached  TEXT    NOT NULL DEFAULT '',
    looked   INTEGER NOT NULL DEFAULT 0,   -- since it began at the first job
    again_at INTEGER NOT NULL,
    restart_at INTEGER,                    -- when it begins at the first job again: some end long after they were made
    held     INTEGER NOT NULL DEFAULT 0,   -- since it began: due, and their ledger not read by all who read it
    held_by  TEXT,
    PRIMARY KEY (tenant, kind, state, verb),
    CONSTRAINT verb_known CHECK (verb IN ('clean', 'purge'))
) STRICT, WITHOUT ROWID;
CREATE INDEX retention_next ON retention_pass (again_at);

-- When the tables that are only worked with are pruned next. One row.
CREATE TABLE upkeep (
    id       INTEGER PRIMARY KEY CHECK (id = 1),
    prune_at INTEGER NOT NULL
) STRICT;
INSERT INTO upkeep (id, prune_at) VALUES (1, 0);

-- Sums by day, UTC, in whole numbers: microseconds, and millionths of a unit of cost. They stay when the jobs go.
CREATE TABLE usage (
    tenant    TEXT    NOT NULL,
    day       TEXT    NOT NULL,
    kind      TEXT    NOT NULL,
    enqueued  INTEGER NOT NULL DEFAULT 0,
    started   INTEGER NOT NULL DEFAULT 0,
    succeeded INTEGER NOT NULL DEFAULT 0,
    failed    INTEGER NOT NULL DEFAULT 0,
    crashed   INTEGER NOT NULL DEFAULT 0,
    dead      INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    expired   INTEGER NOT NULL DEFAULT 0,
    run_time  INTEGER NOT NULL DEFAULT 0,
    wait_time INTEGER NOT NULL DEFAULT 0,
    cost      INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, day, kind)
) STRICT, WITHOUT ROWID;

-- How far the ledger has been counted. No row: nobody has asked, and nothing is counted.
CREATE TABLE usage_place (
    id         INTEGER PRIMARY KEY CHECK (id = 1),
    cursor     TEXT,
    updated_at INTEGER NOT NULL
) STRICT;

-- A job that goes takes along what says that an event made it.
CREATE INDEX delivery_by_job ON delivery (job_id) WHERE job_id IS NOT NULL;
-- And what was told to it alone.
CREATE INDEX app_event_by_job ON app_event (job_id) WHERE job_id IS NOT NULL;
