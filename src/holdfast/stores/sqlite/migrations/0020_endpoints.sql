-- Who is told of events over HTTP (JF-9, SC-15). What it wants is read by subscriptions of its own, endpoint:<name> and
-- endpoint:<name>:told. Of a secret there is a name here, and nothing else.
CREATE TABLE endpoint (
    id              TEXT    NOT NULL PRIMARY KEY,
    tenant          TEXT    NOT NULL,
    name            TEXT    NOT NULL,
    url             TEXT    NOT NULL,
    secrets         TEXT    NOT NULL,             -- names, the newest first; a message is signed with each
    wants           TEXT    NOT NULL,
    kind            TEXT,                         -- of the jobs whose events it wants; null: any
    job_options     TEXT    NOT NULL DEFAULT '{}',   -- queue, priority, retry, … of its deliveries
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
CREATE UNIQUE INDEX endpoint_named ON endpoint (tenant, name);

-- What became of each attempt to deliver a message; the newest thousand of each endpoint, for a month.
CREATE TABLE endpoint_delivery (
    id          TEXT    NOT NULL PRIMARY KEY,
    tenant      TEXT    NOT NULL,
    endpoint_id TEXT    NOT NULL,
    message     TEXT    NOT NULL,                 -- the webhook-id: the same in every attempt
    type        TEXT    NOT NULL,
    job_id      TEXT    NOT NULL,
    attempt     INTEGER NOT NULL,
    status      INTEGER,                          -- null: nobody answered
    error_code  TEXT,                             -- null: it was delivered
    duration_ms INTEGER NOT NULL,
    excerpt     TEXT,                             -- of what was answered, redacted
    at          INTEGER NOT NULL,
    CONSTRAINT tenant_named    CHECK (tenant >= '!' AND length(tenant) <= 100 AND tenant <> '*'),
    CONSTRAINT status_of_http  CHECK (status BETWEEN 100 AND 999),
    CONSTRAINT answered        CHECK (error_code IS NOT NULL OR status IS NOT NULL AND status BETWEEN 200 AND 299),
    CONSTRAINT excerpt_bounded CHECK (coalesce(length(excerpt), 0) <= 1000 AND length(message) <= 200 AND length(type) <= 200)
) STRICT, WITHOUT ROWID;
CREATE INDEX endpoint_delivery_newest ON endpoint_delivery (endpoint_id, id);
