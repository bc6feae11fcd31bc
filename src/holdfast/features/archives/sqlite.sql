-- An archive is recorded once. A job stays in its archive until it is purged.
DROP TRIGGER IF EXISTS holdfast_refuse_archive_update;
CREATE TRIGGER holdfast_refuse_archive_update BEFORE UPDATE ON holdfast_archive
BEGIN
    SELECT RAISE(ABORT, 'immutable: archive: rows are never changed');
END;

DROP TRIGGER IF EXISTS holdfast_refuse_archive_delete;
CREATE TRIGGER holdfast_refuse_archive_delete BEFORE DELETE ON holdfast_archive
BEGIN
    SELECT RAISE(ABORT, 'immutable: archive: rows are never changed');
END;

DROP TRIGGER IF EXISTS holdfast_judge_archive_insert;
CREATE TRIGGER holdfast_judge_archive_insert BEFORE INSERT ON holdfast_archive WHEN EXISTS (SELECT 1 FROM holdfast_archive a WHERE a.id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'immutable: archive: rows are never changed');
END;

DROP TRIGGER IF EXISTS holdfast_judge_archived_delete;
CREATE TRIGGER holdfast_judge_archived_delete BEFORE DELETE ON holdfast_archived WHEN EXISTS (SELECT 1 FROM holdfast_job j WHERE j.id = OLD.job_id)
BEGIN
    SELECT RAISE(ABORT, 'immutable: archived: only a purge removes the archive of a job');
END;
