"""Agents that jobs refer to, and the executors that may run jobs."""
