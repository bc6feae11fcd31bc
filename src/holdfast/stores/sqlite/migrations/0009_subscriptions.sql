-- Events that make jobs, retries that are jobs of their own, and who may execute.

-- A job is tried again in place, or (retry_as) by a successor, which names it in retry_of: one, whoever makes it. Depth is
-- how many subscriptions lie behind a job. All three are null for nearly every job, and take next to no room.
ALTER TABLE job ADD COLUMN retry_as TEXT CHECK (retry_as = 'new_job');
ALTER TABLE job ADD COLUMN retry_of TEXT;
ALTER TABLE job ADD COLUMN depth INTEGER CHECK (depth BETWEEN 1 AND 1000);
CREATE UNIQUE INDEX retried_once ON job (retry_of) WHERE retry_of IS NOT NULL;

-- What a worker serves, and how much at a time, so that it can be said why a job waits. Null: not told.
ALTER TABLE lease ADD COLUMN queues TEXT;
ALTER TABLE lease ADD COLUMN slots INTEGER;

-- What applications tell can be read in commit order, too, as the ledger is. The number is given by a trigger
-- (code/25_subscriptions.sql). The cause is the job whose handler told it.
DROP TRIGGER IF EXISTS refuse_app_event_update;
ALTER TABLE app_event ADD COLUMN seq INTEGER;
ALTER TABLE app_event ADD COLUMN cause_id TEXT;
UPDATE app_event SET seq = (SELECT o.n FROM (SELECT id, row_number() OVER (ORDER BY sent_at, id) AS n FROM app_event) o
                             WHERE o.id = app_event.id);
CREATE UNIQUE INDEX app_event_in_order ON app_event (seq);

-- Which events make which jobs. Its place in the events is kept here, as a consumer's is.
CREATE TABLE subscription (
    id            TEXT    NOT NULL PRIMARY KEY,
    tenant        TEXT    NOT NULL,           -- whose events; '*' is every tenant's, and the job is the event's tenant's
    name          TEXT    NOT NULL,
    pattern       TEXT    NOT NULL,           -- job.<verb>, or the name of an application event; * is anything
    kind          TEXT,                       -- of the job whose event it is
    match         TEXT,                       -- values that the event must have
    job_kind      TEXT    NOT NULL,
    job_options   TEXT    NOT NULL DEFAULT '{}',   -- queue, priority, payload, … of the jobs made
    max_depth     INTEGER NOT NULL,
    cursor        TEXT,                       -- null: at the beginning
    declared      INTEGER NOT NULL,           -- in a program, which sees to it
    paused_at     INTEGER,
    paused_by     TEXT,
    paused_reason TEXT,
    failure       TEXT,                       -- why the last look came to nothing
    failed_at     INTEGER,
    made          INTEGER NOT NULL DEFAULT 0,
    refused       INTEGER NOT NULL DEFAULT 0,
    created_by    TEXT    NOT NULL,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    CONSTRAINT name_named     CHECK (name >= '!' AND length(name) <= 100),
    CONSTRAINT tenant_named   CHECK (tenant >= '!' AND length(tenant) <= 100),
    CONSTRAINT pattern_named  CHECK (pattern >= '!' AND length(pattern) <= 500),
    CONSTRAINT job_kind_named CHECK (job_kind >= '!' AND length(job_kind) <= 100),
    CONSTRAINT job_is_object  CHECK (json_valid(job_options) AND json_type(job_options) = 'object'),
    CONSTRAINT depth_bounded  CHECK (max_depth BETWEEN 1 AND 100),
    CONSTRAINT declared_or_not CHECK (declared = 0 OR declared = 1),
    CONSTRAINT paused_by_whom CHECK ((paused_at IS NULL) = (paused_by IS NULL)),
    CONSTRAINT failure_dated  CHECK ((failure IS NULL) = (failed_at IS NULL))
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX subscription_named ON subscription (tenant, name);

-- What became of an event that a subscription wanted: a job, or a refusal. The key keeps it to one.
CREATE TABLE delivery (
    subscription_id TEXT    NOT NULL,
    event           TEXT    NOT NULL,         -- its number in the ledger, or the id of an application event
    tenant          TEXT    NOT NULL,
    job_id          TEXT,
    refusal         TEXT,
    depth           INTEGER NOT NULL,
    at              INTEGER NOT NULL,
    PRIMARY KEY (subscription_id, event),
    CONSTRAINT one_fate CHECK ((job_id IS NULL) = (refusal IS NOT NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX delivery_newest ON delivery (subscription_id, at, event);
CREATE INDEX delivery_refused ON delivery (subscription_id, at, event) WHERE refusal IS NOT NULL;

-- Who may execute (DP-6). Empty: whoever can open a lease. The list is that of the whole substrate.
CREATE TABLE executor (
    label    TEXT    NOT NULL PRIMARY KEY,
    tenant   TEXT    NOT NULL DEFAULT '*',
    role     TEXT    NOT NULL,
    added_by TEXT    NOT NULL,
    added_at INTEGER NOT NULL,
    CONSTRAINT label_named CHECK (label >= '!' AND length(label) <= 100),
    CONSTRAINT of_all      CHECK (tenant = '*'),
    CONSTRAINT role_known  CHECK (role = 'executor' OR role = 'generator')
) STRICT, WITHOUT ROWID;
