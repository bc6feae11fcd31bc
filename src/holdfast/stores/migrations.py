"""The scripts of a schema and their order, for both stores. Each store applies its plan itself.

``migrations/NNNN_name.sql`` run once each, in order, and are never edited after a release. The code (functions,
triggers, views, grants) is installed again whenever its text differs from the version in the database. It comes from
``sql/*.sql`` of the store and ``<store>*.sql`` of each feature, in the order the store declares. Everything runs in one
transaction under a lock, so two processes may migrate at the same time.

The table of applied scripts also says which release migrated last (``release``), and which one is the oldest that works
with the result (``supports``): such a release goes on and leaves the schema alone.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Protocol

from holdfast.engine.version import __version__
from holdfast.errors import InvalidSetting, SchemaMismatch, StoreError, StoreUnavailable
from holdfast.stores.requests import SchemaStatus
from holdfast.stores.table_text import Table, tables

CODE = "code"
RELEASE, SUPPORTS = "release", "supports"
OLDEST = "0.1.0"
"""The oldest release that works with the schema of this one."""
LAST_MIGRATIONS = {"0.1.0": "0001_initial"}
"""The last migration of each earlier release to which `holdfast migrate --to` can return."""
LATER = ".later"
"""The suffix of what a migration does after its transaction: indexes and data, in steps that hold no lock for long."""
_LOST = re.compile(r"^-- lost if (.+): ([^:\n]+)$", re.MULTILINE)
_BATCH = re.compile(r"^\s*-- batch$", re.MULTILINE)


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

    @property
    def losses(self) -> list[tuple[str, str]]:
        """Of a way down: the conditions under which it would lose information, and what it would lose."""
        return _LOST.findall(self.sql)

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
    expanded: tuple[tuple[str, str], ...]
    """Patterns and their replacements, applied to the whole code: what every definition needs and no file repeats."""

    def paths(self, features: tuple[str, ...]) -> Iterator[Traversable]:
        yield from self.first_paths(features)
        yield from self.last_paths()

    def last_paths(self) -> Iterator[Traversable]:
        return (files(self.package).joinpath("sql", f"{name}.sql") for name in self.last)

    def first_paths(self, features: tuple[str, ...]) -> Iterator[Traversable]:
        yield from (files(self.package).joinpath("sql", f"{name}.sql") for name in self.first)
        # By name: stores are a lower layer than features and do not import them.
        folders = (files("holdfast.features").joinpath(feature) for feature in features)
        for folder in folders:
            names = sorted(each.name for each in folder.iterdir() if each.name.endswith(".sql"))
            yield from (folder.joinpath(f"{self.store}.sql") for name in names if name == f"{self.store}.sql")
            yield from (folder.joinpath(name) for name in names if name.startswith(f"{self.store}_"))

    def migrations(self, kind: str = "") -> list[Script]:
        """The scripts ``NNNN_name.sql``, or those of a kind: ``.down`` or ``.later``."""
        paths = files(self.package).joinpath("migrations").iterdir()
        named = re.compile(rf"\d{{4}}_\w+{re.escape(kind)}\.sql")
        return _read(sorted((path for path in paths if named.fullmatch(path.name)), key=lambda path: path.name))

    def tables(self) -> list[Table]:
        return tables("\n".join(script.sql for script in self.migrations()))


@dataclass(frozen=True, slots=True)
class Plan:
    """The scripts of one store in this release."""

    migrations: tuple[Script, ...]
    code: Script
    release: str = __version__
    supports: str = OLDEST
    later: tuple[Script, ...] = ()
    downs: tuple[Script, ...] = ()

    @staticmethod
    def of(code: CodeFiles, features: tuple[str, ...], *generated: Script, comments: str = "") -> Plan:
        """``generated`` scripts are installed after the files of the features, ``comments`` after all files."""
        scripts = [
            *_read(code.first_paths(features)),
            *generated,
            *_read(code.last_paths()),
            Script("comments", comments),
        ]
        text = "\n".join(f"-- {script.name}\n{script.sql}" for script in scripts)
        for pattern, replacement in code.expanded:
            text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
        later, downs = (tuple(code.migrations(kind)) for kind in (LATER, ".down"))
        return Plan(tuple(code.migrations()), Script(CODE, text), later=later, downs=downs)

    def for_roles(self, roles: Iterable[str]) -> Plan:
        """The plan for a server with these roles: when they change, the code is installed again."""
        return replace(self, code=Script(CODE, f"{self.code.sql}\n-- for the roles {', '.join(sorted(roles))}\n"))

    def status(self, applied: Mapping[str, str]) -> SchemaStatus:
        """Compare the plan with the names and digests in the database."""
        ours = {script.name for script in (*self.migrations, *self.later)} | {CODE, RELEASE, SUPPORTS}
        for script in (*self.migrations, *self.later):
            if applied.get(script.name, script.digest) != script.digest:
                raise SchemaMismatch(
                    f"migration {script.name} is not the one that was applied to this database",
                    code="migration_changed",
                    fix="Restore the migration file of the release.",
                )
        unknown = set(applied) - ours
        if self._newer(applied):
            unknown.add(f"release {applied[RELEASE]}")
        return SchemaStatus(
            applied=tuple(sorted(set(applied) - {RELEASE, SUPPORTS})),
            pending=tuple(script.name for script in (*self.pending(applied), *self.pending_later(applied))),
            unknown=tuple(sorted(unknown)),
            supported=self._supported_by(applied),
        )

    def _newer(self, applied: Mapping[str, str]) -> bool:
        """Whether a newer release migrated the database."""
        return release_number(applied.get(RELEASE, "")) > release_number(self.release)

    def _supported_by(self, applied: Mapping[str, str]) -> bool:
        """Whether a newer release migrated the database, and says that this one works with it."""
        return self._newer(applied) and release_number(self.release) >= release_number(applied[SUPPORTS])

    def pending(self, applied: Mapping[str, str]) -> list[Script]:
        if self._supported_by(applied):
            return []
        pending = [script for script in self.migrations if script.name not in applied]
        marks = self.marks(self.code)
        if pending or {name: applied.get(name) for name in marks} != marks:
            pending.append(self.code)
        return pending

    def pending_later(self, applied: Mapping[str, str]) -> list[Script]:
        return [] if self._supported_by(applied) else [script for script in self.later if script.name not in applied]

    def ways_down(self, release: str) -> list[Script]:
        """The scripts that lead from this release to ``release``, in order."""
        wanted = release_number(release)
        last = [name for version, name in LAST_MIGRATIONS.items() if release_number(version)[: len(wanted)] == wanted]
        if not last or not re.fullmatch(r"\d+(\.\d+){1,2}", release):
            known = ", ".join(LAST_MIGRATIONS)
            raise InvalidSetting(
                f"there is no way from {self.release} to {release!r}",
                code="unknown_release",
                fix=f"Name a release with a way back: {known}.",
            )
        downs = {script.name.removesuffix(".down"): script for script in self.downs}
        ways = []
        for script in reversed(self.migrations):
            if script.name > last[-1]:
                if script.name not in downs:
                    raise one_way(script.name)
                ways.append(downs[script.name])
        return ways

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
        if unknown and not status.supported:
            raise SchemaMismatch(
                f"this database was migrated by a newer release ({', '.join(unknown)})",
                code="schema_newer",
                fix="Upgrade holdfast in this environment, or go back with the newer release: holdfast migrate --to.",
            )

    def marks(self, script: Script) -> dict[str, str]:
        """What to write into the table of applied scripts when this one was applied."""
        written = {script.name: script.digest}
        return written | ({RELEASE: self.release, SUPPORTS: self.supports} if script.name == CODE else {})


def release_number(version: str) -> tuple[int, ...]:
    """The number of a release for comparison, without a suffix such as ``rc1``."""
    parts = (re.match(r"\d+", part) for part in version.split(".")[:3])
    return tuple(int(part[0]) for part in parts if part)


def one_way(name: str) -> StoreError:
    return StoreError(
        f"migration {name} has no way back",
        code="downgrade_impossible",
        fix="Restore the backup from before the upgrade.",
    )


def check_nothing_lost(lost: Iterable[str]) -> None:
    if found := sorted(set(lost)):
        raise StoreError(
            f"going back would lose {', '.join(found)}",
            code="downgrade_loses",
            fix="Stay on this release, or restore the backup from before the upgrade.",
        )


def workers_running() -> StoreError:
    return StoreError(
        "workers are running",
        code="workers_running",
        fix="Stop all processes, and wait until their leases end.",
    )


def unfinished_jobs(number: int) -> StoreError:
    return StoreError(
        "1 job has not ended" if number == 1 else f"{number} jobs have not ended",
        code="jobs_unfinished",
        fix="Let them end or cancel them. To remove them with everything else, add --force.",
    )


def statements_of_later(script: Script, statements: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """The statements of a script that runs after the transaction, and whether each is repeated until it changes
    nothing: a comment `-- batch` above it says so."""
    return ((statement, bool(_BATCH.search(statement))) for statement in statements)


def foreign_objects(dependents: Iterable[str]) -> StoreError:
    return StoreError(
        f"objects that are not Holdfast's depend on what the migration changes: {'; '.join(sorted(dependents))}",
        code="foreign_objects",
        fix="Drop these objects, run `holdfast migrate`, and create them again.",
    )


def _read(paths: Iterable[Traversable]) -> list[Script]:
    return [Script(path.name.removesuffix(".sql"), path.read_text(encoding="utf-8")) for path in paths]


@functools.lru_cache(maxsize=128)
def _digest(sql: str) -> str:
    return hashlib.sha256(sql.encode()).hexdigest()
