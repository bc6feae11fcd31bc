"""`/readyz`: whether the database is reachable, migrated and writable; checked at most once a second."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import httpx2
import pytest
from starlette.types import ASGIApp

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.errors import StoreUnavailable
from holdfast.features.assembly import open_store
from holdfast.features.health.routes import Readiness
from holdfast.server.app import make_service
from tests.api.conftest import HERE
from tests.faults.tiny_disk import fill, fill_rest, mounted
from tests.support.stores import put, spec

pytestmark = pytest.mark.req("JF-14", "CX-15")


async def ready(service: ASGIApp) -> tuple[int, str]:
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(service), base_url=HERE) as http:
        answer = await http.get("/readyz")
        return answer.status_code, answer.text.strip() if answer.is_success else answer.json()["code"]


async def test_full_disk_is_not_ready_until_space_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.features.health.routes.READY_FOR", 0.0)
    with mounted() as disk, closing(App(f"sqlite:///{disk}/jobs.db")) as app:
        app.migrate()
        service = make_service(app, authenticate=lambda _: None)
        assert await ready(service) == (200, "ready")
        await asyncio.to_thread(fill, app)
        fill_rest(disk)
        await asyncio.to_thread(fill, app, "")
        assert await ready(service) == (503, "disk_full")
        (disk / "ballast").unlink()
        assert await ready(service) == (200, "ready")


def test_read_only_server_is_not_writable(postgres_url: str) -> None:
    with closing(App(postgres_url)) as app:
        app.migrate()
        session_of(app).store.check_writable()
    join = "&" if "?" in postgres_url else "?"
    with closing(open_store(f"{postgres_url}{join}options=-c%20default_transaction_read_only%3Don")) as store:
        with pytest.raises(StoreUnavailable) as refused:
            store.check_writable()
        assert refused.value.code == "store_read_only"
        assert refused.value.fix


def test_lock_of_another_writer_is_no_fault(new_sqlite_url: str) -> None:
    with closing(App(new_sqlite_url)) as app:
        app.migrate()
        (job,) = put(session_of(app).store, spec())
        before = session_of(app).store.schema()
        with session_of(app).store.transaction() as connection:
            connection.execute("create table kept_open (x)")
            session_of(app).store.check_writable()
        session_of(app).store.check_writable()
        assert session_of(app).store.schema() == before
        assert app.jobs.get(job) is not None
    assert Path(new_sqlite_url.removeprefix("sqlite:///")).exists()


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_concurrent_requests_share_one_check(app: App) -> None:
    session_of(app).make_ready()
    checks: list[str] = []
    fault: list[StoreUnavailable] = []

    class Store:
        def schema(self) -> object:
            checks.append("schema")
            return session_of(app).store.schema()

        def check_writable(self) -> None:
            checks.append("written")
            for error in fault:
                raise error

    readiness = Readiness(Store())  # type: ignore[arg-type]
    assert await asyncio.gather(*(readiness.fault() for _ in range(50))) == [None] * 50
    assert await readiness.fault() is None
    assert checks == ["schema", "written"]
    readiness = Readiness(Store())  # type: ignore[arg-type]
    fault.append(StoreUnavailable("there is no space left", code="disk_full"))
    faults = await asyncio.gather(*(readiness.fault() for _ in range(9)))
    assert [error and error.code for error in faults] == ["disk_full"] * 9
    fault.clear()
    assert await readiness.fault() is None, "a fault is checked again by the next request"
