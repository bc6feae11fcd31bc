-- The places of jobs that wait and are not due. Those that are due have theirs in `claimable`; whoever moves a job looks
-- at both, and jobs that never wait for a time are not in this one.
create index postponed on job_state (queue, priority desc, position, id)
    where due_at is not null and state in ('queued', 'retry_waiting');
