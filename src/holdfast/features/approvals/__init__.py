"""Approvals: a job asks, people decide."""
