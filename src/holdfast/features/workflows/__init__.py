"""Workflows: jobs that depend on one another."""
