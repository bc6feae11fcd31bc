-- Who is told of events over HTTP (JF-9, SC-15). What it wants is read by subscriptions of its own, endpoint:<name> and
-- endpoint:<name>:told. Of a secret there is a name here, and nothing else.
create table endpoint (
    id              uuid        not null primary key,
    tenant          text        not null,
    name            text        not null,
    url             text        not null,
    secrets         text[]      not null,            -- names, the newest first; a message is signed with each
    wants           text[]      not null,
    kind            text,                            -- of the jobs whose events it wants; null: any
    job_options     json        not null default '{}',   -- queue, priority, retry, … of its deliveries
    disabled_at     timestamptz,
    disabled_by     text,
    disabled_reason text,
    created_by      text        not null,
    created_at      timestamptz not null,
    updated_at      timestamptz not null,
    constraint tenant_named   check (ascii(tenant) > 32 and length(tenant) <= 100 and tenant <> '*'),
    constraint name_plain     check (name ~ '^[a-z0-9][a-z0-9._-]{0,59}$'),
    constraint url_plain      check (url ~ '^https?://[^/?#[:space:]]' and position('@' in url) = 0 and length(url) <= 2000),
    constraint secrets_named  check (cardinality(secrets) between 1 and 5
                                     and array_to_string(secrets, ' ', '') ~ '^[A-Z][A-Z0-9_]*( [A-Z][A-Z0-9_]*)*$'
                                     and position('__' in array_to_string(secrets, ' ')) = 0),
    constraint wants_some     check (cardinality(wants) between 1 and 100),
    constraint job_is_object  check (json_typeof(job_options) = 'object'),
    constraint disabled_whole check ((disabled_at is null) = (disabled_by is null) and (disabled_at is null) = (disabled_reason is null))
);
create unique index endpoint_named on endpoint (tenant, name);

-- What became of each attempt to deliver a message; the newest thousand of each endpoint, for a month.
create table endpoint_delivery (
    id          uuid        not null primary key,
    tenant      text        not null,
    endpoint_id uuid        not null,
    message     text        not null,                -- the webhook-id: the same in every attempt
    type        text        not null,
    job_id      uuid        not null,
    attempt     integer     not null,
    status      integer,                             -- null: nobody answered
    error_code  text,                                -- null: it was delivered
    duration_ms integer     not null,
    excerpt     text,                                -- of what was answered, redacted
    at          timestamptz not null,
    constraint tenant_named    check (ascii(tenant) > 32 and length(tenant) <= 100 and tenant <> '*'),
    constraint status_of_http  check (status between 100 and 999),
    constraint answered        check (error_code is not null or (status is not null and status between 200 and 299)),
    constraint excerpt_bounded check (coalesce(length(excerpt), 0) <= 1000 and length(message) <= 200 and length(type) <= 200)
);
create index endpoint_delivery_newest on endpoint_delivery (endpoint_id, id);
