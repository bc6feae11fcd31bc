-- Dead letters in groups, and bulk operations that are kept track of (DP-15). Nothing here is written by the hot path: a
-- row is added when a job is buried, and goes when somebody resolves it.

-- Failures that are one and the same (domain/fingerprint.py). The counts are kept by triggers.
CREATE TABLE dead_letter_group (
    tenant        TEXT    NOT NULL,
    fingerprint   TEXT    NOT NULL,
    kind          TEXT    NOT NULL,
    error_code    TEXT    NOT NULL,
    error_message TEXT    NOT NULL,   -- of the sample
    frame         TEXT,               -- where in the user's code: module:function
    sample_job    TEXT    NOT NULL,   -- the one that was buried last
    first_at      INTEGER NOT NULL,
    last_at       INTEGER NOT NULL,
    times         INTEGER NOT NULL,   -- how often a job was buried for it
    open          INTEGER NOT NULL,   -- how many of them nobody has resolved
    note          TEXT,
    noted_by      TEXT,
    noted_at      INTEGER,
    last_job      TEXT    NOT NULL,   -- the one that changed the counts last
    PRIMARY KEY (tenant, fingerprint),
    CONSTRAINT counted    CHECK (open BETWEEN 0 AND times),
    CONSTRAINT note_whole CHECK ((note IS NULL) = (noted_by IS NULL) AND (note IS NULL) = (noted_at IS NULL)),
    CONSTRAINT note_short CHECK (length(note) <= 2000)
) STRICT, WITHOUT ROWID;
CREATE INDEX dead_letter_group_newest ON dead_letter_group (tenant, last_at DESC, fingerprint DESC) WHERE open > 0;
CREATE INDEX dead_letter_group_largest ON dead_letter_group (tenant, open DESC, fingerprint DESC);
CREATE INDEX dead_letter_group_all ON dead_letter_group (tenant, last_at DESC, fingerprint DESC);

-- The dead letters that are open, and the group of each.
CREATE TABLE dead_letter (
    job_id      TEXT    NOT NULL PRIMARY KEY,
    tenant      TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    kind        TEXT    NOT NULL,
    queue       TEXT    NOT NULL,
    buried_at   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX dead_letter_by_group ON dead_letter (tenant, fingerprint, job_id DESC);
CREATE INDEX dead_letter_by_queue ON dead_letter (tenant, queue, fingerprint);

-- What people do to many jobs. Worked off in small batches by whoever has time; a batch and its progress are one transaction.
CREATE TABLE operation (
    id           TEXT    NOT NULL PRIMARY KEY,
    tenant       TEXT    NOT NULL,            -- '*': of every tenant
    verb         TEXT    NOT NULL,
    wanted       TEXT    NOT NULL,            -- which jobs, as JSON
    reason       TEXT,
    max_retries  INTEGER,
    rate         REAL,                        -- at most so many jobs a second
    state        TEXT    NOT NULL DEFAULT 'running',
    total        INTEGER NOT NULL,            -- as counted when it began
    capped       INTEGER NOT NULL,            -- there were more than were counted
    done         INTEGER NOT NULL DEFAULT 0,
    refused      INTEGER NOT NULL DEFAULT 0,
    refusals     TEXT    NOT NULL DEFAULT '{}',
    place        TEXT,                        -- the last job that was looked at; they go by id, newest first
    next_at      INTEGER NOT NULL,            -- no batch before
    created_by   TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    finished_at  INTEGER,
    cancelled_by TEXT,
    cancelled_reason TEXT,
    CONSTRAINT tenant_named   CHECK (tenant >= '!' AND length(tenant) <= 100),
    CONSTRAINT created_named  CHECK (created_by >= '!'),
    CONSTRAINT verb_known     CHECK (verb IN ('cancel', 'redrive', 'discard')),
    CONSTRAINT reason_given   CHECK (verb <> 'discard' OR (reason IS NOT NULL AND trim(reason, ' ' || char(9, 10, 11, 12, 13)) <> '')),
    CONSTRAINT limit_bounded  CHECK (max_retries IS NULL OR (max_retries BETWEEN 0 AND 100 AND verb = 'redrive')),
    CONSTRAINT rate_bounded   CHECK (rate BETWEEN 0.001 AND 1000000),
    CONSTRAINT state_known    CHECK (state IN ('running', 'done', 'cancelled')),
    CONSTRAINT ended_iff_over CHECK ((state = 'running') = (finished_at IS NULL)),
    CONSTRAINT who_cancelled  CHECK ((state = 'cancelled') = (cancelled_by IS NOT NULL)),
    CONSTRAINT counted        CHECK (total >= 0 AND done >= 0 AND refused >= 0)
) STRICT;
CREATE INDEX operation_running ON operation (next_at) WHERE state = 'running';
CREATE INDEX operation_by_tenant ON operation (tenant, id DESC);

-- A dead letter that was redriven with another payload: as which job.
CREATE TABLE redriven_as (
    job_id TEXT    NOT NULL PRIMARY KEY,
    tenant TEXT    NOT NULL,
    new_id TEXT    NOT NULL UNIQUE,
    by     TEXT    NOT NULL,
    at     INTEGER NOT NULL
) STRICT;

-- What was buried before is grouped by its code: where in the code it was raised nobody knows any more.
INSERT INTO dead_letter (job_id, tenant, fingerprint, kind, queue, buried_at)
SELECT id, tenant, 'code:' || kind || ':' || error_code, kind, queue, finished_at FROM job_state WHERE state = 'dead_letter';
INSERT INTO dead_letter_group (tenant, fingerprint, kind, error_code, error_message, sample_job, first_at, last_at, times, open, last_job)
SELECT l.tenant, l.fingerprint, l.kind, s.error_code, s.error_message, l.job_id,
       (SELECT min(f.buried_at) FROM dead_letter f WHERE f.tenant = l.tenant AND f.fingerprint = l.fingerprint),
       max(l.buried_at), count(*), count(*), l.job_id
  FROM dead_letter l JOIN job_state s ON s.id = l.job_id GROUP BY l.tenant, l.fingerprint, l.kind;
