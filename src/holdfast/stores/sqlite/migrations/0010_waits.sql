-- A wait for the end of another job, and calls in branches of a handler.
ALTER TABLE holdfast_step ADD COLUMN awaits TEXT;   -- Of a wait for a job: that job.
ALTER TABLE holdfast_step ADD COLUMN branch TEXT;    -- Of a call in a branch: the branch and the number of the call in it.
