-- API tokens and the sessions that were opened with them (rule 25). Kept for good: the ledger names them.
create table api_token (
    id           uuid        primary key,
    tenant       text        not null,   -- whose it acts for; '*': everybody's
    name         text        not null,   -- whom the ledger names
    roles        text[]      not null,
    scopes       text[]      not null,   -- of what the roles allow no more than these; empty: all of it
    hash         text        not null,   -- SHA-256 of the token, which is nowhere
    prefix       text        not null,   -- how it begins, to recognise it by
    parent_id    uuid,                   -- of a session: the token that it was opened with
    created_at   timestamptz not null,
    created_by   text        not null,
    expires_at   timestamptz,
    last_used_at timestamptz,            -- to the minute
    revoked_at   timestamptz,
    revoked_by   text,
    unique (hash),
    unique (tenant, id),
    constraint parent_there  foreign key (tenant, parent_id) references api_token (tenant, id),
    constraint tenant_named  check (ascii(tenant) > 32 and length(tenant) <= 100),
    constraint name_named    check (ascii(name) > 32 and length(name) <= 100),
    constraint roles_known   check (roles <> '{}' and roles <@ array['viewer', 'producer', 'operator', 'approver', 'executor', 'admin']),
    constraint scopes_known  check (scopes <@ array['read', 'enqueue', 'operate', 'decide', 'work', 'admin']),
    constraint hash_hex      check (hash ~ '^[0-9a-f]{64}$'),
    constraint prefix_short  check (length(prefix) <= 12),
    constraint created_named check (ascii(created_by) > 32),
    constraint expires_later check (expires_at > created_at),
    constraint revoked_named check ((revoked_at is null) = (revoked_by is null) and (revoked_by is null or ascii(revoked_by) > 32)),
    constraint session_ends  check (parent_id is null or expires_at is not null)
);
create index api_token_sessions on api_token (parent_id) where parent_id is not null;
create index api_token_listed on api_token (tenant, id);
