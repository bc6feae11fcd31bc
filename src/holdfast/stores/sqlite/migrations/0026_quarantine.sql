-- Jobs whose rows the database refuses to move: they are passed over until then, so that they hold up no other
-- (operations/quarantine.py).
CREATE TABLE quarantine (
    job_id TEXT    NOT NULL PRIMARY KEY,
    tenant TEXT    NOT NULL,
    why    TEXT    NOT NULL,   -- what the database said
    at     INTEGER NOT NULL,
    until  INTEGER NOT NULL    -- then it is tried again
) STRICT, WITHOUT ROWID;
