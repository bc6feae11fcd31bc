"""Tenants: their limits, fair shares of queues, registration, and logins pinned to one tenant."""
