-- What is paused (DP-18): whoever writes a row here, it is heeded by those who take jobs and by those who enqueue.
DROP TRIGGER IF EXISTS on_switch;
CREATE TRIGGER on_switch AFTER INSERT ON switch
BEGIN
    UPDATE dispatch SET limited = 1, ruled = 1 WHERE NOT limited OR NOT ruled;
END;

DROP TRIGGER IF EXISTS judge_switch_update;
CREATE TRIGGER judge_switch_update BEFORE UPDATE ON switch
WHEN OLD.tenant <> NEW.tenant OR OLD.scope <> NEW.scope OR OLD.name <> NEW.name OR OLD.since <> NEW.since
BEGIN
    SELECT RAISE(ABORT, 'immutable: what is paused, and since when, never changes');
END;
