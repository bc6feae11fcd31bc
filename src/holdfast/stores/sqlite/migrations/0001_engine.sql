-- The tables of the engine, under the names they have on every store. Times are microseconds since 1970, UTC; ids
-- are text, so that a person with the sqlite3 shell can use them.
--
--   job         what was asked for. Written once.
--   job_state   where it is now. Shares its number `n` with job.
--   event       the ledger: one row a transition, written by triggers.
--   lease       one row a worker process; a job names the lease that holds it.
--
-- Rows enter `job` only; triggers make the state row and the first event (code/20_on_job_insert.sql).
-- A name is not blank: trim() alone would take off spaces only, hence the list of white characters.

CREATE TABLE job (
    n                INTEGER PRIMARY KEY CHECK (n > 0),
    -- A UUIDv7, for rows inserted by hand (CX-2).
    id               TEXT    NOT NULL UNIQUE DEFAULT (printf('%08x-%04x-7%03x-%04x-%012x',
        CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) >> 16,
        CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) & 0xffff,
        random() & 0xfff, random() & 0x3fff | 0x8000, random() & 0xffffffffffff)),
    tenant           TEXT    NOT NULL DEFAULT 'default',
    kind             TEXT    NOT NULL,
    queue            TEXT    NOT NULL DEFAULT 'default',
    payload          TEXT    NOT NULL DEFAULT '{}',
    priority         INTEGER NOT NULL DEFAULT 0,
    process_after    INTEGER,
    deadline_at      INTEGER,
    max_retries      INTEGER NOT NULL DEFAULT 4,
    max_crashes      INTEGER NOT NULL DEFAULT 3,
    backoff          TEXT,
    idempotency_key  TEXT,
    content_key      TEXT,
    tags             TEXT    NOT NULL DEFAULT '[]',
    agent            TEXT,
    correlation_id   TEXT,
    causation_id     TEXT,
    parent_id        TEXT,
    workflow_id      TEXT,
    external_ref     TEXT,
    enqueued_by      TEXT    NOT NULL DEFAULT 'sql',
    source_system    TEXT    NOT NULL DEFAULT 'sql',
    created_at       INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)),
    -- A name begins with something to see: '!' is the first character after the space.
    CONSTRAINT kind_named          CHECK (kind >= '!' AND length(kind) <= 100),
    CONSTRAINT queue_named         CHECK (queue >= '!' AND length(queue) <= 100),
    CONSTRAINT tenant_named        CHECK (tenant >= '!' AND length(tenant) <= 100 AND tenant <> '*'),
    CONSTRAINT enqueued_by_named   CHECK (enqueued_by >= '!'),
    CONSTRAINT source_system_named CHECK (source_system >= '!'),
    CONSTRAINT payload_is_json     CHECK (json_valid(payload)),
    CONSTRAINT priority_bounded    CHECK (priority BETWEEN -32768 AND 32767),
    CONSTRAINT retries_bounded     CHECK (max_retries BETWEEN 0 AND 100),
    CONSTRAINT crashes_bounded     CHECK (max_crashes BETWEEN 0 AND 100)
) STRICT;

-- Newest first is id descending: ids are UUIDv7 and sort by creation.
CREATE INDEX job_by_tenant ON job (tenant, id DESC);
CREATE INDEX job_by_kind ON job (tenant, kind, id DESC);
CREATE INDEX job_by_queue ON job (tenant, queue, id DESC);
CREATE INDEX job_by_agent ON job (tenant, agent, id DESC) WHERE agent IS NOT NULL;
CREATE INDEX job_by_correlation ON job (tenant, correlation_id, id DESC) WHERE correlation_id IS NOT NULL;
CREATE INDEX job_by_parent ON job (tenant, parent_id, id DESC) WHERE parent_id IS NOT NULL;
CREATE INDEX job_by_workflow ON job (tenant, workflow_id, id DESC) WHERE workflow_id IS NOT NULL;
CREATE INDEX job_by_external_ref ON job (tenant, external_ref) WHERE external_ref IS NOT NULL;

CREATE TABLE job_tag (
    tenant TEXT NOT NULL,
    tag    TEXT NOT NULL,
    job_id TEXT NOT NULL,
    PRIMARY KEY (tenant, tag, job_id)
) STRICT, WITHOUT ROWID;

-- The checks and triggers say `a OR b`, never `IN (a, b, …)`: SQLite builds a little table for a list of more than
-- two each time it meets one, which made a batch of inserts take twice as long.
CREATE TABLE job_state (
    n              INTEGER PRIMARY KEY,
    id             TEXT    NOT NULL UNIQUE,
    tenant         TEXT    NOT NULL,
    kind           TEXT    NOT NULL,
    queue          TEXT    NOT NULL,
    state          TEXT    NOT NULL,
    priority       INTEGER NOT NULL,
    position       INTEGER NOT NULL,
    attempt        INTEGER NOT NULL DEFAULT 0,
    retries        INTEGER NOT NULL DEFAULT 0,
    crashes        INTEGER NOT NULL DEFAULT 0,
    max_retries    INTEGER NOT NULL,
    max_crashes    INTEGER NOT NULL,
    due_at         INTEGER,   -- not claimable before; null when claimable now
    deadline_at    INTEGER,
    lease          TEXT,      -- who holds it
    settled_by     TEXT,      -- the lease shown by whoever ended the last attempt
    gate_id        TEXT,
    started_at     INTEGER,
    finished_at    INTEGER,
    error_code     TEXT,
    error_message  TEXT,
    note           TEXT,      -- the context of the last transition, copied into its event
    CONSTRAINT finished_iff_terminal CHECK (
        (state = 'succeeded' OR state = 'failed' OR state = 'dead_letter' OR state = 'cancelled' OR state = 'cleaned')
        = (finished_at IS NOT NULL)),
    CONSTRAINT error_when_failed CHECK (
        (state <> 'failed' AND state <> 'dead_letter') OR (error_code IS NOT NULL AND error_message IS NOT NULL)),
    CONSTRAINT due_when_retry_waiting CHECK (state <> 'retry_waiting' OR due_at IS NOT NULL),
    CONSTRAINT gate_when_waiting CHECK (state <> 'waiting_for_approval' OR gate_id IS NOT NULL),
    CONSTRAINT lease_iff_held CHECK ((state = 'leased' OR state = 'in_progress') = (lease IS NOT NULL)),
    CONSTRAINT unsettled_while_held CHECK (lease IS NULL OR settled_by IS NULL),
    CONSTRAINT retries_within_limit CHECK (retries BETWEEN 0 AND max_retries AND max_retries <= 100),
    CONSTRAINT crashes_counted CHECK (crashes >= 0 AND max_crashes BETWEEN 0 AND 100),
    CONSTRAINT attempt_counted CHECK (attempt >= 0)
) STRICT;

CREATE INDEX claimable ON job_state (queue, priority DESC, position) WHERE state = 'queued' AND due_at IS NULL;
CREATE INDEX not_yet_due ON job_state (due_at) WHERE due_at IS NOT NULL AND state IN ('queued', 'retry_waiting');
CREATE INDEX past_deadline ON job_state (deadline_at)
    WHERE deadline_at IS NOT NULL AND state IN ('queued', 'retry_waiting');
CREATE INDEX held ON job_state (lease) WHERE lease IS NOT NULL;
CREATE INDEX by_state ON job_state (tenant, state, id DESC);

CREATE TABLE event (
    seq        INTEGER PRIMARY KEY,  -- never used twice: the newest row cannot be deleted (code/23_guards.sql)
    job_id     TEXT    NOT NULL,
    tenant     TEXT    NOT NULL,
    kind       TEXT    NOT NULL,
    verb       TEXT    NOT NULL,
    from_state TEXT,
    to_state   TEXT    NOT NULL,
    attempt    INTEGER NOT NULL,
    at         INTEGER NOT NULL,
    actor      TEXT    NOT NULL,
    meta       TEXT
) STRICT;
CREATE INDEX event_by_job ON event (job_id, seq, to_state);

CREATE TABLE lease (
    id         TEXT    NOT NULL PRIMARY KEY,
    tenant     TEXT    NOT NULL,           -- the scope its jobs were claimed in; '*' is every tenant
    name       TEXT    NOT NULL,
    holder     TEXT    NOT NULL,
    until      INTEGER NOT NULL,
    opened_at  INTEGER NOT NULL,
    renewed_at INTEGER NOT NULL,
    ended_at   INTEGER,
    ended_why  TEXT,
    swept_at   INTEGER,                    -- nothing names it any more
    CONSTRAINT name_named CHECK (name >= '!'),
    CONSTRAINT holder_named CHECK (holder >= '!'),
    CONSTRAINT why_iff_ended CHECK ((ended_at IS NULL) = (ended_why IS NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX lease_live ON lease (until) WHERE ended_at IS NULL;
CREATE INDEX lease_unswept ON lease (ended_at) WHERE ended_at IS NOT NULL AND swept_at IS NULL;

CREATE TABLE idempotency (
    tenant       TEXT NOT NULL,
    kind         TEXT NOT NULL,
    key          TEXT NOT NULL,
    job_id       TEXT NOT NULL,
    payload_hash TEXT NOT NULL,
    PRIMARY KEY (tenant, kind, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE content (
    tenant TEXT NOT NULL,
    key    TEXT NOT NULL,
    job_id TEXT NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE result (
    job_id TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL,
    value  TEXT,
    ref    TEXT,
    CONSTRAINT something CHECK (value IS NOT NULL OR ref IS NOT NULL)
) STRICT;

CREATE TABLE checkpoint (
    job_id   TEXT    NOT NULL,
    tenant   TEXT    NOT NULL,
    name     TEXT    NOT NULL,
    value    TEXT    NOT NULL,
    attempt  INTEGER NOT NULL,
    saved_at INTEGER NOT NULL,
    PRIMARY KEY (job_id, name)
) STRICT;

CREATE TABLE artifact (
    job_id  TEXT    NOT NULL,
    tenant  TEXT    NOT NULL,
    attempt INTEGER NOT NULL,
    name    TEXT    NOT NULL,
    ref     TEXT    NOT NULL,
    meta    TEXT,
    at      INTEGER NOT NULL,
    PRIMARY KEY (job_id, attempt, name)
) STRICT;

CREATE TABLE consumer (
    tenant     TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    cursor     TEXT    NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE migration (
    name       TEXT    NOT NULL PRIMARY KEY,
    digest     TEXT    NOT NULL,
    applied_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))
) STRICT;

-- The clock, one row. Tests shift or stop it; everywhere else it is the machine's own. The other columns tell the
-- triggers who is writing, at what time, and from which number on jobs are new: a verb fills them in its own
-- transaction and empties them before commit, so that other eyes only ever see them empty and a step made by hand
-- is signed 'sql'.
CREATE TABLE clock (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    shift   INTEGER NOT NULL DEFAULT 0,
    stopped INTEGER,
    actor   TEXT,
    now     INTEGER,
    floor   INTEGER
) STRICT;
INSERT INTO clock (id) VALUES (1);
