"""The page about what an installation consists of, for an audit: read from the text that `holdfast migrate` installs.

`tests/docs/test_footprint.py` compares it with the catalogue of a server.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.features import FEATURES
from holdfast.stores.postgres.migration_steps import split
from holdfast.stores.postgres.migrations import CODE_FILES, plan_with
from holdfast.stores.sqlite.migrations import CODE_FILES as SQLITE
from holdfast.stores.sqlite.migrations import plan_with as sqlite_plan_with
from tools.python_reference import NOTICE, head

_FUNCTION = re.compile(r"create (?:or replace )?function (\w+)\s*\(", re.IGNORECASE)
_LOCK = re.compile(r"\block table (\w+) in ([\w ]+) mode", re.IGNORECASE)
_STRING = re.compile(r"'(?:[^']|'')*'")
_COMMENT = re.compile(r"--[^\n]*")
# Locks whose table is an argument: who calls these functions takes the lock.
_BY_NAME = re.compile(r"\btry_lock\('(\w+)'")


@dataclass(frozen=True)
class Function:
    name: str
    text: str

    @property
    def is_definer(self) -> bool:
        return "security definer" in self.text.partition("$$")[0].lower()

    @property
    def locks(self) -> set[str]:
        found = {f"`{table}` {mode.upper()}" for table, mode in _LOCK.findall(self.text)}
        return found | {f"`{table}` EXCLUSIVE" for table in _BY_NAME.findall(self.text)}


def functions() -> list[Function]:
    """The functions of PostgreSQL, in the order in which they are installed; overloads have the same name."""
    found = []
    for statement in split(plan_with(FEATURES).code.sql):
        text = _COMMENT.sub("", statement).strip()
        if match := _FUNCTION.match(text):
            found.append(Function(match[1], text))
    return found


def locks_by_function() -> dict[str, set[str]]:
    """The tables that each function locks as a whole, itself or through a function that it calls."""
    bodies: dict[str, str] = {}
    locks: dict[str, set[str]] = {}
    for each in functions():
        bodies[each.name] = bodies.get(each.name, "") + each.text
        locks.setdefault(each.name, set()).update(each.locks)
    calls = {
        name: {word for word in re.findall(r"\b(\w+)\(", _STRING.sub("''", text)) if word in bodies}
        for name, text in bodies.items()
    }
    changed = True
    while changed:
        changed = False
        for name, called in calls.items():
            more = set().union(*(locks[other] for other in called)) - locks[name]
            locks[name] |= more
            changed = changed or bool(more)
    return locks


def footprint_page(grants: dict[str, list[str]]) -> str:
    definers = sorted({each.name for each in functions() if each.is_definer})
    return "\n".join(
        [
            "# Footprint",
            "",
            NOTICE,
            "",
            head("footprint"),
            "## Objects",
            "",
            *_objects(),
            "## Functions with the owner's rights",
            "",
            f"{len(definers)} functions are `SECURITY DEFINER`, each with a fixed search path. They check the tenant"
            " and the arguments first. `PUBLIC` may execute none of them.",
            "",
            *_definers(definers, grants),
            "## Locks",
            "",
            "Functions lock rows, and these tables as a whole. Retention also locks the partition of the ledger that it"
            " empties, and a new index of `set_fair` or of payloads the table of jobs that it is on.",
            "",
            *_locks(set(grants)),
        ]
    )


def _objects() -> Iterator[str]:
    code = _COMMENT.sub("", plan_with(FEATURES).code.sql)
    lite = sqlite_plan_with(FEATURES).code.sql
    yield from ("| | PostgreSQL | SQLite |", "|---|---|---|")
    yield f"| tables | {len(CODE_FILES.tables())} | {len(SQLITE.tables())} |"
    views = len(re.findall(r"^create or replace view", code, re.MULTILINE))
    yield f"| views | {views} | {len(re.findall(r'^CREATE VIEW', lite, re.MULTILINE))} |"
    yield f"| functions | {len(functions())} | – |"
    yield f"| of these `SECURITY DEFINER` | {sum(each.is_definer for each in functions())} | – |"
    yield ""


def _definers(names: list[str], grants: dict[str, list[str]]) -> Iterator[str]:
    by_roles: dict[str, list[str]] = {}
    for name in names:
        roles = ", ".join(dict.fromkeys(grants.get(name, [])))
        by_roles.setdefault(roles, []).append(name)
    yield from ("| least roles that may execute | functions |", "|---|---|")
    for roles in sorted(by_roles, key=lambda each: (each == "", each)):
        listed = ", ".join(f"`{name}`" for name in by_roles[roles])
        yield f"| {roles or 'none: other functions and triggers call them'} | {listed} |"
    yield ""


def _locks(granted: set[str]) -> Iterator[str]:
    by_locks: dict[str, list[str]] = {}
    for name, locks in sorted(locks_by_function().items()):
        for lock in locks if name in granted else ():
            by_locks.setdefault(lock, []).append(name)
    yield from ("| table and mode | by |", "|---|---|")
    for lock, names in sorted(by_locks.items()):
        yield f"| {lock} | {', '.join(f'`{name}`' for name in names)} |"
    yield ""
