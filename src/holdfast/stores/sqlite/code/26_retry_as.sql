-- Retry as a new job (SC-6): a successor takes over from a job that failed and wants one; what has a successor is never
-- run again. (That a job has one at most is a key.) What was counted is carried over where states are made, in
-- 20_on_job_insert.sql.
DROP TRIGGER IF EXISTS judge_retry_of;
CREATE TRIGGER judge_retry_of BEFORE INSERT ON job WHEN NEW.retry_of IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'immutable: a job cannot be a retry of one that is no failed job of its kind and tenant that is retried so')
     WHERE NOT EXISTS (SELECT 1 FROM job j JOIN job_state s ON s.n = j.n WHERE j.id = NEW.retry_of AND j.tenant = NEW.tenant
                          AND j.kind = NEW.kind AND j.retry_as = 'new_job' AND s.state = 'failed');
    SELECT RAISE(ABORT, 'already exists: the job has been retried')
     WHERE EXISTS (SELECT 1 FROM job j WHERE j.retry_of = NEW.retry_of);
END;

DROP TRIGGER IF EXISTS refuse_rerun;
CREATE TRIGGER refuse_rerun BEFORE UPDATE OF state ON job_state
WHEN OLD.state = 'failed' AND (NEW.state = 'retry_waiting' OR NEW.state = 'dead_letter')
     AND EXISTS (SELECT 1 FROM job j WHERE j.retry_of = OLD.id)
BEGIN
    SELECT RAISE(ABORT, 'immutable: it was retried as another job, and is not run again');
END;
