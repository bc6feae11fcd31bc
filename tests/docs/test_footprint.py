"""The page about the footprint agrees with the catalogue of a server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tools.footprint import functions

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "footprint.md"
MEGABYTE = 1024 * 1024

pytestmark = pytest.mark.req("DP-20", "JF-1")


@pytest.fixture
def connection(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url) as opened:
        yield opened


def number(what: str) -> int:
    found = re.search(rf"^\| {what} \| (\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert found, what
    return int(found[1])


def test_objects_are_those_of_the_catalogue(connection: psycopg.Connection[Any]) -> None:
    kinds = "select relkind::text, count(*) from pg_class where relnamespace = 'holdfast'::regnamespace group by 1"
    partitions = "select count(*) from pg_class where relispartition and relnamespace = 'holdfast'::regnamespace"
    found = dict(connection.execute(kinds).fetchall())
    made = connection.execute(f"{partitions} and relkind = 'r'").fetchall()[0][0]
    assert number("tables") == found["r"] + found["p"] - made
    assert number("views") == found["v"]
    every = (
        "select count(*), count(*) filter (where prosecdef) from pg_proc where pronamespace = 'holdfast'::regnamespace"
    )
    row = connection.execute(every).fetchone()
    # `pinned_tenant` is made from rows.
    assert row == (number("functions") + 1, number("of these `SECURITY DEFINER`"))


def test_functions_with_the_owners_rights_are_listed(connection: psycopg.Connection[Any]) -> None:
    rows = connection.execute(
        "select distinct proname::text from pg_proc where pronamespace = 'holdfast'::regnamespace and prosecdef"
    ).fetchall()
    assert {name for (name,) in rows} == {each.name for each in functions() if each.is_definer}


def test_functions_with_the_owners_rights_fix_their_search_path(connection: psycopg.Connection[Any]) -> None:
    rows = connection.execute(
        "select proname from pg_proc where pronamespace = 'holdfast'::regnamespace and prosecdef"
        " and not coalesce(array_to_string(proconfig, ' '), '') like '%search_path%'"
    ).fetchall()
    assert rows == []


def test_public_may_execute_nothing(connection: psycopg.Connection[Any]) -> None:
    rows = connection.execute(
        "select p.oid::regprocedure::text from pg_proc p cross join lateral aclexplode(coalesce(p.proacl,"
        " acldefault('f', p.proowner))) a where p.pronamespace = 'holdfast'::regnamespace and a.grantee = 0"
    ).fetchall()
    assert rows == []


def test_size_is_at_most_what_the_page_says(connection: psycopg.Connection[Any]) -> None:
    size = connection.execute(
        "select sum(pg_total_relation_size(oid))::bigint from pg_class"
        " where relnamespace = 'holdfast'::regnamespace and relkind = 'r'"
    ).fetchone()
    limit = re.search(r"less than (\d+) MB when empty", PAGE.read_text())
    assert limit
    assert size is not None
    assert size[0] < int(limit[1]) * MEGABYTE
