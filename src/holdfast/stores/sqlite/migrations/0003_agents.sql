-- Agents: a registry of those whom jobs are for (CX-16). A job names one in `job.agent`, by its id; there is no foreign
-- key, since a name that nobody has registered is only a label.

CREATE TABLE agent (
    tenant            TEXT    NOT NULL,
    id                TEXT    NOT NULL,   -- what jobs say
    name              TEXT    NOT NULL,   -- what people say
    kind              TEXT,               -- the only kind of its jobs; null: any
    max_retries       INTEGER,            -- of this and the next two, null is the kind's own
    max_crashes       INTEGER,
    backoff           TEXT,
    max_payload_bytes INTEGER,
    max_wait          REAL,               -- seconds that a job may wait to be started, from when it may be
    requires_approval INTEGER NOT NULL DEFAULT 0,
    disabled_at       INTEGER,
    disabled_by       TEXT,
    disabled_reason   TEXT,
    created_at        INTEGER NOT NULL,
    updated_at        INTEGER NOT NULL,
    PRIMARY KEY (tenant, id),
    CONSTRAINT tenant_named      CHECK (tenant >= '!' AND length(tenant) <= 100 AND tenant <> '*'),
    CONSTRAINT id_named          CHECK (id >= '!' AND length(id) <= 255),
    CONSTRAINT name_named        CHECK (name >= '!' AND length(name) <= 255),
    CONSTRAINT kind_named        CHECK (kind >= '!' AND length(kind) <= 100),
    CONSTRAINT retries_bounded   CHECK (max_retries BETWEEN 0 AND 100),
    CONSTRAINT crashes_bounded   CHECK (max_crashes BETWEEN 0 AND 100),
    CONSTRAINT backoff_is_object CHECK (json_type(backoff) = 'object'),
    CONSTRAINT payload_bounded   CHECK (max_payload_bytes BETWEEN 2 AND 1073741824),
    CONSTRAINT wait_bounded      CHECK (max_wait BETWEEN 0.001 AND 3153600000),
    CONSTRAINT yes_or_no         CHECK (requires_approval = 0 OR requires_approval = 1),
    CONSTRAINT disabled_by_whom  CHECK ((disabled_at IS NULL) = (disabled_by IS NULL)),
    CONSTRAINT disabled_for_what CHECK ((disabled_at IS NULL) = (disabled_reason IS NULL)),
    CONSTRAINT disabled_by_named CHECK (disabled_by >= '!'),
    CONSTRAINT reason_given      CHECK (trim(disabled_reason, char(9, 10, 11, 12, 13, 32)) <> '')
) STRICT, WITHOUT ROWID;

-- A claim must know whose jobs it takes, and others of theirs. Null takes next to no room.
ALTER TABLE job_state ADD COLUMN agent TEXT;
UPDATE job_state SET agent = (SELECT j.agent FROM job j WHERE j.n = job_state.n)
 WHERE n IN (SELECT j.n FROM job j WHERE j.agent IS NOT NULL)
   AND state NOT IN ('succeeded', 'failed', 'cancelled', 'cleaned');
CREATE INDEX waiting_by_agent ON job_state (tenant, agent, due_at)
    WHERE agent IS NOT NULL AND state IN ('queued', 'retry_waiting');
