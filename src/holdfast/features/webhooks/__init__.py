"""Webhooks: signed messages to endpoints of others."""
