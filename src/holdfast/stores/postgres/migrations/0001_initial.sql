-- The schema, ordered by feature. The migration runner has set search_path to the chosen schema, so nothing here names it.
--
--     job         facts of a job. Written once, never updated by the hot path.
--     job_state   its current state. Narrow; one row per job; every index on it is partial or the key.
--     event       the ledger: one row per transition, written by triggers, never by hand.
--     lease       one row per worker process; a job names the lease that holds it.
--
-- Clients insert into `job` only; triggers create the state row and the first event (job_insert.sql), and a statement trigger
-- checks and records updates of `job_state` (transition.sql). There is no foreign key between job, job_state and event: a row
-- trigger per key and row costs more than the whole ledger (docs/adr/0001). Triggers keep their rows consistent.
--
-- The comment directly above a table and the one beside a column become their comments in the database (table_text.py). These
-- columns mean the same wherever nothing else is written beside them:
--
--     id               Unique id, a UUIDv7: ids sort by creation.
--     tenant           Tenant that the row belongs to; * stands for every tenant.
--     job_id           Job that the row belongs to.
--     kind             Kind of job.
--     queue            Queue of the job.
--     name             Name, unique within its tenant.
--     created_at       When the row was created.
--     created_by       Who created it.
--     updated_at       When it was last changed.
--     updated_by       Who changed it last.
--     set_by           Who set it last.
--     at               When it happened.
--     actor            Who did it.
--     attempt          Number of the attempt, from 1.
--     n                Position of the durable call in its handler, from 1; 0 is the approval before the handler.
--     xid              Transaction that wrote the row.
--     disabled_at      When it was disabled; null while it is enabled.
--     disabled_by      Who disabled it.
--     disabled_reason  Why it was disabled.
--     error_code       Stable code of the error.
--     error_message    Message of the error.
--     agent            Agent that owns the job: a named owner, not an AI agent.
--     correlation_id   Id that ties jobs of one business case together.
--     workflow_id      Workflow that the job belongs to.
--     approval_id      Approval that the row belongs to.
--     enqueued_by      Who enqueued it.
--     source_system    Program or service that enqueued it.
--     max_attempts     Maximum number of attempts, the first included; 1 to 101.
--     max_crashes      Number of lost workers or processes before the job becomes a dead letter.
--     backoff          Delay between retries: base, factor, cap and jitter, in seconds.
--     priority         Higher runs first.
--     deadline_at      A job that has not started by then fails with deadline_passed.
--     expires_at       When it expires; null: never.
--     finished_at      When it ended; null before.
--     started_at       When it started.
--     reason           Why, as the operator gave it.
--     declared_by      Program whose code declares it; null or empty: an operator set it.
--     job_options      Options of the jobs it makes, as JSON: queue, priority, retry and so on.
--     options          Options of the jobs it makes, as JSON: queue, priority, retry and so on.
--     version          Release of Holdfast that wrote the row.
--     held             Never set: the table is only locked.
--     executor         Label of the workers that may run the job; null: any.
--     description      Description for people.
--     set_at           When it was set.

-- --- Jobs, their states and their ledger ---

-- Text, not an enum: under row-level security a condition can use an index only if its operator is leakproof. The operators of
-- text are, those of enums are not. Listing by state would read every job of the tenant.
create domain state as text collate "C" constraint state_known check (value in (
    'queued', 'leased', 'in_progress', 'succeeded', 'failed', 'retry_waiting',
    'dead_letter', 'cancelled', 'cleaned', 'waiting_for_approval'
));

create sequence position_seq;
create sequence event_seq;

-- The rules for rows of job and job_state are checked by the triggers that read the rows of each statement anyway, with plans
-- that are kept (job_insert.sql, transition.sql). PostgreSQL parses the text of a CHECK, and of a row trigger's WHEN, for every
-- statement; docs/adr/0006 has the cost of each rule. The trigger on updates of job_state also fires where others are off
-- (session_replication_role = replica).

-- Facts of a job. Written once and never changed, except by retention, re-encryption and audited replacement.
create table job (
    id               uuid        not null primary key,
    tenant           text        not null,
    kind             text        not null,
    queue            text        not null default 'default',
    payload          json        not null default '{}',   -- Arguments of the handler as sent: jsonb would change 1e23.
    priority         smallint    not null default 0,
    run_at           timestamptz,                         -- Earliest start that the producer requested.
    deadline_at      timestamptz,
    max_attempts     smallint    not null default 10,
    max_crashes      smallint    not null default 3,
    backoff          jsonb,
    idempotency_key  text,                                -- Enqueueing again with the same kind and key returns this job.
    content_key      text,                                -- Hash of kind, tenant and payload, for deduplication by content.
    tags             text[]      not null default '{}',   -- Tags, also in job_tag.
    agent            text,
    correlation_id   text,
    causation_id     text,                                -- Event or request that caused the job.
    parent_id        uuid,                                -- Job whose handler enqueued this one.
    workflow_id      uuid,
    external_ref     text,                                -- Id of the same work in another system; not checked.
    enqueued_by      text        not null,
    source_system    text        not null,
    created_at       timestamptz not null,                -- When it was enqueued, by the database's clock.
    uses             text[],                              -- Limits besides queue and kind: key:customer-7, resource:gpu-0.
    -- These are null for nearly every job and take no space.
    retry_as         text,                                -- new_job: a retry is a new job that names this one in retry_of.
    retry_of         uuid,                                -- Failed job that this one retries.
    depth            smallint,                            -- Number of subscriptions in the chain that led to it.
    executor         text                                 -- Only workers with this label may run it; null: every worker.
);
create index job_by_external_ref on job (tenant, external_ref, id) where external_ref is not null;
-- Ascending, although lists show the newest first (ids are UUIDv7 and sort by creation): new ids go to the end of an index and
-- fill its pages. A scan for the newest runs backwards. Lists of all jobs of a tenant use the index by state.
-- No deduplication where keys are unique: the server would search each full page for equal keys before splitting it, which is
-- about 4 % of the cost of enqueueing in bulk (docs/adr/0025).
create index job_by_kind on job (tenant, kind, id) with (deduplicate_items = off);
create index job_by_queue on job (tenant, queue, id) with (deduplicate_items = off);
create index job_by_agent on job (tenant, agent, id) where agent is not null;
create index job_by_executor on job (tenant, executor, id) where executor is not null;
create index job_by_correlation on job (tenant, correlation_id, id) where correlation_id is not null;
create index job_by_parent on job (tenant, parent_id, id) where parent_id is not null;
create index job_by_workflow on job (tenant, workflow_id, id) where workflow_id is not null;
create unique index retried_once on job (retry_of) where retry_of is not null;

-- Tags of jobs, their labels with any value, and their limit keys, for listing by them. A separate table, newest first like
-- the rest: array operators cannot use an index under row-level security. Besides the tags it has `name:*` for each label and
-- ` key:…` for the limit key (tag_entries).
create table job_tag (
    tenant text not null,
    tag    text not null,   -- One tag.
    job_id uuid not null,
    primary key (tenant, tag, job_id)
);

-- Current state of a job: the one row per job that changes. Triggers check each change and write it to event.
create table job_state (
    -- A job's row is written three times before it rests, and each time the primary key gets another entry next to the last. A
    -- half-empty leaf page has space for them; a full one was searched for dead entries again and again and then split, for a
    -- twenty-fifth of the server's work per job.
    id             uuid        not null primary key with (fillfactor = 50),   -- Id of the job.
    tenant         text        not null,
    kind           text        not null,
    queue          text        not null,
    state          state       not null,             -- State; see docs/reference/states.md.
    priority       smallint    not null,
    position       bigint      not null,             -- Order among jobs of the same queue and priority; lower runs first.
    attempt        integer     not null default 0,   -- Number of attempts that have started.
    retries        smallint    not null default 0,   -- Number of failures that were given another attempt.
    crashes        smallint    not null default 0,   -- Number of lost workers or processes.
    max_attempts   smallint    not null,
    max_crashes    smallint    not null,
    due_at         timestamptz,                      -- Cannot be claimed before; null: can be claimed now, or is not waiting.
    deadline_at    timestamptz,
    lease          uuid,                             -- Lease that holds the job; null unless leased or in progress.
    settled_by     uuid,                             -- Lease that ended the last attempt.
    approval_id        uuid,                         -- Approval that the job waits for.
    started_at     timestamptz,                      -- When the last attempt started.
    finished_at    timestamptz,
    error_code     text,
    error_message  text,
    note           jsonb,                            -- Context of the last transition, copied into its event.
    agent          text,                             -- As in job: a claim must know it before it reads `job`.
    workflow_id    uuid,                             -- As in job: the trigger that sees it end needs no other read.
    held_by        text,                             -- Full limit that a parked job waits for; see `bucket`.
    executor       text                              -- As in job: a claim must know it before it reads `job`.
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
create index claimable on job_state (queue, priority desc, position, id) with (deduplicate_items = off)
    where state = 'queued' and due_at is null;
create index not_yet_due on job_state (due_at) where due_at is not null and state in ('queued', 'retry_waiting');
-- Few jobs are held, and `held` finds them: entering and leaving by_state too was a sixth of the cost of a job. The predicates
-- use states because readers may not see leases.
create index by_state on job_state (tenant, state, id) with (deduplicate_items = off)
    where state not in ('leased', 'in_progress');
create index held on job_state (lease) where state in ('leased', 'in_progress');
create index waiting_by_agent on job_state (tenant, agent, due_at, id)
    where agent is not null and state in ('queued', 'retry_waiting');
-- Health checks read which labels waiting jobs name.
create index claimable_by_executor on job_state (executor, tenant)
    where executor is not null and state = 'queued' and due_at is null;
create index past_deadline on job_state (deadline_at)
    where deadline_at is not null and state in ('queued', 'leased', 'retry_waiting', 'waiting_for_approval');
-- The positions of waiting jobs that are not due. Those of due jobs are in `claimable`; moving a job reads both, and jobs that
-- never wait for a time are not in this index.
create index postponed on job_state (queue, priority desc, position, id)
    where due_at is not null and state in ('queued', 'retry_waiting');
create index parked on job_state (held_by, priority desc, position, id)
    where held_by is not null and due_at is not null and state = 'queued';

-- The ledger: one row per transition, written by triggers, never changed. Read it in commit order with read_events.
create table event (
    seq      bigint      not null default nextval('event_seq'),   -- Number; may become visible out of order: use read_events.
    xid      bigint      not null default pg_current_xact_id()::text::bigint,
    job_id   uuid        not null,
    tenant   text        not null,
    kind     text        not null,
    type     text        not null,   -- What happened: enqueue, take, succeed, fail and so on.
    from_state state,                -- State before; null for enqueue.
    to_state   state     not null,   -- State after.
    attempt  integer     not null,
    at       timestamptz not null,
    actor    text        not null,
    meta     jsonb,                  -- Context: error, retry time, reason, approval.
    primary key (job_id, seq)
) partition by range (job_id);
create index event_by_seq on event (seq) with (deduplicate_items = off);
-- Finds the rows of a few transactions that committed late: cheap to maintain, since both columns only grow. The server keeps
-- 256 requests to summarize a range until autovacuum runs, and logs each one beyond: that is 256 MB of events.
create index event_by_xid on event using brin (xid) with (pages_per_range = 128, autosummarize = on);

-- The ledger is partitioned by job id, which begins with the creation time of the job. All events of a job are in one
-- partition, and the events of jobs from the same days are deleted together, with their files (docs/adr/0018). Events of jobs
-- without a partition are in `event_rest`.
create table event_rest partition of event default;

-- The partitions of `event` except the default. Boundaries are ids without randomness, that is, times.
create table event_partition (
    name      text        not null primary key,       -- Name of the partition.
    low       uuid        not null unique,            -- Smallest job id in it.
    high      uuid        not null,                   -- First job id after it.
    check_at  timestamptz not null default 'epoch',   -- When maintenance considers it for removal again.
    announced bigint,                                 -- Action that announces its removal; null: none.
    constraint ordered check (low < high)
);
-- One purge at a time.
create unique index event_partition_announced on event_partition ((true)) where announced is not null;

-- Idempotency keys and the job that each of them returned. (tenant, kind, key) is unique for ever; `job` can then be
-- partitioned by time without losing uniqueness.
create table idempotency (
    tenant       text not null,
    kind         text not null,
    key          text not null,   -- The key.
    job_id       uuid not null,
    payload_hash text not null,   -- SHA-256 of the payload; another payload under the same key is a conflict.
    primary key (tenant, key, kind)   -- lists find a job by its key alone
);

-- The last job enqueued for a content key. Whether it is still active is read from job_state while this row is locked.
create table content (
    tenant text not null,
    key    text not null,   -- The content key.
    job_id uuid not null,
    primary key (tenant, key)
);

-- Result of a succeeded job.
create table result (
    job_id  uuid  not null primary key,
    tenant  text  not null,
    value   json,   -- Result as it was given: jsonb would change numbers (docs/adr/0005). Null: stored elsewhere.
    ref     text,   -- Reference to a result in the artifact store.
    constraint something check (value is not null or ref is not null)
);

-- Progress that a handler saved, by name; the next attempt starts from it.
create table checkpoint (
    job_id   uuid        not null,
    tenant   text        not null,
    name     text        not null,
    value    json        not null,             -- What was saved, as JSON text.
    attempt  integer     not null,
    saved_at timestamptz not null,             -- When it was saved.
    saves    integer     not null default 1,   -- How often it was saved in this attempt.
    primary key (job_id, name)
);

-- Files that attempts produced.
create table artifact (
    job_id   uuid        not null,
    tenant   text        not null,
    attempt  integer     not null,
    name     text        not null,
    ref      text        not null,   -- Where the file is.
    meta     jsonb,                  -- Size, content type and other facts.
    at       timestamptz not null,
    primary key (job_id, attempt, name)
);

-- The log of an attempt, in parts: lines that the handler wrote with ctx.log (encrypted if keys are set), or the reference of
-- a program's output. Written while the attempt runs.
create table attempt_log (
    job_id  uuid        not null,
    tenant  text        not null,
    attempt integer     not null,
    n       integer     not null,   -- Number of the part, from 1.
    at      timestamptz not null,   -- When the part was written.
    lines   text,                   -- Lines of text.
    ref     text,                   -- Where the output is.
    primary key (job_id, attempt, n),
    constraint lines_or_ref  check ((lines is null) <> (ref is null)),
    constraint part_bounded  check (octet_length(lines) <= 200000 and length(ref) <= 4000),
    constraint number_bounded check (n between 1 and 100000)
);

-- --- Leases, and what claims read first ---

-- Leases of workers. A running job belongs to a lease; when it expires, other workers take the job over.
create table lease (
    id         uuid        not null primary key,
    tenant     text        not null,             -- The scope its jobs were claimed in; '*' is every tenant.
    name       text        not null,             -- Label of the worker.
    holder     text        not null,             -- Host, process id and start of the worker.
    until      timestamptz not null,             -- When the lease expires unless it is renewed.
    opened_at  timestamptz not null,             -- When the worker started.
    renewed_at timestamptz not null,             -- Last heartbeat.
    renewals   integer     not null default 0,   -- Number of heartbeats.
    ended_at   timestamptz,                      -- When it ended; null while it is alive.
    ended_why  text,                             -- Why it ended.
    swept_at   timestamptz,                      -- When the last of its jobs was taken over.
    kinds      text[],                           -- Kinds that the worker has handlers for; null: unknown.
    queues     text[],                           -- Queues that it serves; null: unknown.
    slots      integer,                          -- Number of jobs it runs at a time; null: unknown.
    version    text,                             -- Release of Holdfast that the worker runs.
    stop_request      text                       -- drain or stop: an operator requests that the worker stops.
        check (stop_request in ('drain', 'stop')),
    stop_requested_at timestamptz,               -- When the operator requested it.
    stop_requested_by text,                      -- Who requested it.
    constraint name_named check (ascii(name) > 32),
    constraint holder_named check (ascii(holder) > 32),
    constraint why_iff_ended check ((ended_at is null) = (ended_why is null))
);
create index lease_live on lease (until) where ended_at is null;
create index lease_unswept on lease (ended_at) where ended_at is not null and swept_at is null;

-- How often a job was taken from a lease (cancelled): its worker reads this one row instead of its jobs. Not a column of the
-- lease, which may belong to another tenant (`*`) than the caller that cancels.
create table cancellation (
    lease uuid    not null primary key,   -- The lease.
    times integer not null                -- How often.
);

-- Jobs whose end a caller is waiting for. Only for these is a notification sent.
create table watch (
    job_id uuid        not null primary key,
    tenant text        not null,
    until  timestamptz not null   -- When the caller stops waiting.
);
create index watch_until on watch (until);

-- One row of switches that a claim and an enqueue read first: nothing is limited, reserved or ruled until it says so.
create table dispatch (
    id      boolean not null primary key default true check (id),   -- Always true: there is one row.
    limited boolean not null default false,           -- Whether there are limits or reservations.
    swept   text    not null default '',              -- Where the last pass over parked jobs ended.
    ruled      boolean not null default false,        -- Whether an enqueue must check payload rules, caps or pauses.
    capped     boolean not null default false,        -- Whether a tenant has a cap on waiting jobs: transitions are counted.
    fair       text[],                                -- Queues that tenants share fairly; * is all, then -mail all but mail.
    fair_auto  boolean not null default true,         -- Whether all are shared once a second tenant has jobs.
    registered boolean not null default false,        -- Whether only registered tenants may have jobs.
    -- Policies of the deployment (features/registry).
    unknown_kinds   text    not null default 'accept'   -- What happens with kinds that are not registered.
        check (unknown_kinds in ('accept', 'warn', 'refuse')),
    unknown_agents  text    not null default 'accept'   -- The same for agents.
        check (unknown_agents in ('accept', 'warn', 'refuse')),
    unknown_events  text    not null default 'accept'   -- The same for event types.
        check (unknown_events in ('accept', 'warn', 'refuse')),
    listed_only     boolean not null default false,   -- Whether only listed executors may claim while the list is empty.
    tenant_required boolean not null default false,   -- Whether jobs without a tenant are refused.
    running_counts  boolean not null default false,   -- Whether running jobs count against a tenant's cap.
    required        text[]  not null default '{}',    -- Facts that jobs must have: 'key *', 'agent tenant:acme'.
    -- Any login of the database may LISTEN (notify.sql).
    signal_key   text  not null default gen_random_uuid()::text,   -- Key of the hashes that are sent as notifications.
    payload_salt text  not null default gen_random_uuid()::text    -- Salt of the hashes by which payloads are searched.
);
insert into dispatch default values;

-- Jobs whose rows the database refuses to move: claims skip them until then, so that they block no other job.
create table quarantine (
    job_id uuid        primary key,
    tenant text        not null,
    why    text        not null,   -- Message of the database.
    at     timestamptz not null,
    until  timestamptz not null    -- When it is tried again.
);

-- --- Steps and application events ---

-- One durable call of a handler: a step, a sleep, a wait for an event, an approval. `n` is its position among the handler's
-- calls, from 1 (0 is the approval before the handler). Written once; a call that has not finished (a wait, a step to be
-- retried) has no ended_at and is finished by a second write.
create table step (
    job_id     uuid        not null,
    n          integer     not null,
    tenant     text        not null,
    name       text        not null,             -- Name of the call in its handler.
    kind       text        not null,             -- step, sleep, event, approval or patch.
    value      json,                             -- Recorded result, as JSON text.
    error      json,                             -- Recorded error of a step whose handler continued: {"type", "message"}.
    tries      smallint    not null default 1,   -- How often it was tried.
    attempt    integer     not null,
    started_at timestamptz not null,
    wake_at    timestamptz,                      -- When the sleep ends, the wait is given up, or the step is tried again.
    ended_at   timestamptz,                      -- When it was recorded as done; null before.
    -- As text: conditions on arrays and documents cannot use an index under row-level security.
    shape      text,                             -- Of a wait: the keys that the event must have.
    wanted     text,                             -- Of a wait: the values of those keys.
    primary key (job_id, n),
    constraint n_counted check (n >= 0),
    constraint kind_known check (kind in ('step', 'sleep', 'event', 'approval', 'patch')),
    constraint tries_counted check (tries >= 1),
    constraint wanted_of_event check (wanted is null or kind = 'event')
);
-- Waits for an event of this name, by what they match on: an event finds its waits without reading the others.
create index waiting on step (tenant, name, shape, wanted) where kind = 'event' and ended_at is null;

create sequence app_event_seq;

-- Events that applications send and jobs can wait for. Separate from the ledger, which is about jobs.
create table app_event (
    id      uuid        not null primary key,
    tenant  text        not null,
    name    text        not null,
    data    json        not null,   -- Contents of the event, a JSON object.
    key     text,                   -- Sent twice with the same key, it is one event.
    job_id  uuid,                   -- Job that it is meant for; null: any.
    sent_by text        not null,   -- Who sent it.
    sent_at timestamptz not null,   -- When it was sent.
    seq     bigint      not null default nextval('app_event_seq'),   -- Number, for reading in commit order.
    xid     bigint      not null default pg_current_xact_id()::text::bigint,
    cause_id uuid,                  -- Job whose handler sent it.
    constraint name_named check (ascii(name) > 32 and length(name) <= 100),
    constraint tenant_named check (ascii(tenant) > 32 and tenant <> '*'),
    constraint data_is_object check (json_typeof(data) = 'object')
);
create index app_event_by_name on app_event (tenant, name, sent_at, id);
create unique index app_event_by_key on app_event (tenant, name, key) where key is not null;
create unique index app_event_in_order on app_event (seq);
create index app_event_by_xid on app_event (xid);
create index app_event_by_job on app_event (job_id) where job_id is not null;

-- Waits for an event that may have been sent while they began: they are checked again (recheck_waits, steps.sql).
create table unsure_wait (
    job_id   uuid        not null,
    n        integer     not null,
    tenant   text        not null,
    since    timestamptz not null,   -- Events from this time on count.
    bound    bigint,                 -- Transactions from this one on see the wait.
    check_at timestamptz not null,   -- When it is checked again.
    primary key (job_id, n)
);
create index unsure_wait_due on unsure_wait (check_at);

-- Jobs that the database itself creates and that nothing may refuse, while they are being inserted (enqueue_notice). Otherwise
-- empty.
create table owed (
    job_id uuid not null primary key
);

-- --- The clock, the migrations, locks ---

-- The clock of the schema. One row. Tests shift or stop it; otherwise it is the server's own.
create table clock (
    id      boolean  not null primary key default true check (id),   -- Always true: there is one row.
    shift   interval not null default '0',   -- Added to the server's time.
    stopped timestamptz                      -- Fixed time; null: the clock runs.
);
insert into clock default values;

-- Applied migrations, and a digest of the code that was installed over them.
create table migration (
    name       text        not null primary key,                -- Name of the migration or code file.
    digest     text        not null,                            -- SHA-256 of its text.
    applied_at timestamptz not null default clock_timestamp()   -- When it was applied.
);

-- Tables that are locked as a whole and stay empty. Waiters for a table lock queue in order, and the lock gives its
-- transaction no id.
create table lock_dispatch (held boolean);
create table lock_seal (held boolean);
create table lock_subscription_0 (held boolean);
create table lock_subscription_1 (held boolean);
create table lock_subscription_2 (held boolean);
create table lock_subscription_3 (held boolean);
create table lock_subscription_4 (held boolean);
create table lock_subscription_5 (held boolean);
create table lock_subscription_6 (held boolean);
create table lock_subscription_7 (held boolean);

-- Rows that are locked one by one (locks.sql lists their uses). Never changed, so locking one leaves no dead row.
create table mutex (
    n integer not null primary key   -- Number of the lock; see locks.sql.
);
insert into mutex select generate_series(0, 5247);

-- --- Agents and executors ---

-- Registered agents: named owners of jobs with their defaults.
create table agent (
    tenant            text             not null,
    id                text             not null,                 -- Id that jobs name.
    name              text             not null,                 -- Name for people.
    kind              text,                                      -- Only kind that its jobs may have; null: any.
    max_attempts      smallint,                                  -- Maximum number of attempts; null: the kind's own.
    max_crashes       smallint,
    backoff           jsonb,
    max_payload_bytes integer,                                   -- Largest payload of its jobs.
    max_wait          double precision,                          -- Maximum seconds from when a job may start until it starts.
    requires_approval boolean          not null default false,   -- Whether its jobs need an approval before they start.
    disabled_at       timestamptz,
    disabled_by       text,
    disabled_reason   text,
    created_at        timestamptz      not null,
    updated_at        timestamptz      not null,
    primary key (tenant, id),
    constraint tenant_named       check (ascii(tenant) > 32 and length(tenant) <= 100 and tenant <> '*'),
    constraint id_named           check (ascii(id) > 32 and length(id) <= 255),
    constraint name_named         check (ascii(name) > 32 and length(name) <= 255),
    constraint kind_named         check (ascii(kind) > 32 and length(kind) <= 100),
    constraint attempts_bounded   check (max_attempts between 1 and 101),
    constraint crashes_bounded    check (max_crashes between 0 and 100),
    constraint backoff_is_object  check (jsonb_typeof(backoff) = 'object'),
    constraint payload_bounded    check (max_payload_bytes between 2 and 1073741824),
    constraint wait_bounded       check (max_wait between 0.001 and 3153600000),
    constraint disabled_by_whom   check ((disabled_at is null) = (disabled_by is null)),
    constraint disabled_for_what  check ((disabled_at is null) = (disabled_reason is null)),
    constraint disabled_by_named  check (ascii(disabled_by) > 32),
    constraint reason_given       check (disabled_reason ~ '\S')
);

-- Kinds of jobs that the deployment knows, for all tenants.
create table registered_kind (
    name        text        not null primary key,   -- The kind.
    tenant      text        not null default '*',
    description text,
    set_by      text        not null,
    set_at      timestamptz not null,
    domain      text,                               -- Domain that it and its jobs belong to.
    constraint name_named          check (ascii(name) > 32 and length(name) <= 100),
    constraint of_all              check (tenant = '*'),
    constraint domain_named        check (ascii(domain) > 32 and length(domain) <= 100),
    constraint description_bounded check (length(description) <= 1000)
);
create index registered_kind_by_domain on registered_kind (domain, name) where domain is not null;
-- Event types that the deployment knows, for all tenants.
create table registered_event (
    name        text        not null primary key,   -- The event type.
    tenant      text        not null default '*',
    domain      text,                               -- Domain that it belongs to.
    schema      jsonb,                              -- JSON schema of its data.
    description text,
    set_by      text        not null,
    set_at      timestamptz not null,
    constraint name_named          check (ascii(name) > 32 and length(name) <= 255),
    constraint of_all              check (tenant = '*'),
    constraint domain_named        check (ascii(domain) > 32 and length(domain) <= 100),
    constraint schema_object       check (jsonb_typeof(schema) = 'object'),
    constraint description_bounded check (length(description) <= 1000)
);
-- Names that were accepted with a warning, each once.
create table unregistered_name (
    tenant   text        not null,
    registry text        not null check (registry in ('kind', 'agent', 'event type')),   -- kind, agent or event type.
    name     text        not null,   -- The name.
    first_at timestamptz not null,   -- When it was first used.
    primary key (tenant, registry, name)
);

-- Labels of workers that may claim jobs, or that may only generate work. Empty: every worker may claim, unless
-- `dispatch.listed_only`. One list for all tenants.
create table executor (
    label    text        not null primary key,   -- Label of the worker.
    tenant   text        not null default '*',
    role     text        not null,               -- executor: may claim; generator: may not.
    added_by text        not null,               -- Who added it.
    added_at timestamptz not null,               -- When it was added.
    constraint label_named  check (ascii(label) > 32 and length(label) <= 100),
    constraint of_all       check (tenant = '*'),
    constraint role_known   check (role in ('executor', 'generator'))
);

-- --- Approvals ---

-- A request for approval. The job that asked waits in waiting_for_approval and names it.
create table approval (
    id            uuid        not null primary key,
    tenant        text        not null,
    job_id        uuid        not null,
    n             integer     not null,
    name          text        not null,                  -- Name of the approval in its handler.
    summary       text        not null,                  -- Question that people read.
    data          json,                                  -- Facts for the decision, as JSON.
    form          json,                                  -- JSON schema of the data of a decision.
    approvers     text[]      not null default '{}',     -- Who may decide; empty: anyone.
    quorum        smallint    not null default 1,        -- Number of approvals that are needed.
    requester     text        not null,                  -- Who requested it.
    not_requester boolean     not null default false,    -- Whether the requester may not approve.
    token_only    boolean     not null default false,    -- Whether only the holder of a token can decide it.
    on_deny       text        not null default 'fail',   -- fail: the job fails; resume: the handler gets the denial.
    on_expire     text        not null default 'deny',   -- deny, approve or remind.
    expires_in    interval,                              -- Time to decide.
    expires_at    timestamptz,
    remind_every  interval,                              -- Time between reminders.
    remind_at     timestamptz,                           -- Next reminder.
    reminders     integer     not null default 0,        -- Number of reminders sent.
    escalate_at   timestamptz,                           -- When it is escalated to more people.
    escalate_to   text[]      not null default '{}',     -- People that it is escalated to.
    escalated_at  timestamptz,                           -- When it was escalated.
    notify        text,                                  -- Kind of job that notifies people.
    content_hash  text        not null,                  -- SHA-256 of the question; tokens are bound to it.
    state         text        not null default 'open',   -- open, approved, denied, expired or withdrawn.
    opened_at     timestamptz not null,                  -- When it was requested.
    decided_at    timestamptz,                           -- When it was decided.
    constraint state_known check (state in ('open', 'approved', 'denied', 'expired', 'withdrawn')),
    constraint decided_iff_closed check ((state = 'open') = (decided_at is null)),
    constraint quorum_possible check (quorum between 1 and 100
        and (approvers = '{}' or quorum <= cardinality(approvers) + cardinality(escalate_to))),
    constraint on_deny_known check (on_deny in ('fail', 'resume')),
    constraint on_expire_known check (on_expire in ('deny', 'approve', 'remind')),
    constraint token_approves check (not (token_only and on_expire = 'approve')),
    constraint expiry_whole check ((expires_at is null) = (expires_in is null)),
    constraint reminders_whole check ((remind_at is null) = (remind_every is null))
);
-- The inbox, in pages: ids are UUIDv7 and sort by the time of the request.
create index approval_inbox on approval (tenant, id) where state = 'open';
create unique index asked_once on approval (job_id) where state = 'open';   -- a job waits for one at a time
create index approval_by_job on approval (job_id, id);
create index approval_by_state on approval (tenant, state, id);
-- Approvals that maintenance has to process next.
create index approval_due on approval (least(expires_at, remind_at, escalate_at)) where state = 'open';

-- Decisions of people. Where an approval has a form, a person may vote again with other values; the last vote counts.
create table vote (
    approval_id uuid        not null,
    tenant  text        not null,
    person  text        not null,             -- Who decided.
    verdict text        not null,             -- approve or deny.
    how     text        not null,             -- How: by token, command line, HTTP or dashboard.
    comment text,                             -- Comment of the person.
    data    json,                             -- Answers to the form, as JSON. Approvals count together if they are equal.
    at      timestamptz not null,
    n       smallint    not null default 1,   -- Number of the vote on its approval.
    primary key (approval_id, person, n),
    constraint person_named check (ascii(person) > 32 and length(person) <= 255),
    constraint verdict_known check (verdict in ('approve', 'deny')),
    constraint how_named check (ascii(how) > 32)
);

-- Tokens that let their holder decide an approval: only their hashes, and each works once.
create table approval_token (
    hash       text        not null primary key,   -- SHA-256 of the token.
    tenant     text        not null,
    approval_id    uuid        not null,
    person     text,                               -- Person it was issued for; null: the holder gives a name.
    issued_by  text        not null,               -- Who issued it.
    issued_at  timestamptz not null,               -- When it was issued.
    expires_at timestamptz,
    used_at    timestamptz                         -- When it was used.
);
create index approval_token_by_approval on approval_token (approval_id);

-- --- Connectors ---

-- Connector settings per tenant: allowed hosts, headers, and secrets by name only.
create table connector (
    tenant     text        not null,                -- One tenant; there are no settings for all.
    name       text        not null,                -- The connector, such as http.request.
    enabled    boolean     not null default true,   -- Whether jobs may use it.
    hosts      text[]      not null default '{}',   -- Hosts it may reach; empty: all that the egress rules allow.
    headers    jsonb       not null default '{}',   -- Headers added to requests; a value is text or {"secret": NAME}.
    secrets    text[]      not null default '{}',   -- Names of secrets that jobs may use.
    timeout    float8,                              -- Seconds for a request.
    max_bytes  integer,                             -- Largest response.
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

-- --- Webhooks ---

-- Receivers of events over HTTP. Each reads its events through its own subscriptions, webhook:<name> and webhook:<name>:app_events.
-- A secret is stored by name only.
create table webhook (
    id              uuid        not null primary key,
    tenant          text        not null,
    name            text        not null,
    url             text        not null,                -- Where messages are posted.
    secrets         text[]      not null,                -- Names of the signing secrets, newest first; each one signs.
    wants           text[]      not null,                -- Event types that it receives.
    kind            text,                                -- Kind of jobs whose events it receives; null: any.
    job_options     json        not null default '{}',   -- Options of its deliveries: queue, priority, retry, …
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
create unique index webhook_named on webhook (tenant, name);

-- The result of each attempt to deliver a message; the newest thousand of each webhook, for a month.
create table webhook_delivery (
    id          uuid        not null primary key,
    tenant      text        not null,
    webhook_id uuid        not null,    -- The webhook.
    message     text        not null,   -- Id of the message, the same in every attempt.
    type        text        not null,   -- Event type.
    job_id      uuid        not null,
    attempt     integer     not null,
    status      integer,                -- HTTP status of the answer; null: none.
    error_code  text,                   -- Stable code of the error; null: it was delivered.
    duration_ms integer     not null,   -- How long it took.
    excerpt     text,                   -- Beginning of the answer, redacted.
    at          timestamptz not null,
    constraint tenant_named    check (ascii(tenant) > 32 and length(tenant) <= 100 and tenant <> '*'),
    constraint status_of_http  check (status between 100 and 999),
    constraint answered        check (error_code is not null or (status is not null and status between 200 and 299)),
    constraint excerpt_bounded check (coalesce(length(excerpt), 0) <= 1000 and length(message) <= 200 and length(type) <= 200)
);
create index webhook_delivery_newest on webhook_delivery (webhook_id, id);

-- --- Limits, reservations, pauses and settings of queues ---

-- Concurrency and rate limits.
create table job_limit (
    tenant      text        not null,   -- Tenant whose jobs are counted; '*': those of every tenant together.
    scope       text        not null,   -- all, queue, kind, key, resource, agent or tenant.
    name        text        not null,   -- Which queue, kind and so on; *: each one separately. The scope `all` has only *.
    concurrency integer,                -- Maximum number of leased or running jobs.
    rate        integer,                -- Maximum starts per period.
    per         double precision,       -- Length of the period in seconds.
    burst       integer,                -- Starts that may happen at once after a pause.
    set_by      text        not null,
    created_at  timestamptz not null,
    updated_at  timestamptz not null,
    primary key (tenant, scope, name),
    constraint tenant_named     check (ascii(tenant) > 32 and length(tenant) <= 100),
    constraint scope_known      check (scope in ('all', 'queue', 'kind', 'key', 'resource', 'agent', 'tenant')),
    constraint name_named       check (ascii(name) > 32 and length(name) <= 255 and (scope <> 'all' or name = '*')),
    constraint limits_something check (concurrency is not null or rate is not null),
    constraint concurrency_bounded check (concurrency between 0 and 1000000),
    constraint rate_whole       check ((rate is null) = (per is null) and (rate is null) = (burst is null)),
    constraint rate_bounded     check (rate between 1 and 1000000 and per between 0.001 and 31622400 and burst between 1 and 1000000)
);

-- Jobs that occupy a concurrency limit. One row per held job and concurrency limit. Written with the claim, deleted with the
-- transition that frees the job.
create table occupied_slot (
    tenant text not null,
    scope  text not null,   -- Scope of the limit.
    name   text not null,   -- Name within the scope.
    job_id uuid not null,
    primary key (tenant, scope, name, job_id)
);
create index occupied_slot_by_job on occupied_slot (job_id);

-- Remaining starts of a rate limit; a limit without a row is full.
create table rate_meter (
    tenant  text             not null,
    scope   text             not null,   -- Scope of the limit.
    name    text             not null,   -- Name within the scope.
    tokens  double precision not null,   -- Starts that are left.
    at      timestamptz      not null,   -- When they were counted.
    wake_at timestamptz,                 -- When the next waiting job may start.
    primary key (tenant, scope, name)
);
create index rate_meter_wake on rate_meter (wake_at) where wake_at is not null;

-- Exclusive use of a queue, a kind or a resource: no job starts in its scope meanwhile.
create table reservation (
    id          uuid        not null primary key,
    tenant      text        not null,                     -- Tenant whose jobs are kept out; '*': every tenant's.
    scope       text        not null,                     -- all, queue or resource.
    name        text        not null,                     -- Which queue or resource.
    state       text        not null default 'waiting',   -- waiting, active, released, expired or withdrawn.
    holder      text        not null,                     -- Who holds it.
    reason      text,
    asked_at    timestamptz not null,                     -- When it was requested.
    reserved_at timestamptz,                              -- When it became active.
    expires_at  timestamptz not null,
    ended_at    timestamptz,                              -- When it ended.
    ended_by    text,                                     -- Who ended it.
    ended_why   text,                                     -- Why it ended.
    job_id      uuid,                                     -- Job that records its owner's work.
    constraint tenant_named  check (ascii(tenant) > 32 and length(tenant) <= 100),
    constraint scope_known   check (scope in ('all', 'queue', 'resource')),
    constraint name_named    check (ascii(name) > 32 and length(name) <= 255 and (scope <> 'all' or name = '*')),
    constraint holder_named  check (ascii(holder) > 32),
    constraint state_known   check (state in ('waiting', 'active', 'released', 'expired', 'withdrawn')),
    constraint ended_iff_over check ((state in ('released', 'expired', 'withdrawn')) = (ended_at is not null)),
    constraint why_iff_ended check ((ended_at is null) = (ended_why is null)),
    constraint active_since  check (state <> 'active' or reserved_at is not null)
);
-- Ensures one active reservation at a time.
create unique index reservation_active on reservation (tenant, scope, name) where state = 'active';
create index reservation_open on reservation (asked_at) where state in ('waiting', 'active');
create index reservation_by_tenant on reservation (tenant, asked_at);

-- Queues in which waiting raises the priority of a job.
create table queue_setting (
    tenant     text             not null,
    queue      text             not null,
    aging      double precision not null,               -- Seconds of waiting for one step.
    aging_step smallint         not null default 1,     -- How much one step adds to the priority.
    aging_most smallint         not null default 100,   -- Highest priority that waiting can reach.
    set_by     text             not null,
    updated_at timestamptz      not null,
    primary key (tenant, queue),
    constraint tenant_named check (ascii(tenant) > 32 and length(tenant) <= 100),
    constraint queue_named  check (ascii(queue) > 32 and length(queue) <= 100),
    constraint aging_bounded check (aging between 0.001 and 31622400),
    constraint step_bounded check (aging_step between 1 and 32767)
);

-- Pauses: of everything, a queue, a kind or an agent, for every tenant or one, until it is resumed or until a time. Resuming
-- deletes the row.
create table pause (
    tenant         text        not null,   -- Tenant whose jobs are paused; '*': every tenant's.
    scope          text        not null,   -- all, queue, kind or agent.
    name           text        not null,   -- Which one; the scope `all` has only *.
    reason         text        not null,
    refuse_enqueue boolean     not null,   -- Whether new jobs are refused too.
    set_by         text        not null,
    since          timestamptz not null,   -- When it began.
    until          timestamptz,            -- When it ends by itself; null: when someone resumes.
    primary key (tenant, scope, name),
    constraint tenant_named check (ascii(tenant) > 32 and length(tenant) <= 100),
    constraint scope_known  check (scope in ('all', 'queue', 'kind', 'agent')),
    constraint name_named   check (ascii(name) > 32 and length(name) <= 255 and (scope = 'all') = (name = '*')),
    constraint reason_given check (reason ~ '\S'),
    constraint set_by_named check (ascii(set_by) > 32),
    constraint until_later  check (until > since)
);

create type limited as (
    tenant text, scope text, name text, concurrency integer, rate integer, per double precision, burst integer
);

-- Jobs under the same limits: one of them as a sample, and all of them.
create type alike as (sample tid, jobs uuid[]);

-- --- Schedules and templates ---

-- Every version of every template. Rows never change: a change is a new version, and so is a removal.
create table template (
    tenant     text        not null,
    name       text        not null,
    version    integer     not null,                 -- Number of the version.
    kind       text        not null,
    payload    json        not null default '{}',    -- Default arguments.
    options    jsonb       not null default '{}',    -- Other options of its jobs: queue, priority, retry, …
    removed    boolean     not null default false,   -- Whether this version removes the template.
    created_by text        not null,
    created_at timestamptz not null,
    primary key (tenant, name, version),
    constraint tenant_named      check (ascii(tenant) > 32 and length(tenant) <= 100 and tenant <> '*'),
    constraint name_named        check (ascii(name) > 32 and length(name) <= 100),
    constraint version_counted   check (version >= 1),
    constraint kind_named        check (ascii(kind) > 32 and length(kind) <= 100),
    constraint payload_is_object check (json_typeof(payload) = 'object'),
    constraint options_is_object check (jsonb_typeof(options) = 'object'),
    constraint created_by_named  check (ascii(created_by) > 32)
);

-- When jobs are created by time. Schedules. Python computes their times; the row advances in the transaction that creates the
-- jobs.
create table schedule (
    id             uuid             not null primary key,
    tenant         text             not null,
    name           text             not null,
    state          text             not null default 'active',   -- active, paused or deleted.
    timing         text             not null,                    -- 0 9 * * MON-FRI, @daily, every 90s, at 2027-01-31 09:00.
    zone           text             not null,                    -- Time zone.
    kind           text             not null,
    template       text,                                         -- Template of the jobs.
    payload        json             not null default '{}',       -- Arguments of the jobs.
    options        jsonb            not null default '{}',
    missed         text             not null default 'once',     -- What happens with missed times: skip, once or all.
    overlap        text             not null default 'allow',    -- What happens while the last job runs: allow, skip or queue.
    jitter         double precision not null default 0,          -- Random delay in seconds.
    declared_by    text,                                         -- Program whose code declares it; null: an operator.
    declared_hash  text,                                         -- Hash of what the code said last.
    undeclared_at  timestamptz,                                  -- Since when the code no longer declares it.
    revision       integer          not null default 1,          -- Increases with each change.
    anchor_at      timestamptz      not null,                    -- What an interval counts from.
    next_fire_at   timestamptz,                                  -- Next time.
    attend_at      timestamptz,                                  -- When a worker must check it next; null: never.
    last_fire_at   timestamptz,                                  -- Last time that fired.
    problem        text,                                         -- Why it cannot fire.
    created_by     text             not null,
    created_at     timestamptz      not null,
    updated_by     text             not null,
    updated_at     timestamptz      not null,
    constraint tenant_named      check (ascii(tenant) > 32 and length(tenant) <= 100 and tenant <> '*'),
    constraint name_named        check (ascii(name) > 32 and length(name) <= 100),
    constraint state_known       check (state in ('active', 'paused', 'ended', 'deleted')),
    constraint timing_bounded    check (length(timing) between 1 and 200 and length(zone) between 1 and 100),
    constraint kind_named        check (ascii(kind) > 32 and length(kind) <= 100),
    constraint payload_is_object check (json_typeof(payload) = 'object'),
    constraint options_is_object check (jsonb_typeof(options) = 'object'),
    constraint missed_known      check (missed in ('skip', 'once', 'all')),
    constraint overlap_known     check (overlap in ('allow', 'skip', 'queue')),
    constraint jitter_bounded    check (jitter between 0 and 86400),
    constraint attended_iff_active check ((state = 'active') = (attend_at is not null))
);
create unique index schedule_name on schedule (tenant, name) where state <> 'deleted';
create index schedule_attend on schedule (attend_at) where attend_at is not null;
create index schedule_held on schedule (kind) where problem = 'unknown_kind';   -- until a worker knows the kind
create index schedule_declared on schedule (tenant, declared_by, name) where declared_by is not null;

-- The result of each time of a schedule. The key makes it unique, however many processes fire it.
create table fire (
    schedule_id   uuid        not null,                 -- The schedule.
    due_at        timestamptz not null,                 -- Time it was due.
    manual        boolean     not null default false,   -- Whether a person ran it.
    tenant        text        not null,
    status        text        not null,                 -- What came of it: a job, skipped, missed or refused.
    job_id        uuid,
    count         integer     not null default 1,       -- Number of missed times that the row stands for.
    since_at      timestamptz,                          -- First of them.
    error_code    text,
    error_message text,
    actor         text        not null,
    at            timestamptz not null,
    ended         boolean     not null default false,   -- Its job is known to have ended.
    primary key (schedule_id, due_at, manual),
    constraint status_known   check (status in ('fired', 'skipped', 'waiting', 'missed', 'failed')),
    constraint job_iff_made   check ((status in ('fired', 'skipped')) = (job_id is not null)),
    constraint error_iff_failed check ((status = 'failed') = (error_code is not null)),
    constraint missed_counted check (count >= 1 and (count = 1 or status = 'missed'))
);
create index fire_running on fire (schedule_id) where status = 'fired' and not ended;
create index fire_waiting on fire (schedule_id, due_at) where status = 'waiting';

-- Origin of a job: a template version, a time of a schedule.
create table made_from (
    job_id           uuid        not null primary key,
    tenant           text        not null,
    template         text,          -- Name of the template.
    template_version integer,       -- Version of the template.
    schedule_id      uuid,          -- The schedule.
    schedule         text,          -- Name of the schedule.
    due_at           timestamptz,   -- Time of the schedule.
    constraint something check (template is not null or schedule_id is not null),
    constraint version_of_template check ((template is null) = (template_version is null)),
    constraint time_of_schedule check ((schedule_id is null) = (due_at is null) and (schedule_id is null) = (schedule is null))
);
create index made_from_schedule on made_from (tenant, schedule, job_id) where schedule is not null;
create index made_from_time on made_from (tenant, due_at, job_id) where due_at is not null;
create index made_from_template on made_from (tenant, template, job_id) where template is not null;
create index made_from_version on made_from (tenant, template, template_version, job_id) where template is not null;

-- --- Subscriptions and consumers ---

-- Positions of consumers in the ledger.
create table consumer (
    tenant     text        not null,
    name       text        not null,
    cursor     text        not null,   -- Position after the last event that was read.
    updated_at timestamptz not null,
    primary key (tenant, name)
);

-- Which events create which jobs. Each row stores its cursor, like a consumer.
create table subscription (
    id            uuid        not null primary key,
    tenant        text        not null,                -- Tenant of the events; *: every tenant's, with jobs in theirs.
    name          text        not null,
    pattern       text        not null,                -- job.<type>, or name of an application event; * matches anything.
    kind          text,                                -- Kind of the job whose event it is; null: any.
    match         json,                                -- Values that the event must have.
    job_kind      text        not null,                -- Kind of the jobs it creates.
    job_options   json        not null default '{}',   -- Options of the created jobs: queue, priority, payload, …
    max_depth     smallint    not null,                -- Longest chain of subscriptions.
    cursor        text,                                -- Position after the last event that was read; null: the beginning.
    declared      boolean     not null,                -- Declared by a program, which maintains it.
    paused_at     timestamptz,                         -- When it was paused.
    paused_by     text,                                -- Who paused it.
    paused_reason text,                                -- Why it was paused.
    failure       text,                                -- Why the last pass failed.
    failed_at     timestamptz,                         -- When it failed.
    made          bigint      not null default 0,      -- Number of jobs created.
    refused       bigint      not null default 0,      -- Number of jobs refused.
    created_by    text        not null,
    created_at    timestamptz not null,
    updated_at    timestamptz not null,
    constraint name_named     check (ascii(name) > 32 and length(name) <= 100),
    constraint tenant_named   check (ascii(tenant) > 32 and length(tenant) <= 100),
    constraint pattern_named  check (ascii(pattern) > 32 and length(pattern) <= 500),
    constraint job_kind_named check (ascii(job_kind) > 32 and length(job_kind) <= 100),
    constraint job_is_object  check (json_typeof(job_options) = 'object'),
    constraint depth_bounded  check (max_depth between 1 and 100),
    constraint paused_by_whom check ((paused_at is null) = (paused_by is null)),
    constraint failure_dated  check ((failure is null) = (failed_at is null))
);
create unique index subscription_named on subscription (tenant, name);

-- The result of an event that matched a subscription: a job or a refusal. The key makes it unique.
create table delivery (
    subscription_id uuid        not null,   -- The subscription.
    event           text        not null,   -- Number in the ledger, or id of an application event.
    tenant          text        not null,
    job_id          uuid,
    refusal         text,                   -- Why no job was created.
    depth           smallint    not null,   -- Length of the chain of subscriptions.
    at              timestamptz not null,
    primary key (subscription_id, event),
    constraint one_fate check ((job_id is null) = (refusal is not null))
);
create index delivery_newest on delivery (subscription_id, at, event);
create index delivery_refused on delivery (subscription_id, at, event) where refusal is not null;
-- A purged job also deletes the record that an event created it.
create index delivery_by_job on delivery (job_id) where job_id is not null;

-- --- Tenants ---

-- Registered tenants: the maximum number of their waiting jobs, and their share of fairly shared queues. Maximum running jobs
-- and rate are limits of the scope `tenant`.
create table tenant (
    tenant      text        not null primary key,   -- Name of the tenant.
    title       text,                               -- Name for people.
    max_pending integer,                            -- Maximum number of waiting jobs; more are refused.
    weight      integer,                            -- Share relative to others; null is 1.
    set_by      text        not null,
    created_at  timestamptz not null,
    updated_at  timestamptz not null,
    constraint tenant_named    check (ascii(tenant) > 32 and length(tenant) <= 100 and tenant <> '*'),
    constraint title_bounded   check (length(title) between 1 and 200),
    constraint pending_bounded check (max_pending between 0 and 100000000),
    constraint weight_bounded  check (weight between 1 and 1000)
);

-- Number of waiting jobs of a tenant with a cap. An enqueue for it locks this row and adds up the changes since.
create table tenant_load (
    tenant     text        not null primary key,
    pending    bigint      not null,   -- Number of waiting jobs when they were counted.
    counted_at timestamptz not null    -- When the jobs were last counted one by one.
);

-- Changes of `tenant_load` since it was counted: transitions of jobs, which must not wait for that lock.
create table pending_change (
    tenant text    not null,
    change integer not null   -- Added to the number.
);
create index pending_change_by_tenant on pending_change (tenant);

-- The tenant served last in a queue that is shared fairly, and how much of its share was left.
create table fair_place (
    tenant    text    not null default '*',
    queue     text    not null,
    kinds     text    not null,             -- Kinds of the claim; empty: any.
    last      text    not null,             -- Tenant served last.
    left_over integer not null default 0,   -- What was left of its share.
    primary key (tenant, queue, kinds)
);

-- Database logins that may act for one tenant only. Compiled into pinned_tenant() whenever a row changes.
create table login_pin (
    login      text        not null primary key,   -- The login.
    tenant     text        not null,               -- The only tenant it may act for.
    set_by     text        not null,
    created_at timestamptz not null,
    constraint pin_named check (ascii(tenant) > 32 and length(tenant) <= 100 and tenant <> '*' and login <> '')
);

-- --- API tokens ---

-- API tokens and the sessions opened with them. Kept for 90 days after they end; the ledger names them.
create table api_token (
    id           uuid        primary key,
    tenant       text        not null,   -- Tenant it acts for; '*': every tenant.
    name         text        not null,   -- Name that the ledger records.
    roles        text[]      not null,   -- Roles of the token.
    scopes       text[]      not null,   -- Scopes it is restricted to; empty: all that its roles allow.
    hash         text        not null,   -- SHA-256 of the token, which is not stored.
    prefix       text        not null,   -- Beginning of the token, to recognise it.
    parent_id    uuid,                   -- Of a session: the token it was opened with.
    created_at   timestamptz not null,
    created_by   text        not null,
    expires_at   timestamptz,
    last_used_at timestamptz,            -- When it was last used, to the minute.
    revoked_at   timestamptz,            -- When it was revoked.
    revoked_by   text,                   -- Who revoked it.
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

-- --- Workflows ---

-- Workflows with the counts of their jobs. Every change of a node updates the counts, so that the status is read from one
-- row, however many jobs there are.
create table workflow (
    id             uuid        not null primary key,
    tenant         text        not null,
    kind           text        not null,                  -- Kind of workflow.
    generator      text        not null,                  -- Who planned it; a generator never executes jobs.
    on_failure     text        not null default 'skip',   -- stop, continue or skip.
    key            text,                                  -- Started twice with the same key, it is one workflow.
    plan_hash      text        not null default '',       -- Hash of the plan.
    correlation_id text,
    parent_id      uuid,                                  -- Job that started it.
    enqueued_by    text        not null,
    source_system  text        not null,
    created_at     timestamptz not null,
    finished_at    timestamptz,
    cancelled_at   timestamptz,                           -- When it was cancelled.
    stopped        boolean     not null default false,    -- Whether a failure holds back the waiting jobs.
    total          integer     not null default 0,        -- Number of jobs.
    open           integer     not null default 0,        -- Number of jobs that have not ended.
    succeeded      integer     not null default 0,        -- Number of jobs that succeeded.
    failed         integer     not null default 0,        -- Number of jobs that failed.
    dead           integer     not null default 0,        -- Number of dead letters, which can be redriven.
    cancelled      integer     not null default 0,        -- Number of cancelled jobs.
    skipped        integer     not null default 0,        -- Number of skipped jobs.
    constraint kind_named         check (ascii(kind) > 32 and length(kind) <= 100),
    constraint tenant_named       check (ascii(tenant) > 32 and length(tenant) <= 100 and tenant <> '*'),
    constraint generator_named    check (ascii(generator) > 32 and length(generator) <= 255),
    constraint on_failure_known   check (on_failure in ('stop', 'continue', 'skip')),
    constraint counts_add_up      check (total = open + succeeded + failed + dead + cancelled + skipped
        and least(open, succeeded, failed, dead, cancelled, skipped) >= 0),
    constraint finished_when_over check ((finished_at is not null) = (total > 0 and open = 0))
);
create index workflow_by_tenant on workflow (tenant, id);
create index workflow_by_parent on workflow (parent_id) where parent_id is not null and finished_at is null;
create unique index workflow_by_key on workflow (tenant, kind, key) where key is not null;

-- A job of a workflow: its status, and how many parents it still waits for.
create table node (
    job_id      uuid    not null primary key,
    tenant      text    not null,
    workflow_id uuid    not null,
    name        text,                              -- Name of the step; null: enqueued by one of the workflow's jobs.
    part        text,                              -- Its group or sub-workflow: images, or images.large.
    status      text    not null default 'open',   -- open, succeeded, failed, dead, cancelled or skipped.
    unmet       integer not null default 0,        -- Number of jobs that it still waits for.
    fatal       boolean not null default false,    -- Whether its failure stops the workflow.
    stops       boolean not null default false,    -- Whether it has stopped the workflow.
    constraint status_known check (status in ('open', 'succeeded', 'failed', 'dead', 'cancelled', 'skipped')),
    constraint unmet_counted  check (unmet >= 0)
);
create index node_by_workflow on node (workflow_id, job_id);
create index node_by_part on node (tenant, part, job_id) where part is not null;
create unique index node_by_name on node (workflow_id, name) where name is not null;

-- Which job of a workflow waits for which.
create table dependency (
    child      uuid    not null,                 -- Job that waits.
    parent     uuid    not null,                 -- Job that it waits for.
    tenant     text    not null,
    on_failure text    not null,                 -- What a failure of the parent means: stop, continue or skip.
    met        boolean not null default false,   -- Whether the child no longer waits for it.
    primary key (child, parent),
    constraint on_failure_known check (on_failure in ('stop', 'continue', 'skip')),
    constraint not_of_itself    check (child <> parent)
);
create index dependency_unmet on dependency (parent) where not met;
create index dependency_by_parent on dependency (parent, child);

-- A job that is created when a workflow, or one of its jobs, succeeds or fails: once, however often that happens.
create table callback (
    job_id        uuid        not null primary key,   -- Id that the job will have.
    tenant        text        not null,
    workflow_id   uuid        not null,
    step_id       uuid,                               -- Job whose end it waits for; null: the workflow's end.
    fires         text        not null,               -- success or failure.
    document      json,                               -- Definition of the job, as in enqueue_many; null once it is created.
    due_at        timestamptz,                        -- Since when it is to be created.
    fired_at      timestamptz,                        -- When it was created.
    failed_job    uuid,                               -- Of a failure: the job, and its error at that time.
    error_code    text,
    error_message text,
    constraint fires_known     check (fires in ('success', 'failure')),
    constraint fired_when_due  check (fired_at is null or due_at is not null),
    constraint kept_until_fired check ((document is null) = (fired_at is not null)),
    constraint failure_named   check (failed_job is null or fires = 'failure')
);
create index callback_by_workflow on callback (workflow_id);
create index callback_due on callback (due_at) where due_at is not null and fired_at is null;

-- --- The audit trail ---

create sequence action_seq;

-- One row per configuration change: the ledger of everything that is not a job.
create table action (
    seq       bigint      not null primary key default nextval('action_seq'),   -- Number of the action.
    xid       bigint      not null default pg_current_xact_id()::text::bigint,
    tenant    text        not null,
    at        timestamptz not null,
    actor     text        not null,
    type      text        not null,   -- set, remove, purge and so on.
    subject   text        not null,   -- What was changed: limit, agent, schedule and so on.
    name      text        not null,   -- Which one.
    changed   jsonb,                  -- Columns with their values, or with the values before and after.
    first_seq bigint,                 -- Of a purge: smallest number of the events that were removed.
    last_seq  bigint,                 -- Of a purge: greatest number of them.
    constraint range_of_purge check ((type = 'purge') = (first_seq is not null) and (first_seq is null) = (last_seq is null))
);
create index action_by_tenant on action (tenant, seq);
create index action_by_xid on action (xid);
create index action_of_purge on action (last_seq, first_seq) where first_seq is not null;
-- Re-encryptions are found by their job.
create index action_of_reseal on action (name) where type = 'reseal';

-- Sealed blocks of the ledger: each contains the hash of the one before. A block of committed events and actions, hashed
-- together with the previous block. Sealed so far: every event up to `floor` that `snapshot` sees (and all up to `base`, if
-- the database was moved to another server), actions likewise.
create table seal (
    number       bigint      not null primary key,   -- Number of the block.
    tenant       text        not null default '*',
    previous     text        not null,               -- Digest of the block before; zeros for the first.
    digest       text        not null,               -- Digest of this block.
    events       bytea       not null,               -- For each event its number in 8 bytes and its digest in 32.
    actions      bytea       not null,               -- The same for actions.
    event_count  integer     not null,               -- Number of events.
    action_count integer     not null,               -- Number of actions.
    first_seq    bigint,                             -- Smallest number of its events.
    last_seq     bigint,                             -- Greatest number of its events.
    floor        bigint      not null,               -- Every event up to this number that the snapshot sees is sealed.
    action_floor bigint      not null,               -- The same for actions.
    base         bigint      not null,               -- Numbers up to this one were sealed on another server.
    snapshot     text,                               -- Transactions that were visible.
    sealed_at    timestamptz not null,               -- When it was sealed.
    version      text        not null,               -- Release of the library that sealed it.
    xid          bigint,
    contents     bytea,                              -- Digests of payloads and results, by the event that brought them.
    cut          integer,                            -- Whether there was more to seal.
    constraint of_all          check (tenant = '*'),
    constraint number_counted  check (number > 0),
    constraint digests_whole   check (length(previous) = 64 and length(digest) = 64),
    constraint events_counted  check (octet_length(events) = 40 * event_count),
    constraint actions_counted check (octet_length(actions) = 40 * action_count),
    constraint something       check (event_count + action_count > 0)
);
alter table seal alter column events set storage external, alter column actions set storage external,
    alter column contents set storage external;   -- not compressible
create index seal_by_seq on seal (last_seq);

-- --- Dead letters and operations on many jobs ---

-- Dead letters with the same cause. Failures of the same kind, by fingerprint (engine/settlement.py). Triggers maintain the
-- counts.
create table dead_letter_group (
    tenant        text        not null,
    fingerprint   text        not null,   -- Hash of kind, error code and place in the code.
    kind          text        not null,
    error_code    text        not null,
    error_message text        not null,   -- Message of the sample; '[purged]' when that is purged.
    frame         text,                   -- Place in the user's code, as module:function.
    sample_job    uuid        not null,   -- Job that failed last.
    first_at      timestamptz not null,   -- First failure.
    last_at       timestamptz not null,   -- Last failure.
    times         bigint      not null,   -- How often a job became a dead letter for it.
    open          bigint      not null,   -- Number of them that are not resolved.
    note          text,                   -- Note of an operator.
    noted_by      text,                   -- Who wrote the note.
    noted_at      timestamptz,            -- When it was written.
    last_job      uuid        not null,   -- Job that changed the counts last.
    primary key (tenant, fingerprint),
    constraint counted     check (open between 0 and times),
    constraint note_whole  check ((note is null) = (noted_by is null) and (note is null) = (noted_at is null)),
    constraint note_short  check (length(note) <= 2000)
);
create index dead_letter_group_newest on dead_letter_group (tenant, last_at desc, fingerprint desc) where open > 0;
create index dead_letter_group_largest on dead_letter_group (tenant, open desc, fingerprint desc);
create index dead_letter_group_by_sample on dead_letter_group (sample_job);
create index dead_letter_group_all on dead_letter_group (tenant, last_at desc, fingerprint desc);

-- Open dead letters, and the group of each.
create table dead_letter (
    job_id      uuid        not null primary key,
    tenant      text        not null,
    fingerprint text        not null,   -- Its group.
    kind        text        not null,
    queue       text        not null,
    dead_at     timestamptz not null    -- When it became a dead letter.
);
create index dead_letter_by_group on dead_letter (tenant, fingerprint, job_id desc);
create index dead_letter_by_queue on dead_letter (tenant, queue, fingerprint);

-- Operators' actions on many jobs. Workers execute them in small batches; a batch and its progress are one transaction.
create table operation (
    id           uuid        not null primary key,
    tenant       text        not null,                     -- Tenant of the jobs; *: every tenant.
    action       text        not null,                     -- cancel, redrive or discard.
    wanted       text        not null,                     -- Filter of the jobs, as JSON.
    reason       text,
    max_attempts integer,
    rate         double precision,                         -- Maximum number of jobs per second.
    state        text        not null default 'running',   -- running, done or cancelled.
    total        bigint      not null,                     -- Number of jobs when it began.
    capped       boolean     not null,                     -- Whether there were more than were counted.
    done         bigint      not null default 0,           -- Number of jobs that were changed.
    refused      bigint      not null default 0,           -- Number of jobs that refused.
    refusals     jsonb       not null default '{}',        -- Number of refusals by reason.
    place        uuid,                                     -- Last job that was read; jobs are read by id, newest first.
    next_at      timestamptz not null,                     -- When the next batch may run.
    created_by   text        not null,
    created_at   timestamptz not null,
    updated_at   timestamptz not null,
    finished_at  timestamptz,
    cancelled_by text,                                     -- Who cancelled it.
    cancelled_reason text,                                 -- Why it was cancelled.
    run_at       timestamptz,                              -- Earliest start of the redriven jobs.
    constraint tenant_named   check (ascii(tenant) > 32 and length(tenant) <= 100),
    constraint created_named  check (ascii(created_by) > 32),
    constraint action_known     check (action in ('cancel', 'redrive', 'discard')),
    constraint reason_given   check (action <> 'discard' or reason ~ '\S'),
    constraint limit_bounded  check (max_attempts is null or max_attempts between 1 and 101 and action = 'redrive'),
    constraint rate_bounded   check (rate between 0.001 and 1000000),
    constraint time_redriven  check (run_at is null or action = 'redrive'),
    constraint state_known    check (state in ('running', 'done', 'cancelled')),
    constraint ended_iff_over check ((state = 'running') = (finished_at is null)),
    constraint who_cancelled  check ((state = 'cancelled') = (cancelled_by is not null)),
    constraint counted        check (total >= 0 and done >= 0 and refused >= 0)
);
create index operation_running on operation (next_at) where state = 'running';
create index operation_by_tenant on operation (tenant, id desc);

-- Dead letters that were redriven with another payload, and the new job of each.
create table redriven_as (
    job_id uuid        not null primary key,
    tenant text        not null,
    new_id uuid        not null unique,   -- The new job.
    by     text        not null,          -- Who did it.
    at     timestamptz not null
);

-- --- Payload rules ---

-- Rules for payloads by tenant and kind.
create table payload_rule (
    tenant           text        not null,                 -- Tenant of the jobs; *: every tenant.
    kind             text        not null,                 -- Kind of the jobs; *: each kind.
    declared_by      text        not null default '',      -- Program that declares it; '': an operator's.
    signal_only      boolean     not null default false,   -- Whether forbidden keys are refused at any depth.
    forbidden        text[]      not null default          -- Forbidden keys, in lower case.
        '{body,content,raw,vector,embedding,secret,token,password,ssn,personal_data}',
    classification   text        not null default 'safe_metadata',   -- safe_metadata or restricted.
    max_bytes        integer,                              -- Largest payload.
    max_result_bytes integer,                              -- Largest result.
    store            boolean,                              -- Larger values go to the artifact store; null: not set.
    replaceable      boolean,                              -- The payload of a waiting job may be replaced; null: not set.
    requires_approval jsonb,                               -- Options of the approval before its jobs run; null: not set.
    token_only       boolean,                              -- Only tokens decide the approvals of its jobs; null: not set.
    at_most_once     boolean,                              -- Its jobs start once; null: not set.
    set_by           text        not null,
    created_at       timestamptz not null,
    updated_at       timestamptz not null,
    primary key (tenant, kind, declared_by),
    constraint tenant_named         check (ascii(tenant) > 32 and length(tenant) <= 100),
    constraint kind_named           check (ascii(kind) > 32 and length(kind) <= 100),
    constraint declared_by_bounded  check (length(declared_by) <= 100),
    constraint classification_known check (classification in ('safe_metadata', 'restricted')),
    constraint forbidden_named      check (cardinality(forbidden) between 1 and 200 and array_position(forbidden, null) is null
        and array_position(forbidden, '') is null and lower(forbidden::text) = forbidden::text),
    constraint sizes_bounded        check (max_bytes >= 256 and max_result_bytes >= 256),
    constraint says_something       check (signal_only or classification = 'restricted'
        or coalesce(max_bytes, max_result_bytes, store::integer, replaceable::integer, token_only::integer, at_most_once::integer)
           is not null or requires_approval is not null),
    constraint approval_is_object   check (jsonb_typeof(requires_approval) = 'object')
);

-- References of a job to data elsewhere. URIs of the input: only for jobs that were enqueued with one.
create table reference (
    job_id      uuid not null primary key,
    tenant      text not null,
    source_ref  text,   -- URI of the input.
    target_ref  text,   -- URI of the output.
    payload_ref text,   -- URI of the payload.
    constraint something    check (coalesce(source_ref, target_ref, payload_ref) is not null),
    constraint refs_bounded check (length(source_ref) <= 4000 and length(target_ref) <= 4000 and length(payload_ref) <= 4000)
);

-- Values that were encrypted again with another key. Re-encrypted payloads: the one change of `job` that is allowed. Written
-- before the change; each row allows one.
create table resealed (
    job_id   uuid        not null,
    tenant   text        not null,
    n        integer     not null,   -- Number of the re-encryption.
    from_key text        not null,   -- Key before.
    to_key   text        not null,   -- Key after.
    actor    text        not null,
    at       timestamptz not null,
    primary key (job_id, n),
    constraint another_key check (from_key <> to_key and ascii(from_key) > 32 and ascii(to_key) > 32)
);

-- Payloads that were replaced after an attempt had run with them; attempts up to this one, and after the previous row, did.
create table replaced_payload (
    job_id  uuid        not null,
    tenant  text        not null,
    attempt integer     not null,   -- Last attempt that ran with the payload.
    payload json        not null,   -- Payload as JSON text.
    at      timestamptz not null,   -- When it was replaced.
    primary key (job_id, attempt),
    constraint ran check (attempt > 0)
);

-- --- Retention and usage ---

-- How long finished jobs are kept, by tenant, kind and state. The most specific policy decides alone
-- (features/retention/model.py). Seconds after the end of a job; null is for ever.
create table retention (
    tenant      text             not null,                 -- Tenant of the jobs; *: every tenant.
    kind        text             not null,                 -- Kind of the jobs; *: any.
    state       text             not null,                 -- State of the jobs; *: any but dead letters, which must be named.
    clean_after double precision,                          -- Seconds after its end until contents are removed; null: never.
    purge_after double precision,                          -- Seconds until the job and its events are removed; null: never.
    archive     boolean          not null default false,   -- Whether jobs stay until they are archived.
    declared    boolean          not null default false,   -- Declared by a program; an operator's policy takes precedence.
    set_by      text             not null,
    created_at  timestamptz      not null,
    updated_at  timestamptz      not null,
    primary key (tenant, kind, state),
    constraint tenant_named  check (ascii(tenant) > 32 and length(tenant) <= 100),
    constraint kind_named    check (ascii(kind) > 32 and length(kind) <= 100),
    constraint state_known   check (state in ('*', 'succeeded', 'failed', 'cancelled', 'dead_letter')),
    constraint ages_bounded  check (clean_after between 0 and 3162240000 and purge_after between 0 and 3162240000),
    constraint clean_first   check (clean_after <= purge_after),
    constraint set_by_named  check (ascii(set_by) > 32)
);

-- Progress of retention. A pass walks jobs in id order, which is creation order, one slice at a time; `reached` is its
-- position. The pass with the earliest `again_at` is next.
create table retention_pass (
    tenant   text        not null,
    kind     text        not null,
    state    text        not null,             -- State that is being removed.
    action   text        not null,             -- clean or purge.
    reached  uuid        not null default '00000000-0000-0000-0000-000000000000',   -- Last job that was read.
    looked   bigint      not null default 0,   -- Number of jobs read since it started at the first job.
    again_at timestamptz not null,             -- When the next pass begins.
    restart_at timestamptz,                    -- When it restarts at the first job: some jobs end long after they were created.
    held     bigint      not null default 0,   -- Number of due jobs that some reader of the ledger has not read.
    held_by  text,                             -- Why they had to stay.
    primary key (tenant, kind, state, action),
    constraint action_known check (action in ('clean', 'purge'))
);
create index retention_next on retention_pass (again_at);

-- Files of finished jobs in the artifact store (docs/adr/0040). The id is made from the jobs in it.
create table archive (
    id          uuid        not null primary key,
    tenant      text        not null,
    ref         text        not null,   -- Reference of the file, with its SHA-256.
    bytes       bigint      not null,   -- Size of the file.
    jobs        integer     not null,   -- Number of jobs in it.
    first_job   uuid        not null,   -- Lowest id of its jobs.
    last_job    uuid        not null,   -- Highest id of its jobs.
    seal        bigint,                 -- Newest seal of the ledger when it was recorded.
    seal_digest text,                   -- Digest of that seal.
    created_by  text        not null,
    created_at  timestamptz not null,
    constraint jobs_counted check (jobs > 0 and bytes > 0),
    constraint created_by_named check (ascii(created_by) > 32)
);
create index archive_of_jobs on archive (tenant, last_job);

-- The archive of each job that retention has not purged yet. A redriven job ends at another time and is archived again.
create table archived (
    job_id      uuid        not null primary key,
    tenant      text        not null,
    archive_id  uuid        not null,   -- The archive.
    finished_at timestamptz not null
);

-- One row: when bookkeeping tables are pruned next.
create table upkeep (
    id       boolean     not null primary key default true check (id),   -- Always true: there is one row.
    prune_at timestamptz not null   -- When.
);
insert into upkeep (prune_at) values ('epoch');

-- Daily sums by tenant and kind, in UTC and whole numbers: microseconds, and millionths of a unit of cost. They stay when the
-- jobs are deleted.
create table usage (
    tenant    text   not null,
    day       date   not null,             -- Day in UTC.
    kind      text   not null,
    enqueued  bigint not null default 0,   -- Number of jobs enqueued.
    started   bigint not null default 0,   -- Number of attempts started.
    succeeded bigint not null default 0,   -- Number of jobs that succeeded.
    failed    bigint not null default 0,   -- Number of attempts that failed.
    crashed   bigint not null default 0,   -- Number of attempts lost with their worker.
    dead      bigint not null default 0,   -- Number of dead letters.
    cancelled bigint not null default 0,   -- Number of cancelled jobs.
    expired   bigint not null default 0,   -- Number of jobs past their deadline.
    run_time  bigint not null default 0,   -- Seconds of run time.
    wait_time bigint not null default 0,   -- Seconds of waiting.
    cost      bigint not null default 0,   -- Cost units that handlers reported.
    primary key (tenant, day, kind)
);

-- Position up to which the ledger has been counted. No row: usage was never requested, and nothing is counted.
create table usage_place (
    id         boolean     not null primary key default true check (id),   -- Always true: there is one row.
    cursor     text,   -- Position in the ledger.
    updated_at timestamptz not null
);

-- Files of cleaned jobs in the artifact store, and the directories of command jobs on hosts (file://host/…/<job>/): recorded
-- in the transaction that cleans the job, removed when the files have been deleted.
create table orphaned_file (
    tenant   text        not null,
    ref      text        not null,   -- Reference of the file.
    job_id   uuid        not null,   -- Job that it belonged to; part of the reference.
    at       timestamptz not null,
    again_at timestamptz not null,   -- When it is tried again.
    primary key (tenant, ref),
    constraint tenant_named check (ascii(tenant) > 32 and length(tenant) <= 100 and tenant <> '*'),
    constraint ref_of_job   check ((ref like 'artifact://%/' || job_id || '/%' or ref like 'file://%/' || job_id || '/')
                                   and length(ref) <= 4000)
);
create index orphaned_file_next on orphaned_file (again_at);
