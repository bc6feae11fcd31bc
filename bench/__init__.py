"""Measurements, each beside a floor in the same run: ``make bench``. Nothing here asserts; tests do not time."""
