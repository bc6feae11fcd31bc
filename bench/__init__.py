"""Benchmarks: ``make bench``. Each is compared with a baseline in the same run. They assert nothing, and tests do not
measure time."""
