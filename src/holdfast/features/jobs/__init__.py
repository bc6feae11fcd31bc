"""Jobs: enqueue, read, change, explain."""
