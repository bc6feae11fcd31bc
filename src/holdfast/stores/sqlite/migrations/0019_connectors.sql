-- What tenants have set for connectors (JF-11): whom they may reach, with what headers, and which secrets, by name only.
CREATE TABLE connector (
    tenant     TEXT    NOT NULL,   -- one tenant's; there are no settings for all
    name       TEXT    NOT NULL,   -- the connector: http.request
    enabled    INTEGER NOT NULL DEFAULT 1,
    hosts      TEXT    NOT NULL DEFAULT '[]',   -- if there are any, the only ones
    headers    TEXT    NOT NULL DEFAULT '{}',   -- name: text, or {"secret": NAME}
    secrets    TEXT    NOT NULL DEFAULT '[]',   -- the names that jobs may use
    timeout    REAL,                            -- seconds
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
