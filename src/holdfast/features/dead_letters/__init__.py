"""Groups of dead letters, and bulk operations on many jobs."""
