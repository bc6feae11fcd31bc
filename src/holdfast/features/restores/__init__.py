"""Restores: what is different in a database that was restored or copied, and adopting it."""
