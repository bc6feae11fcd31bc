"""Registered kinds and event types, and what becomes of unregistered ones."""
