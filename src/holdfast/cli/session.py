"""Open a database or an app for a command: from ``--url``, ``--tenant`` or ``module:app``.

A command session holds the options for the database, the tenant and the output format. There are three classes, for
commands without a tenant, for one tenant, and for one or all. Their fields become options of the command (``tree``).
Commands that only read never create a database file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from holdfast import config
from holdfast.app import App
from holdfast.app.import_path import find_app
from holdfast.app.internals import kinds_of, session_of
from holdfast.cli import options
from holdfast.cli.output import Cell, emit, line, say, table
from holdfast.engine.ids import id_range, parse_id
from holdfast.engine.job import DEFAULT_TENANT, EVERY_TENANT
from holdfast.engine.names import check_name
from holdfast.errors import InvalidInput, InvalidSetting, NotFound
from holdfast.features.assembly import Store, open_store
from holdfast.stores.artifacts import open_artifacts
from holdfast.stores.session import Session
from holdfast.stores.sqlite.connections import database_path
from holdfast.worker.startup import refuse_unmigrated, retry_briefly, until_reachable

NAME = "holdfast"
T = TypeVar("T")
Columns = Mapping[str, Callable[[T], Cell]]
"""The columns of a table: the header of each, and the function that makes its cells."""


class CommandSession:
    """The options of a command that reads or changes a database."""

    url: str | None
    schema: str
    as_json: bool

    @property
    def scope(self) -> str:
        """The tenant, or ``*`` for all."""
        return DEFAULT_TENANT

    @contextmanager
    def connect(self, tenant: str | None = None) -> Iterator[Session]:
        """Open a session. Raises if the database does not exist or is not migrated."""
        scope = self.scope if tenant is None else tenant
        with store_at(self.url, self.schema) as store:
            refuse_unready(store)
            yield Session(store, tenant=scope, name=NAME, actor=config.operating_user())

    @contextmanager
    def namespace(self, owner: type[Any]) -> Iterator[Any]:
        """Open a session and make the namespace of a command's operation."""
        with self.connect() as client:
            yield owner(client)

    def answer(self, data: Any, words: str) -> None:
        """Print the result of a command: ``data`` with ``--json``, else ``words`` as a message."""
        if self.as_json:
            emit(data)
        else:
            say(words)

    def print_list(
        self,
        items: Sequence[T],
        columns: Columns[T],
        *,
        none: str,
        keep: Sequence[str] = (),
        described: Callable[[T], Any] | None = None,
    ) -> None:
        """Print items as a table, or with ``--json`` as data. ``described`` converts an item for JSON; ``none`` is
        printed if there are no items."""
        if self.as_json:
            emit(items if described is None else [described(item) for item in items])
        elif not items:
            say(none)
        else:
            table(list(columns), [[cell(item) for cell in columns.values()] for item in items], keep=keep)

    @property
    def tenants(self) -> Columns[Any]:
        """A column for the tenant, with ``--all-tenants``."""
        return {"tenant": lambda item: line(item.tenant)} if self.scope == EVERY_TENANT else {}


@dataclass(frozen=True, kw_only=True)
class NoTenant(CommandSession):
    """For commands that concern the whole database."""

    url: options.Url = None
    schema: options.Schema = options.SCHEMA
    as_json: options.Json = False


@dataclass(frozen=True, kw_only=True)
class OneTenant(CommandSession):
    """For commands that concern one tenant."""

    url: options.Url = None
    tenant: options.Tenant = None
    schema: options.Schema = options.SCHEMA
    as_json: options.Json = False

    @property
    def scope(self) -> str:
        return scope(self.tenant)


@dataclass(frozen=True, kw_only=True)
class AnyTenant(CommandSession):
    """For commands that concern one tenant, or with ``--all-tenants`` all."""

    url: options.Url = None
    tenant: options.Tenant = None
    all_tenants: options.AllTenants = False
    schema: options.Schema = options.SCHEMA
    as_json: options.Json = False

    @property
    def scope(self) -> str:
        return scope(self.tenant, self.all_tenants)


class WithArtifacts(AnyTenant):
    """For commands that also read or change the artifact store."""

    @contextmanager
    def namespace(self, owner: type[Any]) -> Iterator[Any]:
        with self.connect() as client:
            yield owner(client, open_artifacts(config.artifact_location(config.database_url(self.url))))


def full_id(client: Session, text: str) -> str:
    """Return the id of the job whose id is, or begins with, ``text``. Raises if several ids begin with it."""
    bounds = id_range(text)
    if bounds is None:
        return parse_id(text)
    ids = client.run(client.store.jobs.beginning_with(*bounds, client.tenant))
    if len(ids) == 1:
        return ids[0]
    if not ids:
        raise NotFound(f"no job id begins with {text}", fix="Is it another tenant's? Try --all-tenants.")
    shown = ", ".join(ids[:4]) + (" …" if len(ids) > 4 else "")
    raise InvalidInput(f"several job ids begin with {text}: {shown}", code="invalid_id", fix="Give more of the id.")


def scope(
    tenant: str | None,
    all_tenants: bool = False,
    *,
    default: str = DEFAULT_TENANT,
    environment: Mapping[str, str] = os.environ,
) -> str:
    """Return the tenant of ``--tenant`` or the environment, or ``*`` for ``--all-tenants``."""
    if all_tenants:
        if tenant is not None:
            raise InvalidSetting("pass --tenant or --all-tenants, not both", code="conflicting_options")
        return EVERY_TENANT
    name = tenant if tenant is not None else environment.get(config.TENANT_VARIABLE) or None
    return default if name is None else check_name(name, "tenant")


@contextmanager
def store_at(url: str | None, schema: str) -> Iterator[Store]:
    with closing(open_store(config.database_url(url), schema=schema)) as store:
        yield store


def refuse_unready(store: Store) -> None:
    """Raise if the database does not exist or is not migrated."""
    refuse_absent(store)
    refuse_unmigrated(store)


def wait_ready(store: Store) -> None:
    """Like ``refuse_unready``, but wait until the database is reachable. For processes that run until stopped."""
    until_reachable(lambda: refuse_unready(store), store)


def wait_shortly(store: Store) -> None:
    """Like ``refuse_unready``, but wait while a server restarts. For processes that end by themselves."""
    retry_briefly(lambda: refuse_unready(store))


def is_absent(store: Store) -> bool:
    if not store.embedded:
        return False
    path = database_path(store.url)
    return path != ":memory:" and not Path(path).exists()


def refuse_absent(store: Store) -> None:
    if is_absent(store):
        raise NotFound(
            f"database file {database_path(store.url)} not found",
            code="no_database",
            fix="Check --url, or create the file: holdfast migrate",
        )


def load_app(name: str, url: str | None = None) -> App:
    """Import an app from the current directory or ``sys.path``. ``url`` is for an app whose code names no database."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    name = module_of(name)
    if url is not None:
        os.environ[config.URL_VARIABLE] = url
    app = find_app(name)
    if url is not None and session_of(app).store.url != url:
        raise InvalidSetting(f"{name} already names a database", code="conflicting_options", fix="Omit --url.")
    return app


def module_of(name: str) -> str:
    """Return the module of a file (``examples/shop.py``, ``examples/shop.py:app``); add its folder to ``sys.path``."""
    path, _, attribute = name.partition(":")
    if not path.endswith(".py"):
        return name
    file = Path(path).resolve()
    if not file.is_file():
        raise InvalidSetting(
            f"file {path} not found",
            code="module_not_found",
            fix="Use a name that can be imported from this directory.",
        )
    if not file.stem.isidentifier():
        raise InvalidSetting(f"{file.name} cannot be imported by that name", code="invalid_app")
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    return f"{file.stem}:{attribute}" if attribute else file.stem


def load_runnable(name: str, url: str | None, ready: Callable[[Store], None] = refuse_unready) -> App:
    """Import an app to run its jobs; raise if it declares none. ``ready`` checks its database, or waits for it."""
    app = load_app(name, url)
    if not kinds_of(app):
        raise InvalidSetting(f"{name} declares no jobs", code="no_kinds", fix="Declare jobs with @app.job().")
    if not session_of(app).store.embedded:  # an embedded database is created or migrated on first use
        ready(session_of(app).store)
    return app
