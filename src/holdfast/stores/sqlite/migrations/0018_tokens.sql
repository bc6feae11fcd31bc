-- API tokens and the sessions that were opened with them (rule 25). Kept for good: the ledger names them.
CREATE TABLE api_token (
    id           TEXT    PRIMARY KEY,
    tenant       TEXT    NOT NULL,   -- whose it acts for; '*': everybody's
    name         TEXT    NOT NULL,   -- whom the ledger names
    roles        TEXT    NOT NULL,
    scopes       TEXT    NOT NULL,   -- of what the roles allow no more than these; empty: all of it
    hash         TEXT    NOT NULL,   -- SHA-256 of the token, which is nowhere
    prefix       TEXT    NOT NULL,   -- how it begins, to recognise it by
    parent_id    TEXT,               -- of a session: the token that it was opened with
    created_at   INTEGER NOT NULL,
    created_by   TEXT    NOT NULL,
    expires_at   INTEGER,
    last_used_at INTEGER,            -- to the minute
    revoked_at   INTEGER,
    revoked_by   TEXT,
    UNIQUE (hash),
    UNIQUE (tenant, id),
    CONSTRAINT parent_there  FOREIGN KEY (tenant, parent_id) REFERENCES api_token (tenant, id),
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
CREATE INDEX api_token_sessions ON api_token (parent_id) WHERE parent_id IS NOT NULL;
