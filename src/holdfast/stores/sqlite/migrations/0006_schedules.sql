-- Templates and schedules (SC-8, SC-9): job definitions with versions, and when jobs are made by themselves.

-- Every version of every template. Nothing here is ever changed: a change is a new version, and so is a removal.
CREATE TABLE template (
    tenant     TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    kind       TEXT    NOT NULL,
    payload    TEXT    NOT NULL DEFAULT '{}',   -- defaults
    options    TEXT    NOT NULL DEFAULT '{}',   -- what a job is given besides: queue, priority, retry, …
    removed    INTEGER NOT NULL DEFAULT 0,
    created_by TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, name, version),
    CONSTRAINT tenant_named      CHECK (tenant >= '!' AND length(tenant) <= 100 AND tenant <> '*'),
    CONSTRAINT name_named        CHECK (name >= '!' AND length(name) <= 100),
    CONSTRAINT version_counted   CHECK (version >= 1),
    CONSTRAINT kind_named        CHECK (kind >= '!' AND length(kind) <= 100),
    CONSTRAINT payload_is_object CHECK (json_valid(payload) AND json_type(payload) = 'object'),
    CONSTRAINT options_is_object CHECK (json_valid(options) AND json_type(options) = 'object'),
    CONSTRAINT yes_or_no         CHECK (removed = 0 OR removed = 1),
    CONSTRAINT created_by_named  CHECK (created_by >= '!')
) STRICT, WITHOUT ROWID;

-- What fires when. The times are computed in Python; here they are kept, and advanced together with the jobs they make.
CREATE TABLE schedule (
    id             TEXT    NOT NULL PRIMARY KEY,
    tenant         TEXT    NOT NULL,
    name           TEXT    NOT NULL,
    state          TEXT    NOT NULL DEFAULT 'active',
    timing         TEXT    NOT NULL,   -- 0 9 * * MON-FRI, @daily, every 90s, at 2027-01-31 09:00
    zone           TEXT    NOT NULL,
    kind           TEXT    NOT NULL,
    template       TEXT,
    payload        TEXT    NOT NULL DEFAULT '{}',
    options        TEXT    NOT NULL DEFAULT '{}',
    missed         TEXT    NOT NULL DEFAULT 'once',
    overlap        TEXT    NOT NULL DEFAULT 'allow',
    jitter         REAL    NOT NULL DEFAULT 0,   -- seconds
    declared_by    TEXT,                         -- the program whose code says it; null: made in the database
    declared_hash  TEXT,                         -- what that code said last
    undeclared_at  INTEGER,                      -- since when that code does not say it any more
    revision       INTEGER NOT NULL DEFAULT 1,
    anchor_at      INTEGER NOT NULL,             -- what an interval counts from
    next_fire_at   INTEGER,
    attend_at      INTEGER,                      -- when somebody must look at it next; null: never
    last_fire_at   INTEGER,
    problem        TEXT,
    created_by     TEXT    NOT NULL,
    created_at     INTEGER NOT NULL,
    updated_by     TEXT    NOT NULL,
    updated_at     INTEGER NOT NULL,
    CONSTRAINT tenant_named      CHECK (tenant >= '!' AND length(tenant) <= 100 AND tenant <> '*'),
    CONSTRAINT name_named        CHECK (name >= '!' AND length(name) <= 100),
    CONSTRAINT state_known       CHECK (state IN ('active', 'paused', 'ended', 'deleted')),
    CONSTRAINT timing_bounded    CHECK (length(timing) BETWEEN 1 AND 200 AND length(zone) BETWEEN 1 AND 100),
    CONSTRAINT kind_named        CHECK (kind >= '!' AND length(kind) <= 100),
    CONSTRAINT payload_is_object CHECK (json_valid(payload) AND json_type(payload) = 'object'),
    CONSTRAINT options_is_object CHECK (json_valid(options) AND json_type(options) = 'object'),
    CONSTRAINT missed_known      CHECK (missed IN ('skip', 'once', 'all')),
    CONSTRAINT overlap_known     CHECK (overlap IN ('allow', 'skip', 'queue')),
    CONSTRAINT jitter_bounded    CHECK (jitter BETWEEN 0 AND 86400),
    CONSTRAINT attended_iff_active CHECK ((state = 'active') = (attend_at IS NOT NULL))
) STRICT;
CREATE UNIQUE INDEX schedule_name ON schedule (tenant, name) WHERE state <> 'deleted';
CREATE INDEX schedule_attend ON schedule (attend_at) WHERE attend_at IS NOT NULL;
CREATE INDEX schedule_held ON schedule (kind) WHERE problem = 'unknown_kind';   -- until somebody knows the kind
CREATE INDEX schedule_declared ON schedule (tenant, declared_by, name) WHERE declared_by IS NOT NULL;

-- What became of each time of a schedule: the key is what makes it one, however many processes fire it.
CREATE TABLE fire (
    schedule_id   TEXT    NOT NULL,
    due_at        INTEGER NOT NULL,
    manual        INTEGER NOT NULL DEFAULT 0,   -- somebody said: run it now
    tenant        TEXT    NOT NULL,
    status        TEXT    NOT NULL,
    job_id        TEXT,
    count         INTEGER NOT NULL DEFAULT 1,   -- a row of missed times stands for several
    since_at      INTEGER,                      -- the first of them
    error_code    TEXT,
    error_message TEXT,
    actor         TEXT    NOT NULL,
    at            INTEGER NOT NULL,
    ended         INTEGER NOT NULL DEFAULT 0,   -- its job is known to be over
    PRIMARY KEY (schedule_id, due_at, manual),
    CONSTRAINT status_known   CHECK (status IN ('fired', 'skipped', 'waiting', 'missed', 'failed')),
    CONSTRAINT job_iff_made   CHECK ((status IN ('fired', 'skipped')) = (job_id IS NOT NULL)),
    CONSTRAINT error_iff_failed CHECK ((status = 'failed') = (error_code IS NOT NULL)),
    CONSTRAINT missed_counted CHECK (count >= 1 AND (count = 1 OR status = 'missed')),
    CONSTRAINT yes_or_no      CHECK ((manual = 0 OR manual = 1) AND (ended = 0 OR ended = 1))
) STRICT, WITHOUT ROWID;
CREATE INDEX fire_running ON fire (schedule_id) WHERE status = 'fired' AND NOT ended;
CREATE INDEX fire_waiting ON fire (schedule_id, due_at) WHERE status = 'waiting';

-- What a job was made from, if from anything: a version of a template, a time of a schedule.
CREATE TABLE made_from (
    job_id           TEXT    NOT NULL PRIMARY KEY,
    tenant           TEXT    NOT NULL,
    template         TEXT,
    template_version INTEGER,
    schedule_id      TEXT,
    schedule         TEXT,
    due_at           INTEGER,
    CONSTRAINT something CHECK (template IS NOT NULL OR schedule_id IS NOT NULL),
    CONSTRAINT version_of_template CHECK ((template IS NULL) = (template_version IS NULL)),
    CONSTRAINT time_of_schedule CHECK ((schedule_id IS NULL) = (due_at IS NULL) AND (schedule_id IS NULL) = (schedule IS NULL))
) STRICT;
CREATE INDEX made_from_schedule ON made_from (tenant, schedule_id, due_at) WHERE schedule_id IS NOT NULL;
