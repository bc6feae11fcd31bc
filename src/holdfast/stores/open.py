"""From a URL to a store."""

from __future__ import annotations

from holdfast.domain.errors import InvalidSetting
from holdfast.stores.base import Store


def open_store(url: object, *, schema: str = "holdfast") -> Store:
    """``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``sqlite:///:memory:`` or ``postgresql://…``."""
    url = url if isinstance(url, str) else ""
    scheme = url.split(":", 1)[0].lower()
    if scheme == "sqlite":
        from holdfast.stores.sqlite.store import SqliteStore

        return SqliteStore(url)
    if scheme in ("postgresql", "postgres"):
        from holdfast.stores.postgres.store import PostgresStore

        return PostgresStore(url, schema=schema)
    raise InvalidSetting(
        f"{url!r} is not a database URL",
        code="invalid_url",
        fix="Use sqlite:///jobs.db or postgresql://user@host/database.",
    )
