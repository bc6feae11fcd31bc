-- Inbound webhooks: messages of providers that become application events or jobs. A secret is stored by name only.
CREATE TABLE holdfast_endpoint (
    tenant     TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    provider   TEXT    NOT NULL,
    secrets    TEXT    NOT NULL,
    event      TEXT,
    kind       TEXT,
    queue      TEXT,
    tolerance  REAL    NOT NULL DEFAULT 300,
    enabled    INTEGER NOT NULL DEFAULT 1,
    set_by     TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, name),
    CONSTRAINT tenant_named      CHECK (tenant >= '!' AND length(tenant) <= 100 AND tenant <> '*'),
    CONSTRAINT name_plain        CHECK (length(name) BETWEEN 1 AND 60 AND name NOT GLOB '*[^a-z0-9._-]*' AND name GLOB '[a-z0-9]*'),
    CONSTRAINT provider_known    CHECK (provider IN ('standard', 'github', 'stripe', 'slack')),
    CONSTRAINT secrets_named     CHECK (json_valid(secrets) AND json_type(secrets) = 'array' AND json_array_length(secrets) BETWEEN 1 AND 5
                                        AND secrets NOT GLOB '*[^][A-Z0-9_", ]*' AND secrets NOT GLOB '*"[0-9_"]*'
                                        AND instr(secrets, '__') = 0),
    CONSTRAINT event_or_kind     CHECK (event IS NULL OR kind IS NULL),
    CONSTRAINT queue_of_jobs     CHECK (queue IS NULL OR kind IS NOT NULL),
    CONSTRAINT names_named       CHECK (coalesce(event, 'x') >= '!' AND coalesce(kind, 'x') >= '!' AND coalesce(queue, 'x') >= '!'
                                        AND coalesce(length(event), 0) <= 255 AND coalesce(length(kind), 0) <= 255
                                        AND coalesce(length(queue), 0) <= 255),
    CONSTRAINT tolerance_bounded CHECK (tolerance BETWEEN 1 AND 3600),
    CONSTRAINT enabled_known     CHECK (enabled IN (0, 1)),
    CONSTRAINT set_by_named      CHECK (set_by >= '!')
) STRICT, WITHOUT ROWID;
