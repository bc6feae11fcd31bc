-- The schema, ordered by feature, with the same names as on PostgreSQL. What tables and columns mean is written there; comments
-- here are about SQLite. Times are microseconds since 1970, UTC; ids are text, so that they can be used in the sqlite3 shell.
-- job_state shares its number `n` with job.
--
-- Clients insert into `job` only; triggers create the state row and the first event (job_insert.sql). A name is not blank:
-- trim() alone would remove only spaces, hence the list of whitespace characters.

-- --- Jobs, their states and their ledger ---

CREATE TABLE holdfast_job (
    n                INTEGER PRIMARY KEY CHECK (n > 0),
    -- A UUIDv7, for hand-written inserts.
    id               TEXT    NOT NULL UNIQUE DEFAULT (printf('%08x-%04x-7%03x-%04x-%012x',
        CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) >> 16,
        CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) & 0xffff,
        random() & 0xfff, random() & 0x3fff | 0x8000, random() & 0xffffffffffff)),
    tenant           TEXT    NOT NULL DEFAULT 'default',
    kind             TEXT    NOT NULL,
    queue            TEXT    NOT NULL DEFAULT 'default',
    payload          TEXT    NOT NULL DEFAULT '{}',
    priority         INTEGER NOT NULL DEFAULT 0,
    run_at           INTEGER,
    deadline_at      INTEGER,
    max_attempts     INTEGER NOT NULL DEFAULT 10,
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
    uses             TEXT CONSTRAINT uses_named CHECK (json_array_length(uses) BETWEEN 1 AND 20 AND length(uses) <= 6000),
    retry_as         TEXT CHECK (retry_as = 'new_job'),
    retry_of         TEXT,
    depth            INTEGER CHECK (depth BETWEEN 1 AND 1000),
    executor         TEXT CONSTRAINT executor_named CHECK (executor >= '!' AND length(executor) <= 100 AND executor <> '*'),
    -- A name begins with a visible character: '!' is the first character after the space.
    CONSTRAINT kind_named          CHECK (kind >= '!' AND length(kind) <= 100),
    CONSTRAINT queue_named         CHECK (queue >= '!' AND length(queue) <= 100),
    CONSTRAINT tenant_named        CHECK (tenant >= '!' AND length(tenant) <= 100 AND tenant <> '*'),
    CONSTRAINT enqueued_by_named   CHECK (enqueued_by >= '!'),
    CONSTRAINT source_system_named CHECK (source_system >= '!'),
    CONSTRAINT payload_is_json     CHECK (json_valid(payload)),
    CONSTRAINT priority_bounded    CHECK (priority BETWEEN -32768 AND 32767),
    CONSTRAINT attempts_bounded    CHECK (max_attempts BETWEEN 1 AND 101),
    CONSTRAINT crashes_bounded     CHECK (max_crashes BETWEEN 0 AND 100)
) STRICT;
CREATE INDEX holdfast_job_by_external_ref ON holdfast_job (tenant, external_ref, id) WHERE external_ref IS NOT NULL;
-- Ascending, although lists show the newest first (ids are UUIDv7 and sort by creation): new ids go to the end of an index and
-- fill its pages. A scan for the newest runs backwards. Lists of all jobs of a tenant use the index by state.
CREATE INDEX holdfast_job_by_kind ON holdfast_job (tenant, kind, id);
CREATE INDEX holdfast_job_by_queue ON holdfast_job (tenant, queue, id);
CREATE INDEX holdfast_job_by_agent ON holdfast_job (tenant, agent, id) WHERE agent IS NOT NULL;
CREATE INDEX holdfast_job_by_executor ON holdfast_job (tenant, executor, id) WHERE executor IS NOT NULL;
CREATE INDEX holdfast_job_by_correlation ON holdfast_job (tenant, correlation_id, id) WHERE correlation_id IS NOT NULL;
CREATE INDEX holdfast_job_by_parent ON holdfast_job (tenant, parent_id, id) WHERE parent_id IS NOT NULL;
CREATE INDEX holdfast_job_by_workflow ON holdfast_job (tenant, workflow_id, id) WHERE workflow_id IS NOT NULL;
CREATE UNIQUE INDEX holdfast_retried_once ON holdfast_job (retry_of) WHERE retry_of IS NOT NULL;

CREATE TABLE holdfast_job_tag (
    tenant TEXT NOT NULL,
    tag    TEXT NOT NULL,
    job_id TEXT NOT NULL,
    PRIMARY KEY (tenant, tag, job_id)
) STRICT, WITHOUT ROWID;

-- The checks and triggers use `a OR b`, never `IN (a, b, …)`: SQLite builds a temporary table for a list of more than two each
-- time it evaluates one, which made a batch of inserts take twice as long.
CREATE TABLE holdfast_job_state (
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
    max_attempts   INTEGER NOT NULL,
    max_crashes    INTEGER NOT NULL,
    due_at         INTEGER,
    deadline_at    INTEGER,
    lease          TEXT,
    settled_by     TEXT,
    approval_id        TEXT,
    started_at     INTEGER,
    finished_at    INTEGER,
    error_code     TEXT,
    error_message  TEXT,
    note           TEXT,
    agent          TEXT,      -- a claim must know it before it reads `job`
    workflow_id    TEXT,
    held_by        TEXT,      -- the full limit that a parked job waits for: [tenant, scope, name] as JSON
    executor       TEXT,
    CONSTRAINT finished_iff_terminal CHECK (
        (state = 'succeeded' OR state = 'failed' OR state = 'dead_letter' OR state = 'cancelled' OR state = 'cleaned')
        = (finished_at IS NOT NULL)),
    CONSTRAINT error_when_failed CHECK (
        (state <> 'failed' AND state <> 'dead_letter') OR (error_code IS NOT NULL AND error_message IS NOT NULL)),
    CONSTRAINT due_when_retry_waiting CHECK (state <> 'retry_waiting' OR due_at IS NOT NULL),
    CONSTRAINT approval_when_waiting CHECK (state <> 'waiting_for_approval' OR approval_id IS NOT NULL),
    CONSTRAINT lease_iff_held CHECK ((state = 'leased' OR state = 'in_progress') = (lease IS NOT NULL)),
    CONSTRAINT unsettled_while_held CHECK (lease IS NULL OR settled_by IS NULL),
    CONSTRAINT retries_within_limit CHECK (retries >= 0 AND retries < max_attempts AND max_attempts <= 101),
    CONSTRAINT crashes_counted CHECK (crashes >= 0 AND max_crashes BETWEEN 0 AND 100),
    CONSTRAINT attempt_counted CHECK (attempt >= 0)
) STRICT;
CREATE INDEX holdfast_claimable ON holdfast_job_state (queue, priority DESC, position) WHERE state = 'queued' AND due_at IS NULL;
CREATE INDEX holdfast_not_yet_due ON holdfast_job_state (due_at) WHERE due_at IS NOT NULL AND state IN ('queued', 'retry_waiting');
CREATE INDEX holdfast_by_state ON holdfast_job_state (tenant, state, id) WHERE state NOT IN ('leased', 'in_progress');
CREATE INDEX holdfast_held ON holdfast_job_state (lease) WHERE state IN ('leased', 'in_progress');
CREATE INDEX holdfast_waiting_by_agent ON holdfast_job_state (tenant, agent, due_at)
    WHERE agent IS NOT NULL AND state IN ('queued', 'retry_waiting');
CREATE INDEX holdfast_claimable_by_executor ON holdfast_job_state (executor, tenant)
    WHERE executor IS NOT NULL AND state = 'queued' AND due_at IS NULL;
CREATE INDEX holdfast_past_deadline ON holdfast_job_state (deadline_at)
    WHERE deadline_at IS NOT NULL AND state IN ('queued', 'leased', 'retry_waiting', 'waiting_for_approval');
CREATE INDEX holdfast_postponed ON holdfast_job_state (queue, priority DESC, position)
    WHERE due_at IS NOT NULL AND state IN ('queued', 'retry_waiting');
CREATE INDEX holdfast_parked ON holdfast_job_state (held_by, priority DESC, position)
    WHERE held_by IS NOT NULL AND due_at IS NOT NULL AND state = 'queued';

CREATE TABLE holdfast_event (
    seq        INTEGER PRIMARY KEY,  -- never used twice: the newest row cannot be deleted (guards.sql)
    job_id     TEXT    NOT NULL,
    tenant     TEXT    NOT NULL,
    kind       TEXT    NOT NULL,
    type       TEXT    NOT NULL,
    from_state TEXT,
    to_state   TEXT    NOT NULL,
    attempt    INTEGER NOT NULL,
    at         INTEGER NOT NULL,
    actor      TEXT    NOT NULL,
    meta       TEXT
) STRICT;
CREATE INDEX holdfast_event_by_job ON holdfast_event (job_id, seq, to_state);

CREATE TABLE holdfast_idempotency (
    tenant       TEXT NOT NULL,
    kind         TEXT NOT NULL,
    key          TEXT NOT NULL,
    job_id       TEXT NOT NULL,
    payload_hash TEXT NOT NULL,
    PRIMARY KEY (tenant, key, kind)   -- lists find a job by its key alone
) STRICT, WITHOUT ROWID;

CREATE TABLE holdfast_content (
    tenant TEXT NOT NULL,
    key    TEXT NOT NULL,
    job_id TEXT NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE holdfast_result (
    job_id TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL,
    value  TEXT,
    ref    TEXT,
    CONSTRAINT something CHECK (value IS NOT NULL OR ref IS NOT NULL)
) STRICT;

CREATE TABLE holdfast_checkpoint (
    job_id   TEXT    NOT NULL,
    tenant   TEXT    NOT NULL,
    name     TEXT    NOT NULL,
    value    TEXT    NOT NULL,
    attempt  INTEGER NOT NULL,
    saved_at INTEGER NOT NULL,
    saves    INTEGER NOT NULL DEFAULT 1,
    PRIMARY KEY (job_id, name)
) STRICT;

CREATE TABLE holdfast_artifact (
    job_id  TEXT    NOT NULL,
    tenant  TEXT    NOT NULL,
    attempt INTEGER NOT NULL,
    name    TEXT    NOT NULL,
    ref     TEXT    NOT NULL,
    meta    TEXT,
    at      INTEGER NOT NULL,
    PRIMARY KEY (job_id, attempt, name)
) STRICT;

CREATE TABLE holdfast_attempt_log (
    job_id  TEXT    NOT NULL,
    tenant  TEXT    NOT NULL,
    attempt INTEGER NOT NULL,
    n       INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    lines   TEXT,
    ref     TEXT,
    PRIMARY KEY (job_id, attempt, n),
    CONSTRAINT lines_or_ref   CHECK ((lines IS NULL) <> (ref IS NULL)),
    CONSTRAINT part_bounded   CHECK (length(lines) <= 200000 AND length(ref) <= 4000),
    CONSTRAINT number_bounded CHECK (n BETWEEN 1 AND 100000)
) STRICT;

-- --- Leases, and what claims read first ---

CREATE TABLE holdfast_lease (
    id         TEXT    NOT NULL PRIMARY KEY,
    tenant     TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    holder     TEXT    NOT NULL,
    until      INTEGER NOT NULL,
    opened_at  INTEGER NOT NULL,
    renewed_at INTEGER NOT NULL,
    renewals   INTEGER NOT NULL DEFAULT 0,
    ended_at   INTEGER,
    ended_why  TEXT,
    swept_at   INTEGER,
    kinds      TEXT,
    queues     TEXT,
    slots      INTEGER,
    version    TEXT,
    stop_request      TEXT CHECK (stop_request IN ('drain', 'stop')),
    stop_requested_at INTEGER,
    stop_requested_by TEXT,
    CONSTRAINT name_named CHECK (name >= '!'),
    CONSTRAINT holder_named CHECK (holder >= '!'),
    CONSTRAINT why_iff_ended CHECK ((ended_at IS NULL) = (ended_why IS NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX holdfast_lease_live ON holdfast_lease (until) WHERE ended_at IS NULL;
CREATE INDEX holdfast_lease_unswept ON holdfast_lease (ended_at) WHERE ended_at IS NOT NULL AND swept_at IS NULL;

CREATE TABLE holdfast_cancellation (
    lease TEXT    NOT NULL PRIMARY KEY,
    times INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE holdfast_dispatch (
    id      INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    limited INTEGER NOT NULL DEFAULT 0,
    swept   TEXT    NOT NULL DEFAULT '',
    ruled      INTEGER NOT NULL DEFAULT 0,
    -- Queues that tenants share fairly, as JSON; ["*"] is all, then "-mail" is all but mail; null is none.
    fair       TEXT,
    fair_auto  INTEGER NOT NULL DEFAULT 1,
    registered INTEGER NOT NULL DEFAULT 0,
    unknown_kinds   TEXT    NOT NULL DEFAULT 'accept' CHECK (unknown_kinds IN ('accept', 'warn', 'refuse')),
    unknown_agents  TEXT    NOT NULL DEFAULT 'accept' CHECK (unknown_agents IN ('accept', 'warn', 'refuse')),
    unknown_events  TEXT    NOT NULL DEFAULT 'accept' CHECK (unknown_events IN ('accept', 'warn', 'refuse')),
    listed_only     INTEGER NOT NULL DEFAULT 0 CHECK (listed_only IN (0, 1)),
    tenant_required INTEGER NOT NULL DEFAULT 0 CHECK (tenant_required IN (0, 1)),
    running_counts  INTEGER NOT NULL DEFAULT 0 CHECK (running_counts IN (0, 1)),
    required        TEXT    NOT NULL DEFAULT '[]'
) STRICT;
INSERT INTO holdfast_dispatch (id) VALUES (1);

CREATE TABLE holdfast_quarantine (
    job_id TEXT    NOT NULL PRIMARY KEY,
    tenant TEXT    NOT NULL,
    why    TEXT    NOT NULL,
    at     INTEGER NOT NULL,
    until  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- --- Steps and application events ---

CREATE TABLE holdfast_step (
    job_id     TEXT    NOT NULL,
    n          INTEGER NOT NULL,
    tenant     TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    kind       TEXT    NOT NULL,
    value      TEXT,
    error      TEXT,
    tries      INTEGER NOT NULL DEFAULT 1,
    attempt    INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    wake_at    INTEGER,
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
CREATE INDEX holdfast_waiting ON holdfast_step (tenant, name, shape, wanted) WHERE kind = 'event' AND ended_at IS NULL;

CREATE TABLE holdfast_app_event (
    id      TEXT    NOT NULL PRIMARY KEY DEFAULT (printf('%08x-%04x-7%03x-%04x-%012x',
        CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) >> 16,
        CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) & 0xffff,
        random() & 0xfff, random() & 0x3fff | 0x8000, random() & 0xffffffffffff)),
    tenant  TEXT    NOT NULL,
    name    TEXT    NOT NULL,
    data    TEXT    NOT NULL,
    key     TEXT,
    job_id  TEXT,
    sent_by TEXT    NOT NULL,
    sent_at INTEGER NOT NULL,
    seq     INTEGER,                     -- given by a trigger: events can be read in commit order, as the ledger can
    cause_id TEXT,
    CONSTRAINT name_named CHECK (name >= '!' AND length(name) <= 100),
    CONSTRAINT tenant_named CHECK (tenant >= '!' AND tenant <> '*'),
    CONSTRAINT data_is_object CHECK (json_valid(data) AND json_type(data) = 'object')
) STRICT;
CREATE INDEX holdfast_app_event_by_name ON holdfast_app_event (tenant, name, sent_at, id);
CREATE UNIQUE INDEX holdfast_app_event_by_key ON holdfast_app_event (tenant, name, key) WHERE key IS NOT NULL;
CREATE UNIQUE INDEX holdfast_app_event_in_order ON holdfast_app_event (seq);
CREATE INDEX holdfast_app_event_by_job ON holdfast_app_event (job_id) WHERE job_id IS NOT NULL;

-- --- The clock, the migrations, locks ---

-- The clock, one row. Tests shift or stop it; otherwise it is the machine's own. The other columns tell the triggers who is
-- writing, at what time, and above which number jobs are new. An operation fills them in its own transaction and clears them
-- before commit, so that other connections only ever see them empty, and a hand-written transition is signed 'sql'.
CREATE TABLE holdfast_clock (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    shift   INTEGER NOT NULL DEFAULT 0,
    stopped INTEGER,
    actor   TEXT,
    now     INTEGER,
    floor   INTEGER
) STRICT;
INSERT INTO holdfast_clock (id) VALUES (1);

CREATE TABLE holdfast_migration (
    name       TEXT    NOT NULL PRIMARY KEY,
    digest     TEXT    NOT NULL,
    applied_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))
) STRICT;

-- --- Agents and executors ---

CREATE TABLE holdfast_agent (
    tenant            TEXT    NOT NULL,
    id                TEXT    NOT NULL,
    name              TEXT    NOT NULL,
    kind              TEXT,
    max_attempts      INTEGER,
    max_crashes       INTEGER,
    backoff           TEXT,
    max_payload_bytes INTEGER,
    max_wait          REAL,
    requires_approval INTEGER NOT NULL DEFAULT 0,
    disabled_at       INTEGER,
    disabled_by       TEXT,
    disabled_reason   TEXT,
    created_at        INTEGER NOT NULL,
    updated_at        INTEGER NOT NULL,
    PRIMARY KEY (tenant, id),
    CONSTRAINT tenant_named      CHECK (tenant >= '!' AND length(tenant) <= 100 AND tenant <> '*'),
    CONSTRAINT id_named          CHECK (id >= '!' AND length(id) <= 255),
    CONSTRAINT name_named        CHECK (name >= '!' AND length(name) <= 255),
    CONSTRAINT kind_named        CHECK (kind >= '!' AND length(kind) <= 100),
    CONSTRAINT attempts_bounded  CHECK (max_attempts BETWEEN 1 AND 101),
    CONSTRAINT crashes_bounded   CHECK (max_crashes BETWEEN 0 AND 100),
    CONSTRAINT backoff_is_object CHECK (json_type(backoff) = 'object'),
    CONSTRAINT payload_bounded   CHECK (max_payload_bytes BETWEEN 2 AND 1073741824),
    CONSTRAINT wait_bounded      CHECK (max_wait BETWEEN 0.001 AND 3153600000),
    CONSTRAINT yes_or_no         CHECK (requires_approval = 0 OR requires_approval = 1),
    CONSTRAINT disabled_by_whom  CHECK ((disabled_at IS NULL) = (disabled_by IS NULL)),
    CONSTRAINT disabled_for_what CHECK ((disabled_at IS NULL) = (disabled_reason IS NULL)),
    CONSTRAINT disabled_by_named CHECK (disabled_by >= '!'),
    CONSTRAINT reason_given      CHECK (trim(disabled_reason, char(9, 10, 11, 12, 13, 32)) <> '')
) STRICT, WITHOUT ROWID;

CREATE TABLE holdfast_registered_kind (
    name        TEXT    NOT NULL PRIMARY KEY,
    tenant      TEXT    NOT NULL DEFAULT '*',
    description TEXT,
    set_by      TEXT    NOT NULL,
    set_at      INTEGER NOT NULL,
    domain      TEXT CONSTRAINT domain_named CHECK (domain >= '!' AND length(domain) <= 100),
    CONSTRAINT name_named          CHECK (name >= '!' AND length(name) <= 100),
    CONSTRAINT of_all              CHECK (tenant = '*'),
    CONSTRAINT description_bounded CHECK (length(description) <= 1000)
) STRICT, WITHOUT ROWID;
CREATE INDEX holdfast_registered_kind_by_domain ON holdfast_registered_kind (domain, name) WHERE domain IS NOT NULL;
CREATE TABLE holdfast_registered_event (
    name        TEXT    NOT NULL PRIMARY KEY,
    tenant      TEXT    NOT NULL DEFAULT '*',
    domain      TEXT,
    schema      TEXT,
    description TEXT,
    set_by      TEXT    NOT NULL,
    set_at      INTEGER NOT NULL,
    CONSTRAINT name_named          CHECK (name >= '!' AND length(name) <= 255),
    CONSTRAINT of_all              CHECK (tenant = '*'),
    CONSTRAINT domain_named        CHECK (domain >= '!' AND length(domain) <= 100),
    CONSTRAINT schema_object       CHECK (json_type(schema) = 'object'),
    CONSTRAINT description_bounded CHECK (length(description) <= 1000)
) STRICT, WITHOUT ROWID;
CREATE TABLE holdfast_unregistered_name (
    tenant   TEXT    NOT NULL,
    registry TEXT    NOT NULL CHECK (registry IN ('kind', 'agent', 'event type')),
    name     TEXT    NOT NULL,
    first_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, registry, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE holdfast_executor (
    label    TEXT    NOT NULL PRIMARY KEY,
    tenant   TEXT    NOT NULL DEFAULT '*',
    role     TEXT    NOT NULL,
    added_by TEXT    NOT NULL,
    added_at INTEGER NOT NULL,
    CONSTRAINT label_named CHECK (label >= '!' AND length(label) <= 100),
    CONSTRAINT of_all      CHECK (tenant = '*'),
    CONSTRAINT role_known  CHECK (role = 'executor' OR role = 'generator')
) STRICT, WITHOUT ROWID;

-- --- Approvals ---

-- A request for approval. The job that asked waits in waiting_for_approval and names it. Durations are microseconds.
CREATE TABLE holdfast_approval (
    id            TEXT    NOT NULL PRIMARY KEY,
    tenant        TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    n             INTEGER NOT NULL,
    name          TEXT    NOT NULL,
    summary       TEXT    NOT NULL,
    data          TEXT,
    form          TEXT,
    approvers     TEXT    NOT NULL DEFAULT '[]',
    quorum        INTEGER NOT NULL DEFAULT 1,
    requester     TEXT    NOT NULL,
    not_requester INTEGER NOT NULL DEFAULT 0,
    token_only    INTEGER NOT NULL DEFAULT 0,
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
    notify        TEXT,
    content_hash  TEXT    NOT NULL,
    state         TEXT    NOT NULL DEFAULT 'open',
    opened_at     INTEGER NOT NULL,
    decided_at    INTEGER,
    CONSTRAINT state_known CHECK (state IN ('open', 'approved', 'denied', 'expired', 'withdrawn')),
    CONSTRAINT decided_iff_closed CHECK ((state = 'open') = (decided_at IS NULL)),
    CONSTRAINT quorum_possible CHECK (quorum BETWEEN 1 AND 100
        AND (approvers = '[]' OR quorum <= json_array_length(approvers) + json_array_length(escalate_to))),
    CONSTRAINT on_deny_known CHECK (on_deny IN ('fail', 'resume')),
    CONSTRAINT on_expire_known CHECK (on_expire IN ('deny', 'approve', 'remind')),
    CONSTRAINT token_approves CHECK (NOT (token_only AND on_expire = 'approve')),
    CONSTRAINT expiry_whole CHECK ((expires_at IS NULL) = (expires_in IS NULL)),
    CONSTRAINT reminders_whole CHECK ((remind_at IS NULL) = (remind_every IS NULL))
) STRICT;
CREATE INDEX holdfast_approval_inbox ON holdfast_approval (tenant, id) WHERE state = 'open';
CREATE UNIQUE INDEX holdfast_asked_once ON holdfast_approval (job_id) WHERE state = 'open';   -- a job waits for one at a time
CREATE INDEX holdfast_approval_by_job ON holdfast_approval (job_id, id);
CREATE INDEX holdfast_approval_by_state ON holdfast_approval (tenant, state, id);
-- Approvals that maintenance has to process next; those without a time sort last.
CREATE INDEX holdfast_approval_due ON holdfast_approval (min(coalesce(expires_at, 9223372036854775807), coalesce(remind_at, 9223372036854775807),
                                   coalesce(escalate_at, 9223372036854775807))) WHERE state = 'open';

CREATE TABLE holdfast_vote (
    approval_id TEXT    NOT NULL,
    tenant  TEXT    NOT NULL,
    person  TEXT    NOT NULL,
    n       INTEGER NOT NULL DEFAULT 1,
    verdict TEXT    NOT NULL,
    how     TEXT    NOT NULL,
    comment TEXT,
    data    TEXT,                -- canonical JSON: equal values have equal text
    at      INTEGER NOT NULL,
    PRIMARY KEY (approval_id, person, n),
    CONSTRAINT person_named CHECK (person >= '!' AND length(person) <= 255),
    CONSTRAINT verdict_known CHECK (verdict IN ('approve', 'deny')),
    CONSTRAINT how_named CHECK (how >= '!')
) STRICT, WITHOUT ROWID;

CREATE TABLE holdfast_approval_token (
    hash       TEXT    NOT NULL PRIMARY KEY,
    tenant     TEXT    NOT NULL,
    approval_id    TEXT    NOT NULL,
    person     TEXT,
    issued_by  TEXT    NOT NULL,
    issued_at  INTEGER NOT NULL,
    expires_at INTEGER,
    used_at    INTEGER
) STRICT;
CREATE INDEX holdfast_approval_token_by_approval ON holdfast_approval_token (approval_id);

-- --- Connectors ---

CREATE TABLE holdfast_connector (
    tenant     TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    enabled    INTEGER NOT NULL DEFAULT 1,
    hosts      TEXT    NOT NULL DEFAULT '[]',
    headers    TEXT    NOT NULL DEFAULT '{}',
    secrets    TEXT    NOT NULL DEFAULT '[]',
    timeout    REAL,
    max_bytes  INTEGER,
    set_by     TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, name),
    CONSTRAINT tenant_named      CHECK (tenant >= '!' AND length(tenant) <= 100 AND tenant <> '*'),
    CONSTRAINT name_named        CHECK (name >= '!' AND length(name) <= 100),
    CONSTRAINT enabled_known     CHECK (enabled IN (0, 1)),
    CONSTRAINT hosts_bounded     CHECK (json_valid(hosts) AND json_type(hosts) = 'array' AND json_array_length(hosts) <= 200
        AND length(hosts) <= 60000),
    CONSTRAINT headers_bounded   CHECK (json_valid(headers) AND json_type(headers) = 'object' AND length(headers) <= 600000),
    CONSTRAINT secrets_bounded   CHECK (json_valid(secrets) AND json_type(secrets) = 'array'
        AND json_array_length(secrets) <= 200),
    CONSTRAINT timeout_bounded   CHECK (timeout > 0 AND timeout <= 600),
    CONSTRAINT max_bytes_bounded CHECK (max_bytes > 0 AND max_bytes <= 268435456),
    CONSTRAINT set_by_named      CHECK (set_by >= '!')
) STRICT, WITHOUT ROWID;

-- --- Webhooks ---

CREATE TABLE holdfast_webhook (
    id              TEXT    NOT NULL PRIMARY KEY,
    tenant          TEXT    NOT NULL,
    name            TEXT    NOT NULL,
    url             TEXT    NOT NULL,
    secrets         TEXT    NOT NULL,
    wants           TEXT    NOT NULL,
    kind            TEXT,
    job_options     TEXT    NOT NULL DEFAULT '{}',
    disabled_at     INTEGER,
    disabled_by     TEXT,
    disabled_reason TEXT,
    created_by      TEXT    NOT NULL,
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL,
    CONSTRAINT tenant_named   CHECK (tenant >= '!' AND length(tenant) <= 100 AND tenant <> '*'),
    CONSTRAINT name_plain     CHECK (length(name) BETWEEN 1 AND 60 AND name NOT GLOB '*[^a-z0-9._-]*' AND name GLOB '[a-z0-9]*'),
    CONSTRAINT url_plain      CHECK ((url GLOB 'http://[^/?# ]*' OR url GLOB 'https://[^/?# ]*') AND instr(url, '@') = 0
                                     AND length(url) <= 2000),
    CONSTRAINT secrets_named  CHECK (json_valid(secrets) AND json_type(secrets) = 'array' AND json_array_length(secrets) BETWEEN 1 AND 5
                                     AND secrets NOT GLOB '*[^][A-Z0-9_", ]*' AND secrets NOT GLOB '*"[0-9_"]*'
                                     AND instr(secrets, '__') = 0),
    CONSTRAINT wants_some     CHECK (json_valid(wants) AND json_type(wants) = 'array' AND json_array_length(wants) BETWEEN 1 AND 100),
    CONSTRAINT job_is_object  CHECK (json_valid(job_options) AND json_type(job_options) = 'object'),
    CONSTRAINT disabled_whole CHECK ((disabled_at IS NULL) = (disabled_by IS NULL) AND (disabled_at IS NULL) = (disabled_reason IS NULL))
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX holdfast_webhook_named ON holdfast_webhook (tenant, name);

CREATE TABLE holdfast_webhook_delivery (
    id          TEXT    NOT NULL PRIMARY KEY,
    tenant      TEXT    NOT NULL,
    webhook_id TEXT    NOT NULL,
    message     TEXT    NOT NULL,
    type        TEXT    NOT NULL,
    job_id      TEXT    NOT NULL,
    attempt     INTEGER NOT NULL,
    status      INTEGER,
    error_code  TEXT,
    duration_ms INTEGER NOT NULL,
    excerpt     TEXT,
    at          INTEGER NOT NULL,
    CONSTRAINT tenant_named    CHECK (tenant >= '!' AND length(tenant) <= 100 AND tenant <> '*'),
    CONSTRAINT status_of_http  CHECK (status BETWEEN 100 AND 999),
    CONSTRAINT answered        CHECK (error_code IS NOT NULL OR status IS NOT NULL AND status BETWEEN 200 AND 299),
    CONSTRAINT excerpt_bounded CHECK (coalesce(length(excerpt), 0) <= 1000 AND length(message) <= 200 AND length(type) <= 200)
) STRICT, WITHOUT ROWID;
CREATE INDEX holdfast_webhook_delivery_newest ON holdfast_webhook_delivery (webhook_id, id);

-- --- Limits, reservations, pauses and settings of queues ---

CREATE TABLE holdfast_job_limit (
    tenant      TEXT    NOT NULL,
    scope       TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    concurrency INTEGER,
    rate        INTEGER,
    per         REAL,
    burst       INTEGER,
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

CREATE TABLE holdfast_occupied_slot (
    tenant TEXT NOT NULL,
    scope  TEXT NOT NULL,
    name   TEXT NOT NULL,
    job_id TEXT NOT NULL,
    PRIMARY KEY (tenant, scope, name, job_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX holdfast_occupied_slot_by_job ON holdfast_occupied_slot (job_id);

CREATE TABLE holdfast_rate_meter (
    tenant  TEXT    NOT NULL,
    scope   TEXT    NOT NULL,
    name    TEXT    NOT NULL,
    tokens  REAL    NOT NULL,
    at      INTEGER NOT NULL,
    wake_at INTEGER,
    PRIMARY KEY (tenant, scope, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX holdfast_rate_meter_wake ON holdfast_rate_meter (wake_at) WHERE wake_at IS NOT NULL;

CREATE TABLE holdfast_reservation (
    id          TEXT    NOT NULL PRIMARY KEY,
    tenant      TEXT    NOT NULL,
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
    job_id      TEXT,
    CONSTRAINT tenant_named  CHECK (tenant >= '!' AND length(tenant) <= 100),
    CONSTRAINT scope_known   CHECK (scope IN ('all', 'queue', 'resource')),
    CONSTRAINT name_named    CHECK (name >= '!' AND length(name) <= 255 AND (scope <> 'all' OR name = '*')),
    CONSTRAINT holder_named  CHECK (holder >= '!'),
    CONSTRAINT state_known   CHECK (state IN ('waiting', 'active', 'released', 'expired', 'withdrawn')),
    CONSTRAINT ended_iff_over CHECK ((state IN ('released', 'expired', 'withdrawn')) = (ended_at IS NOT NULL)),
    CONSTRAINT why_iff_ended CHECK ((ended_at IS NULL) = (ended_why IS NULL)),
    CONSTRAINT active_since  CHECK (state <> 'active' OR reserved_at IS NOT NULL)
) STRICT;
CREATE UNIQUE INDEX holdfast_reservation_active ON holdfast_reservation (tenant, scope, name) WHERE state = 'active';
CREATE INDEX holdfast_reservation_open ON holdfast_reservation (asked_at) WHERE state IN ('waiting', 'active');
CREATE INDEX holdfast_reservation_by_tenant ON holdfast_reservation (tenant, asked_at);

CREATE TABLE holdfast_queue_setting (
    tenant     TEXT    NOT NULL,
    queue      TEXT    NOT NULL,
    aging      REAL    NOT NULL,
    aging_step INTEGER NOT NULL DEFAULT 1,
    aging_most INTEGER NOT NULL DEFAULT 100,
    set_by     TEXT    NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, queue),
    CONSTRAINT tenant_named  CHECK (tenant >= '!' AND length(tenant) <= 100),
    CONSTRAINT queue_named   CHECK (queue >= '!' AND length(queue) <= 100),
    CONSTRAINT aging_bounded CHECK (aging BETWEEN 0.001 AND 31622400),
    CONSTRAINT step_bounded  CHECK (aging_step BETWEEN 1 AND 32767),
    CONSTRAINT most_bounded  CHECK (aging_most BETWEEN -32768 AND 32767)
) STRICT, WITHOUT ROWID;

CREATE TABLE holdfast_pause (
    tenant         TEXT    NOT NULL,
    scope          TEXT    NOT NULL,
    name           TEXT    NOT NULL,
    reason         TEXT    NOT NULL,
    refuse_enqueue INTEGER NOT NULL,
    set_by         TEXT    NOT NULL,
    since          INTEGER NOT NULL,
    until          INTEGER,
    PRIMARY KEY (tenant, scope, name),
    CONSTRAINT tenant_named CHECK (tenant >= '!' AND length(tenant) <= 100),
    CONSTRAINT scope_known  CHECK (scope IN ('all', 'queue', 'kind', 'agent')),
    CONSTRAINT name_named   CHECK (name >= '!' AND length(name) <= 255 AND (scope = 'all') = (name = '*')),
    CONSTRAINT reason_given CHECK (trim(reason) <> ''),
    CONSTRAINT refuse_known CHECK (refuse_enqueue IN (0, 1)),
    CONSTRAINT set_by_named CHECK (set_by >= '!'),
    CONSTRAINT until_later  CHECK (until > since)
) STRICT, WITHOUT ROWID;

-- --- Schedules and templates ---

CREATE TABLE holdfast_template (
    tenant     TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    kind       TEXT    NOT NULL,
    payload    TEXT    NOT NULL DEFAULT '{}',
    options    TEXT    NOT NULL DEFAULT '{}',
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

CREATE TABLE holdfast_schedule (
    id             TEXT    NOT NULL PRIMARY KEY,
    tenant         TEXT    NOT NULL,
    name           TEXT    NOT NULL,
    state          TEXT    NOT NULL DEFAULT 'active',
    timing         TEXT    NOT NULL,
    zone           TEXT    NOT NULL,
    kind           TEXT    NOT NULL,
    template       TEXT,
    payload        TEXT    NOT NULL DEFAULT '{}',
    options        TEXT    NOT NULL DEFAULT '{}',
    missed         TEXT    NOT NULL DEFAULT 'once',
    overlap        TEXT    NOT NULL DEFAULT 'allow',
    jitter         REAL    NOT NULL DEFAULT 0,
    declared_by    TEXT,
    declared_hash  TEXT,
    undeclared_at  INTEGER,
    revision       INTEGER NOT NULL DEFAULT 1,
    anchor_at      INTEGER NOT NULL,
    next_fire_at   INTEGER,
    attend_at      INTEGER,
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
CREATE UNIQUE INDEX holdfast_schedule_name ON holdfast_schedule (tenant, name) WHERE state <> 'deleted';
CREATE INDEX holdfast_schedule_attend ON holdfast_schedule (attend_at) WHERE attend_at IS NOT NULL;
CREATE INDEX holdfast_schedule_held ON holdfast_schedule (kind) WHERE problem = 'unknown_kind';   -- until a worker knows the kind
CREATE INDEX holdfast_schedule_declared ON holdfast_schedule (tenant, declared_by, name) WHERE declared_by IS NOT NULL;

CREATE TABLE holdfast_fire (
    schedule_id   TEXT    NOT NULL,
    due_at        INTEGER NOT NULL,
    manual        INTEGER NOT NULL DEFAULT 0,
    tenant        TEXT    NOT NULL,
    status        TEXT    NOT NULL,
    job_id        TEXT,
    count         INTEGER NOT NULL DEFAULT 1,
    since_at      INTEGER,
    error_code    TEXT,
    error_message TEXT,
    actor         TEXT    NOT NULL,
    at            INTEGER NOT NULL,
    ended         INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (schedule_id, due_at, manual),
    CONSTRAINT status_known   CHECK (status IN ('fired', 'skipped', 'waiting', 'missed', 'failed')),
    CONSTRAINT job_iff_made   CHECK ((status IN ('fired', 'skipped')) = (job_id IS NOT NULL)),
    CONSTRAINT error_iff_failed CHECK ((status = 'failed') = (error_code IS NOT NULL)),
    CONSTRAINT missed_counted CHECK (count >= 1 AND (count = 1 OR status = 'missed')),
    CONSTRAINT yes_or_no      CHECK ((manual = 0 OR manual = 1) AND (ended = 0 OR ended = 1))
) STRICT, WITHOUT ROWID;
CREATE INDEX holdfast_fire_running ON holdfast_fire (schedule_id) WHERE status = 'fired' AND NOT ended;
CREATE INDEX holdfast_fire_waiting ON holdfast_fire (schedule_id, due_at) WHERE status = 'waiting';

CREATE TABLE holdfast_made_from (
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
CREATE INDEX holdfast_made_from_schedule ON holdfast_made_from (tenant, schedule, job_id) WHERE schedule IS NOT NULL;
CREATE INDEX holdfast_made_from_time ON holdfast_made_from (tenant, due_at, job_id) WHERE due_at IS NOT NULL;
CREATE INDEX holdfast_made_from_template ON holdfast_made_from (tenant, template, job_id) WHERE template IS NOT NULL;
CREATE INDEX holdfast_made_from_version ON holdfast_made_from (tenant, template, template_version, job_id) WHERE template IS NOT NULL;

-- --- Subscriptions and consumers ---

CREATE TABLE holdfast_consumer (
    tenant     TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    cursor     TEXT    NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE holdfast_subscription (
    id            TEXT    NOT NULL PRIMARY KEY,
    tenant        TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    pattern       TEXT    NOT NULL,
    kind          TEXT,
    match         TEXT,
    job_kind      TEXT    NOT NULL,
    job_options   TEXT    NOT NULL DEFAULT '{}',
    max_depth     INTEGER NOT NULL,
    cursor        TEXT,
    declared      INTEGER NOT NULL,
    paused_at     INTEGER,
    paused_by     TEXT,
    paused_reason TEXT,
    failure       TEXT,
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
CREATE UNIQUE INDEX holdfast_subscription_named ON holdfast_subscription (tenant, name);

CREATE TABLE holdfast_delivery (
    subscription_id TEXT    NOT NULL,
    event           TEXT    NOT NULL,
    tenant          TEXT    NOT NULL,
    job_id          TEXT,
    refusal         TEXT,
    depth           INTEGER NOT NULL,
    at              INTEGER NOT NULL,
    PRIMARY KEY (subscription_id, event),
    CONSTRAINT one_fate CHECK ((job_id IS NULL) = (refusal IS NOT NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX holdfast_delivery_newest ON holdfast_delivery (subscription_id, at, event);
CREATE INDEX holdfast_delivery_refused ON holdfast_delivery (subscription_id, at, event) WHERE refusal IS NOT NULL;
CREATE INDEX holdfast_delivery_by_job ON holdfast_delivery (job_id) WHERE job_id IS NOT NULL;

-- --- Tenants ---

CREATE TABLE holdfast_tenant (
    tenant      TEXT    NOT NULL PRIMARY KEY,
    title       TEXT,
    max_pending INTEGER,
    weight      INTEGER,
    set_by      TEXT    NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    CONSTRAINT tenant_named    CHECK (tenant >= '!' AND length(tenant) <= 100 AND tenant <> '*'),
    CONSTRAINT title_bounded   CHECK (length(title) BETWEEN 1 AND 200),
    CONSTRAINT pending_bounded CHECK (max_pending BETWEEN 0 AND 100000000),
    CONSTRAINT weight_bounded  CHECK (weight BETWEEN 1 AND 1000)
) STRICT, WITHOUT ROWID;

-- Number of waiting jobs of a tenant with a cap at a position in the ledger. The ledger has the changes since.
CREATE TABLE holdfast_tenant_load (
    tenant     TEXT    NOT NULL PRIMARY KEY,
    pending    INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    counted_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE holdfast_fair_place (
    tenant    TEXT    NOT NULL DEFAULT '*',
    queue     TEXT    NOT NULL,
    kinds     TEXT    NOT NULL,
    last      TEXT    NOT NULL,
    left_over INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, queue, kinds)
) STRICT, WITHOUT ROWID;

-- --- API tokens ---

CREATE TABLE holdfast_api_token (
    id           TEXT    PRIMARY KEY,
    tenant       TEXT    NOT NULL,
    name         TEXT    NOT NULL,
    roles        TEXT    NOT NULL,
    scopes       TEXT    NOT NULL,
    hash         TEXT    NOT NULL,
    prefix       TEXT    NOT NULL,
    parent_id    TEXT,
    created_at   INTEGER NOT NULL,
    created_by   TEXT    NOT NULL,
    expires_at   INTEGER,
    last_used_at INTEGER,
    revoked_at   INTEGER,
    revoked_by   TEXT,
    UNIQUE (hash),
    UNIQUE (tenant, id),
    CONSTRAINT parent_there  FOREIGN KEY (tenant, parent_id) REFERENCES holdfast_api_token (tenant, id),
    CONSTRAINT tenant_named  CHECK (tenant >= '!' AND length(tenant) <= 100),
    CONSTRAINT name_named    CHECK (name >= '!' AND length(name) <= 100),
    CONSTRAINT roles_list    CHECK (json_valid(roles) AND json_type(roles) = 'array' AND json_array_length(roles) > 0),
    CONSTRAINT scopes_list   CHECK (json_valid(scopes) AND json_type(scopes) = 'array'),
    CONSTRAINT hash_hex      CHECK (length(hash) = 64 AND hash NOT GLOB '*[^0-9a-f]*'),
    CONSTRAINT prefix_short  CHECK (length(prefix) <= 12),
    CONSTRAINT created_named CHECK (created_by >= '!'),
    CONSTRAINT expires_later CHECK (expires_at > created_at),
    CONSTRAINT revoked_named CHECK ((revoked_at IS NULL) = (revoked_by IS NULL) AND (revoked_by IS NULL OR revoked_by >= '!')),
    CONSTRAINT session_ends  CHECK (parent_id IS NULL OR expires_at IS NOT NULL)
) STRICT;
CREATE INDEX holdfast_api_token_sessions ON holdfast_api_token (parent_id) WHERE parent_id IS NOT NULL;

-- --- Workflows ---

CREATE TABLE holdfast_workflow (
    id             TEXT    NOT NULL PRIMARY KEY,
    tenant         TEXT    NOT NULL,
    kind           TEXT    NOT NULL,
    generator      TEXT    NOT NULL,
    on_failure     TEXT    NOT NULL DEFAULT 'skip',
    key            TEXT,
    plan_hash      TEXT    NOT NULL DEFAULT '',
    correlation_id TEXT,
    parent_id      TEXT,
    enqueued_by    TEXT    NOT NULL,
    source_system  TEXT    NOT NULL,
    created_at     INTEGER NOT NULL,
    finished_at    INTEGER,
    cancelled_at   INTEGER,
    stopped        INTEGER NOT NULL DEFAULT 0,
    total          INTEGER NOT NULL DEFAULT 0,
    open           INTEGER NOT NULL DEFAULT 0,
    succeeded      INTEGER NOT NULL DEFAULT 0,
    failed         INTEGER NOT NULL DEFAULT 0,
    dead           INTEGER NOT NULL DEFAULT 0,
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
CREATE INDEX holdfast_workflow_by_tenant ON holdfast_workflow (tenant, id);
CREATE INDEX holdfast_workflow_by_parent ON holdfast_workflow (parent_id) WHERE parent_id IS NOT NULL AND finished_at IS NULL;
CREATE UNIQUE INDEX holdfast_workflow_by_key ON holdfast_workflow (tenant, kind, key) WHERE key IS NOT NULL;

CREATE TABLE holdfast_node (
    job_id      TEXT    NOT NULL PRIMARY KEY,
    tenant      TEXT    NOT NULL,
    workflow_id TEXT    NOT NULL,
    name        TEXT,
    part        TEXT,
    status      TEXT    NOT NULL DEFAULT 'open',
    unmet       INTEGER NOT NULL DEFAULT 0,
    fatal       INTEGER NOT NULL DEFAULT 0,
    stops       INTEGER NOT NULL DEFAULT 0,
    CONSTRAINT status_known CHECK (status = 'open' OR status = 'succeeded' OR status = 'failed'
        OR status = 'dead' OR status = 'cancelled' OR status = 'skipped'),
    CONSTRAINT unmet_counted  CHECK (unmet >= 0)
) STRICT, WITHOUT ROWID;
CREATE INDEX holdfast_node_by_workflow ON holdfast_node (workflow_id, job_id);
CREATE INDEX holdfast_node_by_part ON holdfast_node (tenant, part, job_id) WHERE part IS NOT NULL;
CREATE UNIQUE INDEX holdfast_node_by_name ON holdfast_node (workflow_id, name) WHERE name IS NOT NULL;

CREATE TABLE holdfast_dependency (
    child      TEXT    NOT NULL,
    parent     TEXT    NOT NULL,
    tenant     TEXT    NOT NULL,
    on_failure TEXT    NOT NULL,
    met        INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (child, parent),
    CONSTRAINT on_failure_known CHECK (on_failure = 'stop' OR on_failure = 'continue' OR on_failure = 'skip'),
    CONSTRAINT not_of_itself    CHECK (child <> parent)
) STRICT, WITHOUT ROWID;
CREATE INDEX holdfast_dependency_by_parent ON holdfast_dependency (parent, child);

CREATE TABLE holdfast_callback (
    job_id        TEXT    NOT NULL PRIMARY KEY,
    tenant        TEXT    NOT NULL,
    workflow_id   TEXT    NOT NULL,
    step_id       TEXT,
    fires         TEXT    NOT NULL,
    document      TEXT,                          -- as a JSON document; null once the job is created
    due_at        INTEGER,
    fired_at      INTEGER,
    failed_job    TEXT,
    error_code    TEXT,
    error_message TEXT,
    CONSTRAINT fires_known     CHECK (fires = 'success' OR fires = 'failure'),
    CONSTRAINT fired_when_due  CHECK (fired_at IS NULL OR due_at IS NOT NULL),
    CONSTRAINT kept_until_fired CHECK ((document IS NULL) = (fired_at IS NOT NULL)),
    CONSTRAINT failure_named   CHECK (failed_job IS NULL OR fires = 'failure')
) STRICT, WITHOUT ROWID;
CREATE INDEX holdfast_callback_by_workflow ON holdfast_callback (workflow_id);
CREATE INDEX holdfast_callback_due ON holdfast_callback (due_at) WHERE due_at IS NOT NULL AND fired_at IS NULL;

-- Scratch tables, empty except while an operation finishes: the workflow jobs that changed state in it, the jobs that may be
-- released by that, and a row whose insert processes them (features/workflows/sqlite.sql).
CREATE TABLE holdfast_moved (
    job_id TEXT NOT NULL PRIMARY KEY,
    was    TEXT,
    now_is TEXT
) STRICT, WITHOUT ROWID;

CREATE TABLE holdfast_ready (
    job_id TEXT    NOT NULL PRIMARY KEY,
    times  INTEGER NOT NULL DEFAULT 0   -- number of parents that have just ended
) STRICT, WITHOUT ROWID;

CREATE TABLE holdfast_round (id INTEGER PRIMARY KEY CHECK (id = 1)) STRICT;

-- --- The audit trail ---

CREATE TABLE holdfast_action (
    seq       INTEGER PRIMARY KEY,   -- never used twice: no row is ever deleted
    tenant    TEXT    NOT NULL,
    at        INTEGER NOT NULL,
    actor     TEXT    NOT NULL,
    type      TEXT    NOT NULL,
    subject   TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    changed   TEXT,
    first_seq INTEGER,
    last_seq  INTEGER,
    CONSTRAINT range_of_purge CHECK ((type = 'purge') = (first_seq IS NOT NULL) AND (first_seq IS NULL) = (last_seq IS NULL))
) STRICT;
CREATE INDEX holdfast_action_by_tenant ON holdfast_action (tenant, seq);
CREATE INDEX holdfast_action_of_purge ON holdfast_action (last_seq, first_seq) WHERE first_seq IS NOT NULL;
CREATE INDEX holdfast_action_of_reseal ON holdfast_action (name) WHERE type = 'reseal';

-- A block of events and actions, hashed together with the previous block. Sealed so far: every event up to `floor`, every
-- action up to `action_floor`. With one writer at a time, no snapshots are needed.
CREATE TABLE holdfast_seal (
    number       INTEGER PRIMARY KEY,
    tenant       TEXT    NOT NULL DEFAULT '*',
    previous     TEXT    NOT NULL,
    digest       TEXT    NOT NULL,
    events       BLOB    NOT NULL,
    actions      BLOB    NOT NULL,
    event_count  INTEGER NOT NULL,
    action_count INTEGER NOT NULL,
    first_seq    INTEGER,
    last_seq     INTEGER,
    floor        INTEGER NOT NULL,
    action_floor INTEGER NOT NULL,
    base         INTEGER NOT NULL DEFAULT 0,
    snapshot     TEXT,
    sealed_at    INTEGER NOT NULL,
    version      TEXT    NOT NULL,
    xid          INTEGER,
    contents     BLOB,
    cut          INTEGER,
    CONSTRAINT of_all          CHECK (tenant = '*'),
    CONSTRAINT number_counted  CHECK (number > 0),
    CONSTRAINT digests_whole   CHECK (length(previous) = 64 AND length(digest) = 64),
    CONSTRAINT events_counted  CHECK (length(events) = 40 * event_count),
    CONSTRAINT actions_counted CHECK (length(actions) = 40 * action_count),
    CONSTRAINT something       CHECK (event_count + action_count > 0)
) STRICT;
CREATE INDEX holdfast_seal_by_seq ON holdfast_seal (last_seq);

-- --- Dead letters and operations on many jobs ---

CREATE TABLE holdfast_dead_letter_group (
    tenant        TEXT    NOT NULL,
    fingerprint   TEXT    NOT NULL,
    kind          TEXT    NOT NULL,
    error_code    TEXT    NOT NULL,
    error_message TEXT    NOT NULL,
    frame         TEXT,
    sample_job    TEXT    NOT NULL,
    first_at      INTEGER NOT NULL,
    last_at       INTEGER NOT NULL,
    times         INTEGER NOT NULL,
    open          INTEGER NOT NULL,
    note          TEXT,
    noted_by      TEXT,
    noted_at      INTEGER,
    last_job      TEXT    NOT NULL,
    PRIMARY KEY (tenant, fingerprint),
    CONSTRAINT counted    CHECK (open BETWEEN 0 AND times),
    CONSTRAINT note_whole CHECK ((note IS NULL) = (noted_by IS NULL) AND (note IS NULL) = (noted_at IS NULL)),
    CONSTRAINT note_short CHECK (length(note) <= 2000)
) STRICT, WITHOUT ROWID;
CREATE INDEX holdfast_dead_letter_group_newest ON holdfast_dead_letter_group (tenant, last_at DESC, fingerprint DESC) WHERE open > 0;
CREATE INDEX holdfast_dead_letter_group_largest ON holdfast_dead_letter_group (tenant, open DESC, fingerprint DESC);
CREATE INDEX holdfast_dead_letter_group_by_sample ON holdfast_dead_letter_group (sample_job);
CREATE INDEX holdfast_dead_letter_group_all ON holdfast_dead_letter_group (tenant, last_at DESC, fingerprint DESC);

CREATE TABLE holdfast_dead_letter (
    job_id      TEXT    NOT NULL PRIMARY KEY,
    tenant      TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    kind        TEXT    NOT NULL,
    queue       TEXT    NOT NULL,
    dead_at     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX holdfast_dead_letter_by_group ON holdfast_dead_letter (tenant, fingerprint, job_id DESC);
CREATE INDEX holdfast_dead_letter_by_queue ON holdfast_dead_letter (tenant, queue, fingerprint);

CREATE TABLE holdfast_operation (
    id           TEXT    NOT NULL PRIMARY KEY,
    tenant       TEXT    NOT NULL,
    action       TEXT    NOT NULL,
    wanted       TEXT    NOT NULL,
    reason       TEXT,
    max_attempts INTEGER,
    rate         REAL,
    state        TEXT    NOT NULL DEFAULT 'running',
    total        INTEGER NOT NULL,
    capped       INTEGER NOT NULL,
    done         INTEGER NOT NULL DEFAULT 0,
    refused      INTEGER NOT NULL DEFAULT 0,
    refusals     TEXT    NOT NULL DEFAULT '{}',
    place        TEXT,
    next_at      INTEGER NOT NULL,
    created_by   TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    finished_at  INTEGER,
    cancelled_by TEXT,
    cancelled_reason TEXT,
    run_at       INTEGER,
    CONSTRAINT tenant_named   CHECK (tenant >= '!' AND length(tenant) <= 100),
    CONSTRAINT created_named  CHECK (created_by >= '!'),
    CONSTRAINT action_known     CHECK (action IN ('cancel', 'redrive', 'discard')),
    CONSTRAINT reason_given   CHECK (action <> 'discard' OR (reason IS NOT NULL AND trim(reason, ' ' || char(9, 10, 11, 12, 13)) <> '')),
    CONSTRAINT limit_bounded  CHECK (max_attempts IS NULL OR (max_attempts BETWEEN 1 AND 101 AND action = 'redrive')),
    CONSTRAINT rate_bounded   CHECK (rate BETWEEN 0.001 AND 1000000),
    CONSTRAINT time_redriven  CHECK (run_at IS NULL OR action = 'redrive'),
    CONSTRAINT state_known    CHECK (state IN ('running', 'done', 'cancelled')),
    CONSTRAINT ended_iff_over CHECK ((state = 'running') = (finished_at IS NULL)),
    CONSTRAINT who_cancelled  CHECK ((state = 'cancelled') = (cancelled_by IS NOT NULL)),
    CONSTRAINT counted        CHECK (total >= 0 AND done >= 0 AND refused >= 0)
) STRICT;
CREATE INDEX holdfast_operation_running ON holdfast_operation (next_at) WHERE state = 'running';
CREATE INDEX holdfast_operation_by_tenant ON holdfast_operation (tenant, id DESC);

CREATE TABLE holdfast_redriven_as (
    job_id TEXT    NOT NULL PRIMARY KEY,
    tenant TEXT    NOT NULL,
    new_id TEXT    NOT NULL UNIQUE,
    by     TEXT    NOT NULL,
    at     INTEGER NOT NULL
) STRICT;

-- --- Payload rules ---

CREATE TABLE holdfast_payload_rule (
    tenant           TEXT    NOT NULL,
    kind             TEXT    NOT NULL,
    declared_by      TEXT    NOT NULL DEFAULT '',
    signal_only      INTEGER NOT NULL DEFAULT 0,
    forbidden        TEXT    NOT NULL DEFAULT
        '["body","content","raw","vector","embedding","secret","token","password","ssn","personal_data"]',   -- in lower case
    classification   TEXT    NOT NULL DEFAULT 'safe_metadata',
    max_bytes        INTEGER,
    max_result_bytes INTEGER,
    store            INTEGER,
    replaceable      INTEGER,
    requires_approval TEXT,
    token_only       INTEGER,
    at_most_once     INTEGER,
    set_by           TEXT    NOT NULL,
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL,
    PRIMARY KEY (tenant, kind, declared_by),
    CONSTRAINT tenant_named         CHECK (tenant >= '!' AND length(tenant) <= 100),
    CONSTRAINT kind_named           CHECK (kind >= '!' AND length(kind) <= 100),
    CONSTRAINT declared_by_bounded  CHECK (length(declared_by) <= 100),
    CONSTRAINT classification_known CHECK (classification = 'safe_metadata' OR classification = 'restricted'),
    CONSTRAINT forbidden_named      CHECK (json_valid(forbidden) AND json_type(forbidden) = 'array'
        AND json_array_length(forbidden) BETWEEN 1 AND 200 AND lower(forbidden) = forbidden),
    CONSTRAINT sizes_bounded        CHECK (max_bytes >= 256 AND max_result_bytes >= 256),
    CONSTRAINT says_something       CHECK (signal_only OR classification = 'restricted'
        OR coalesce(max_bytes, max_result_bytes, store, replaceable, token_only, at_most_once, requires_approval) IS NOT NULL),
    CONSTRAINT approval_is_object   CHECK (json_type(requires_approval) = 'object')
) STRICT, WITHOUT ROWID;

CREATE TABLE holdfast_reference (
    job_id      TEXT NOT NULL PRIMARY KEY,
    tenant      TEXT NOT NULL,
    source_ref  TEXT,
    target_ref  TEXT,
    payload_ref TEXT,
    CONSTRAINT something    CHECK (coalesce(source_ref, target_ref, payload_ref) IS NOT NULL),
    CONSTRAINT refs_bounded CHECK (length(source_ref) <= 4000 AND length(target_ref) <= 4000 AND length(payload_ref) <= 4000)
) STRICT, WITHOUT ROWID;

CREATE TABLE holdfast_resealed (
    job_id   TEXT    NOT NULL,
    tenant   TEXT    NOT NULL,
    n        INTEGER NOT NULL,
    from_key TEXT    NOT NULL,
    to_key   TEXT    NOT NULL,
    actor    TEXT    NOT NULL,
    at       INTEGER NOT NULL,
    PRIMARY KEY (job_id, n),
    CONSTRAINT another_key CHECK (from_key <> to_key AND from_key >= '!' AND to_key >= '!')
) STRICT, WITHOUT ROWID;

CREATE TABLE holdfast_replaced_payload (
    job_id  TEXT    NOT NULL,
    tenant  TEXT    NOT NULL,
    attempt INTEGER NOT NULL,
    payload TEXT    NOT NULL,
    at      INTEGER NOT NULL,
    PRIMARY KEY (job_id, attempt),
    CONSTRAINT ran CHECK (attempt > 0)
) STRICT, WITHOUT ROWID;

-- --- Retention and usage ---

CREATE TABLE holdfast_retention (
    tenant      TEXT    NOT NULL,
    kind        TEXT    NOT NULL,
    state       TEXT    NOT NULL,
    clean_after REAL,
    purge_after REAL,
    archive     INTEGER NOT NULL DEFAULT 0,
    declared    INTEGER NOT NULL DEFAULT 0,
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

CREATE TABLE holdfast_retention_pass (
    tenant   TEXT    NOT NULL,
    kind     TEXT    NOT NULL,
    state    TEXT    NOT NULL,
    action   TEXT    NOT NULL,
    reached  TEXT    NOT NULL DEFAULT '',
    looked   INTEGER NOT NULL DEFAULT 0,
    again_at INTEGER NOT NULL,
    restart_at INTEGER,
    held     INTEGER NOT NULL DEFAULT 0,
    held_by  TEXT,
    PRIMARY KEY (tenant, kind, state, action),
    CONSTRAINT action_known CHECK (action IN ('clean', 'purge'))
) STRICT, WITHOUT ROWID;
CREATE INDEX holdfast_retention_next ON holdfast_retention_pass (again_at);

CREATE TABLE holdfast_archive (
    id          TEXT    NOT NULL PRIMARY KEY,
    tenant      TEXT    NOT NULL,
    ref         TEXT    NOT NULL,
    bytes       INTEGER NOT NULL,
    jobs        INTEGER NOT NULL,
    first_job   TEXT    NOT NULL,
    last_job    TEXT    NOT NULL,
    seal        INTEGER,
    seal_digest TEXT,
    created_by  TEXT    NOT NULL,
    created_at  INTEGER NOT NULL,
    CONSTRAINT jobs_counted CHECK (jobs > 0 AND bytes > 0),
    CONSTRAINT created_by_named CHECK (created_by >= '!')
) STRICT, WITHOUT ROWID;
CREATE INDEX holdfast_archive_of_jobs ON holdfast_archive (tenant, last_job);

CREATE TABLE holdfast_archived (
    job_id      TEXT    NOT NULL PRIMARY KEY,
    tenant      TEXT    NOT NULL,
    archive_id  TEXT    NOT NULL,
    finished_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE holdfast_upkeep (
    id       INTEGER PRIMARY KEY CHECK (id = 1),
    prune_at INTEGER NOT NULL
) STRICT;
INSERT INTO holdfast_upkeep (id, prune_at) VALUES (1, 0);

CREATE TABLE holdfast_usage (
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

CREATE TABLE holdfast_usage_place (
    id         INTEGER PRIMARY KEY CHECK (id = 1),
    cursor     TEXT,
    updated_at INTEGER NOT NULL
) STRICT;

CREATE TABLE holdfast_orphaned_file (
    tenant   TEXT    NOT NULL,
    ref      TEXT    NOT NULL,
    job_id   TEXT    NOT NULL,
    at       INTEGER NOT NULL,
    again_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, ref),
    CONSTRAINT tenant_named CHECK (tenant >= '!' AND length(tenant) <= 100 AND tenant <> '*'),
    CONSTRAINT ref_of_job   CHECK ((ref LIKE 'artifact://%/' || job_id || '/%' OR ref LIKE 'file://%/' || job_id || '/')
                                   AND length(ref) <= 4000)
) STRICT, WITHOUT ROWID;
CREATE INDEX holdfast_orphaned_file_next ON holdfast_orphaned_file (again_at);
