"""Other queues and ourselves on the same workloads, each in an environment of its own."""
