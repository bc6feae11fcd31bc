"""Each block of the transactions guide works with its library."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from holdfast import App
from holdfast.app.internals import session_of
from tests.app.notes import connect
from tests.support.caller_connections import path_of, sqlalchemy_url
from tests.support.django_setup import make_default

pytestmark = pytest.mark.req("HF-3")

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "transactions.md"
_SECTION = re.compile(r"^### (\w+)\n(.*?)(?=^##)", re.DOTALL | re.MULTILINE)
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)

ON_BOTH = {"SQLAlchemy", "Django"}
ON_SQLITE = {"sqlite3"}


def blocks() -> list[Any]:
    enqueuing = GUIDE.read_text(encoding="utf-8").partition("## Complete in a transaction")[0]
    cases = []
    for name, text in _SECTION.findall(enqueuing):
        for number, block in enumerate(_BLOCK.findall(text)):
            stores = ["postgres", "sqlite"] if name in ON_BOTH else ["sqlite" if name in ON_SQLITE else "postgres"]
            cases += [pytest.param(store, block, id=f"{name}-{number}-{store}") for store in stores]
    assert len(cases) >= 11
    return cases


@pytest.fixture
def app(request: pytest.FixtureRequest, store: str) -> Iterator[App]:
    with closing(App(request.getfixturevalue(f"{store}_url"), name="guide", enqueued_by="tester")) as app:
        session_of(app).make_ready()
        with connect(session_of(app).store.url) as connection:
            connection.execute("create table orders (id integer)")
        yield app


@pytest.mark.parametrize(("store", "block"), blocks())
def test_block_enqueues_and_writes(app: App, store: str, block: str) -> None:
    @app.job()
    def send_receipt(to: str, order: int) -> None: ...

    url = session_of(app).store.url
    drivers = ("psycopg", "asyncpg") if store == "postgres" else ("pysqlite", "aiosqlite")
    make_default(url)
    names = {
        "URL": url,
        "FILE": path_of(url),
        "send_receipt": send_receipt,
        "engine": sa.create_engine(sqlalchemy_url(url, drivers[0]), poolclass=NullPool),
        "async_engine": create_async_engine(sqlalchemy_url(url, drivers[1]), poolclass=NullPool),
    }
    result = eval(compile(block, "guide", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if inspect.iscoroutine(result):
        asyncio.run(result)
    with connect(url) as connection:
        orders = [row[0] for row in connection.execute("select id from orders order by id").fetchall()]
    assert orders
    assert orders == sorted(job.payload["order"] for job in app.jobs.list())
