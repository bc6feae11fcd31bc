"""Health and statistics of the whole."""
