-- What is paused (DP-18): everything, a queue, a kind, an agent, of every tenant or of one; until somebody resumes it, or
-- until a time. What is resumed has no row.
CREATE TABLE switch (
    tenant         TEXT    NOT NULL,   -- whose jobs; '*': everybody's
    scope          TEXT    NOT NULL,
    name           TEXT    NOT NULL,   -- the scope `all` has no other than '*'
    reason         TEXT    NOT NULL,
    refuse_enqueue INTEGER NOT NULL,   -- whether new jobs are refused as well
    set_by         TEXT    NOT NULL,
    since          INTEGER NOT NULL,
    until          INTEGER,            -- it comes back by itself
    PRIMARY KEY (tenant, scope, name),
    CONSTRAINT tenant_named CHECK (tenant >= '!' AND length(tenant) <= 100),
    CONSTRAINT scope_known  CHECK (scope IN ('all', 'queue', 'kind', 'agent')),
    CONSTRAINT name_named   CHECK (name >= '!' AND length(name) <= 255 AND (scope = 'all') = (name = '*')),
    CONSTRAINT reason_given CHECK (trim(reason) <> ''),
    CONSTRAINT refuse_known CHECK (refuse_enqueue IN (0, 1)),
    CONSTRAINT set_by_named CHECK (set_by >= '!'),
    CONSTRAINT until_later  CHECK (until > since)
) STRICT, WITHOUT ROWID;
