-- Rules that every writer of subscriptions and deliveries has to obey; and the order of application events.

-- There is one writer at a time, so the order of these numbers is the commit order. `refuse_app_event_update` allows no other
-- update.
CREATE TRIGGER holdfast_number_app_event AFTER INSERT ON holdfast_app_event WHEN NEW.seq IS NULL
BEGIN
    UPDATE holdfast_app_event
       SET seq = max((SELECT coalesce(max(seq), 0) + 1 FROM holdfast_app_event), (SELECT max(first_seq) FROM holdfast_ledger_epoch))
     WHERE id = NEW.id;
END;

CREATE TRIGGER holdfast_refuse_app_event_update BEFORE UPDATE ON holdfast_app_event
WHEN OLD.seq IS NOT NULL OR NEW.id <> OLD.id OR NEW.tenant <> OLD.tenant OR NEW.name <> OLD.name OR NEW.data <> OLD.data
     OR NEW.key IS NOT OLD.key OR NEW.job_id IS NOT OLD.job_id OR NEW.sent_by <> OLD.sent_by OR NEW.sent_at <> OLD.sent_at
     OR NEW.cause_id IS NOT OLD.cause_id
BEGIN
    SELECT RAISE(ABORT, 'immutable: application events are never changed');
END;

-- A delivery that created a job names an existing job of its tenant. REPLACE would delete conflicting rows without a check.
CREATE TRIGGER holdfast_guard_delivery_insert BEFORE INSERT ON holdfast_delivery
BEGIN
    SELECT RAISE(ABORT, 'already exists: the event was already delivered to this subscription')
     WHERE EXISTS (SELECT 1 FROM holdfast_delivery d WHERE d.subscription_id = NEW.subscription_id AND d.event = NEW.event);
    SELECT RAISE(ABORT, 'immutable: the delivery refers to a job that does not exist')
     WHERE NEW.job_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM holdfast_job j WHERE j.id = NEW.job_id AND j.tenant = NEW.tenant);
END;
