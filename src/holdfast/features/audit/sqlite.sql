-- Who may write the audit trail. stores/action_triggers.py lists the tables that are recorded in it.

-- An action cannot be written in another actor's name, with another time, or in place of another action.
CREATE TRIGGER holdfast_guard_action_insert BEFORE INSERT ON holdfast_action
WHEN NEW.actor IS NOT (SELECT actor FROM holdfast_present) OR abs(NEW.at - (SELECT now FROM holdfast_present)) > 60000000
     OR (NEW.seq IS NOT NULL AND NEW.seq <> -1 AND NEW.seq <= (SELECT max(seq) FROM holdfast_action))
BEGIN
    SELECT RAISE(ABORT, 'immutable: an action must be written by its actor at the current time');
END;

-- A seal continues the chain. Two concurrent sealers produce one seal.
CREATE TRIGGER holdfast_guard_seal_insert BEFORE INSERT ON holdfast_seal
WHEN NEW.number <> coalesce((SELECT max(number) FROM holdfast_seal), 0) + 1
     OR NEW.previous <> coalesce((SELECT digest FROM holdfast_seal ORDER BY number DESC LIMIT 1), printf('%064d', 0))
BEGIN
    SELECT RAISE(ABORT, 'chain broken: a seal must continue the newest one');
END;
