-- Jobs whose rows the database refuses to move: they are passed over until then, so that they hold up no other
-- (code/45_quarantine.sql).
create table quarantine (
    job_id uuid        primary key,
    tenant text        not null,
    why    text        not null,   -- what the database said
    at     timestamptz not null,
    until  timestamptz not null    -- then it is tried again
);
