-- Usage sums only grow and are never deleted: they are all that remains of purged jobs.
CREATE TRIGGER holdfast_guard_usage_insert BEFORE INSERT ON holdfast_usage
WHEN (SELECT now FROM holdfast_clock) IS NULL
     AND EXISTS (SELECT 1 FROM holdfast_usage u WHERE u.tenant = NEW.tenant AND u.day = NEW.day AND u.kind = NEW.kind)
BEGIN
    SELECT RAISE(ABORT, 'immutable: usage sums cannot be reduced or deleted');
END;

CREATE TRIGGER holdfast_guard_usage_update BEFORE UPDATE ON holdfast_usage
WHEN NEW.tenant <> OLD.tenant OR NEW.day <> OLD.day OR NEW.kind <> OLD.kind
     OR min(NEW.enqueued - OLD.enqueued, NEW.started - OLD.started, NEW.succeeded - OLD.succeeded, NEW.failed - OLD.failed,
            NEW.crashed - OLD.crashed, NEW.dead - OLD.dead, NEW.cancelled - OLD.cancelled, NEW.expired - OLD.expired,
            NEW.run_time - OLD.run_time, NEW.wait_time - OLD.wait_time, NEW.cost - OLD.cost) < 0
BEGIN
    SELECT RAISE(ABORT, 'immutable: usage sums cannot be reduced or deleted');
END;

CREATE TRIGGER holdfast_refuse_usage_delete BEFORE DELETE ON holdfast_usage
BEGIN
    SELECT RAISE(ABORT, 'immutable: usage sums cannot be reduced or deleted');
END;

CREATE TRIGGER holdfast_guard_usage_place BEFORE UPDATE ON holdfast_usage_place
WHEN coalesce(CAST(NEW.cursor AS INTEGER), 0) < coalesce(CAST(OLD.cursor AS INTEGER), 0)
BEGIN
    SELECT RAISE(ABORT, 'immutable: the position of the usage counter cannot move back or be deleted');
END;
