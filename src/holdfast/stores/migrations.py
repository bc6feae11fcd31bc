"""What is to be applied to a database, and in what order: shared by the stores, which do the applying.

``migrations/NNNN_name.sql`` run once each, in order, and are never edited after a release. ``code/*.sql``
(functions, triggers, views, grants) are laid anew over them whenever their text differs from what is
there. Everything happens in one transaction under a lock, so two processes may migrate at once.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files

from holdfast.errors import SchemaMismatch, StoreError, StoreUnavailable
from holdfast.stores.requests import SchemaStatus

CODE = "code"


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    sql: str

    @property
    def digest(self) -> str:
        return _digest(self.sql)

    def failure(self, translated: Exception, message: str) -> Exception:
        """The error to raise when this script could not be run: the store's own, where the database is at fault."""
        if isinstance(translated, StoreUnavailable):
            return translated
        return StoreError(f"{self.name} could not be applied: {message.splitlines()[0]}", code="migration_failed")


@dataclass(frozen=True, slots=True)
class Plan:
    """The scripts of one store, as this release has them."""

    migrations: tuple[Script, ...]
    code: Script

    @staticmethod
    def of(package: str, *more: Script) -> Plan:
        """``more`` is code that is written by a program, laid after the files."""
        return _plan(package, more)

    def for_roles(self, roles: Iterable[str]) -> Plan:
        """The plan as it is for a server with these roles."""
        return Plan(self.migrations, Script(CODE, f"{self.code.sql}\n-- for the roles {', '.join(sorted(roles))}\n"))

    def status(self, applied: Mapping[str, str]) -> SchemaStatus:
        """Compare with the names and digests found in the database."""
        ours = {script.name for script in self.migrations} | {CODE}
        for script in self.migrations:
            if applied.get(script.name, script.digest) != script.digest:
                raise SchemaMismatch(
                    f"migration {script.name} is not the one that was applied to this database",
                    code="migration_changed",
                    fix="Restore the file of the release; a migration never changes once it is out.",
                )
        return SchemaStatus(
            applied=tuple(sorted(applied)),
            pending=tuple(script.name for script in self.pending(applied)),
            unknown=tuple(sorted(set(applied) - ours)),
        )

    def pending(self, applied: Mapping[str, str]) -> list[Script]:
        wanted = [script for script in self.migrations if script.name not in applied]
        if wanted or applied.get(CODE) != self.code.digest:
            wanted.append(self.code)
        return wanted

    def check_not_newer(self, applied: Mapping[str, str]) -> None:
        unknown = self.status(applied).unknown
        if unknown:
            raise SchemaMismatch(
                f"this database was migrated by a newer release ({', '.join(unknown)})",
                code="schema_newer",
                fix="Upgrade holdfast in this environment; going back is not supported.",
            )


# The files are a release's, and a process opens many stores: they are read once.
@functools.cache
def _plan(package: str, more: tuple[Script, ...]) -> Plan:
    code = "\n".join(f"-- {script.name}\n{script.sql}" for script in (*_scripts(package, "code"), *more))
    return Plan(tuple(_scripts(package, "migrations")), Script(CODE, code))


def _scripts(package: str, folder: str) -> list[Script]:
    found = [item for item in files(package).joinpath(folder).iterdir() if item.name.endswith(".sql")]
    return [
        Script(item.name.removesuffix(".sql"), item.read_text(encoding="utf-8"))
        for item in sorted(found, key=lambda item: item.name)
    ]


@functools.lru_cache(maxsize=128)
def _digest(sql: str) -> str:
    return hashlib.sha256(sql.encode()).hexdigest()
