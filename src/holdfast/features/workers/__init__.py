"""Workers: list the running ones, and request that one drains or stops."""
