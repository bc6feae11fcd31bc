"""A plain job through the SQL function `enqueue`: its tenant, its id, and the rows that nobody else may write."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from holdfast.features.assembly import open_store
from tests.support.postgres_roles import as_role

Connection = psycopg.Connection[tuple[object, ...]]


@pytest.fixture
def owner(owned_postgres_url: str) -> Iterator[Connection]:
    with closing(open_store(owned_postgres_url)), psycopg.connect(owned_postgres_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def producer(owner: Connection, owned_postgres_url: str) -> Iterator[Connection]:
    with psycopg.connect(as_role(owned_postgres_url, "holdfast_producer"), autocommit=True) as connection:
        yield connection


@pytest.mark.req("JF-1")
@pytest.mark.parametrize(
    ("scope", "named", "tenant"),
    [
        (None, None, "default"),
        ("", None, "default"),
        ("*", None, "default"),
        ("acme", None, "acme"),
        ("acme", "umbrella", "umbrella"),
        ("*", "umbrella", "umbrella"),
    ],
)
def test_tenant_is_the_named_one_or_that_of_the_transaction(
    producer: Connection, scope: str | None, named: str | None, tenant: str
) -> None:
    with producer.transaction():
        if scope is not None:
            producer.execute("select set_config('holdfast.tenant', %s, true)", [scope])
        ((job, created),) = producer.execute(
            "select id, created from holdfast.enqueue('k', for_tenant => %s)", [named]
        ).fetchall()
        stored = producer.execute("select tenant from holdfast.job where id = %s", [job]).fetchall()
    assert (created, stored) == (True, [(tenant,)])


@pytest.mark.req("JF-1")
@pytest.mark.parametrize("named", ["*", ""])
def test_producer_cannot_enqueue_for_every_tenant(producer: Connection, named: str) -> None:
    with pytest.raises(psycopg.Error) as refused:
        producer.execute("select * from holdfast.enqueue('k', for_tenant => %s)", [named])
    assert refused.value.sqlstate == "ZH004"


@pytest.mark.req("CX-2")
def test_ids_are_of_version_7_and_sort_by_time(producer: Connection) -> None:
    made = [
        uuid.UUID(str(job))
        for _ in range(20)
        for (job,) in producer.execute("select id from holdfast.enqueue('k'), pg_sleep(0.002)").fetchall()
    ]
    assert {(each.version, each.variant) for each in made} == {(7, uuid.RFC_4122)}
    assert made == sorted(made)
    assert len({each.int & (1 << 62) - 1 for each in made}) == 20, "the rest is random"
    ((now,),) = producer.execute("select extract(epoch from clock_timestamp())").fetchall()
    assert abs((made[-1].int >> 80) / 1000 - float(str(now))) < 60


@pytest.mark.req("JF-2")
@pytest.mark.parametrize(
    ("scope", "allowed"), [("", False), ("umbrella", False), ("ACME", False), ("acme", True), ("*", True)]
)
def test_new_rows_belong_to_the_tenant_of_the_transaction(owner: Connection, scope: str, allowed: bool) -> None:
    def insert() -> int:
        with owner.transaction():
            owner.execute("select set_config('holdfast.tenant', %s, true)", [scope])
            return owner.execute(
                "insert into holdfast.job (kind, tenant, enqueued_by) values ('k', 'acme', 'ada')"
            ).rowcount

    if allowed:
        assert insert() == 1
    else:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
            insert()


@pytest.mark.req("JF-2")
def test_every_table_with_tenants_checks_new_rows(owner: Connection) -> None:
    """A partition does so too, by the condition for old rows."""
    unchecked = owner.execute(
        "select p.tablename from pg_policies p where p.schemaname = 'holdfast' and p.policyname = 'tenancy'"
        " and not (select c.relispartition from pg_class c where c.oid = format('holdfast.%I', p.tablename)::regclass)"
        " and p.with_check is null and exists (select from information_schema.columns c"
        " where c.table_schema = 'holdfast' and c.table_name = p.tablename and c.column_name = 'tenant')"
    ).fetchall()
    assert unchecked == []
