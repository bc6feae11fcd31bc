"""What a migration would do, statement by statement: the locks it takes and for how long."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.stores.requests import MigrationStep

# Rows that a server at least checks, sorts or rewrites in a second; on a slow disk a migration takes longer.
SCANNED, INDEXED, REWRITTEN = 2_000_000, 500_000, 200_000
_TOKENS = re.compile(
    r"(?P<dollar>\$\w*\$).*?(?P=dollar)|'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|/\*.*?\*/|\bbegin\s+atomic\b.*?\bend\b|;|[^;]",
    re.DOTALL | re.IGNORECASE,
)
_COMMENT = re.compile(r"^\s*--[^\n]*\n?", re.MULTILINE)
_NAME = r"(?:if (?:not )?exists )?(?:only )?(?:\"?\w+\"?\.)?\"?(?P<table>\w+)\"?"

# The first pattern that matches decides: the lock, and the rows of the table that one second covers (0: no rows).
_LOCKS: tuple[tuple[str, str, int], ...] = (
    (rf"alter table {_NAME} validate constraint", "SHARE UPDATE EXCLUSIVE", SCANNED),
    (rf"alter table {_NAME} .*\bnot valid", "SHARE ROW EXCLUSIVE", 0),
    (
        rf"alter table {_NAME} .*\badd (constraint|primary key|unique|check|foreign key|exclude)\b",
        "ACCESS EXCLUSIVE",
        SCANNED,
    ),
    (rf"alter table {_NAME} .*\bset not null", "ACCESS EXCLUSIVE", SCANNED),
    (rf"alter table {_NAME} .*\balter (column )?\w+ (set data )?type\b", "ACCESS EXCLUSIVE", REWRITTEN),
    (rf"alter table {_NAME} .*\b(enable|disable) (always |replica )?trigger\b", "SHARE ROW EXCLUSIVE", 0),
    (rf"alter table {_NAME}", "ACCESS EXCLUSIVE", 0),
    (rf"drop (table|view) {_NAME}", "ACCESS EXCLUSIVE", 0),
    (rf"create (unique )?index concurrently \w+ on {_NAME}", "SHARE UPDATE EXCLUSIVE", INDEXED),
    (rf"create (unique )?index concurrently if not exists \w+ on {_NAME}", "SHARE UPDATE EXCLUSIVE", INDEXED),
    (rf"create (unique )?index (if not exists )?\w+ on {_NAME}", "SHARE", INDEXED),
    (rf"create (or replace )?(constraint )?trigger .*? on {_NAME}", "SHARE ROW EXCLUSIVE", 0),
    (rf"drop trigger (if exists )?\S+ on {_NAME}", "ACCESS EXCLUSIVE", 0),
    (rf"(create|drop) policy (if exists )?\S+ on {_NAME}", "ACCESS EXCLUSIVE", 0),
    (rf"comment on (table|column) {_NAME}", "SHARE UPDATE EXCLUSIVE", 0),
    (rf"update {_NAME}", "ROW EXCLUSIVE", REWRITTEN),
    (rf"delete from {_NAME}", "ROW EXCLUSIVE", REWRITTEN),
)
LOCKS = [(re.compile(pattern, re.IGNORECASE | re.DOTALL), lock, speed) for pattern, lock, speed in _LOCKS]
_MADE = re.compile(r"create table (?:if not exists )?(\w+)", re.IGNORECASE)


def split(script: str) -> list[str]:
    """The statements of a script, each with the comments above it."""
    statements, current = [], []
    for token in _TOKENS.finditer(script):
        if token[0] != ";":
            current.append(token[0])
            continue
        statements.append("".join(current).strip())
        current = []
    return [each for each in (*statements, "".join(current).strip()) if _COMMENT.sub("", each).strip()]


def steps(connection: Any, named: Iterable[tuple[str, str]]) -> Iterator[MigrationStep]:
    """The steps for (script, statement). Tables that an earlier step creates are locked by nobody else."""
    made: set[str] = set()
    for name, statement in named:
        text = " ".join(_COMMENT.sub("", statement).split())
        made |= set(_MADE.findall(text))
        lock, speed, table = _lock(text)
        if not table or table in made:
            yield MigrationStep(name, text, "", None)
            continue
        rows = connection.execute(
            "select reltuples::bigint from pg_class where oid = to_regclass(%s)", (table,)
        ).fetchall()
        count = max(0, rows[0][0]) if rows else 0
        yield MigrationStep(name, text, f"{lock} on {table}", count / speed if speed else None)


def _lock(text: str) -> tuple[str, int, str]:
    for pattern, lock, speed in LOCKS:
        if found := pattern.match(text):
            return lock, speed, found["table"]
    return "", 0, ""
