-- An archive is recorded once. A job stays in its archive until it is purged.
DROP TRIGGER IF EXISTS refuse_archive_update;
CREATE TRIGGER refuse_archive_update BEFORE UPDATE ON archive
BEGIN
    SELECT RAISE(ABORT, 'immutable: archive: rows are never changed');
END;

DROP TRIGGER IF EXISTS refuse_archive_delete;
CREATE TRIGGER refuse_archive_delete BEFORE DELETE ON archive
BEGIN
    SELECT RAISE(ABORT, 'immutable: archive: rows are never changed');
END;

DROP TRIGGER IF EXISTS judge_archive_insert;
CREATE TRIGGER judge_archive_insert BEFORE INSERT ON archive WHEN EXISTS (SELECT 1 FROM archive a WHERE a.id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'immutable: archive: rows are never changed');
END;

DROP TRIGGER IF EXISTS judge_archived_delete;
CREATE TRIGGER judge_archived_delete BEFORE DELETE ON archived WHEN EXISTS (SELECT 1 FROM job j WHERE j.id = OLD.job_id)
BEGIN
    SELECT RAISE(ABORT, 'immutable: archived: only a purge removes the archive of a job');
END;
