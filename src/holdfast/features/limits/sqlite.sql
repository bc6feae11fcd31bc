-- When a job is released by its worker, its slots become free, however the transition is made, and for each slot the next parked
-- job is requeued, unless the limit was lowered meanwhile. A claim counts again. Two triggers, since nearly always no job is
-- parked, and an update that finds nothing costs as much as settling.
CREATE TRIGGER holdfast_unpark_next BEFORE UPDATE OF lease ON holdfast_job_state
WHEN OLD.lease IS NOT NULL AND NEW.lease IS NULL AND (SELECT limited FROM holdfast_dispatch WHERE id = 1)
     AND EXISTS (SELECT 1 FROM holdfast_job_state k WHERE k.held_by IS NOT NULL AND k.due_at IS NOT NULL AND k.state = 'queued')
BEGIN
    UPDATE holdfast_job_state SET due_at = NULL, note = NULL, held_by = NULL WHERE n IN (
        SELECT (SELECT s.n FROM holdfast_job_state s
                 WHERE s.held_by = json_array(p.tenant, p.scope, p.name) AND s.held_by IS NOT NULL
                   AND s.due_at IS NOT NULL AND s.state = 'queued'
                 ORDER BY s.priority DESC, s.position LIMIT 1)
          FROM holdfast_occupied_slot p
         WHERE p.job_id = OLD.id
           AND (SELECT count(*) FROM holdfast_occupied_slot q WHERE q.tenant = p.tenant AND q.scope = p.scope AND q.name = p.name)
               <= coalesce((SELECT l.concurrency FROM holdfast_job_limit l
                             WHERE l.tenant = p.tenant AND l.scope = p.scope AND (l.name = p.name OR l.name = '*')
                             ORDER BY l.name = '*' LIMIT 1), 1000000));
END;

CREATE TRIGGER holdfast_free_places AFTER UPDATE OF lease ON holdfast_job_state
WHEN OLD.lease IS NOT NULL AND NEW.lease IS NULL AND (SELECT limited FROM holdfast_dispatch WHERE id = 1)
BEGIN
    DELETE FROM holdfast_occupied_slot WHERE job_id = NEW.id;
END;

-- A slot is kept while its job is held and its limit exists: deleting it would admit one job too many.
CREATE TRIGGER holdfast_guard_occupied_slot_delete BEFORE DELETE ON holdfast_occupied_slot
WHEN EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.id = OLD.job_id AND s.lease IS NOT NULL)
     AND EXISTS (SELECT 1 FROM holdfast_job_limit l WHERE l.tenant = OLD.tenant AND l.scope = OLD.scope
                    AND (l.name = OLD.name OR l.name = '*') AND l.concurrency IS NOT NULL)
BEGIN
    SELECT RAISE(ABORT, 'immutable: a slot cannot be deleted while its job is held');
END;

-- `dispatch.limited` is true while any limit exists. Claims read only this row, so it must exist.
CREATE TRIGGER holdfast_guard_dispatch_update BEFORE UPDATE OF limited ON holdfast_dispatch
WHEN OLD.limited AND NOT NEW.limited
     AND (EXISTS (SELECT 1 FROM holdfast_job_limit) OR EXISTS (SELECT 1 FROM holdfast_reservation WHERE state = 'waiting' OR state = 'active')
          OR EXISTS (SELECT 1 FROM holdfast_pause))
BEGIN
    SELECT RAISE(ABORT, 'immutable: dispatch.limited must stay true while a limit, reservation or pause exists');
END;

CREATE TRIGGER holdfast_refuse_dispatch_delete BEFORE DELETE ON holdfast_dispatch
BEGIN
    SELECT RAISE(ABORT, 'immutable: dispatch must keep its one row');
END;

-- The request, the owner and the end of a reservation never change.
CREATE TRIGGER holdfast_guard_reservation_update BEFORE UPDATE ON holdfast_reservation
WHEN OLD.ended_at IS NOT NULL
     OR (OLD.state = 'active' AND (NEW.state = 'waiting' OR NEW.state = 'withdrawn'))
     OR (OLD.state = 'waiting' AND (NEW.state = 'released' OR NEW.state = 'expired'))
     OR OLD.id <> NEW.id OR OLD.tenant <> NEW.tenant OR OLD.scope <> NEW.scope OR OLD.name <> NEW.name
     OR OLD.holder <> NEW.holder OR OLD.asked_at <> NEW.asked_at
     OR (OLD.state = 'active' AND OLD.reserved_at IS NOT NEW.reserved_at)
     OR (OLD.job_id IS NOT NULL AND OLD.job_id IS NOT NEW.job_id)
BEGIN
    SELECT CASE
        WHEN OLD.ended_at IS NOT NULL THEN RAISE(ABORT, 'immutable: an ended reservation cannot change')
        WHEN OLD.state = 'active' AND (NEW.state = 'waiting' OR NEW.state = 'withdrawn')
            THEN RAISE(ABORT, 'illegal transition: an active reservation can only be released or expire')
        WHEN OLD.state = 'waiting' AND (NEW.state = 'released' OR NEW.state = 'expired')
            THEN RAISE(ABORT, 'illegal transition: a waiting reservation can only become active or be withdrawn')
        ELSE RAISE(ABORT, 'immutable: the request cannot change')
    END;
END;

CREATE TRIGGER holdfast_guard_reservation_insert BEFORE INSERT ON holdfast_reservation
WHEN EXISTS (SELECT 1 FROM holdfast_reservation r WHERE r.id = NEW.id
                OR (r.state = 'active' AND NEW.state = 'active' AND r.tenant = NEW.tenant AND r.scope = NEW.scope AND r.name = NEW.name))
BEGIN
    SELECT RAISE(ABORT, 'already exists: there is a reservation with this id');
END;

-- A row in `pause` applies to claims and enqueues, whichever way it was written.
CREATE TRIGGER holdfast_on_pause AFTER INSERT ON holdfast_pause
BEGIN
    UPDATE holdfast_dispatch SET limited = 1, ruled = 1 WHERE NOT limited OR NOT ruled;
END;
