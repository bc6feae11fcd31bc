"""Retention policies, the removal of old jobs, and usage sums."""
