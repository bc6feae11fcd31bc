"""Roles that an administrator creates after the first migration get their grants from the next one."""

from __future__ import annotations

import psycopg
import pytest

from holdfast.features.assembly import open_store
from holdfast.features.postgres import PostgresStore


@pytest.mark.slow
@pytest.mark.req("DP-17", "DP-20")
def test_role_created_later_makes_the_grants_pending(empty_postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(empty_postgres_url)
    assert isinstance(store, PostgresStore)
    monkeypatch.setattr("holdfast.stores.postgres.migrations.ROLES", ("holdfast_viewer",))
    store.migrate()
    assert store.schema().current

    monkeypatch.setattr("holdfast.stores.postgres.migrations.ROLES", ("holdfast_viewer", "holdfast_producer"))
    assert store.schema().pending == ("code",)
    with psycopg.connect(empty_postgres_url, autocommit=True) as connection:
        connection.execute("revoke execute on all functions in schema holdfast from holdfast_producer")
        assert store.migrate().current
        may = connection.execute(
            "select bool_or(has_function_privilege('holdfast_producer', oid, 'execute')) from pg_proc"
            " where pronamespace = 'holdfast'::regnamespace and proname = 'enqueue'"
        ).fetchone()
    assert may == (True,)
