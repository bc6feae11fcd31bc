"""Tokens of the HTTP API and the dashboard."""
