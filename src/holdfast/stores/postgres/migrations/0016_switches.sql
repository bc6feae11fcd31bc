-- What is paused (DP-18): everything, a queue, a kind, an agent, of every tenant or of one; until somebody resumes it, or
-- until a time. What is resumed has no row.
create table switch (
    tenant         text        not null,   -- whose jobs; '*': everybody's
    scope          text        not null,
    name           text        not null,   -- the scope `all` has no other than '*'
    reason         text        not null,
    refuse_enqueue boolean     not null,   -- whether new jobs are refused as well
    set_by         text        not null,
    since          timestamptz not null,
    until          timestamptz,            -- it comes back by itself
    primary key (tenant, scope, name),
    constraint tenant_named check (ascii(tenant) > 32 and length(tenant) <= 100),
    constraint scope_known  check (scope in ('all', 'queue', 'kind', 'agent')),
    constraint name_named   check (ascii(name) > 32 and length(name) <= 255 and (scope = 'all') = (name = '*')),
    constraint reason_given check (reason ~ '\S'),
    constraint set_by_named check (ascii(set_by) > 32),
    constraint until_later  check (until > since)
);

-- Asks about more than reservations now, and is called `closed`.
drop function if exists reserved(text, text, text, timestamptz);
