-- Workflows (DP-14, SC-17): jobs that belong together, and which of them wait for which.

-- The counts are kept by whatever changes a node, so that its status is read from one row, however many jobs it has.
CREATE TABLE workflow (
    id             TEXT    NOT NULL PRIMARY KEY,
    tenant         TEXT    NOT NULL,
    kind           TEXT    NOT NULL,
    generator      TEXT    NOT NULL,             -- who planned it, and runs none of it
    on_failure     TEXT    NOT NULL DEFAULT 'skip',
    key            TEXT,                         -- started twice with the same key, it is one
    plan_hash      TEXT    NOT NULL DEFAULT '',
    correlation_id TEXT,
    parent_id      TEXT,                         -- the job that started it
    enqueued_by    TEXT    NOT NULL,
    source_system  TEXT    NOT NULL,
    created_at     INTEGER NOT NULL,
    finished_at    INTEGER,
    cancelled_at   INTEGER,
    stopped        INTEGER NOT NULL DEFAULT 0,   -- a failure holds back all that waits
    total          INTEGER NOT NULL DEFAULT 0,
    open           INTEGER NOT NULL DEFAULT 0,
    succeeded      INTEGER NOT NULL DEFAULT 0,
    failed         INTEGER NOT NULL DEFAULT 0,
    dead           INTEGER NOT NULL DEFAULT 0,   -- failed, and may be redriven
    cancelled      INTEGER NOT NULL DEFAULT 0,
    skipped        INTEGER NOT NULL DEFAULT 0,
    CONSTRAINT kind_named         CHECK (kind >= '!' AND length(kind) <= 100),
    CONSTRAINT tenant_named       CHECK (tenant >= '!' AND length(tenant) <= 100 AND tenant <> '*'),
    CONSTRAINT generator_named    CHECK (generator >= '!' AND length(generator) <= 255),
    CONSTRAINT on_failure_known   CHECK (on_failure = 'stop' OR on_failure = 'continue' OR on_failure = 'skip'),
    CONSTRAINT counts_add_up      CHECK (total = open + succeeded + failed + dead + cancelled + skipped
        AND min(open, succeeded, failed, dead, cancelled, skipped) >= 0),
    CONSTRAINT finished_when_over CHECK ((finished_at IS NOT NULL) = (total > 0 AND open = 0))
) STRICT, WITHOUT ROWID;
CREATE INDEX workflow_by_tenant ON workflow (tenant, id);
CREATE UNIQUE INDEX workflow_by_key ON workflow (tenant, kind, key) WHERE key IS NOT NULL;

-- A job of a workflow: how it stands, and how many of its parents it still waits for.
CREATE TABLE node (
    job_id      TEXT    NOT NULL PRIMARY KEY,
    tenant      TEXT    NOT NULL,
    workflow_id TEXT    NOT NULL,
    name        TEXT,                            -- null: joined by being a child of one of its jobs
    part        TEXT,                            -- the group or sub-workflow it is in: images, or images.large
    standing    TEXT    NOT NULL DEFAULT 'open',
    unmet       INTEGER NOT NULL DEFAULT 0,
    fatal       INTEGER NOT NULL DEFAULT 0,      -- its failure stops the workflow
    stops       INTEGER NOT NULL DEFAULT 0,      -- and has
    CONSTRAINT standing_known CHECK (standing = 'open' OR standing = 'succeeded' OR standing = 'failed'
        OR standing = 'dead' OR standing = 'cancelled' OR standing = 'skipped'),
    CONSTRAINT unmet_counted  CHECK (unmet >= 0)
) STRICT, WITHOUT ROWID;
CREATE INDEX node_by_workflow ON node (workflow_id, job_id);
CREATE UNIQUE INDEX node_by_name ON node (workflow_id, name) WHERE name IS NOT NULL;

CREATE TABLE dependency (
    child      TEXT    NOT NULL,
    parent     TEXT    NOT NULL,
    tenant     TEXT    NOT NULL,
    on_failure TEXT    NOT NULL,
    met        INTEGER NOT NULL DEFAULT 0,       -- the child does not wait for this parent (any more)
    PRIMARY KEY (child, parent),
    CONSTRAINT on_failure_known CHECK (on_failure = 'stop' OR on_failure = 'continue' OR on_failure = 'skip'),
    CONSTRAINT not_of_itself    CHECK (child <> parent)
) STRICT, WITHOUT ROWID;
CREATE INDEX dependency_by_parent ON dependency (parent, child);

-- Of jobs of workflows only: the trigger that sees a job end must know without looking.
ALTER TABLE job_state ADD COLUMN workflow_id TEXT;

-- Scratch, empty but for the moment in which a verb signs off: the jobs of workflows that came to another state in it,
-- the jobs that may be released for that, and a row whose insert has it all worked out (code/26_workflows.sql).
CREATE TABLE moved (
    job_id TEXT NOT NULL PRIMARY KEY,
    was    TEXT,
    now_is TEXT
) STRICT, WITHOUT ROWID;
CREATE TABLE ready (
    job_id TEXT    NOT NULL PRIMARY KEY,
    times  INTEGER NOT NULL DEFAULT 0   -- parents that have just ended
) STRICT, WITHOUT ROWID;
CREATE TABLE round (id INTEGER PRIMARY KEY CHECK (id = 1)) STRICT;
