"""Tables and their comments, read from the text of migrations."""

from __future__ import annotations

import pytest

from holdfast.stores.table_text import Table, tables

pytestmark = pytest.mark.req("CX-21", "CX-4")

SQL = """-- The schema.
--
--     tenant     Tenant of the row.

-- An essay about the next tables.

-- Limits of queues,
-- by name.
create table job_limit (
    tenant text not null,
    -- Why there is no key.
    rate   integer not null default 1   -- Starts per period.
        check (rate > 0),
    primary key (tenant),
    constraint bounded check (rate < 10)
);
create index by_rate on job_limit (rate);

-- Only locked.
create table lock_a (held boolean);
create table lock_b (held boolean);
alter table job_limit add column burst integer;   -- Starts at once.
alter table job_limit add column per integer;
"""
LIMIT = {"tenant": "Tenant of the row.", "rate": "Starts per period.", "burst": "Starts at once.", "per": ""}


@pytest.mark.parametrize("sql", [SQL, SQL.replace("create table ", "CREATE TABLE holdfast_")])
def test_columns_have_the_comments_beside_them(sql: str) -> None:
    assert tables(sql) == [
        Table("job_limit", "Limits of queues, by name.", LIMIT),
        Table("lock_a", "Only locked.", {"held": ""}),
        Table("lock_b", "Only locked.", {"held": ""}),
    ]
