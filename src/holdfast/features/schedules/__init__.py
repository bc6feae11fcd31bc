"""Schedules and templates."""
