"""Stores whose database may be moved while they are used (docs/adr/0053).

While writers are refused, calls wait. When the database has moved, it says where to; the store then works on the new
one, and so does everything that has this store: sessions, workers, handlers. The call that learned it is carried out
there. Between SQLite and PostgreSQL it raises ``database_moved`` instead, because its statements are those of the old
database; callers try again. A new process learns of a move before it has statements: ``find``.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit

from holdfast.engine.redaction import shown_url
from holdfast.errors import StoreError, StoreUnavailable
from holdfast.stores.flow import Flow, in_thread
from holdfast.stores.listener import Names
from holdfast.stores.locks import fork_safe_lock
from holdfast.stores.requests import SchemaStatus

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

log = logging.getLogger("holdfast.store")
T = TypeVar("T")

WAIT: Final = 30.0
"""Seconds that a call waits while writers are refused."""
MOST_MOVES: Final = 16
"""Moves that are followed at once."""
SCHEMA: Final = "holdfast"
_SCHEMA: Final = "holdfast_schema"
"""The parameter of a URL that programs are told, for the schema of the target. No server gets it."""
_OWN = frozenset({"_found", "_current", "_open", "_before", "_listens", "_guard", "url"})
_PLAIN = frozenset({"outage", "schema_name"})
"""Attributes of a store that are no namespaces."""


class Forwarding:
    """A store, and the one that it was moved to. It has the attributes of the store that it works on."""

    def __init__(self, store: Store, open: Callable[[str], Store]) -> None:
        self._found = False
        self._current = store
        self._open = open
        self._before: list[Store] = []
        self._listens: dict[object, list[Any]] = {}
        self._guard = fork_safe_lock()
        self.url = store.url
        """As it was opened: handlers, child processes and the folder of artifacts are found by it."""

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:  # not initialised: while it is copied
            raise AttributeError(name)
        # A file is read at once. A server is asked by ``Session.make_ready``, which may wait.
        if not self._found and self._current.embedded and name not in _PLAIN and name in vars(self._current):
            with suppress(StoreUnavailable):
                self.find()
        return getattr(self._current, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in _OWN or name in Forwarding.__dict__:
            object.__setattr__(self, name, value)
        else:
            setattr(self._current, name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__:
            object.__delattr__(self, name)
        else:
            delattr(self._current, name)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """For ``isinstance``: of the two stores."""
        return type(self._current)

    def run(self, flow: Flow[T]) -> T:
        end = 0.0
        while True:
            store = self._current
            try:
                return store.run(flow)
            except StoreUnavailable as error:
                if error.code == "database_moved" and self._follow(store):
                    continue
                end = end or time.monotonic() + WAIT
                time.sleep(_pause(error, end))

    async def arun(self, flow: Flow[T]) -> T:
        end = 0.0
        while True:
            store = self._current
            try:
                return await store.arun(flow)
            except StoreUnavailable as error:
                if error.code == "database_moved" and await in_thread(partial(self._follow, store)):
                    continue
                end = end or time.monotonic() + WAIT
                await asyncio.sleep(_pause(error, end))

    def find(self) -> None:
        """Find out once whether the database was moved before this process used it."""
        if not self._found:
            self._follow(self._current)
            self._found = True

    def _follow(self, store: Store) -> bool:
        """Work on the database where this one is now. Returns whether that understands the same statements."""
        with self._guard:
            if self._current is store and (new := self._newest(store)) is not None:
                log.warning("The database was moved to %s; using it from now on", shown_url(new.url))
                self._before.append(store)
                self._current = new
                listens = list(self._listens.values())
            else:  # it was not moved, or another thread has followed
                return self._current is not store and self._current.embedded == store.embedded
        for listen in listens:
            notify, names, awaited, stop = listen
            stop()
            listen[3] = new.listen(notify, names, awaited)
            notify("")
        return new.embedded == store.embedded

    def _newest(self, store: Store) -> Store | None:
        """The database at the end of the moves that began with this one; None if it was not moved."""
        newest: Store | None = None
        for _ in range(MOST_MOVES):
            last = newest or store
            try:
                target = last.moved_to()
            except BaseException:
                if newest is not None:
                    newest.close()
                raise
            if target is None:
                return newest
            if newest is not None:
                newest.close()
            newest = self._open(with_login(target, last.url))
        if newest is not None:
            newest.close()
        raise StoreError(
            f"{shown_url(self.url)} was moved in a circle, or more than {MOST_MOVES} times",
            code="move_circle",
            fix="Start the programs with the URL of the database that is in use.",
        )

    def moved_to(self) -> str | None:
        return self._current.moved_to()

    def _checked(self, call: Callable[[Store], T]) -> T:
        """Call a function of the store that reads its schema, and so learns that the database has moved."""
        store = self._current
        try:
            return call(store)
        except StoreUnavailable as error:
            if error.code != "database_moved":
                raise
        self._follow(store)
        return call(self._current)

    def schema(self) -> SchemaStatus:
        return self._checked(lambda store: store.schema())

    async def aschema(self) -> SchemaStatus:
        store = self._current
        try:
            return await store.aschema()
        except StoreUnavailable as error:
            if error.code != "database_moved":
                raise
        await in_thread(partial(self._follow, store))
        return await self._current.aschema()

    def migrate(self) -> SchemaStatus:
        return self._checked(lambda store: store.migrate())

    def listen(
        self, notify: Callable[[str], None], names: Names | None = None, awaited: Names | None = None
    ) -> Callable[[], None]:
        listen: list[Any] = [notify, names, awaited, self._current.listen(notify, names, awaited)]
        key = object()
        self._listens[key] = listen

        def stop() -> None:
            self._listens.pop(key, None)
            listen[3]()

        return stop

    async def leave_loop(self) -> None:
        for store in (self._current, *self._before):
            await store.leave_loop()

    def close(self) -> None:
        for store in (self._current, *self._before):
            store.close()

    async def aclose(self) -> None:
        for store in (self._current, *self._before):
            await store.aclose()


def _pause(error: StoreUnavailable, end: float) -> float:
    """Seconds to wait before a call is tried again. Raises the error if that does not help."""
    if error.code != "database_moving" or time.monotonic() > end:
        raise error
    return random.uniform(0.02, 0.1)


def with_login(target: str, url: str) -> str:
    """The URL of the new database, with the login of the old one if it names none, or the same user."""
    new, old = urlsplit(target), urlsplit(url)
    servers = new.scheme.startswith("postgres") and old.scheme.startswith("postgres")
    login, _, _ = old.netloc.rpartition("@")
    named = dict(parse_qsl(new.query)).get("user") or new.username
    if not servers or not login or new.password or named not in (None, old.username):
        return target
    return urlunsplit(new._replace(netloc=f"{login}@{new.netloc.rpartition('@')[2]}"))


def without_password(url: str) -> str:
    parts = urlsplit(url)
    login, at, location = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=login.partition(":")[0] + at + location, query=_less(parts, "password")))


def without_login(url: str) -> str:
    parts = urlsplit(url)
    location = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=location, query=_less(parts, "password", "user")))


def with_schema(url: str, schema: str) -> str:
    """The URL of a server as programs are told it, with the schema unless that is the usual one."""
    if schema == SCHEMA or not url.startswith("postgres"):
        return url
    parts = urlsplit(url)
    return urlunsplit(parts._replace(query="&".join([*filter(None, [parts.query]), f"{_SCHEMA}={schema}"])))


def of_schema(url: str) -> tuple[str, str]:
    """The URL to connect to, and the schema, of one that programs were told."""
    parts = urlsplit(url)
    schema = dict(parse_qsl(parts.query)).get(_SCHEMA, SCHEMA)
    return urlunsplit(parts._replace(query=_less(parts, _SCHEMA))) if schema != SCHEMA else url, schema


def _less(parts: SplitResult, *names: str) -> str:
    """The query without these parameters."""
    return "&".join(each for each in parts.query.split("&") if each.partition("=")[0] not in names)
