-- What was asked, said and told does not change; what is over is over.

DROP TRIGGER IF EXISTS judge_step_update;
CREATE TRIGGER judge_step_update BEFORE UPDATE ON step
WHEN OLD.ended_at IS NOT NULL OR OLD.job_id <> NEW.job_id OR OLD.n <> NEW.n OR OLD.tenant <> NEW.tenant
     OR OLD.name <> NEW.name OR OLD.kind <> NEW.kind
BEGIN
    SELECT RAISE(ABORT, 'immutable: a step that is over is not written again');
END;

-- REPLACE deletes what is in its way without asking anybody.
DROP TRIGGER IF EXISTS judge_step_insert;
CREATE TRIGGER judge_step_insert BEFORE INSERT ON step
WHEN EXISTS (SELECT 1 FROM step t WHERE t.job_id = NEW.job_id AND t.n = NEW.n AND t.ended_at IS NOT NULL AND NEW.wake_at IS NULL
                AND (t.name <> NEW.name OR t.kind <> NEW.kind))
     OR NOT EXISTS (SELECT 1 FROM job j WHERE j.id = NEW.job_id AND j.tenant = NEW.tenant)
BEGIN
    SELECT RAISE(ABORT, 'immutable: a step belongs to a job, and is not written over');
END;

DROP TRIGGER IF EXISTS judge_gate_update;
CREATE TRIGGER judge_gate_update BEFORE UPDATE ON gate
WHEN OLD.state <> 'open' OR OLD.id <> NEW.id OR OLD.tenant <> NEW.tenant OR OLD.job_id <> NEW.job_id OR OLD.n <> NEW.n
     OR OLD.name <> NEW.name OR OLD.summary <> NEW.summary OR OLD.data IS NOT NEW.data OR OLD.form IS NOT NEW.form
     OR OLD.approvers <> NEW.approvers OR OLD.quorum <> NEW.quorum OR OLD.requester <> NEW.requester
     OR OLD.not_requester <> NEW.not_requester OR OLD.content_hash <> NEW.content_hash
     OR OLD.escalate_to <> NEW.escalate_to OR OLD.on_deny <> NEW.on_deny OR OLD.on_expire <> NEW.on_expire
BEGIN
    SELECT RAISE(ABORT, 'immutable: a decided gate and what was asked never change');
END;

DROP TRIGGER IF EXISTS judge_gate_insert;
CREATE TRIGGER judge_gate_insert BEFORE INSERT ON gate
WHEN EXISTS (SELECT 1 FROM gate g WHERE g.id = NEW.id) OR NEW.state <> 'open'
     OR NOT EXISTS (SELECT 1 FROM job_state s WHERE s.id = NEW.job_id AND s.tenant = NEW.tenant AND s.gate_id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'immutable: a gate is opened by the job that waits for it');
END;

DROP TRIGGER IF EXISTS judge_vote_insert;
CREATE TRIGGER judge_vote_insert BEFORE INSERT ON vote
WHEN EXISTS (SELECT 1 FROM vote v WHERE v.gate_id = NEW.gate_id AND v.person = NEW.person)
     OR NOT EXISTS (SELECT 1 FROM gate g WHERE g.id = NEW.gate_id AND g.tenant = NEW.tenant AND g.state = 'open')
BEGIN
    SELECT RAISE(ABORT, 'immutable: one word a person, while the gate is open');
END;

DROP TRIGGER IF EXISTS refuse_vote_update;
CREATE TRIGGER refuse_vote_update BEFORE UPDATE ON vote
BEGIN
    SELECT RAISE(ABORT, 'immutable: what people said is never changed');
END;

DROP TRIGGER IF EXISTS refuse_vote_delete;
CREATE TRIGGER refuse_vote_delete BEFORE DELETE ON vote
WHEN EXISTS (SELECT 1 FROM gate g WHERE g.id = OLD.gate_id)
BEGIN
    SELECT RAISE(ABORT, 'immutable: what people said is never removed');
END;

DROP TRIGGER IF EXISTS judge_token_update;
CREATE TRIGGER judge_token_update BEFORE UPDATE ON gate_token
WHEN OLD.used_at IS NOT NULL OR NEW.used_at IS NULL OR OLD.hash <> NEW.hash OR OLD.gate_id <> NEW.gate_id
     OR OLD.person IS NOT NEW.person OR OLD.tenant <> NEW.tenant OR OLD.expires_at IS NOT NEW.expires_at
BEGIN
    SELECT RAISE(ABORT, 'immutable: a token is used once, and is otherwise not changed');
END;

DROP TRIGGER IF EXISTS refuse_app_event_update;
CREATE TRIGGER refuse_app_event_update BEFORE UPDATE ON app_event
BEGIN
    SELECT RAISE(ABORT, 'immutable: what was told is never changed');
END;
