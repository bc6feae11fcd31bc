"""``--url``, ``--tenant``, ``module:app`` to a session or an app.

From ``--url`` and ``--tenant`` to a client. Nothing is created by looking: only what writes may make a file.

A session is what a command was told of where it works, for whom, and how it is to answer. There are three kinds, by
what is said of tenants; the fields of each are the options that it brings along (``tree`` spreads them out).
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
from holdfast.cli import options
from holdfast.cli.output import Cell, emit, line, say, table
from holdfast.engine.ids import id_range, parse_id
from holdfast.engine.job import DEFAULT_TENANT, EVERY_TENANT
from holdfast.engine.names import check_name
from holdfast.errors import InvalidInput, InvalidSetting, NotFound, SchemaMismatch
from holdfast.features.assembly import Store, open_store
from holdfast.stores.session import Session
from holdfast.stores.sqlite.connections import database_path
from holdfast.worker.startup import until_reachable, when_there

NAME = "holdfast"
T = TypeVar("T")
Columns = Mapping[str, Callable[[T], Cell]]
"""The heads of a table, and what stands below each of them."""


class CommandSession:
    url: str | None
    schema: str
    as_json: bool

    @property
    def scope(self) -> str:
        """The tenant asked for, ``*`` for all of them."""
        return DEFAULT_TENANT

    @contextmanager
    def connect(self, tenant: str | None = None) -> Iterator[Session]:
        """A client for a database that is there and has our tables."""
        whose = self.scope if tenant is None else tenant
        with store_at(self.url, self.schema) as store:
            refuse_unready(store)
            yield Session(store, tenant=whose, name=NAME, actor=config.operating_user())

    def answer(self, data: Any, words: str) -> None:
        """What was done: as data for a program, or in words for a person."""
        if self.as_json:
            emit(data)
        else:
            say(words)

    def print_list(
        self,
        found: Sequence[T],
        columns: Columns[T],
        *,
        none: str,
        keep: Sequence[str] = (),
        described: Callable[[T], Any] | None = None,
    ) -> None:
        """What was found: as data, each as it is ``described``, or as a table for a person."""
        if self.as_json:
            emit(found if described is None else [described(each) for each in found])
        elif not found:
            say(none)
        else:
            table(list(columns), [[cell(each) for cell in columns.values()] for each in found], keep=keep)

    @property
    def tenants(self) -> Columns[Any]:
        """A column for the tenant, where there may be several."""
        return {"tenant": lambda each: line(each.tenant)} if self.scope == EVERY_TENANT else {}


@dataclass(frozen=True, kw_only=True)
class NoTenant(CommandSession):
    """Of the database as a whole."""

    url: options.Url = None
    schema: options.Schema = options.SCHEMA
    as_json: options.Json = False


@dataclass(frozen=True, kw_only=True)
class OneTenant(CommandSession):
    url: options.Url = None
    tenant: options.Tenant = None
    schema: options.Schema = options.SCHEMA
    as_json: options.Json = False

    @property
    def scope(self) -> str:
        return scope(self.tenant)


@dataclass(frozen=True, kw_only=True)
class AnyTenant(CommandSession):
    """Of one, or with ``--all-tenants`` of every one."""

    url: options.Url = None
    tenant: options.Tenant = None
    all_tenants: options.AllTenants = False
    schema: options.Schema = options.SCHEMA
    as_json: options.Json = False

    @property
    def scope(self) -> str:
        return scope(self.tenant, self.all_tenants)


def full_id(client: Session, text: str) -> str:
    """The id of a job that is given in full, or by its first characters if they name one job only."""
    bounds = id_range(text)
    if bounds is None:
        return parse_id(text)
    found = client.run(client.store.jobs.beginning_with(*bounds, client.tenant))
    if len(found) == 1:
        return found[0]
    if not found:
        raise NotFound(f"no job id begins with {text}", fix="Is it another tenant's? Try --all-tenants.")
    shown = ", ".join(found[:4]) + (" …" if len(found) > 4 else "")
    raise InvalidInput(f"several job ids begin with {text}: {shown}", code="invalid_id", fix="Give more of the id.")


def scope(
    tenant: str | None,
    all_tenants: bool = False,
    *,
    default: str = DEFAULT_TENANT,
    environment: Mapping[str, str] = os.environ,
) -> str:
    """The tenant asked for, ``*`` for all of them."""
    if all_tenants:
        if tenant is not None:
            raise InvalidSetting("pass --tenant or --all-tenants, not both", code="conflicting_options")
        return EVERY_TENANT
    named = tenant if tenant is not None else environment.get(config.TENANT_VARIABLE) or None
    return default if named is None else check_name(named, "tenant")


@contextmanager
def store_at(url: str | None, schema: str) -> Iterator[Store]:
    with closing(open_store(config.database_url(url), schema=schema)) as store:
        yield store


def refuse_unready(store: Store) -> None:
    refuse_absent(store)
    if not store.schema().applied:
        raise SchemaMismatch(
            "the Holdfast tables are not in this database", code="not_migrated", fix="Run: holdfast migrate"
        )


def wait_ready(store: Store) -> None:
    """As ``refuse_unready``, for a process that runs until it is stopped: it waits for its database."""
    until_reachable(lambda: refuse_unready(store), store)


def wait_shortly(store: Store) -> None:
    """As ``refuse_unready``, for a process that ends by itself: it waits while a server restarts."""
    when_there(lambda: refuse_unready(store))


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
    """Import it from the current directory or the path. ``url`` is for an app that leaves the database to its
    environment."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    name = module_of(name)
    if url is not None:
        os.environ[config.URL_VARIABLE] = url
    app = find_app(name)
    if url is not None and app._store.url != url:
        raise InvalidSetting(f"{name} already names a database", code="conflicting_options", fix="Omit --url.")
    return app


def module_of(name: str) -> str:
    """A file (``examples/shop.py``, ``examples/shop.py:app``) as the module it is, found beside itself."""
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
    """An app to run jobs of: it has some. ``ready`` checks its database, or waits for it."""
    app = load_app(name, url)
    if not app._kinds:
        raise InvalidSetting(f"{name} declares no jobs", code="no_kinds", fix="Declare jobs with @app.job().")
    if not app._store.embedded:  # an embedded one is made, or brought up to date, as a program's would be
        ready(app._store)
    return app
