-- A job's row is written three times before it rests, and each time the key of job_state gets an entry beside the last. A
-- leaf that is left half empty has room for them; a full one was searched for dead entries again and again, and then
-- split, for a twenty-fifth of all that the server did for a job. Holds for leaves that are made from now on.
alter index job_state_pkey set (fillfactor = 50);
