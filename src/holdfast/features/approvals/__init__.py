"""Approvals: a job requests one, people decide."""
