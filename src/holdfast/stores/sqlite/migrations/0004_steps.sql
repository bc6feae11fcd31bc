-- Durable steps, application events and approval gates.

-- One durable call of a handler: a step, a sleep, a wait for an event, an approval. `n` is its place in the order of
-- the handler's calls, from 1 (0 is the gate before the handler). Written once; one that is not over yet (a wait, a
-- step to be tried again) has no ended_at, and is finished later by a second write.
CREATE TABLE step (
    job_id     TEXT    NOT NULL,
    n          INTEGER NOT NULL,
    tenant     TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    kind       TEXT    NOT NULL,
    value      TEXT,
    error      TEXT,                     -- {"type", "message"}: it failed, and its handler went on
    tries      INTEGER NOT NULL DEFAULT 1,
    attempt    INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    wake_at    INTEGER,                  -- when a sleep is over, a wait given up, a try made
    ended_at   INTEGER,
    shape      TEXT,                     -- of a wait: the names an event must have, as JSON …
    wanted     TEXT,                     -- … and their values, as canonical JSON
    PRIMARY KEY (job_id, n),
    CONSTRAINT n_counted CHECK (n >= 0),
    CONSTRAINT kind_known CHECK (kind = 'step' OR kind = 'sleep' OR kind = 'event' OR kind = 'approval' OR kind = 'patch'),
    CONSTRAINT tries_counted CHECK (tries >= 1),
    CONSTRAINT value_is_json CHECK (value IS NULL OR json_valid(value)),
    CONSTRAINT error_is_json CHECK (error IS NULL OR json_valid(error)),
    CONSTRAINT wanted_of_event CHECK (wanted IS NULL OR kind = 'event')
) STRICT, WITHOUT ROWID;
-- Who waits for an event of this name, by what it must have: an event finds its waits without reading the others.
CREATE INDEX waiting ON step (tenant, name, shape, wanted) WHERE kind = 'event' AND ended_at IS NULL;

-- What applications tell: facts that jobs may wait for. Not the ledger, which is about jobs.
CREATE TABLE app_event (
    id      TEXT    NOT NULL PRIMARY KEY DEFAULT (printf('%08x-%04x-7%03x-%04x-%012x',
        CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) >> 16,
        CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) & 0xffff,
        random() & 0xfff, random() & 0x3fff | 0x8000, random() & 0xffffffffffff)),
    tenant  TEXT    NOT NULL,
    name    TEXT    NOT NULL,
    data    TEXT    NOT NULL,
    key     TEXT,                        -- sent twice with the same key, it is one event
    job_id  TEXT,                        -- meant for this job alone
    sent_by TEXT    NOT NULL,
    sent_at INTEGER NOT NULL,
    CONSTRAINT name_named CHECK (name >= '!' AND length(name) <= 100),
    CONSTRAINT tenant_named CHECK (tenant >= '!' AND tenant <> '*'),
    CONSTRAINT data_is_object CHECK (json_valid(data) AND json_type(data) = 'object')
) STRICT;
CREATE INDEX app_event_by_name ON app_event (tenant, name, sent_at, id);
CREATE UNIQUE INDEX app_event_by_key ON app_event (tenant, name, key) WHERE key IS NOT NULL;

-- A question to people. The job that asked waits in waiting_for_approval and names it. Spans are microseconds.
CREATE TABLE gate (
    id            TEXT    NOT NULL PRIMARY KEY,
    tenant        TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    n             INTEGER NOT NULL,
    name          TEXT    NOT NULL,
    summary       TEXT    NOT NULL,
    data          TEXT,
    form          TEXT,                  -- what an approval must say: a JSON schema
    approvers     TEXT    NOT NULL DEFAULT '[]',        -- empty: anybody
    quorum        INTEGER NOT NULL DEFAULT 1,
    requester     TEXT    NOT NULL,
    not_requester INTEGER NOT NULL DEFAULT 0,
    on_deny       TEXT    NOT NULL DEFAULT 'fail',
    on_expire     TEXT    NOT NULL DEFAULT 'deny',
    expires_in    INTEGER,
    expires_at    INTEGER,
    remind_every  INTEGER,
    remind_at     INTEGER,
    reminders     INTEGER NOT NULL DEFAULT 0,
    escalate_at   INTEGER,
    escalate_to   TEXT    NOT NULL DEFAULT '[]',
    escalated_at  INTEGER,
    notify        TEXT,                  -- the kind of job that tells people about it
    content_hash  TEXT    NOT NULL,      -- of what is asked: what tokens are bound to
    state         TEXT    NOT NULL DEFAULT 'open',
    opened_at     INTEGER NOT NULL,
    decided_at    INTEGER,
    CONSTRAINT state_known CHECK (state IN ('open', 'approved', 'denied', 'expired', 'withdrawn')),
    CONSTRAINT decided_iff_closed CHECK ((state = 'open') = (decided_at IS NULL)),
    CONSTRAINT quorum_possible CHECK (quorum BETWEEN 1 AND 100
        AND (approvers = '[]' OR quorum <= json_array_length(approvers) + json_array_length(escalate_to))),
    CONSTRAINT on_deny_known CHECK (on_deny IN ('fail', 'resume')),
    CONSTRAINT on_expire_known CHECK (on_expire IN ('deny', 'approve', 'remind')),
    CONSTRAINT expiry_whole CHECK ((expires_at IS NULL) = (expires_in IS NULL)),
    CONSTRAINT reminders_whole CHECK ((remind_at IS NULL) = (remind_every IS NULL))
) STRICT;
-- The inbox, in pages: ids are UUIDv7 and sort by when the question was asked.
CREATE INDEX gate_inbox ON gate (tenant, id) WHERE state = 'open';
CREATE UNIQUE INDEX asked_once ON gate (job_id) WHERE state = 'open';   -- a job waits for one at a time
CREATE INDEX gate_by_job ON gate (job_id, id);
CREATE INDEX gate_by_state ON gate (tenant, state, id);
-- What a duty has to look at next; one that has nothing to wait for is at the end of time.
CREATE INDEX gate_due ON gate (min(coalesce(expires_at, 9223372036854775807), coalesce(remind_at, 9223372036854775807),
                                   coalesce(escalate_at, 9223372036854775807))) WHERE state = 'open';

-- What people said. One word a person and gate.
CREATE TABLE vote (
    gate_id TEXT    NOT NULL,
    tenant  TEXT    NOT NULL,
    person  TEXT    NOT NULL,
    verdict TEXT    NOT NULL,
    how     TEXT    NOT NULL,
    comment TEXT,
    data    TEXT,
    at      INTEGER NOT NULL,
    PRIMARY KEY (gate_id, person),
    CONSTRAINT person_named CHECK (person >= '!' AND length(person) <= 255),
    CONSTRAINT verdict_known CHECK (verdict IN ('approve', 'deny')),
    CONSTRAINT how_named CHECK (how >= '!')
) STRICT, WITHOUT ROWID;

-- Tokens that decide a gate for whoever holds them: only their hashes, and each works once.
CREATE TABLE gate_token (
    hash       TEXT    NOT NULL PRIMARY KEY,
    tenant     TEXT    NOT NULL,
    gate_id    TEXT    NOT NULL,
    person     TEXT,                     -- whose it is; null: whoever holds it says who they are
    issued_by  TEXT    NOT NULL,
    issued_at  INTEGER NOT NULL,
    expires_at INTEGER,
    used_at    INTEGER
) STRICT;
CREATE INDEX gate_token_by_gate ON gate_token (gate_id);

-- A job that waits for people can pass its deadline, too.
DROP INDEX past_deadline;
CREATE INDEX past_deadline ON job_state (deadline_at)
    WHERE deadline_at IS NOT NULL AND state IN ('queued', 'retry_waiting', 'waiting_for_approval');
