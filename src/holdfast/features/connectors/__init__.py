"""Built-in kinds and their settings: HTTP requests, reports, programs."""
