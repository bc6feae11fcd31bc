"""Other queues and Holdfast on the same workloads, each in a separate environment."""
