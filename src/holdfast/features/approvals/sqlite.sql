-- Requests, votes and notices never change, a closed approval never reopens, and votes decide an approval. REPLACE deletes
-- conflicting rows without firing triggers, so each insert checks for conflicting rows first.

-- A job waits for one approval. guard_transition ensures that it leaves by that approval's decision; a job that leaves
-- otherwise (a cancellation, a deadline) withdraws its approval.
CREATE TRIGGER holdfast_guard_waiting BEFORE UPDATE OF approval_id ON holdfast_job_state
WHEN OLD.state = 'waiting_for_approval' AND NEW.state = OLD.state AND NEW.approval_id IS NOT OLD.approval_id
BEGIN
    SELECT RAISE(ABORT, 'immutable: a job waits for one approval and cannot wait for another one');
END;

CREATE TRIGGER holdfast_withdraw_approval AFTER UPDATE OF approval_id ON holdfast_job_state
WHEN OLD.state = 'waiting_for_approval' AND NEW.state <> OLD.state
BEGIN
    UPDATE holdfast_approval SET state = 'withdrawn', decided_at = (SELECT now FROM holdfast_present) WHERE id = OLD.approval_id AND state = 'open';
END;

-- --- approvals ---

CREATE TRIGGER holdfast_guard_approval_insert BEFORE INSERT ON holdfast_approval
WHEN EXISTS (SELECT 1 FROM holdfast_approval g WHERE g.id = NEW.id) OR NEW.state <> 'open'
     OR NOT EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.id = NEW.job_id AND s.tenant = NEW.tenant
                       AND s.state = 'waiting_for_approval' AND s.approval_id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'immutable: only the job that waits for it can open an approval');
END;

CREATE TRIGGER holdfast_guard_approval_update BEFORE UPDATE ON holdfast_approval
BEGIN
    SELECT RAISE(ABORT, 'immutable: the request and a closed approval never change')
     WHERE OLD.state <> 'open'
        OR (OLD.id, OLD.tenant, OLD.job_id, OLD.n, OLD.name, OLD.summary, OLD.data, OLD.form, OLD.approvers, OLD.quorum,
            OLD.requester, OLD.not_requester, OLD.token_only, OLD.on_deny, OLD.on_expire, OLD.expires_in, OLD.remind_every, OLD.escalate_to,
            OLD.notify, OLD.content_hash, OLD.opened_at)
           IS NOT
           (NEW.id, NEW.tenant, NEW.job_id, NEW.n, NEW.name, NEW.summary, NEW.data, NEW.form, NEW.approvers, NEW.quorum,
            NEW.requester, NEW.not_requester, NEW.token_only, NEW.on_deny, NEW.on_expire, NEW.expires_in, NEW.remind_every, NEW.escalate_to,
            NEW.notify, NEW.content_hash, NEW.opened_at);
    SELECT RAISE(ABORT, 'immutable: the times of an approval cannot differ from the request')
     WHERE NEW.expires_at IS NOT OLD.expires_at AND (OLD.on_expire <> 'remind' OR NEW.expires_at < OLD.expires_at)
        OR NEW.escalated_at IS NOT OLD.escalated_at
           AND (OLD.escalated_at IS NOT NULL OR (OLD.escalate_at <= (SELECT now FROM holdfast_present)) IS NOT 1);
    -- By votes, by time, or because its job no longer waits for it.
    SELECT RAISE(ABORT, 'illegal transition of an approval: the votes do not justify it')
     WHERE NOT coalesce(CASE NEW.state
        WHEN 'open' THEN 1
        -- As many people as needed approve the same values, by their last votes. Without a form there are no values.
        WHEN 'approved' THEN EXISTS (SELECT 1 FROM holdfast_vote v WHERE v.approval_id = NEW.id AND v.verdict = 'approve'
                                        AND NOT EXISTS (SELECT 1 FROM holdfast_vote w WHERE w.approval_id = v.approval_id
                                                           AND w.person = v.person AND w.n > v.n)
                                      GROUP BY CASE WHEN NEW.form IS NOT NULL THEN coalesce(v.data, '{}') END HAVING count(*) >= NEW.quorum)
                             OR (NEW.on_expire = 'approve' AND NEW.expires_at <= (SELECT now FROM holdfast_present))
        WHEN 'denied' THEN EXISTS (SELECT 1 FROM holdfast_vote v WHERE v.approval_id = NEW.id AND v.verdict = 'deny')
        WHEN 'expired' THEN NEW.on_expire = 'deny' AND NEW.expires_at <= (SELECT now FROM holdfast_present)
        WHEN 'withdrawn' THEN NOT EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.id = NEW.job_id AND s.approval_id = NEW.id)
    END, 0);
END;

-- --- votes and tokens ---

CREATE TRIGGER holdfast_guard_vote_insert BEFORE INSERT ON holdfast_vote
WHEN NEW.n <> 1 + (SELECT count(*) FROM holdfast_vote v WHERE v.approval_id = NEW.approval_id)
     OR NOT EXISTS (
        SELECT 1 FROM holdfast_approval g JOIN holdfast_job_state s ON s.id = g.job_id AND s.approval_id = g.id
         WHERE g.id = NEW.approval_id AND g.tenant = NEW.tenant AND g.state = 'open'
           AND (g.on_expire = 'remind' OR g.expires_at IS NULL OR g.expires_at > NEW.at)
           AND (g.approvers = '[]' OR EXISTS (SELECT 1 FROM json_each(g.approvers) WHERE value = NEW.person)
                OR (g.escalated_at IS NOT NULL AND EXISTS (SELECT 1 FROM json_each(g.escalate_to) WHERE value = NEW.person)))
           AND NOT (g.not_requester AND NEW.person = g.requester)
           -- The decision has marked the token as used at the same time.
           AND (NOT g.token_only OR EXISTS (SELECT 1 FROM holdfast_approval_token t WHERE t.approval_id = g.id AND t.used_at = NEW.at
                                               AND coalesce(t.person, NEW.person) = NEW.person))
           AND (g.form IS NOT NULL
                OR NOT EXISTS (SELECT 1 FROM holdfast_vote v WHERE v.approval_id = g.id AND v.person = NEW.person)))
BEGIN
    SELECT RAISE(ABORT, 'immutable: only approvers can vote, once each, while the approval is open');
END;

CREATE TRIGGER holdfast_guard_token_insert BEFORE INSERT ON holdfast_approval_token
BEGIN
    SELECT RAISE(ABORT, 'already exists: this approval token is already stored')
     WHERE EXISTS (SELECT 1 FROM holdfast_approval_token t WHERE t.hash = NEW.hash);
    SELECT RAISE(ABORT, 'immutable: a token must be issued unused and for an open approval')
     WHERE NEW.used_at IS NOT NULL
        OR NOT EXISTS (SELECT 1 FROM holdfast_approval g WHERE g.id = NEW.approval_id AND g.tenant = NEW.tenant AND g.state = 'open');
END;

CREATE TRIGGER holdfast_guard_token_update BEFORE UPDATE ON holdfast_approval_token
WHEN OLD.used_at IS NOT NULL OR NEW.used_at IS NULL OR OLD.hash <> NEW.hash OR OLD.approval_id <> NEW.approval_id
     OR OLD.person IS NOT NEW.person OR OLD.tenant <> NEW.tenant OR OLD.issued_by <> NEW.issued_by
     OR OLD.issued_at <> NEW.issued_at OR OLD.expires_at IS NOT NEW.expires_at
BEGIN
    SELECT RAISE(ABORT, 'immutable: a token can be marked as used once and never changed otherwise');
END;

-- --- the step of an approval ---

CREATE TRIGGER holdfast_guard_approval BEFORE UPDATE OF ended_at ON holdfast_step
WHEN NEW.kind = 'approval' AND NEW.ended_at IS NOT NULL
     AND NOT EXISTS (SELECT 1 FROM holdfast_approval g WHERE g.job_id = NEW.job_id AND g.n = NEW.n AND g.tenant = NEW.tenant
                        AND g.id = json_extract(NEW.value, '$.approval_id') AND g.state = json_extract(NEW.value, '$.state')
                        AND g.content_hash = json_extract(NEW.value, '$.content_hash')
                        AND g.decided_at = NEW.ended_at)
BEGIN
    SELECT RAISE(ABORT, 'immutable: only the decision of its approval can finish this step');
END;

-- --- deletion ---
