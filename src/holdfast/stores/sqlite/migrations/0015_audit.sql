-- The audit trail (HF-4, CX-4): what was done to anything but a job, and the seals over all of it.

-- One row for each thing that was done to the configuration, by whomever: the ledger of what is no job's.
CREATE TABLE action (
    seq       INTEGER PRIMARY KEY,   -- never used twice: no row is ever deleted
    tenant    TEXT    NOT NULL,
    at        INTEGER NOT NULL,
    actor     TEXT    NOT NULL,
    verb      TEXT    NOT NULL,
    subject   TEXT    NOT NULL,      -- what kind of thing: limit, agent, schedule, …
    name      TEXT    NOT NULL,      -- which
    changed   TEXT,                  -- {"column": value}, or [before, after]
    first_seq INTEGER,               -- of a purge: the smallest and the greatest number of the events that went
    last_seq  INTEGER,
    CONSTRAINT range_of_purge CHECK ((verb = 'purge') = (first_seq IS NOT NULL) AND (first_seq IS NULL) = (last_seq IS NULL))
) STRICT;
CREATE INDEX action_by_tenant ON action (tenant, seq);
CREATE INDEX action_of_purge ON action (last_seq, first_seq) WHERE first_seq IS NOT NULL;

-- A block of events and actions, hashed together with the block before. What is sealed so far: every event up to `floor`,
-- every action up to `action_floor`. One writer at a time needs no snapshots.
CREATE TABLE seal (
    number       INTEGER PRIMARY KEY,
    tenant       TEXT    NOT NULL DEFAULT '*',
    previous     TEXT    NOT NULL,   -- the digest of the one before; of the first: zeros
    digest       TEXT    NOT NULL,
    events       BLOB    NOT NULL,   -- for each event its number in 8 bytes and its digest in 32
    actions      BLOB    NOT NULL,
    event_count  INTEGER NOT NULL,
    action_count INTEGER NOT NULL,
    first_seq    INTEGER,
    last_seq     INTEGER,
    floor        INTEGER NOT NULL,
    action_floor INTEGER NOT NULL,
    base         INTEGER NOT NULL DEFAULT 0,
    snapshot     TEXT,
    sealed_at    INTEGER NOT NULL,
    version      TEXT    NOT NULL,   -- of the library that sealed
    xid          INTEGER,
    CONSTRAINT of_all          CHECK (tenant = '*'),
    CONSTRAINT number_counted  CHECK (number > 0),
    CONSTRAINT digests_whole   CHECK (length(previous) = 64 AND length(digest) = 64),
    CONSTRAINT events_counted  CHECK (length(events) = 40 * event_count),
    CONSTRAINT actions_counted CHECK (length(actions) = 40 * action_count),
    CONSTRAINT something       CHECK (event_count + action_count > 0)
) STRICT;
CREATE INDEX seal_by_seq ON seal (last_seq);
