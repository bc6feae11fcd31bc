"""Limits, pauses, reservations and queue settings."""
