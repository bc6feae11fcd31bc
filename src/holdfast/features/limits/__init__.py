"""Limits, pauses, reservations and the settings of queues."""
