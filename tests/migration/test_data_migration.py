"""A migration can update rows of every tenant, also as an owner under row-level security."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from holdfast.features.assembly import open_store
from holdfast.stores.migrations import Script
from tests.migration.catalogue import applied
from tests.migration.next_release import plan_of, use, with_more
from tests.support.direct_sql import open_by_hand
from tests.support.postgres_roles import as_role, ensure_roles
from tests.support.sqlite_names import on_sqlite

pytestmark = pytest.mark.req("DP-20", "JF-1")

OWNER = "holdfast_migrating"
FILL = "alter table consumer add column label text;\n{bind}update consumer set label = upper(name);\n{unbind}"
MORE = "create table more (n integer not null);\n"
CONSUMER = "insert into consumer (tenant, name, cursor, updated_at) values (:tenant, :name, '', {now})"


@pytest.fixture
def url(empty_url: str, kind: str) -> Iterator[str]:
    """An empty database; on PostgreSQL as a role under row-level security."""
    if kind == "sqlite":
        yield empty_url
        return
    name = urlsplit(empty_url).path.lstrip("/")
    with psycopg.connect(empty_url, autocommit=True) as admin:
        ensure_roles(admin, OWNER)
        grant = sql.SQL("grant create on database {} to {}")
        admin.execute(grant.format(sql.Identifier(name), sql.Identifier(OWNER)))
    yield as_role(empty_url, OWNER)


@pytest.mark.slow
def test_migration_updates_rows_of_every_tenant(url: str, kind: str) -> None:
    lite = kind == "sqlite"
    bind, unbind = (
        ("", "")
        if lite
        else tuple(f"select set_config('holdfast.tenant', '{tenant}', true);\n" for tenant in ("*", ""))
    )
    text = MORE + FILL.format(bind=bind, unbind=unbind)
    script = Script("9999_more", on_sqlite(text) if lite else text)
    with closing(open_store(url)) as store, closing(open_by_hand(url)) as by_hand:
        store.migrate()
        for tenant in ("acme", "zeta"):
            if not lite:
                by_hand.execute("select set_config('holdfast.tenant', :tenant, false)", {"tenant": tenant})
            by_hand.execute(CONSUMER.format(now="1" if lite else "now()"), {"tenant": tenant, "name": "billing"})
        use(store, with_more(plan_of(store), script))
        assert store.migrate().current
        if not lite:
            by_hand.execute("select set_config('holdfast.tenant', '*', false)")
        rows = by_hand.execute("select tenant, name, label from consumer order by tenant")
        assert rows == [("acme", "billing", "BILLING"), ("zeta", "billing", "BILLING")]
    with closing(open_store(url)) as store:
        plan = plan_of(store)
        ours = {script.name for script in (*plan.migrations, *plan.later)}
    assert set(applied(url)) == ours | {"9999_more", "code", "release", "supports"}
