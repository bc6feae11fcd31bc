"""``Store``, a database with one attribute per namespace of operations, and ``open_store``, which opens one by URL.

``features/sqlite.py`` and ``features/postgres.py`` assemble the implementations.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

from holdfast import config
from holdfast.engine.redaction import shown_url
from holdfast.engine.retry import whole
from holdfast.errors import InvalidSetting
from holdfast.stores.application_pool import check_sqlite
from holdfast.stores.port import MOST_CONNECTIONS, POOL_SIZE

if TYPE_CHECKING:
    from holdfast.features.postgres import PostgresStore
    from holdfast.features.sqlite import SqliteStore
    from holdfast.stores.application_pool import ApplicationPool


Store: TypeAlias = "PostgresStore | SqliteStore"
"""A database with one attribute per namespace of operations. These return flows, which the store runs. The tenant ``*``
means every tenant, if the caller has that right."""


_substitutes: dict[str, Store] = {}


def substitute_store(url: str, store: Store) -> None:
    """Make ``open_store`` return this store for ``url`` in this process. For child processes of the test kit."""
    _substitutes[url] = store


def require_postgres() -> None:
    """Raise ``InvalidSetting`` if the packages for PostgreSQL are not installed."""
    try:
        import holdfast.features.postgres  # noqa: F401
    except ImportError as missing:
        if (missing.name or "").startswith("holdfast"):
            raise
        raise InvalidSetting(
            "PostgreSQL support is not installed",
            code="missing_extra",
            fix="Install it with: pip install 'holdfast[postgres-binary]'",
        ) from missing


def open_store(
    url: object,
    *,
    schema: str = "holdfast",
    answer_within: float | None = None,
    pool_size: int = POOL_SIZE,
    pool: ApplicationPool | None = None,
) -> Store:
    """Open ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``sqlite:///:memory:`` or ``postgresql://…``.

    ``answer_within`` is the number of seconds after which a connection whose server has not answered is closed.
    ``pool_size`` is the maximum number of connections for threads, and again for each event loop. ``pool`` is the
    application's own pool to this database.
    """
    whole("pool_size", pool_size, 1, MOST_CONNECTIONS, "invalid_setting")
    if not isinstance(url, str):
        raise _not_a_url(url)
    if url in _substitutes:
        return _substitutes[url]
    scheme = url.split(":", 1)[0].lower()
    if scheme == "sqlite":
        from holdfast.features.sqlite import SqliteStore
        from holdfast.stores.sqlite.connections import database_path

        if pool is not None:
            check_sqlite(pool, database_path(url))
        return SqliteStore(url)
    if scheme in ("postgresql", "postgres"):
        require_postgres()
        from holdfast.features.postgres import ANSWER_WITHIN, PostgresStore

        within = answer_within or ANSWER_WITHIN
        store = PostgresStore(url, schema=schema, pool_size=pool_size, answer_within=within, pool=pool)
        if standby := config.read_url():
            store.read_from(standby)
        return store
    raise _not_a_url(url)


_DRIVER = re.compile(r"(postgresql|postgres|sqlite)\+(\w+):")
_FILE = re.compile(r"[\w./~-]+\.(db|sqlite3?)")  # nothing that could be a password


def _not_a_url(url: object) -> InvalidSetting:
    """The error for anything but a URL of a database, with what was probably meant."""
    what, fix = shown_url(url), "Use sqlite:///jobs.db or postgresql://user@host/database."
    if not isinstance(url, str):
        what = f"{type(url).__name__} (expected text)"
        if type(url).__module__.startswith("sqlalchemy"):
            fix = "Use holdfast.integrations.sqlalchemy.url_of(engine)."
    elif driver := _DRIVER.match(url):
        fix = f"Leave out +{driver[2]}, or use holdfast.integrations.sqlalchemy.url_of(engine)."
    elif file := _FILE.fullmatch(url):
        fix = f"Use sqlite:///{file[0]}."
    elif url.isidentifier():
        fix += " If it is the name of the app: App(url, name=…)."
    return InvalidSetting(f"{what} is not a database URL", code="invalid_url", fix=fix)
