-- Rules that every writer of webhooks and their delivery log has to obey. Disabling a webhook, and missing the times of a
-- schedule, send application events, since the ledger is only about jobs.

CREATE TRIGGER holdfast_report_disabled AFTER UPDATE OF disabled_at ON holdfast_webhook
WHEN OLD.disabled_at IS NULL AND NEW.disabled_at IS NOT NULL
BEGIN
    INSERT INTO holdfast_app_event (tenant, name, data, sent_by, sent_at)
    VALUES (NEW.tenant, 'webhook.disabled',
            json_object('webhook', NEW.name, 'reason', NEW.disabled_reason, 'by', NEW.disabled_by),
            NEW.disabled_by, NEW.disabled_at);
END;

-- The delivery log is deleted with its webhook.
CREATE TRIGGER holdfast_on_webhook_removed AFTER DELETE ON holdfast_webhook
BEGIN
    DELETE FROM holdfast_webhook_delivery WHERE webhook_id = OLD.id;
END;

CREATE TRIGGER holdfast_guard_webhook_delivery_insert BEFORE INSERT ON holdfast_webhook_delivery
BEGIN
    SELECT RAISE(ABORT, 'already exists: this delivery attempt is already recorded')
     WHERE EXISTS (SELECT 1 FROM holdfast_webhook_delivery d WHERE d.id = NEW.id);
    SELECT RAISE(ABORT, 'immutable: the webhook of this delivery does not exist')
     WHERE NOT EXISTS (SELECT 1 FROM holdfast_webhook e WHERE e.id = NEW.webhook_id AND e.tenant = NEW.tenant);
END;

CREATE TRIGGER holdfast_report_missed AFTER INSERT ON holdfast_fire WHEN NEW.status = 'missed'
BEGIN
    INSERT INTO holdfast_app_event (tenant, name, data, sent_by, sent_at)
    SELECT NEW.tenant, 'schedule.missed',
           json_object('schedule', s.name, 'schedule_id', s.id, 'kind', s.kind, 'count', NEW.count,
               'first', strftime('%Y-%m-%dT%H:%M:%SZ', coalesce(NEW.since_at, NEW.due_at) / 1000000, 'unixepoch'),
               'last', strftime('%Y-%m-%dT%H:%M:%SZ', NEW.due_at / 1000000, 'unixepoch')),
           NEW.actor, NEW.at
      FROM holdfast_schedule s WHERE s.id = NEW.schedule_id;
END;
