"""The built-in kinds (HTTP requests, reports, commands) and the settings of connectors."""
