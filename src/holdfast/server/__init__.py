"""The HTTP API and the dashboard: one ASGI app."""
