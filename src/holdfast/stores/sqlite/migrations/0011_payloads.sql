-- What may be in a payload (DP-4), where what a job is about lies, and what became of sealed payloads.

CREATE TABLE payload_rule (
    tenant           TEXT    NOT NULL,   -- '*': of every tenant
    kind             TEXT    NOT NULL,   -- '*': each kind
    declared_by      TEXT    NOT NULL DEFAULT '',   -- the program that has it in its code; '': an operator's
    signal_only      INTEGER NOT NULL DEFAULT 0,
    forbidden        TEXT    NOT NULL DEFAULT
        '["body","content","raw","vector","embedding","secret","token","password","ssn","personal_data"]',   -- in lower case
    classification   TEXT    NOT NULL DEFAULT 'safe_metadata',
    max_bytes        INTEGER,
    max_result_bytes INTEGER,
    store            INTEGER,            -- what is larger goes to the artifact store; null: nothing is said of it
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
        OR coalesce(max_bytes, max_result_bytes, store) IS NOT NULL)
) STRICT, WITHOUT ROWID;

-- Where what a job is about lies: only for jobs that were enqueued with one of them.
CREATE TABLE reference (
    job_id      TEXT NOT NULL PRIMARY KEY,
    tenant      TEXT NOT NULL,
    source_ref  TEXT,
    target_ref  TEXT,
    payload_ref TEXT,
    CONSTRAINT something    CHECK (coalesce(source_ref, target_ref, payload_ref) IS NOT NULL),
    CONSTRAINT refs_bounded CHECK (length(source_ref) <= 4000 AND length(target_ref) <= 4000 AND length(payload_ref) <= 4000)
) STRICT, WITHOUT ROWID;

-- A payload was sealed with another key: the one change that what was asked for knows. Written before it; each row admits one.
CREATE TABLE resealed (
    job_id   TEXT    NOT NULL,
    tenant   TEXT    NOT NULL,
    n        INTEGER NOT NULL,   -- 1, 2, 3, … of the job
    from_key TEXT    NOT NULL,
    to_key   TEXT    NOT NULL,
    actor    TEXT    NOT NULL,
    at       INTEGER NOT NULL,
    PRIMARY KEY (job_id, n),
    CONSTRAINT another_key CHECK (from_key <> to_key AND from_key >= '!' AND to_key >= '!')
) STRICT, WITHOUT ROWID;
