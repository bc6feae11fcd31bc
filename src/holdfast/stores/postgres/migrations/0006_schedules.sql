-- Templates and schedules (SC-8, SC-9): job definitions with versions, and when jobs are made by themselves.

-- Every version of every template. Nothing here is ever changed: a change is a new version, and so is a removal.
create table template (
    tenant     text        not null,
    name       text        not null,
    version    integer     not null,
    kind       text        not null,
    payload    json        not null default '{}',   -- defaults
    options    jsonb       not null default '{}',   -- what a job is given besides: queue, priority, retry, …
    removed    boolean     not null default false,
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

-- What fires when. The times are computed in Python; here they are kept, and advanced together with the jobs they make.
create table schedule (
    id             uuid             not null primary key,
    tenant         text             not null,
    name           text             not null,
    state          text             not null default 'active',
    timing         text             not null,   -- 0 9 * * MON-FRI, @daily, every 90s, at 2027-01-31 09:00
    zone           text             not null,
    kind           text             not null,
    template       text,
    payload        json             not null default '{}',
    options        jsonb            not null default '{}',
    missed         text             not null default 'once',
    overlap        text             not null default 'allow',
    jitter         double precision not null default 0,   -- seconds
    declared_by    text,                        -- the program whose code says it; null: made in the database
    declared_hash  text,                        -- what that code said last
    undeclared_at  timestamptz,                 -- since when that code does not say it any more
    revision       integer          not null default 1,
    anchor_at      timestamptz      not null,   -- what an interval counts from
    next_fire_at   timestamptz,
    attend_at      timestamptz,                 -- when somebody must look at it next; null: never
    last_fire_at   timestamptz,
    problem        text,
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
create index schedule_held on schedule (kind) where problem = 'unknown_kind';   -- until somebody knows the kind
create index schedule_declared on schedule (tenant, declared_by, name) where declared_by is not null;

-- What became of each time of a schedule: the key is what makes it one, however many processes fire it.
create table fire (
    schedule_id   uuid        not null,
    due_at        timestamptz not null,
    manual        boolean     not null default false,   -- somebody said: run it now
    tenant        text        not null,
    status        text        not null,
    job_id        uuid,
    count         integer     not null default 1,       -- a row of missed times stands for several
    since_at      timestamptz,                          -- the first of them
    error_code    text,
    error_message text,
    actor         text        not null,
    at            timestamptz not null,
    ended         boolean     not null default false,   -- its job is known to be over
    primary key (schedule_id, due_at, manual),
    constraint status_known   check (status in ('fired', 'skipped', 'waiting', 'missed', 'failed')),
    constraint job_iff_made   check ((status in ('fired', 'skipped')) = (job_id is not null)),
    constraint error_iff_failed check ((status = 'failed') = (error_code is not null)),
    constraint missed_counted check (count >= 1 and (count = 1 or status = 'missed'))
);
create index fire_running on fire (schedule_id) where status = 'fired' and not ended;
create index fire_waiting on fire (schedule_id, due_at) where status = 'waiting';

-- What a job was made from, if from anything: a version of a template, a time of a schedule.
create table made_from (
    job_id           uuid        not null primary key,
    tenant           text        not null,
    template         text,
    template_version integer,
    schedule_id      uuid,
    schedule         text,
    due_at           timestamptz,
    constraint something check (template is not null or schedule_id is not null),
    constraint version_of_template check ((template is null) = (template_version is null)),
    constraint time_of_schedule check ((schedule_id is null) = (due_at is null) and (schedule_id is null) = (schedule is null))
);
create index made_from_schedule on made_from (tenant, schedule_id, due_at) where schedule_id is not null;
