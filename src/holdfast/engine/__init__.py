"""The rules of jobs, pure: no clock, no thread, no file, no database."""
