-- Rules that every writer of templates, schedules and fired times has to obey. REPLACE deletes conflicting rows without firing
-- the delete triggers, so each insert checks for conflicting rows first.

-- Versions have no gaps, and the kind of a template never changes: another kind needs another template.
CREATE TRIGGER holdfast_guard_template_insert BEFORE INSERT ON holdfast_template
WHEN NEW.version <> 1 + coalesce((SELECT max(t.version) FROM holdfast_template t WHERE t.tenant = NEW.tenant AND t.name = NEW.name), 0)
     OR EXISTS (SELECT 1 FROM holdfast_template t WHERE t.tenant = NEW.tenant AND t.name = NEW.name AND t.kind <> NEW.kind)
BEGIN
    SELECT RAISE(ABORT, 'immutable: the next version must be one more than the newest, and the kind of a template cannot change');
END;

-- A program that writes a new version at each start must not fill the table: the newest 1,000 versions of a template are kept.
CREATE TRIGGER holdfast_guard_template_delete BEFORE DELETE ON holdfast_template
WHEN OLD.version > (SELECT max(t.version) FROM holdfast_template t WHERE t.tenant = OLD.tenant AND t.name = OLD.name) - 1000
BEGIN
    SELECT RAISE(ABORT, 'immutable: the newest 1,000 versions of a template are never deleted');
END;

CREATE TRIGGER holdfast_guard_schedule_insert BEFORE INSERT ON holdfast_schedule
WHEN EXISTS (SELECT 1 FROM holdfast_schedule s WHERE s.id = NEW.id)
     OR NEW.state <> 'deleted' AND EXISTS (SELECT 1 FROM holdfast_schedule s WHERE s.tenant = NEW.tenant AND s.name = NEW.name AND s.state <> 'deleted')
BEGIN
    SELECT RAISE(ABORT, 'already exists: there is a schedule with this name');
END;

-- Times move forward unless the schedule was redefined: a time that has been fired is not fired again.
CREATE TRIGGER holdfast_guard_schedule_update BEFORE UPDATE ON holdfast_schedule
WHEN NEW.id <> OLD.id OR NEW.tenant <> OLD.tenant OR NEW.created_at <> OLD.created_at OR NEW.created_by <> OLD.created_by
     OR OLD.state = 'deleted' OR NEW.revision < OLD.revision
     OR (NEW.revision = OLD.revision AND NEW.next_fire_at < OLD.next_fire_at)
BEGIN
    SELECT RAISE(ABORT, 'immutable: the identity of a schedule cannot change, nor a deleted one; its next time cannot move back');
END;

CREATE TRIGGER holdfast_refuse_schedule_delete BEFORE DELETE ON holdfast_schedule
BEGIN
    SELECT RAISE(ABORT, 'immutable: schedules cannot be deleted from the table; mark the schedule as deleted');
END;

CREATE TRIGGER holdfast_guard_fire_insert BEFORE INSERT ON holdfast_fire
WHEN EXISTS (SELECT 1 FROM holdfast_fire f WHERE f.schedule_id = NEW.schedule_id AND f.due_at = NEW.due_at AND f.manual = NEW.manual)
     OR NOT EXISTS (SELECT 1 FROM holdfast_schedule s WHERE s.id = NEW.schedule_id AND s.tenant = NEW.tenant)
     OR (NEW.job_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM holdfast_job j WHERE j.id = NEW.job_id AND j.tenant = NEW.tenant))
BEGIN
    SELECT RAISE(ABORT, 'immutable: a time is fired once, by an existing schedule and for an existing job');
END;

-- A time is decided once. A waiting time can become a job; a fired time is marked when its job has ended.
CREATE TRIGGER holdfast_guard_fire_update BEFORE UPDATE ON holdfast_fire
WHEN NEW.schedule_id <> OLD.schedule_id OR NEW.due_at <> OLD.due_at OR NEW.manual <> OLD.manual OR NEW.tenant <> OLD.tenant
     OR NEW.count <> OLD.count OR NEW.since_at IS NOT OLD.since_at OR NEW.actor <> OLD.actor OR NEW.ended < OLD.ended
     OR (OLD.status <> 'waiting' AND (NEW.status <> OLD.status OR NEW.job_id IS NOT OLD.job_id OR NEW.at <> OLD.at
                                      OR NEW.error_code IS NOT OLD.error_code))
BEGIN
    SELECT RAISE(ABORT, 'immutable: the result of a fired time cannot change');
END;

-- A job is made from one template version or schedule, of its own tenant; the row is deleted with the job.
CREATE TRIGGER holdfast_guard_made_from_insert BEFORE INSERT ON holdfast_made_from
WHEN EXISTS (SELECT 1 FROM holdfast_made_from m WHERE m.job_id = NEW.job_id)
     OR NOT EXISTS (SELECT 1 FROM holdfast_job j WHERE j.id = NEW.job_id AND j.tenant = NEW.tenant)
     OR (NEW.template IS NOT NULL AND NOT EXISTS (SELECT 1 FROM holdfast_template t WHERE t.tenant = NEW.tenant AND t.name = NEW.template
                                                   AND t.version = NEW.template_version))
     OR (NEW.schedule_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM holdfast_schedule s WHERE s.id = NEW.schedule_id AND s.tenant = NEW.tenant))
BEGIN
    SELECT RAISE(ABORT, 'immutable: a job has one origin, which must exist');
END;
