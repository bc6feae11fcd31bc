"""The worker: claims, runs and settles jobs, and runs maintenance tasks."""
