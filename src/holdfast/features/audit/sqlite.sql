-- Who may write the audit trail. stores/action_triggers.py lists the tables that are recorded in it.

-- An action cannot be written in another actor's name, with another time, or in place of another action.
DROP TRIGGER IF EXISTS holdfast_judge_action_insert;
CREATE TRIGGER holdfast_judge_action_insert BEFORE INSERT ON holdfast_action
WHEN NEW.actor IS NOT (SELECT actor FROM holdfast_present) OR abs(NEW.at - (SELECT now FROM holdfast_present)) > 60000000
     OR (NEW.seq IS NOT NULL AND NEW.seq <> -1 AND NEW.seq <= (SELECT max(seq) FROM holdfast_action))
BEGIN
    SELECT RAISE(ABORT, 'immutable: an action must be written by its actor at the current time');
END;

DROP TRIGGER IF EXISTS holdfast_refuse_action_update;
CREATE TRIGGER holdfast_refuse_action_update BEFORE UPDATE ON holdfast_action
BEGIN
    SELECT RAISE(ABORT, 'immutable: actions are never changed');
END;

DROP TRIGGER IF EXISTS holdfast_refuse_action_delete;
CREATE TRIGGER holdfast_refuse_action_delete BEFORE DELETE ON holdfast_action
BEGIN
    SELECT RAISE(ABORT, 'immutable: actions are never deleted');
END;

-- A seal continues the chain. Two concurrent sealers produce one seal.
DROP TRIGGER IF EXISTS holdfast_judge_seal_insert;
CREATE TRIGGER holdfast_judge_seal_insert BEFORE INSERT ON holdfast_seal
WHEN NEW.number <> coalesce((SELECT max(number) FROM holdfast_seal), 0) + 1
     OR NEW.previous <> coalesce((SELECT digest FROM holdfast_seal ORDER BY number DESC LIMIT 1), printf('%064d', 0))
BEGIN
    SELECT RAISE(ABORT, 'chain broken: a seal must continue the newest one');
END;

DROP TRIGGER IF EXISTS holdfast_refuse_seal_update;
CREATE TRIGGER holdfast_refuse_seal_update BEFORE UPDATE ON holdfast_seal
BEGIN
    SELECT RAISE(ABORT, 'immutable: seals are never changed');
END;

DROP TRIGGER IF EXISTS holdfast_refuse_seal_delete;
CREATE TRIGGER holdfast_refuse_seal_delete BEFORE DELETE ON holdfast_seal
BEGIN
    SELECT RAISE(ABORT, 'immutable: seals are never deleted');
END;
