"""The scripts of a schema and their order, for both stores. Each store applies its plan itself.

``migrations/NNNN_name.sql`` run once each, in order, and are never edited after a release. The code (functions,
triggers, views, grants) is installed again whenever its text differs from the version in the database. It comes from
``sql/*.sql`` of the store and ``<store>*.sql`` of each feature, in the order the store declares. Everything runs in one
transaction under a lock, so two processes may migrate at the same time.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Protocol

from holdfast.errors import SchemaMismatch, StoreError, StoreUnavailable
from holdfast.stores.requests import SchemaStatus

CODE = "code"


class Execute(Protocol):
    """A connection for applying migrations: a driver's, or an adapter with the same method."""

    def execute(self, sql: str, params: Any = ..., /) -> Any:
        """Accepts several statements if there are no parameters; returns a cursor with ``fetchall``."""
        ...


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    sql: str

    @property
    def digest(self) -> str:
        return _digest(self.sql)

    def failure(self, translated: Exception, message: str) -> Exception:
        """The error to raise when this script failed: ``translated`` if the database was unavailable."""
        if isinstance(translated, StoreUnavailable):
            return translated
        return StoreError(f"{self.name} could not be applied: {message.splitlines()[0]}", code="migration_failed")


@dataclass(frozen=True, slots=True)
class CodeFiles:
    """The code files of one store, in order of installation: the engine's ``first``, those of the features, the
    engine's ``last``. A feature has ``<store>.sql``, followed by ``<store>_<part>.sql`` in alphabetical order."""

    package: str
    store: str
    first: tuple[str, ...]
    last: tuple[str, ...]

    def paths(self, features: tuple[str, ...]) -> Iterator[Traversable]:
        engine = files(self.package).joinpath("sql")
        yield from (engine.joinpath(f"{name}.sql") for name in self.first)
        # By name: stores are a lower layer than features and do not import them.
        folders = (files("holdfast.features").joinpath(feature) for feature in features)
        for folder in folders:
            names = sorted(each.name for each in folder.iterdir() if each.name.endswith(".sql"))
            yield from (folder.joinpath(f"{self.store}.sql") for name in names if name == f"{self.store}.sql")
            yield from (folder.joinpath(name) for name in names if name.startswith(f"{self.store}_"))
        yield from (engine.joinpath(f"{name}.sql") for name in self.last)


@dataclass(frozen=True, slots=True)
class Plan:
    """The scripts of one store in this release."""

    migrations: tuple[Script, ...]
    code: Script

    @staticmethod
    def of(code: CodeFiles, features: tuple[str, ...], *generated: Script) -> Plan:
        """``generated`` scripts are installed after the files."""
        return _plan(code, features, generated)

    def for_roles(self, roles: Iterable[str]) -> Plan:
        """The plan for a server with these roles: when they change, the code is installed again."""
        return Plan(self.migrations, Script(CODE, f"{self.code.sql}\n-- for the roles {', '.join(sorted(roles))}\n"))

    def status(self, applied: Mapping[str, str]) -> SchemaStatus:
        """Compare the plan with the names and digests in the database."""
        ours = {script.name for script in self.migrations} | {CODE}
        for script in self.migrations:
            if applied.get(script.name, script.digest) != script.digest:
                raise SchemaMismatch(
                    f"migration {script.name} is not the one that was applied to this database",
                    code="migration_changed",
                    fix="Restore the migration file of the release.",
                )
        return SchemaStatus(
            applied=tuple(sorted(applied)),
            pending=tuple(script.name for script in self.pending(applied)),
            unknown=tuple(sorted(set(applied) - ours)),
        )

    def pending(self, applied: Mapping[str, str]) -> list[Script]:
        pending = [script for script in self.migrations if script.name not in applied]
        if pending or applied.get(CODE) != self.code.digest:
            pending.append(self.code)
        return pending

    def check_supported(self, applied: Mapping[str, str]) -> None:
        """Raise for a database that this release cannot upgrade."""
        status = self.status(applied)
        unknown = status.unknown
        if status.unsupported:
            raise SchemaMismatch(
                f"this database was created by a development version of Holdfast ({', '.join(unknown)})",
                code="schema_unsupported",
                fix="Create a new database or schema and run `holdfast migrate` there. No upgrade exists.",
            )
        if unknown:
            raise SchemaMismatch(
                f"this database was migrated by a newer release ({', '.join(unknown)})",
                code="schema_newer",
                fix="Upgrade holdfast in this environment. Downgrades are not supported.",
            )


# Cached: the files do not change while a process runs, and a process opens many stores.
@functools.cache
def _plan(code: CodeFiles, features: tuple[str, ...], generated: tuple[Script, ...]) -> Plan:
    scripts = (Script(path.name, path.read_text(encoding="utf-8")) for path in code.paths(features))
    text = "\n".join(f"-- {script.name}\n{script.sql}" for script in (*scripts, *generated))
    return Plan(tuple(_migrations(code.package)), Script(CODE, text))


def _migrations(package: str) -> list[Script]:
    paths = [path for path in files(package).joinpath("migrations").iterdir() if path.name.endswith(".sql")]
    return [
        Script(path.name.removesuffix(".sql"), path.read_text(encoding="utf-8"))
        for path in sorted(paths, key=lambda path: path.name)
    ]


@functools.lru_cache(maxsize=128)
def _digest(sql: str) -> str:
    return hashlib.sha256(sql.encode()).hexdigest()
