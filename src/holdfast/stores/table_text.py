"""The tables of a schema, read from the text of its migrations: columns in order, with the comments beside them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FLAGS = re.MULTILINE | re.IGNORECASE
_CREATE = r"^create table (?:holdfast_)?(\w+) \((?:\n((?:^ .*\n)+)\)|(.*)\)).*;\n"
# The comment directly above belongs to the table; tables on adjacent lines share it.
_TABLES = re.compile(rf"(?P<above>(?:^--.*\n)*)(?P<tables>(?:{_CREATE})+)", _FLAGS)
_TABLE = re.compile(_CREATE, _FLAGS)
_COLUMN = re.compile(r"^(?: {4})?(?!(?:constraint|primary|unique|check|foreign)\b)(\w+) [^\n]*?(?:-- (.*))?$", _FLAGS)
_ADDED = re.compile(r"^alter table (?:holdfast_)?(\w+) add column (\w+) [^\n]*?;(?: +-- (.*))?$", _FLAGS)
_COMMON = re.compile(r"^--     (\w+) +([A-Z].*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    comment: str
    columns: dict[str, str]
    """The comment of each column."""


def tables(sql: str) -> list[Table]:
    """The tables that ``sql`` creates. Columns without a comment get the common one at the head of the file."""
    common = dict(_COMMON.findall(sql))
    found: dict[str, Table] = {}
    for block in _TABLES.finditer(sql):
        above = " ".join(line.removeprefix("--").strip() for line in block["above"].splitlines())
        for name, body, line in _TABLE.findall(block["tables"]):
            columns = {column: comment or common.get(column, "") for column, comment in _COLUMN.findall(body or line)}
            found[name] = Table(name, above, columns)
    for name, column, comment in _ADDED.findall(sql):
        found[name].columns[column] = comment or common.get(column, "")
    return list(found.values())
