"""Durable calls of a handler: steps, sleeps, waits for events, approvals. ``ctx`` is the way in (``context.py``)."""
