-- All jobs of a tenant are listed by their states (stores/reads/pages.py), and swept likewise: the index for it cost each
-- enqueue a twelfth of what the server did for it.
drop index job_by_tenant;
