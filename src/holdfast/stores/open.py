"""From a URL to a store."""

from __future__ import annotations

from holdfast.engine.redaction import shown_url
from holdfast.engine.retry import whole
from holdfast.errors import InvalidSetting
from holdfast.stores.base import Store

POOL_SIZE, MOST_CONNECTIONS = 8, 1_000

_stand_ins: dict[str, Store] = {}


def stand_in(url: str, store: Store) -> None:
    """From now on this store is what is opened for ``url``, in this process: for children of a test."""
    _stand_ins[url] = store


def open_store(
    url: object, *, schema: str = "holdfast", answer_within: float | None = None, pool_size: int = POOL_SIZE
) -> Store:
    """``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``sqlite:///:memory:`` or ``postgresql://…``.

    ``answer_within`` is how many seconds a server may take to answer before its connection is given up, ``pool_size``
    how many connections to it there may be for threads, and as many for each event loop.
    """
    whole("pool_size", pool_size, 1, MOST_CONNECTIONS, "invalid_setting")
    url = url if isinstance(url, str) else ""
    if url in _stand_ins:
        return _stand_ins[url]
    scheme = url.split(":", 1)[0].lower()
    if scheme == "sqlite":
        from holdfast.stores.sqlite.store import SqliteStore

        return SqliteStore(url)
    if scheme in ("postgresql", "postgres"):
        from holdfast.stores.postgres.store import ANSWER_WITHIN, PostgresStore

        within = answer_within or ANSWER_WITHIN
        return PostgresStore(url, schema=schema, pool_size=pool_size, answer_within=within)
    raise InvalidSetting(
        f"{shown_url(url)} is not a database URL",
        code="invalid_url",
        fix="Use sqlite:///jobs.db or postgresql://user@host/database.",
    )
