-- A wait for the end of another job, and calls in branches of a handler.
alter table step add column awaits uuid;   -- Of a wait for a job: that job.
alter table step add column branch text;   -- Of a call in a branch: the branch and the number of the call in it.
