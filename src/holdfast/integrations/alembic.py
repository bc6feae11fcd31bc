"""Alembic: create Holdfast's tables in one of your migrations, and exclude them from autogenerate.

    # env.py
    from holdfast.integrations.alembic import include_name     # also registers the operation
    context.configure(…, include_name=include_name)

    # versions/0007_jobs.py
    def upgrade() -> None:
        op.holdfast_migrate()

If a later release of Holdfast changes the schema, add another migration with the same line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from holdfast.errors import InvalidSetting, needs_extra
from holdfast.features.assembly import open_store

with needs_extra("Alembic's integration", "alembic"):
    from alembic import context
    from alembic.operations import MigrateOperation, Operations

    from holdfast.integrations.sqlalchemy import SCHEMA, SCRIPT_URLS, migrate

_TABLE = re.compile(r'^\s*create table (?:if not exists )?"?(\w+)', re.IGNORECASE | re.MULTILINE)


def include_name(name: str | None, type_: str, parent_names: Mapping[str, str | None]) -> bool:
    """Exclude Holdfast's schema and tables. Pass it to ``context.configure(include_name=…)``."""
    if type_ == "schema":
        return name != SCHEMA
    if type_ != "table":
        return True
    if parent_names.get("schema_name") == SCHEMA:
        return False
    # SQLite has no schemas: the tables are in the same file as yours.
    return context.get_context().dialect.name != "sqlite" or name not in sqlite_tables()


@lru_cache
def sqlite_tables() -> frozenset[str]:
    """Return the names of Holdfast's tables in a SQLite file."""
    return frozenset(_TABLE.findall(open_store(SCRIPT_URLS["sqlite"]).migration_sql()))


@Operations.register_operation("holdfast_migrate")
class HoldfastMigrate(MigrateOperation):
    """The operation ``op.holdfast_migrate()``."""

    def __init__(self, schema: str) -> None:
        self.schema = schema

    @classmethod
    def holdfast_migrate(cls, operations: Operations, schema: str = SCHEMA) -> Any:
        """Create or update Holdfast's tables."""
        return operations.invoke(cls(schema))


@Operations.implementation_for(HoldfastMigrate)
def _run(operations: Operations, operation: HoldfastMigrate) -> None:
    if context.is_offline_mode():
        raise InvalidSetting(
            "op.holdfast_migrate() needs a connection: it depends on the current schema",
            code="offline_migration",
            fix="Print the script with holdfast migrate --sql.",
        )
    migrate(operations.get_bind(), operation.schema)
