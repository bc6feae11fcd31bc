-- Notifiers: channels to people. Each reads its events through its own subscription, notifier:<name>. Secrets, also the URLs of
-- the channels, are stored by name only.
CREATE TABLE holdfast_notifier (
    tenant         TEXT    NOT NULL,
    name           TEXT    NOT NULL,
    channel        TEXT    NOT NULL,
    secrets        TEXT    NOT NULL,
    wants          TEXT    NOT NULL,
    kind           TEXT,
    recipients     TEXT    NOT NULL DEFAULT '[]',
    sender         TEXT,
    dashboard      TEXT,
    quiet          TEXT,
    escalate_after REAL,
    escalation     TEXT,
    enabled        INTEGER NOT NULL DEFAULT 1,
    health         TEXT,
    set_by         TEXT    NOT NULL,
    created_at     INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL,
    PRIMARY KEY (tenant, name),
    CONSTRAINT tenant_named        CHECK (tenant >= '!' AND length(tenant) <= 100 AND tenant <> '*'),
    CONSTRAINT name_plain          CHECK (length(name) BETWEEN 1 AND 60 AND name NOT GLOB '*[^a-z0-9._-]*' AND name GLOB '[a-z0-9]*'
                                          AND (escalation IS NULL OR length(escalation) BETWEEN 1 AND 60
                                               AND escalation NOT GLOB '*[^a-z0-9._-]*' AND escalation GLOB '[a-z0-9]*')),
    CONSTRAINT channel_known       CHECK (channel IN ('slack', 'teams', 'email', 'webhook')),
    CONSTRAINT secrets_named       CHECK (json_valid(secrets) AND json_type(secrets) = 'array' AND json_array_length(secrets) BETWEEN 1 AND 2
                                          AND secrets NOT GLOB '*[^][A-Z0-9_", ]*' AND secrets NOT GLOB '*"[0-9_"]*'
                                          AND instr(secrets, '__') = 0),
    CONSTRAINT wants_known         CHECK (json_valid(wants) AND json_type(wants) = 'array' AND json_array_length(wants) BETWEEN 1 AND 3
                                          AND replace(replace(replace(wants, '"approvals"', ''), '"dead_letters"', ''), '"health"', '')
                                              NOT GLOB '*[^], []*'),
    CONSTRAINT recipients_bounded  CHECK (json_valid(recipients) AND json_type(recipients) = 'array' AND json_array_length(recipients) <= 50
                                          AND length(recipients) <= 20000
                                          AND (channel = 'email') = (json_array_length(recipients) > 0) AND (channel = 'email') = (sender IS NOT NULL)),
    CONSTRAINT texts_bounded       CHECK (coalesce(length(kind), 0) <= 255 AND coalesce(length(sender), 0) <= 320 AND coalesce(length(quiet), 0) <= 100),
    CONSTRAINT dashboard_plain     CHECK (dashboard IS NULL OR (dashboard GLOB 'http://[^/?# ]*' OR dashboard GLOB 'https://[^/?# ]*')
                                          AND instr(dashboard, '@') = 0 AND length(dashboard) <= 2000),
    CONSTRAINT escalation_whole    CHECK ((escalate_after IS NULL) = (escalation IS NULL) AND escalation IS NOT name),
    CONSTRAINT escalation_bounded  CHECK (escalate_after BETWEEN 1 AND 2592000),
    CONSTRAINT enabled_known       CHECK (enabled IN (0, 1)),
    CONSTRAINT health_known        CHECK (health IN ('ok', 'warn', 'critical')),
    CONSTRAINT set_by_named        CHECK (set_by >= '!')
) STRICT, WITHOUT ROWID;
