-- Retry as a new job (SC-6): what has a successor is never run again. Who may be one is judged where states are made
-- (23_guards.sql), and there what was counted is carried over (20_on_job_insert.sql): another trigger on `job` would cost
-- every job that is enqueued.

DROP TRIGGER IF EXISTS refuse_rerun;
CREATE TRIGGER refuse_rerun BEFORE UPDATE OF state ON job_state
WHEN OLD.state = 'failed' AND (NEW.state = 'retry_waiting' OR NEW.state = 'dead_letter')
     AND EXISTS (SELECT 1 FROM job j WHERE j.retry_of = OLD.id)
BEGIN
    SELECT RAISE(ABORT, 'immutable: it was retried as another job, and is not run again');
END;
