-- Limits on what runs at once and how often (SC-16), reservations (SC-10), and queues in which waiting counts.

-- Names of what a job counts against besides its queue and kind, as JSON: ["key:customer-7", "resource:gpu-0"].
ALTER TABLE job ADD COLUMN uses TEXT
    CONSTRAINT uses_named CHECK (json_array_length(uses) BETWEEN 1 AND 20 AND length(uses) <= 6000);

-- The full limit that a parked job waits for: [tenant, scope, name] as JSON.
ALTER TABLE job_state ADD COLUMN held_by TEXT;
CREATE INDEX parked ON job_state (held_by, priority DESC, position)
    WHERE held_by IS NOT NULL AND due_at IS NOT NULL AND state = 'queued';

CREATE TABLE job_limit (
    tenant      TEXT    NOT NULL,   -- whose jobs are counted; '*': those of every tenant together
    scope       TEXT    NOT NULL,
    name        TEXT    NOT NULL,   -- '*': each name by itself; the scope `all` has no other
    concurrency INTEGER,            -- at most so many are leased or in progress
    rate        INTEGER,            -- at most so many are begun
    per         REAL,               -- in so many seconds
    burst       INTEGER,            -- and so many at once after a while without any
    set_by      TEXT    NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    PRIMARY KEY (tenant, scope, name),
    CONSTRAINT tenant_named     CHECK (tenant >= '!' AND length(tenant) <= 100),
    CONSTRAINT scope_known      CHECK (scope IN ('all', 'queue', 'kind', 'key', 'resource', 'agent', 'tenant')),
    CONSTRAINT name_named       CHECK (name >= '!' AND length(name) <= 255 AND (scope <> 'all' OR name = '*')),
    CONSTRAINT limits_something CHECK (concurrency IS NOT NULL OR rate IS NOT NULL),
    CONSTRAINT concurrency_bounded CHECK (concurrency BETWEEN 0 AND 1000000),
    CONSTRAINT rate_whole       CHECK ((rate IS NULL) = (per IS NULL) AND (rate IS NULL) = (burst IS NULL)),
    CONSTRAINT rate_bounded     CHECK (rate BETWEEN 1 AND 1000000 AND per BETWEEN 0.001 AND 31622400 AND burst BETWEEN 1 AND 1000000)
) STRICT, WITHOUT ROWID;

-- One row a held job and limit on how many run. Written with the claim, gone with the step that frees the job.
CREATE TABLE place (
    tenant TEXT NOT NULL,
    scope  TEXT NOT NULL,
    name   TEXT NOT NULL,
    job_id TEXT NOT NULL,
    PRIMARY KEY (tenant, scope, name, job_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX place_by_job ON place (job_id);

-- The tokens of a rate. A bucket without a row is full. `wake_at`: somebody waits, and then there is a token again.
CREATE TABLE meter (
    tenant  TEXT    NOT NULL,
    scope   TEXT    NOT NULL,
    name    TEXT    NOT NULL,
    tokens  REAL    NOT NULL,
    at      INTEGER NOT NULL,
    wake_at INTEGER,
    PRIMARY KEY (tenant, scope, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX meter_wake ON meter (wake_at) WHERE wake_at IS NOT NULL;

-- The right to use something directly, while no job is begun that would (SC-10).
CREATE TABLE reservation (
    id          TEXT    NOT NULL PRIMARY KEY,
    tenant      TEXT    NOT NULL,   -- whose jobs are kept from it; '*': everybody's
    scope       TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    state       TEXT    NOT NULL DEFAULT 'waiting',
    holder      TEXT    NOT NULL,
    reason      TEXT,
    asked_at    INTEGER NOT NULL,
    reserved_at INTEGER,
    expires_at  INTEGER NOT NULL,
    ended_at    INTEGER,
    ended_by    TEXT,
    ended_why   TEXT,
    CONSTRAINT tenant_named  CHECK (tenant >= '!' AND length(tenant) <= 100),
    CONSTRAINT scope_known   CHECK (scope IN ('all', 'queue', 'resource')),
    CONSTRAINT name_named    CHECK (name >= '!' AND length(name) <= 255 AND (scope <> 'all' OR name = '*')),
    CONSTRAINT holder_named  CHECK (holder >= '!'),
    CONSTRAINT state_known   CHECK (state IN ('waiting', 'active', 'released', 'expired', 'withdrawn')),
    CONSTRAINT ended_iff_over CHECK ((state IN ('released', 'expired', 'withdrawn')) = (ended_at IS NOT NULL)),
    CONSTRAINT why_iff_ended CHECK ((ended_at IS NULL) = (ended_why IS NULL)),
    CONSTRAINT active_since  CHECK (state <> 'active' OR reserved_at IS NOT NULL)
) STRICT;
-- The rule itself: one at a time.
CREATE UNIQUE INDEX reservation_active ON reservation (tenant, scope, name) WHERE state = 'active';
CREATE INDEX reservation_open ON reservation (asked_at) WHERE state IN ('waiting', 'active');
CREATE INDEX reservation_by_tenant ON reservation (tenant, asked_at);

-- Queues in which a job that has waited for long comes to stand before others.
CREATE TABLE queue_setting (
    tenant     TEXT    NOT NULL,
    queue      TEXT    NOT NULL,
    aging      REAL    NOT NULL,   -- seconds of waiting for one step
    aging_step INTEGER NOT NULL DEFAULT 1,
    aging_most INTEGER NOT NULL DEFAULT 100,   -- no job is raised above this priority
    set_by     TEXT    NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, queue),
    CONSTRAINT tenant_named  CHECK (tenant >= '!' AND length(tenant) <= 100),
    CONSTRAINT queue_named   CHECK (queue >= '!' AND length(queue) <= 100),
    CONSTRAINT aging_bounded CHECK (aging BETWEEN 0.001 AND 31622400),
    CONSTRAINT step_bounded  CHECK (aging_step BETWEEN 1 AND 32767),
    CONSTRAINT most_bounded  CHECK (aging_most BETWEEN -32768 AND 32767)
) STRICT, WITHOUT ROWID;

-- What whoever takes jobs looks at first. One row: nothing is limited or reserved until it says so.
CREATE TABLE dispatch (
    id      INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    limited INTEGER NOT NULL DEFAULT 0,
    swept   TEXT    NOT NULL DEFAULT ''   -- up to where the last look at parked jobs came
) STRICT;
INSERT INTO dispatch (id) VALUES (1);
