"""Jobs: enqueue, read, operate, explain."""
