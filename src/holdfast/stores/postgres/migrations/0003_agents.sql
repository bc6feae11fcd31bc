-- Agents: a registry of those whom jobs are for (CX-16). A job names one in `job.agent`, by its id; there is no foreign
-- key, since a name that nobody has registered is only a label.

create table agent (
    tenant            text             not null,
    id                text             not null,   -- what jobs say
    name              text             not null,   -- what people say
    kind              text,                        -- the only kind of its jobs; null: any
    max_retries       smallint,                    -- of this and the next two, null is the kind's own
    max_crashes       smallint,
    backoff           jsonb,
    max_payload_bytes integer,
    max_wait          double precision,            -- seconds that a job may wait to be started, from when it may be
    requires_approval boolean          not null default false,
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
    constraint retries_bounded    check (max_retries between 0 and 100),
    constraint crashes_bounded    check (max_crashes between 0 and 100),
    constraint backoff_is_object  check (jsonb_typeof(backoff) = 'object'),
    constraint payload_bounded    check (max_payload_bytes between 2 and 1073741824),
    constraint wait_bounded       check (max_wait between 0.001 and 3153600000),
    constraint disabled_by_whom   check ((disabled_at is null) = (disabled_by is null)),
    constraint disabled_for_what  check ((disabled_at is null) = (disabled_reason is null)),
    constraint disabled_by_named  check (ascii(disabled_by) > 32),
    constraint reason_given       check (disabled_reason ~ '\S')
);

-- A claim must know whose jobs it takes, and does not read `job` before it has. Null takes no room.
alter table job_state add column agent text;
select set_config('holdfast.tenant', '*', true);
update job_state s set agent = j.agent from job j
 where j.id = s.id and j.agent is not null and s.state not in ('succeeded', 'failed', 'cancelled', 'cleaned');
select set_config('holdfast.tenant', '', true);
create index waiting_by_agent on job_state (tenant, agent, due_at, id)
    where agent is not null and state in ('queued', 'retry_waiting');

-- Their answers say more, or they are told more.
drop function if exists complete(json, text);
drop function if exists standing_job(text, uuid, text, text, text, boolean, text);
drop function if exists enqueue_many(json, text, text, boolean);
drop function if exists enqueue_alike(json, uuid[], json, text);
drop function if exists enqueue(text, json, text, text, integer, timestamptz, timestamptz, text[], uuid, text, text, text,
                                integer, jsonb, text, text, text);
