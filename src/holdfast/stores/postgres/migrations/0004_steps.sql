-- Durable steps, application events and approval gates.

-- One durable call of a handler: a step, a sleep, a wait for an event, an approval. `n` is its place in the order of
-- the handler's calls, from 1 (0 is the gate before the handler). Written once; one that is not over yet (a wait, a
-- step to be tried again) has no ended_at, and is finished later by a second write.
create table step (
    job_id     uuid        not null,
    n          integer     not null,
    tenant     text        not null,
    name       text        not null,
    kind       text        not null,
    value      json,
    error      json,                     -- {"type", "message"}: it failed, and its handler went on
    tries      smallint    not null default 1,
    attempt    integer     not null,
    started_at timestamptz not null,
    wake_at    timestamptz,              -- when a sleep is over, a wait given up, a try made
    ended_at   timestamptz,
    -- Of a wait: the names an event must have, and their values (48_steps.sql). As text: conditions on arrays and
    -- documents cannot use an index under row-level security.
    shape      text,
    wanted     text,
    primary key (job_id, n),
    constraint n_counted check (n >= 0),
    constraint kind_known check (kind in ('step', 'sleep', 'event', 'approval', 'patch')),
    constraint tries_counted check (tries >= 1),
    constraint wanted_of_event check (wanted is null or kind = 'event')
);
-- Who waits for an event of this name, by what it must have: an event finds its waits without reading the others.
create index waiting on step (tenant, name, shape, wanted) where kind = 'event' and ended_at is null;

-- What applications tell: facts that jobs may wait for. Not the ledger, which is about jobs.
create table app_event (
    id      uuid        not null primary key,
    tenant  text        not null,
    name    text        not null,
    data    json        not null,
    key     text,                        -- sent twice with the same key, it is one event
    job_id  uuid,                        -- meant for this job alone
    sent_by text        not null,
    sent_at timestamptz not null,
    constraint name_named check (ascii(name) > 32 and length(name) <= 100),
    constraint tenant_named check (ascii(tenant) > 32 and tenant <> '*'),
    constraint data_is_object check (json_typeof(data) = 'object')
);
create index app_event_by_name on app_event (tenant, name, sent_at, id);
create unique index app_event_by_key on app_event (tenant, name, key) where key is not null;

-- A question to people. The job that asked waits in waiting_for_approval and names it.
create table gate (
    id            uuid        not null primary key,
    tenant        text        not null,
    job_id        uuid        not null,
    n             integer     not null,
    name          text        not null,
    summary       text        not null,
    data          json,
    form          json,                  -- what an approval must say: a JSON schema
    approvers     text[]      not null default '{}',    -- empty: anybody
    quorum        smallint    not null default 1,
    requester     text        not null,
    not_requester boolean     not null default false,
    on_deny       text        not null default 'fail',
    on_expire     text        not null default 'deny',
    expires_in    interval,
    expires_at    timestamptz,
    remind_every  interval,
    remind_at     timestamptz,
    reminders     integer     not null default 0,
    escalate_at   timestamptz,
    escalate_to   text[]      not null default '{}',
    escalated_at  timestamptz,
    notify        text,                  -- the kind of job that tells people about it
    content_hash  text        not null,  -- of what is asked: what tokens are bound to
    state         text        not null default 'open',
    opened_at     timestamptz not null,
    decided_at    timestamptz,
    constraint state_known check (state in ('open', 'approved', 'denied', 'expired', 'withdrawn')),
    constraint decided_iff_closed check ((state = 'open') = (decided_at is null)),
    constraint quorum_possible check (quorum between 1 and 100
        and (approvers = '{}' or quorum <= cardinality(approvers) + cardinality(escalate_to))),
    constraint on_deny_known check (on_deny in ('fail', 'resume')),
    constraint on_expire_known check (on_expire in ('deny', 'approve', 'remind')),
    constraint expiry_whole check ((expires_at is null) = (expires_in is null)),
    constraint reminders_whole check ((remind_at is null) = (remind_every is null))
);
-- The inbox, in pages: ids are UUIDv7 and sort by when the question was asked.
create index gate_inbox on gate (tenant, id) where state = 'open';
create unique index asked_once on gate (job_id) where state = 'open';   -- a job waits for one at a time
create index gate_by_job on gate (job_id, id);
create index gate_by_state on gate (tenant, state, id);
-- What a duty has to look at next.
create index gate_due on gate (least(expires_at, remind_at, escalate_at)) where state = 'open';

-- What people said. One word a person and gate.
create table vote (
    gate_id uuid        not null,
    tenant  text        not null,
    person  text        not null,
    verdict text        not null,
    how     text        not null,
    comment text,
    data    json,
    at      timestamptz not null,
    primary key (gate_id, person),
    constraint person_named check (ascii(person) > 32 and length(person) <= 255),
    constraint verdict_known check (verdict in ('approve', 'deny')),
    constraint how_named check (ascii(how) > 32)
);

-- Tokens that decide a gate for whoever holds them: only their hashes, and each works once.
create table gate_token (
    hash       text        not null primary key,
    tenant     text        not null,
    gate_id    uuid        not null,
    person     text,                     -- whose it is; null: whoever holds it says who they are
    issued_by  text        not null,
    issued_at  timestamptz not null,
    expires_at timestamptz,
    used_at    timestamptz
);
create index gate_token_by_gate on gate_token (gate_id);

-- A job that waits for people can pass its deadline, too.
drop index past_deadline;
create index past_deadline on job_state (deadline_at)
    where deadline_at is not null and state in ('queued', 'retry_waiting', 'waiting_for_approval');
