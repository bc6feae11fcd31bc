-- What tenants have set for connectors (JF-11): whom they may reach, with what headers, and which secrets, by name only.
create table connector (
    tenant     text        not null,   -- one tenant's; there are no settings for all
    name       text        not null,   -- the connector: http.request
    enabled    boolean     not null default true,
    hosts      text[]      not null default '{}',   -- if there are any, the only ones
    headers    jsonb       not null default '{}',   -- name: text, or {"secret": NAME}
    secrets    text[]      not null default '{}',   -- the names that jobs may use
    timeout    float8,                              -- seconds
    max_bytes  integer,
    set_by     text        not null,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    primary key (tenant, name),
    constraint tenant_named      check (ascii(tenant) > 32 and length(tenant) <= 100 and tenant <> '*'),
    constraint name_named        check (ascii(name) > 32 and length(name) <= 100),
    constraint hosts_bounded     check (cardinality(hosts) <= 200 and length(hosts::text) <= 60000),
    constraint headers_bounded   check (jsonb_typeof(headers) = 'object' and length(headers::text) <= 600000),
    constraint secrets_bounded   check (cardinality(secrets) <= 200),
    constraint timeout_bounded   check (timeout > 0 and timeout <= 600),
    constraint max_bytes_bounded check (max_bytes > 0 and max_bytes <= 268435456),
    constraint set_by_named      check (ascii(set_by) > 32)
);
