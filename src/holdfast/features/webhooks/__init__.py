"""Webhooks: signed messages to other services."""
