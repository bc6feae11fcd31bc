"""Versions of an application: which jobs need which, jobs that are held for other code, and patches of handlers."""
