-- Who may execute (DP-6): a whitelist of the labels that leases are opened under. Empty, it lets everybody. A label that is
-- registered as a generator plans work and never executes it.
DROP TRIGGER IF EXISTS judge_lease_insert;
CREATE TRIGGER judge_lease_insert BEFORE INSERT ON lease WHEN EXISTS (SELECT 1 FROM executor WHERE label > '')
BEGIN
    SELECT RAISE(ABORT, 'executor refused: it is a generator, which plans work and does not execute it')
     WHERE EXISTS (SELECT 1 FROM executor e WHERE e.label = NEW.name AND e.role = 'generator');
    SELECT RAISE(ABORT, 'executor refused: it is not on the list of those that may execute')
     WHERE NOT EXISTS (SELECT 1 FROM executor e WHERE e.label = NEW.name);
END;

DROP TRIGGER IF EXISTS judge_lease_name;
CREATE TRIGGER judge_lease_name BEFORE UPDATE OF name ON lease WHEN NEW.name <> OLD.name AND EXISTS (SELECT 1 FROM executor WHERE label > '')
BEGIN
    SELECT RAISE(ABORT, 'executor refused: it is not on the list of those that may execute')
     WHERE NOT EXISTS (SELECT 1 FROM executor e WHERE e.label = NEW.name AND e.role = 'executor');
END;
