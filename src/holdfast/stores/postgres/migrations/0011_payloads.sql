-- What may be in a payload (DP-4), where what a job is about lies, and what became of sealed payloads.

create table payload_rule (
    tenant           text        not null,   -- '*': of every tenant
    kind             text        not null,   -- '*': each kind
    declared_by      text        not null default '',   -- the program that has it in its code; '': an operator's
    signal_only      boolean     not null default false,
    forbidden        text[]      not null default
        '{body,content,raw,vector,embedding,secret,token,password,ssn,personal_data}',   -- keys, in lower case
    classification   text        not null default 'safe_metadata',
    max_bytes        integer,
    max_result_bytes integer,
    store            boolean,                -- what is larger goes to the artifact store; null: nothing is said of it
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
        or coalesce(max_bytes, max_result_bytes, store::integer) is not null)
);

-- Where what a job is about lies: only for jobs that were enqueued with one of them.
create table reference (
    job_id      uuid not null primary key,
    tenant      text not null,
    source_ref  text,
    target_ref  text,
    payload_ref text,
    constraint something    check (coalesce(source_ref, target_ref, payload_ref) is not null),
    constraint refs_bounded check (length(source_ref) <= 4000 and length(target_ref) <= 4000 and length(payload_ref) <= 4000)
);

-- A payload was sealed with another key: the one change that what was asked for knows. Written before it; each row admits one.
create table resealed (
    job_id   uuid        not null,
    tenant   text        not null,
    n        integer     not null,   -- 1, 2, 3, … of the job
    from_key text        not null,
    to_key   text        not null,
    actor    text        not null,
    at       timestamptz not null,
    primary key (job_id, n),
    constraint another_key check (from_key <> to_key and ascii(from_key) > 32 and ascii(to_key) > 32)
);
