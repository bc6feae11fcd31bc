"""The version of the package; also written into a database by the release that migrated it."""

__version__ = "0.2.0"
