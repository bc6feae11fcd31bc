-- Inbound webhooks: messages of providers that become application events or jobs. A secret is stored by name only.
create table endpoint (
    tenant     text        not null,
    name       text        not null,                -- Last part of its URL.
    provider   text        not null,                -- Form of the signature.
    secrets    text[]      not null,                -- Names of the secrets, newest first; one of them has to have signed.
    event      text,                                -- Name of the event; * is the type of the message. Null: <name>.*
    kind       text,                                -- Kind of the jobs; null: it sends events.
    queue      text,                                -- Queue of the jobs; null: that of the kind.
    tolerance  float8      not null default 300,    -- Maximum age of a signature, in seconds.
    enabled    boolean     not null default true,   -- Whether it accepts messages.
    set_by     text        not null,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    primary key (tenant, name),
    constraint tenant_named      check (ascii(tenant) > 32 and length(tenant) <= 100 and tenant <> '*'),
    constraint name_plain        check (name ~ '^[a-z0-9][a-z0-9._-]{0,59}$'),
    constraint provider_known    check (provider in ('standard', 'github', 'stripe', 'slack')),
    constraint secrets_named     check (cardinality(secrets) between 1 and 5
                                        and array_to_string(secrets, ' ', '') ~ '^[A-Z][A-Z0-9_]*( [A-Z][A-Z0-9_]*)*$'
                                        and position('__' in array_to_string(secrets, ' ')) = 0),
    constraint event_or_kind     check (event is null or kind is null),
    constraint queue_of_jobs     check (queue is null or kind is not null),
    constraint names_named       check (ascii(coalesce(event, 'x')) > 32 and ascii(coalesce(kind, 'x')) > 32 and ascii(coalesce(queue, 'x')) > 32
                                        and length(event) <= 255 and length(kind) <= 255 and length(queue) <= 255),
    constraint tolerance_bounded check (tolerance between 1 and 3600),
    constraint set_by_named      check (ascii(set_by) > 32)
);
