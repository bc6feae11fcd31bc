-- Streams are written in parts while the attempt runs. Existing parts are checked first, since a REPLACE would not fire the
-- delete trigger.
CREATE TRIGGER holdfast_guard_stream_part_insert BEFORE INSERT ON holdfast_stream_part
BEGIN
    SELECT RAISE(ABORT, 'immutable: a stream is written only while its attempt runs')
     WHERE NOT EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.id = NEW.job_id AND s.tenant = NEW.tenant AND s.attempt = NEW.attempt
                          AND s.state = 'in_progress');
    SELECT RAISE(ABORT, 'immutable: a part of a stream cannot be written twice')
      FROM holdfast_stream_part p WHERE p.job_id = NEW.job_id AND p.attempt = NEW.attempt AND p.n = NEW.n;
END;

-- Re-encrypting the same chunks with another key is allowed.
CREATE TRIGGER holdfast_guard_stream_part_update BEFORE UPDATE ON holdfast_stream_part
WHEN (OLD.job_id, OLD.tenant, OLD.attempt, OLD.n, OLD.stream, OLD.section, OLD.replaces, OLD.count, OLD.at)
     IS NOT (NEW.job_id, NEW.tenant, NEW.attempt, NEW.n, NEW.stream, NEW.section, NEW.replaces, NEW.count, NEW.at)
     OR OLD.chunks NOT LIKE '{"$holdfast":%' OR NEW.chunks NOT LIKE '{"$holdfast":%'
     OR NOT coalesce(
         json_extract(OLD.chunks, '$."$holdfast".key') <> json_extract(NEW.chunks, '$."$holdfast".key')
         AND length(json_extract(OLD.chunks, '$."$holdfast".sealed')) = length(json_extract(NEW.chunks, '$."$holdfast".sealed'))
         AND NEW.chunks = json_object('$holdfast', json_object('key', json_extract(NEW.chunks, '$."$holdfast".key'),
                                                               'sealed', json_extract(NEW.chunks, '$."$holdfast".sealed'))), 0)
BEGIN
    SELECT RAISE(ABORT, 'immutable: parts of streams are never changed');
END;
