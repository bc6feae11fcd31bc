"""SQLAlchemy and SQLModel: enqueue in a session's transaction, and a session for each attempt.

from holdfast.integrations.sqlalchemy import enqueue

with Session(engine) as session, session.begin():
    session.add(Order(id=7))
    enqueue(session, send_receipt, "ada@example.com", 7)      # the job exists if the session commits
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Generic, ParamSpec, TypeVar, overload

from holdfast.engine.hooks import Hooks, RunInfo
from holdfast.errors import InvalidSetting, needs_extra
from holdfast.features.assembly import open_store
from holdfast.features.jobs.handle import Handle
from holdfast.kind import Kind

with needs_extra("SQLAlchemy's integration", "sqlalchemy"):
    from sqlalchemy import Connection, Engine
    from sqlalchemy.ext.asyncio import (
        AsyncConnection,
        AsyncEngine,
        AsyncSession,
        async_scoped_session,
        async_sessionmaker,
    )
    from sqlalchemy.orm import Session, scoped_session

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", Session, AsyncSession)

SCHEMA = "holdfast"
SCRIPT_URLS = {"sqlite": "sqlite:///:memory:", "postgresql": "postgresql://"}
"""URLs of stores that are only used for the scripts of their schema, without a connection."""

AnySession = Session | scoped_session[Any] | Connection
AnyAsyncSession = AsyncSession | async_scoped_session[Any] | AsyncConnection


def enqueue(session: AnySession, kind: Kind[P, R], *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
    """Enqueue a job in the transaction of a session. The job exists if the session commits."""
    return _bound(kind, session).enqueue(*args, **kwargs)


async def aenqueue(session: AnyAsyncSession, kind: Kind[P, R], *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
    """Enqueue a job in the transaction of an ``AsyncSession``. The job exists if the session commits."""
    return await _bound(kind, session).aenqueue(*args, **kwargs)


def _bound(kind: Kind[P, R], session: object) -> Kind[P, R]:
    if not isinstance(kind, Kind):
        raise InvalidSetting(
            f"expected a kind, got {type(kind).__name__}",
            code="invalid_call",
            fix='By name: app.enqueue("kind", {…}, connection=session).',
        )
    return kind.using(connection=session)


class SessionJobs(Generic[S]):
    """Enqueues jobs in the transaction of one session. Use it as a dependency of a web framework."""

    def __init__(self, session: S) -> None:
        self.session: S = session

    def enqueue(self: SessionJobs[Session], kind: Kind[P, R], *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        return enqueue(self.session, kind, *args, **kwargs)

    async def aenqueue(
        self: SessionJobs[AsyncSession], kind: Kind[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> Handle[R]:
        return await aenqueue(self.session, kind, *args, **kwargs)


class AttemptSession(Generic[S]):
    """Opens a session for each attempt. It is committed when the handler returns, and rolled back when it raises::

        sessions = AttemptSession(sessionmaker(engine))
        app.hooks.include(sessions.hooks)

        @app.job()
        def close_order(order_id: int) -> None:
            sessions.current.get(Order, order_id).closed = True

    With an ``async_sessionmaker`` the session is an ``AsyncSession``, for async handlers.
    """

    @overload
    def __init__(self: AttemptSession[AsyncSession], factory: async_sessionmaker[AsyncSession]) -> None: ...
    @overload
    def __init__(self: AttemptSession[Session], factory: Callable[[], Session]) -> None: ...
    def __init__(self, factory: Any) -> None:
        self._factory = factory
        self._session: ContextVar[S | None] = ContextVar("holdfast_sqlalchemy_session", default=None)
        self.hooks = Hooks()
        self.hooks.around_run(self._aaround if isinstance(factory, async_sessionmaker) else self._around)

    @property
    def current(self) -> S:
        """The session of the current attempt. Raises ``InvalidSetting`` outside of one."""
        session = self._session.get()
        if session is None:
            raise InvalidSetting(
                "no attempt with a session is running here",
                code="no_session",
                fix="app.hooks.include(sessions.hooks), and use it in a handler.",
            )
        return session

    def _around(self, run: RunInfo) -> Iterator[None]:
        with self._factory() as session, session.begin():
            token = self._session.set(session)
            try:
                yield
            finally:
                self._session.reset(token)

    async def _aaround(self, run: RunInfo) -> AsyncIterator[None]:
        async with self._factory() as session, session.begin():
            token = self._session.set(session)
            try:
                yield
            finally:
                self._session.reset(token)


def url_of(engine: Engine | AsyncEngine) -> str:
    """Return the URL of the engine's database for ``holdfast.App``: without the name of SQLAlchemy's driver."""
    url = engine.url
    return url.set(drivername=url.get_backend_name()).render_as_string(hide_password=False)


def migrate(connection: Connection, schema: str = SCHEMA) -> None:
    """Create or update Holdfast's tables in the transaction of this connection.

    Raises ``InvalidSetting`` for databases other than SQLite and PostgreSQL.
    """
    backend = connection.dialect.name
    if backend not in SCRIPT_URLS:
        raise InvalidSetting(f"Holdfast runs on SQLite and PostgreSQL, not on {backend}", code="invalid_url")
    open_store(SCRIPT_URLS[backend], schema=schema).migrate_within(_DriverConnection(connection))


class _DriverConnection:
    """Executes SQL on the driver of a SQLAlchemy connection, unchanged. A text may have several statements."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, params: Any = None, /) -> _Rows:
        connection = self._connection
        if connection.dialect.driver == "asyncpg":
            if params is None and "select " not in sql[:10]:
                from sqlalchemy.util import await_only

                # SQLAlchemy would prepare it, and only a single statement can be prepared.
                driver: Any = connection.connection.driver_connection
                await_only(driver.execute(sql))
                return _Rows([])
            for number in range(1, len(params or ()) + 1):
                sql = sql.replace("%s", f"${number}", 1)
        if params is None:
            result = connection.exec_driver_sql(sql, None, {"no_parameters": True})
        else:
            result = connection.exec_driver_sql(sql, tuple(params))
        return _Rows([tuple(row) for row in result] if result.returns_rows else None)


class _Rows:
    def __init__(self, rows: Sequence[tuple[Any, ...]] | None) -> None:
        self._rows = rows
        self.description = rows is not None  # like a cursor, which has a description if there are rows

    def fetchall(self) -> Sequence[tuple[Any, ...]]:
        return self._rows or []
