"""Workflows: jobs that depend on other jobs."""
