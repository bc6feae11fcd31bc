"""The condition that a job is not passed over just now (``quarantine``); its parameter is the present."""

PASSED_OVER = "NOT IN (SELECT q.job_id FROM quarantine q WHERE q.until > :now)"
