"""``app.migrate()`` creates the tables, for tests, notebooks and embedded apps."""

from __future__ import annotations

from contextlib import closing

import pytest

from holdfast import App, HoldfastError
from holdfast.app.internals import session_of

pytestmark = pytest.mark.req("HF-5", "SC-1", "DP-20")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    name = "new_sqlite_url" if request.param == "sqlite" else "empty_postgres_url"
    return str(request.getfixturevalue(name))


def test_migrate_creates_the_tables_once(url: str) -> None:
    with closing(App(url)) as app:
        app.migrate()
        assert session_of(app).store.schema().current
        job = app.enqueue("hello")
        app.migrate()  # again: nothing to do
        assert app.jobs.get(job.id).kind == "hello"


async def test_amigrate_creates_the_tables(url: str) -> None:
    app = App(url)
    await app.amigrate()
    assert (await app.aenqueue("hello")).created
    await app.aclose()


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_server_is_not_migrated_on_first_use(url: str) -> None:
    with closing(App(url)) as app:
        with pytest.raises(HoldfastError) as refused:
            app.enqueue("hello")
        assert refused.value.code == "not_migrated"
        app.migrate()
        assert app.enqueue("hello").created
