-- What is known of tenants (JF-12): how many of their jobs may wait, and their share where queues are shared fairly. How
-- many may run, and how often, are limits of the scope `tenant`.
CREATE TABLE tenant (
    tenant      TEXT    NOT NULL PRIMARY KEY,
    title       TEXT,
    max_pending INTEGER,            -- at most so many jobs wait; more are refused
    weight      INTEGER,            -- its share against others; null is 1
    set_by      TEXT    NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    CONSTRAINT tenant_named    CHECK (tenant >= '!' AND length(tenant) <= 100 AND tenant <> '*'),
    CONSTRAINT title_bounded   CHECK (length(title) BETWEEN 1 AND 200),
    CONSTRAINT pending_bounded CHECK (max_pending BETWEEN 0 AND 100000000),
    CONSTRAINT weight_bounded  CHECK (weight BETWEEN 1 AND 1000)
) STRICT, WITHOUT ROWID;

-- How many jobs of a tenant with a cap waited at a place in the ledger. What has changed since is told by the ledger.
CREATE TABLE tenant_load (
    tenant     TEXT    NOT NULL PRIMARY KEY,
    pending    INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    counted_at INTEGER NOT NULL   -- when they were last counted one by one
) STRICT, WITHOUT ROWID;

-- Whose turn it was last in a queue that is shared fairly, and how much of its share was left over.
CREATE TABLE fair_place (
    tenant    TEXT    NOT NULL DEFAULT '*',
    queue     TEXT    NOT NULL,
    kinds     TEXT    NOT NULL,   -- whom it is kept for: those who take these kinds; '' is any
    last      TEXT    NOT NULL,
    left_over INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, queue, kinds)
) STRICT, WITHOUT ROWID;

-- Queues that tenants share fairly, as JSON: ["mail"]; ["*"] is all; null is none.
ALTER TABLE dispatch ADD COLUMN fair TEXT;
