-- What a job had in the artifact store is left behind when the job is cleaned: written down here in the same transaction, and
-- forgotten when somebody has deleted it there (DP-16).
CREATE TABLE leftover (
    tenant   TEXT    NOT NULL,
    ref      TEXT    NOT NULL,
    job_id   TEXT    NOT NULL,   -- whose it was; it is part of the reference
    at       INTEGER NOT NULL,
    again_at INTEGER NOT NULL,   -- nobody tries before
    PRIMARY KEY (tenant, ref),
    CONSTRAINT tenant_named CHECK (tenant >= '!' AND length(tenant) <= 100 AND tenant <> '*'),
    CONSTRAINT ref_of_job   CHECK (ref LIKE 'artifact://%/' || job_id || '/%' AND length(ref) <= 4000)
) STRICT, WITHOUT ROWID;
CREATE INDEX leftover_next ON leftover (again_at);

-- Whether a tenant has to be registered before it can have jobs (JF-12).
ALTER TABLE dispatch ADD COLUMN registered INTEGER NOT NULL DEFAULT 0;
