-- Whether anything is to be judged when a job is enqueued beyond what its own row says: a rule for payloads, a cap of a
-- tenant, something that is switched off. One look at one row, as for limits; whoever makes the first rule sets it.
ALTER TABLE dispatch ADD COLUMN ruled INTEGER NOT NULL DEFAULT 0;
