"""Workers: list the running ones, and ask one to drain or stop."""
