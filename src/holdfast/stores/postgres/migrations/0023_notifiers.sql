-- Notifiers: channels to people. Each reads its events through its own subscription, notifier:<name>. Secrets, also the URLs of
-- the channels, are stored by name only.
create table notifier (
    tenant         text        not null,
    name           text        not null,
    channel        text        not null,                -- slack, teams, email or webhook.
    secrets        text[]      not null,                -- Names of the secrets: the URL, and for webhook the signing secret.
    wants          text[]      not null,                -- What it tells: approvals, dead_letters, health.
    kind           text,                                -- Kind of the jobs that it tells of; null: any.
    recipients     text[]      not null default '{}',   -- E-mail addresses.
    sender         text,                                -- E-mail address that it sends from.
    dashboard      text,                                -- URL of the dashboard, for links.
    quiet          text,                                -- Quiet hours: 22:00-07:00 Europe/Paris.
    escalate_after float8,                              -- Seconds after which what is still open is escalated.
    escalation     text,                                -- Name of the notifier to escalate to.
    enabled        boolean     not null default true,   -- Whether it tells anything.
    health         text,                                -- Verdict of the health that it told last.
    set_by         text        not null,
    created_at     timestamptz not null,
    updated_at     timestamptz not null,
    primary key (tenant, name),
    constraint tenant_named        check (ascii(tenant) > 32 and length(tenant) <= 100 and tenant <> '*'),
    constraint name_plain          check (name ~ '^[a-z0-9][a-z0-9._-]{0,59}$' and escalation ~ '^[a-z0-9][a-z0-9._-]{0,59}$' is not false),
    constraint channel_known       check (channel in ('slack', 'teams', 'email', 'webhook')),
    constraint secrets_named       check (cardinality(secrets) between 1 and 2
                                          and array_to_string(secrets, ' ', '') ~ '^[A-Z][A-Z0-9_]*( [A-Z][A-Z0-9_]*)*$'
                                          and position('__' in array_to_string(secrets, ' ')) = 0),
    constraint wants_known         check (cardinality(wants) between 1 and 3 and wants <@ array['approvals', 'dead_letters', 'health']),
    constraint recipients_bounded  check (cardinality(recipients) <= 50 and length(recipients::text) <= 20000
                                          and (channel = 'email') = (cardinality(recipients) > 0) and (channel = 'email') = (sender is not null)),
    constraint texts_bounded       check (length(kind) <= 255 and length(sender) <= 320 and length(quiet) <= 100),
    constraint dashboard_plain     check (dashboard ~ '^https?://[^/?#[:space:]]' and position('@' in dashboard) = 0 and length(dashboard) <= 2000),
    constraint escalation_whole    check ((escalate_after is null) = (escalation is null) and escalation <> name is not false),
    constraint escalation_bounded  check (escalate_after between 1 and 2592000),
    constraint health_known        check (health in ('ok', 'warn', 'critical')),
    constraint set_by_named        check (ascii(set_by) > 32)
);
