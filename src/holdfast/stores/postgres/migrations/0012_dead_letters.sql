-- Dead letters in groups, and bulk operations that are kept track of (DP-15). Nothing here is written by the hot path: a
-- row is added when a job is buried, and goes when somebody resolves it.

-- Failures that are one and the same (domain/fingerprint.py). The counts are kept by triggers.
create table dead_letter_group (
    tenant        text        not null,
    fingerprint   text        not null,
    kind          text        not null,
    error_code    text        not null,
    error_message text        not null,   -- of the sample
    frame         text,                   -- where in the user's code: module:function
    sample_job    uuid        not null,   -- the one that was buried last
    first_at      timestamptz not null,
    last_at       timestamptz not null,
    times         bigint      not null,   -- how often a job was buried for it
    open          bigint      not null,   -- how many of them nobody has resolved
    note          text,
    noted_by      text,
    noted_at      timestamptz,
    last_job      uuid        not null,   -- the one that changed the counts last
    primary key (tenant, fingerprint),
    constraint counted     check (open between 0 and times),
    constraint note_whole  check ((note is null) = (noted_by is null) and (note is null) = (noted_at is null)),
    constraint note_short  check (length(note) <= 2000)
);
create index dead_letter_group_newest on dead_letter_group (tenant, last_at desc, fingerprint desc) where open > 0;
create index dead_letter_group_largest on dead_letter_group (tenant, open desc, fingerprint desc);
create index dead_letter_group_all on dead_letter_group (tenant, last_at desc, fingerprint desc);

-- The dead letters that are open, and the group of each.
create table dead_letter (
    job_id      uuid        not null primary key,
    tenant      text        not null,
    fingerprint text        not null,
    kind        text        not null,
    queue       text        not null,
    buried_at   timestamptz not null
);
create index dead_letter_by_group on dead_letter (tenant, fingerprint, job_id desc);
create index dead_letter_by_queue on dead_letter (tenant, queue, fingerprint);

-- What people do to many jobs. Worked off in small batches by whoever has time; a batch and its progress are one transaction.
create table operation (
    id           uuid        not null primary key,
    tenant       text        not null,            -- '*': of every tenant
    verb         text        not null,
    wanted       text        not null,            -- which jobs, as JSON
    reason       text,
    max_retries  integer,
    rate         double precision,                -- at most so many jobs a second
    state        text        not null default 'running',
    total        bigint      not null,            -- as counted when it began
    capped       boolean     not null,            -- there were more than were counted
    done         bigint      not null default 0,
    refused      bigint      not null default 0,
    refusals     jsonb       not null default '{}',
    place        uuid,                            -- the last job that was looked at; they go by id, newest first
    next_at      timestamptz not null,            -- no batch before
    created_by   text        not null,
    created_at   timestamptz not null,
    updated_at   timestamptz not null,
    finished_at  timestamptz,
    cancelled_by text,
    cancelled_reason text,
    constraint tenant_named   check (ascii(tenant) > 32 and length(tenant) <= 100),
    constraint created_named  check (ascii(created_by) > 32),
    constraint verb_known     check (verb in ('cancel', 'redrive', 'discard')),
    constraint reason_given   check (verb <> 'discard' or reason ~ '\S'),
    constraint limit_bounded  check (max_retries is null or max_retries between 0 and 100 and verb = 'redrive'),
    constraint rate_bounded   check (rate between 0.001 and 1000000),
    constraint state_known    check (state in ('running', 'done', 'cancelled')),
    constraint ended_iff_over check ((state = 'running') = (finished_at is null)),
    constraint who_cancelled  check ((state = 'cancelled') = (cancelled_by is not null)),
    constraint counted        check (total >= 0 and done >= 0 and refused >= 0)
);
create index operation_running on operation (next_at) where state = 'running';
create index operation_by_tenant on operation (tenant, id desc);

-- A dead letter that was redriven with another payload: as which job.
create table redriven_as (
    job_id uuid        not null primary key,
    tenant text        not null,
    new_id uuid        not null unique,
    by     text        not null,
    at     timestamptz not null
);

-- It knows of operations now.
drop function if exists operate(text, uuid[], text, text, text, integer);

-- What was buried before is grouped by its code: where in the code it was raised nobody knows any more.
insert into dead_letter (job_id, tenant, fingerprint, kind, queue, buried_at)
select s.id, s.tenant, 'code:' || s.kind || ':' || s.error_code, s.kind, s.queue, s.finished_at
  from job_state s where s.state = 'dead_letter';
insert into dead_letter_group (tenant, fingerprint, kind, error_code, error_message, sample_job, first_at, last_at, times, open, last_job)
select l.tenant, l.fingerprint, l.kind, min(s.error_code), (array_agg(s.error_message order by l.buried_at desc))[1],
       (array_agg(l.job_id order by l.buried_at desc))[1], min(l.buried_at), max(l.buried_at), count(*), count(*),
       (array_agg(l.job_id order by l.buried_at desc))[1]
  from dead_letter l join job_state s on s.id = l.job_id group by l.tenant, l.fingerprint, l.kind;
