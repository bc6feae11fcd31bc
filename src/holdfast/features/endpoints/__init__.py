"""Inbound webhooks: messages of providers become application events or jobs."""
