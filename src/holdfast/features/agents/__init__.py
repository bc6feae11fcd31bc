"""Agents, the named owners of jobs, and the allowlist of executors."""
