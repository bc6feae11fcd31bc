-- What a job had in the artifact store is left behind when the job is cleaned: written down here in the same transaction, and
-- forgotten when somebody has deleted it there (DP-16).
create table leftover (
    tenant   text        not null,
    ref      text        not null,
    job_id   uuid        not null,   -- whose it was; it is part of the reference
    at       timestamptz not null,
    again_at timestamptz not null,   -- nobody tries before
    primary key (tenant, ref),
    constraint tenant_named check (ascii(tenant) > 32 and length(tenant) <= 100 and tenant <> '*'),
    constraint ref_of_job   check (ref like 'artifact://%/' || job_id || '/%' and length(ref) <= 4000)
);
create index leftover_next on leftover (again_at);

-- Whether a tenant has to be registered before it can have jobs (JF-12).
alter table dispatch add column registered boolean not null default false;
