"""A setting changed by a statement does not weaken any trigger or policy (PostgreSQL).

Covers every guarded table, every operation and every setting, as found in the catalogue and in the SQL. A statement
that is refused must also be refused, or find no row, when it changes a setting: in its condition, in RETURNING, or
before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import psycopg
import pytest

from holdfast.features import FEATURES
from holdfast.features.assembly import open_store
from holdfast.stores.postgres.migrations import CODE_FILES
from tests.attacks import ATTACKS
from tests.contract.test_attacks import _populate, _used
from tests.support.direct_sql import PostgresByHand

pytestmark = pytest.mark.req("CX-3", "CX-4", "JF-2", "HF-4")

VALUES = {"holdfast.tenant": ("nobody", ""), "holdfast.actor": ("retention",), "holdfast.notify": ("off",)}


def settings() -> list[tuple[str, str]]:
    """Each setting that the SQL reads, with values that might make a difference."""
    text = "\n".join(each.read_text(encoding="utf-8") for each in CODE_FILES.paths(FEATURES))
    names = sorted(set(re.findall(r"current_setting\('(holdfast\.\w+)'", text)))
    assert {"holdfast.tenant", "holdfast.actor"} <= set(names)
    return [(name, value) for name in names for value in VALUES.get(name, ("on",))]


def guarded(owner: PostgresByHand) -> list[str]:
    rows = owner.execute(
        "select distinct c.relname from pg_trigger t join pg_class c on c.oid = t.tgrelid"
        f" where c.relnamespace = '{owner.schema}'::regnamespace and not t.tgisinternal order by 1"
    )
    return [row[0] for row in rows]


def statements(owner: PostgresByHand, table: str) -> Iterator[str]:
    """Statements that change every row; WHERE and RETURNING are filled in later."""
    rows = owner.execute(
        "select attname, format_type(atttypid, null) from pg_attribute"
        f" where attrelid = '{table}'::regclass and attnum > 0 and not attisdropped"
    )
    yield f"delete from {table} where WHERE RETURNING"
    for column, kind in rows:
        yield f"update {table} set {column} = {other(column, kind)} where WHERE RETURNING"
    names = ", ".join(name for name, _ in rows)
    values = ", ".join("gen_random_uuid()" if kind == "uuid" and name == "id" else name for name, kind in rows)
    yield f"insert into {table} ({names}) select {values} from {table} where WHERE RETURNING"


def other(column: str, kind: str) -> str:
    if kind == "uuid":
        return "gen_random_uuid()"
    if kind == "boolean":
        return f"not {column}"
    if kind.startswith("timestamp"):
        return f"case when {column} is null then now() end"
    if kind in ("integer", "bigint", "smallint", "double precision"):
        return f"coalesce({column}, 0) + 1"
    if kind == "json" or kind == "jsonb":
        return """'{"other": 1}'"""
    if kind.endswith("[]"):
        return f"'{{other}}'::{kind}"
    if kind == "text" or kind.endswith("state"):
        return f"coalesce({column}, '') || 'x'"
    return "null"


def written(statement: str, where: str = "true", returning: str = "") -> str:
    return statement.replace("WHERE", where).replace("RETURNING", returning)


class Attempts:
    def __init__(self, owner: PostgresByHand) -> None:
        self.connection = owner.connection

    def answer(self, statement: str, before: tuple[str, str] | None = None) -> str | None:
        """The refusal, or None; everything is rolled back. Finding no row counts as a refusal."""
        with self.connection.transaction(force_rollback=True):
            try:
                if before is not None:
                    self.connection.execute("select set_config(%s, %s, true)", before)
                rows = self.connection.execute(statement)
                self.connection.execute("set constraints all immediate")
            except psycopg.Error as error:
                return str(error)
            return None if rows.rowcount else "no row"


@pytest.mark.slow
def test_no_setting_weakens_a_refusal(owned_postgres_url: str) -> None:
    result = settings()
    with closing(open_store(owned_postgres_url)) as store, closing(PostgresByHand(owned_postgres_url)) as owner:
        _populate(store, owner)
        store.run(store.audit.seal("tests"))
        attempts, refused, let_through = Attempts(owner), 0, list[str]()
        constant: set[str] = set()
        for table in guarded(owner):
            for statement in statements(owner, table):
                plain = written(statement)
                refusal = attempts.answer(plain)
                if refusal is None or "duplicate key" in refusal:
                    continue
                refused += 1
                if "never changed (update refused)" in refusal:  # the same for every column: one is enough
                    if table in constant:
                        continue
                    constant.add(table)
                for name, value in result:
                    change = f"set_config('{name}', '{value}', true)"
                    tries: list[tuple[str, tuple[str, str] | None]] = [
                        (written(statement, f"{change} = '{value}'"), None),
                        (written(statement, returning=f"returning {change}"), None),
                        (plain, (name, value)),
                    ]
                    for text, before in tries if value == "nobody" else tries[:1]:
                        if attempts.answer(text, before) is None:
                            let_through.append(f"{before}: {text}")
        assert not let_through
        assert refused > 150


def hiding(statement: str) -> Iterator[str]:
    """The statement, changed so that it sets another tenant once its rows are found, or once they are written."""
    change = "set_config('holdfast.tenant', 'nobody', true)"
    yield f"{statement} {'and' if ' where ' in statement else 'where'} {change} = 'nobody'"
    yield f"{statement} returning {change}"


@pytest.mark.slow
def test_no_attack_succeeds_by_hiding_rows_from_its_guard(owned_postgres_url: str) -> None:
    """The test above changes all rows of a table at once, so the refusal of any row is enough for it. Here each
    statement changes the rows of one attack, whose own guard has to refuse it."""
    with closing(open_store(owned_postgres_url)) as store, closing(PostgresByHand(owned_postgres_url)) as owner:
        names, untouched = _populate(store, owner), owner.picture()
        tried, let_through = 0, list[str]()
        for attack in ATTACKS.values():
            if not attack.postgres or not re.match("(update|delete) ", attack.postgres[-1]):
                continue
            *before, last = attack.postgres
            for changed in hiding(last):
                if _succeeds(owner, (*before, changed), names, untouched):
                    let_through.append(changed)
                tried += 1
        assert let_through == []
        assert tried > 300


def _succeeds(owner: PostgresByHand, statements: Sequence[str], names: dict[str, Any], untouched: object) -> bool:
    owner.begin()
    try:
        refused = any(owner.refusal(statement, _used(names, statement)) is not None for statement in statements)
        if refused:
            return False
        owner.execute("set constraints all immediate")
        owner.execute("select set_config('holdfast.tenant', '*', true)")
        return owner.picture() != untouched
    except psycopg.Error:
        return False
    finally:
        owner.rollback()
