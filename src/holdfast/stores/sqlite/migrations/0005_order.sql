-- The places of jobs that wait and are not due. Those that are due have theirs in `claimable`; whoever moves a job looks
-- at both, and jobs that never wait for a time are not in this one.
CREATE INDEX postponed ON job_state (queue, priority DESC, position)
    WHERE due_at IS NOT NULL AND state IN ('queued', 'retry_waiting');
