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
from weakref import WeakKeyDictionary

from holdfast.errors import InvalidSetting, needs_extra
from holdfast.features.assembly import open_store

with needs_extra("Alembic's integration", "alembic"):
    from alembic import context
    from alembic.operations import MigrateOperation, Operations
    from sqlalchemy import text

    from holdfast.integrations.sqlalchemy import SCHEMA, SCRIPT_URLS, migrate

_TABLE = re.compile(r'^\s*create table (?:if not exists )?"?(\w+)', re.IGNORECASE | re.MULTILINE)
# A schema with these tables is one of Holdfast, whatever its name is. Partitions have names of their own.
_IN_POSTGRESQL = """
    select n.nspname, c.relname
      from pg_class c join pg_namespace n on n.oid = c.relnamespace
     where c.relkind in ('r', 'p') and (c.relispartition or c.relname = any(:names))
       and 3 = (select count(*) from pg_class own
                 where own.relnamespace = n.oid and own.relname in ('job_state', 'dead_letter_group', 'occupied_slot'))
"""
_found: WeakKeyDictionary[Any, frozenset[tuple[str, str]]] = WeakKeyDictionary()


def include_name(name: str | None, type_: str, parent_names: Mapping[str, str | None]) -> bool:
    """Exclude Holdfast's tables. Pass it to ``context.configure(include_name=…)``."""
    if type_ != "table":
        return True
    migration = context.get_context()
    if migration.dialect.name == "sqlite":
        return name not in tables("sqlite")
    if migration.dialect.name != "postgresql" or migration.connection is None:
        return True
    if migration not in _found:
        rows = migration.connection.execute(text(_IN_POSTGRESQL), {"names": sorted(tables("postgresql"))})
        _found[migration] = frozenset((schema, table) for schema, table in rows)
    # Alembic does not name the default schema.
    return (parent_names.get("schema_name") or migration.dialect.default_schema_name, name) not in _found[migration]


@lru_cache
def tables(database: str) -> frozenset[str]:
    """Return the names of Holdfast's tables in ``sqlite`` or ``postgresql``, without partitions that it adds later."""
    return frozenset(_TABLE.findall(open_store(SCRIPT_URLS[database]).migration_sql()))


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
