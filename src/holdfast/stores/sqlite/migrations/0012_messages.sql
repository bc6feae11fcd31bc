-- Messages to jobs, and output streams of handlers.

CREATE TABLE holdfast_message (
    id      TEXT    NOT NULL PRIMARY KEY,
    tenant  TEXT    NOT NULL,
    job_id  TEXT    NOT NULL,
    n       INTEGER NOT NULL,
    name    TEXT    NOT NULL,
    data    TEXT    NOT NULL,
    asked   INTEGER NOT NULL,
    key     TEXT,
    sent_by TEXT    NOT NULL,
    sent_at INTEGER NOT NULL,
    CONSTRAINT name_named CHECK (name >= '!' AND length(name) <= 90),
    CONSTRAINT tenant_named CHECK (tenant >= '!' AND tenant <> '*'),
    CONSTRAINT data_is_json CHECK (json_valid(data)),
    CONSTRAINT n_counted CHECK (n >= 1),
    CONSTRAINT asked_flag CHECK (asked IN (0, 1)),
    CONSTRAINT key_bounded CHECK (length(key) <= 255)
) STRICT;
CREATE INDEX holdfast_message_in_order ON holdfast_message (job_id, name, n, sent_at, id);
CREATE UNIQUE INDEX holdfast_message_by_key ON holdfast_message (job_id, name, key) WHERE key IS NOT NULL;

CREATE TABLE holdfast_stream_part (
    job_id   TEXT    NOT NULL,
    tenant   TEXT    NOT NULL,
    attempt  INTEGER NOT NULL,
    n        INTEGER NOT NULL,
    stream   TEXT    NOT NULL,
    section  INTEGER NOT NULL,           -- place in the handler: 2k - 1 is inside durable call k, 2k after it
    replaces INTEGER NOT NULL,
    count    INTEGER NOT NULL,
    chunks   TEXT    NOT NULL,
    at       INTEGER NOT NULL,
    PRIMARY KEY (job_id, attempt, n),
    CONSTRAINT stream_named CHECK (stream >= '!' AND length(stream) <= 90),
    CONSTRAINT part_bounded CHECK (length(chunks) <= 800000),
    CONSTRAINT flag CHECK (replaces IN (0, 1)),
    CONSTRAINT numbers_bounded CHECK (n BETWEEN 1 AND 1000000 AND section >= 0 AND count BETWEEN 1 AND 100000)
) STRICT, WITHOUT ROWID;
CREATE INDEX holdfast_stream_part_by_age ON holdfast_stream_part (at);
