"""Starlette, FastAPI, Litestar and Flask: enqueue in a request, run the job in the process, serve the API and the
dashboard behind the application's authentication, and shut down cleanly."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, closing
from typing import Annotated, Any

import flask
import pytest
from fastapi import Depends, FastAPI, Header, HTTPException
from litestar import Litestar
from litestar import Request as LitestarRequest
from litestar import post as litestar_post
from litestar.testing import TestClient as LitestarClient
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.errors import InvalidSetting, SchemaMismatch
from holdfast.integrations import fastapi, litestar, starlette
from holdfast.integrations import flask as flask_integration
from holdfast.integrations.fastapi import Identity, JobsDep, identity, session_jobs
from holdfast.integrations.sqlalchemy import SessionJobs
from holdfast.integrations.web_host import Hosted, by_scope
from holdfast.testing import Kit
from tests.support.processes import free_port
from tests.support.waiting import until

pytestmark = pytest.mark.req("HF-8")

QUICK: Any = {"poll": 0.02, "promote_every": 0.05}
ADA = {"x-user": "ada"}


@pytest.fixture
def app(sqlite_url: str) -> Iterator[App]:
    with closing(App(sqlite_url, name="tests")) as app:

        @app.job
        def add(a: int, b: int) -> int:
            return a + b

        yield app


def operator_identity(user: str | None) -> Identity | None:
    return None if user is None else identity(user, "operator")


def check(client: Any, app: App) -> None:
    """The requirements for every integration; ``client`` belongs to a running application with a worker."""
    made = client.post("/add").json()
    until(lambda: app.jobs.handle(made["id"]).get().state.finished, "the job was run in this process")
    assert app.jobs.result(made["id"]).value == 3
    assert client.get("/jobs/", follow_redirects=False).status_code == 401
    page = client.get("/jobs/", headers=ADA)
    assert (page.status_code, 'href="/jobs/' in page.text) == (200, True)
    assert client.get("/jobs", headers=ADA, follow_redirects=True).status_code == 200
    assert client.get("/jobs/api/v1/jobs").status_code == 401
    listed = client.get("/jobs/api/v1/jobs", headers=ADA).json()
    assert [job["kind"] for job in listed["items"]] == ["add"]
    for path in ("/jobs/livez", "/jobs/static/holdfast.css"):
        assert client.get(path).status_code == 200, "needs no login"
    job = {"kind": "add", "payload": {"a": 2, "b": 2}}
    assert client.post("/jobs/api/v1/jobs", headers=ADA, json=job).status_code == 201
    assert app.jobs.list()[0].enqueued_by == "ada"
    foreign = client.post("/jobs/api/v1/jobs", headers=ADA | {"sec-fetch-site": "cross-site"}, json=job)
    assert foreign.status_code == 403
    until(lambda: app.jobs.list()[0].state.finished, "the second job was run")


def test_starlette_enqueues_runs_and_serves(app: App) -> None:
    events: list[str] = []

    @asynccontextmanager
    async def own(site: Starlette) -> AsyncIterator[dict[str, str]]:
        events.append("own start")
        yield {"greeting": "hello"}
        events.append("own end")

    async def add(request: Request) -> JSONResponse:
        handle = await starlette.jobs_of(request).aenqueue("add", {"a": 1, "b": 2})
        assert request.state.greeting == "hello"
        return JSONResponse({"id": handle.id})

    hosted = starlette.Holdfast(app, worker=QUICK, lifespan=own)
    site = Starlette(routes=[Route("/add", add, methods=["POST"])], lifespan=hosted.lifespan)
    hosted.mount(site, "/jobs", authenticate=lambda request: operator_identity(request.headers.get("x-user")))
    with TestClient(site) as client:
        check(client, app)
        assert events == ["own start"]
    assert events == ["own start", "own end"]
    with pytest.raises(InvalidSetting) as missing:
        TestClient(Starlette(routes=[Route("/add", add, methods=["POST"])])).post("/add")
    assert missing.value.code == "no_app"


def user(x_user: Annotated[str | None, Header()] = None) -> str:
    if x_user is None:
        raise HTTPException(401)
    return x_user


def operator(name: Annotated[str, Depends(user)]) -> Identity:
    return identity(name, "operator")


def test_fastapi_enqueues_runs_and_serves(app: App) -> None:
    hosted = fastapi.Holdfast(app, worker=QUICK)
    site = FastAPI(lifespan=hosted.lifespan)
    hosted.mount(site, "/jobs", identity=operator)

    @site.post("/add")
    async def add(jobs: JobsDep) -> dict[str, str]:
        return {"id": (await jobs.aenqueue("add", {"a": 1, "b": 2})).id}

    with TestClient(site) as client:
        check(client, app)
        assert list(client.get("/openapi.json").json()["paths"]) == ["/add"]


def test_fastapi_enqueues_in_the_session_of_the_request(app: App, sqlite_url: str) -> None:
    engine: AsyncEngine = create_async_engine(sqlite_url.replace("sqlite:", "sqlite+aiosqlite:"))

    async def get_session() -> AsyncIterator[AsyncSession]:
        async with AsyncSession(engine) as session, session.begin():
            yield session

    @asynccontextmanager
    async def own(site: FastAPI) -> AsyncIterator[None]:
        yield
        await engine.dispose()

    site = FastAPI(lifespan=fastapi.Holdfast(app, lifespan=own).lifespan)
    one = app.job("one")(lambda: None)
    jobs_in_session: Any = session_jobs(get_session)
    same_session: Any = Depends(get_session)

    @site.post("/one")
    async def enqueue(
        fail: bool, jobs: SessionJobs[AsyncSession] = jobs_in_session, session: AsyncSession = same_session
    ) -> str:
        assert jobs.session is session
        handle = await jobs.aenqueue(one)
        if fail:
            raise HTTPException(409)
        return handle.id

    with TestClient(site) as client:
        assert client.post("/one?fail=true").status_code == 409
        assert app.jobs.list() == []
        made = client.post("/one?fail=false").json()
        assert [job.id for job in app.jobs.list()] == [made]


def test_litestar_enqueues_runs_and_serves(app: App) -> None:
    async def authenticate(request: LitestarRequest[Any, Any, Any]) -> Identity | None:
        return operator_identity(request.headers.get("x-user"))

    @litestar_post("/add")
    async def add(jobs: litestar.JobsDep) -> dict[str, str]:
        return {"id": (await jobs.aenqueue("add", {"a": 1, "b": 2})).id}

    plugin = litestar.HoldfastPlugin(app, worker=QUICK, path="/jobs", authenticate=authenticate)
    with LitestarClient(Litestar([add], plugins=[plugin], logging_config=None)) as client:
        check(client, app)
    with pytest.raises(InvalidSetting):
        litestar.HoldfastPlugin(app, path="/jobs")


class FlaskResponse:
    """A Flask response with the attributes of the other clients."""

    def __init__(self, response: Any) -> None:
        self.status_code, self.text = response.status_code, response.text
        self.json = response.get_json


class FlaskClient:
    def __init__(self, site: flask.Flask) -> None:
        self._client = site.test_client()

    def get(self, path: str, **options: Any) -> FlaskResponse:
        return FlaskResponse(self._client.get(path, **options))

    def post(self, path: str, **options: Any) -> FlaskResponse:
        return FlaskResponse(self._client.post(path, **options))


def test_flask_enqueues_runs_and_serves(app: App) -> None:
    site = flask.Flask("shop")
    hosted = flask_integration.Holdfast(app, site)
    hosted.mount(site, "/jobs", identity=lambda: operator_identity(flask.request.headers.get("x-user")))

    @site.post("/add")
    def add() -> dict[str, str]:
        return {"id": flask_integration.current_jobs.enqueue("add", {"a": 1, "b": 2}).id}

    working: AbstractContextManager[Any] = flask_integration.background_worker(app, **QUICK)
    with working:
        check(FlaskClient(site), app)
    handle = app.enqueue("add", {"a": 4, "b": 4})
    result = site.test_cli_runner().invoke(args=["holdfast", "worker", "--burst", "--queue", "default"])
    assert (result.exit_code, handle.result()) == (0, 8)
    with flask.Flask("other").app_context(), pytest.raises(InvalidSetting):
        flask_integration.current_jobs.enqueue("add")


def test_the_worker_of_flask_prints_what_a_worker_prints(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    site = flask.Flask("shop")
    flask_integration.Holdfast(app, site)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    command = ["holdfast", "worker", "--burst", "--queues", "default,mail:3"]
    started, stopped = site.test_cli_runner().invoke(args=command).stderr.splitlines()
    assert "started: queues default, mail; all tenants; jobs: add" in started
    assert "stopped after 0 attempts" in stopped
    wrong = site.test_cli_runner().invoke(args=["holdfast", "worker", "--burst", "--queues", "mail:-1"])
    assert wrong.exit_code == 2
    assert wrong.stderr.startswith("error: the weight of 'mail:-1' is not a whole number [invalid_weight]")


@pytest.mark.parametrize("worker", [False, True])
@pytest.mark.parametrize("framework", ["starlette", "fastapi", "litestar", "flask"])
def test_a_site_does_not_start_on_a_database_without_tables(
    empty_postgres_url: str, framework: str, worker: bool
) -> None:
    with closing(App(empty_postgres_url, name="tests")) as app:
        app.job("add")(lambda: None)

        def start() -> None:
            if framework == "flask":  # which has no start: the first request that uses Holdfast
                site = flask.Flask("shop")
                site.testing = True
                extension = flask_integration.Holdfast(app, site)
                extension.mount(site, "/jobs", identity=lambda: operator_identity("ada"))
                site.get("/add")(lambda: app.enqueue("add").id)
                assert site.test_client().get("/jobs/livez" if worker else "/add").text
            elif framework == "litestar":
                plugin = litestar.HoldfastPlugin(app, worker=worker)
                with LitestarClient(Litestar([], plugins=[plugin], logging_config=None)):
                    pass
            else:
                web: Any = {"starlette": starlette, "fastapi": fastapi}[framework]
                frame: Any = {"starlette": Starlette, "fastapi": FastAPI}[framework]
                with TestClient(frame(lifespan=web.Holdfast(app, worker=worker).lifespan)):
                    pass

        with pytest.raises((SchemaMismatch, ExceptionGroup)) as refused:
            start()
        error: Any = refused.value
        error = error.exceptions[0] if isinstance(error, ExceptionGroup) else error  # Litestar has a task group
        assert (error.code, error.fix) == ("not_migrated", "Run: holdfast migrate")
        app.migrate()
        start()


def test_a_site_starts_while_the_database_is_away(caplog: pytest.LogCaptureFixture) -> None:
    nowhere = f"postgresql://127.0.0.1:{free_port()}/jobs?connect_timeout=1"
    with closing(App(nowhere, name="tests")) as app, TestClient(Starlette(lifespan=starlette.Holdfast(app).lifespan)):
        assert "its tables were not checked" in caplog.text


@pytest.mark.parametrize("state", ["away", "without tables"])
def test_views_of_flask_without_jobs_do_not_need_the_database(
    empty_postgres_url: str, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere = f"postgresql://127.0.0.1:{free_port()}/jobs?connect_timeout=1"
    with closing(App(nowhere if state == "away" else empty_postgres_url, name="tests")) as app:
        site = flask.Flask("shop")
        flask_integration.Holdfast(app, site)
        site.get("/")(lambda: "hello")
        assert site.test_client().get("/").text == "hello"
        assert caplog.text == ""


def test_the_kit_runs_jobs_on_the_event_loop_of_the_site(postgres_url: str) -> None:
    """A pool of the application belongs to one loop: handlers use it, and views too."""
    app = App("sqlite:///never.db", name="tests")
    engine = create_async_engine(postgres_url.replace("postgresql:", "postgresql+asyncpg:"))

    async def backend(kind: str) -> int:
        async with engine.connect() as connection:
            return int(await connection.scalar(text("select pg_backend_pid()")) or 0)

    @app.job
    async def count(tenant: str) -> tuple[int, bool]:
        return await backend("job"), session_of(app).tenant == tenant

    @app.job
    async def double(number: int) -> int:
        return 2 * number

    @asynccontextmanager
    async def own(site: FastAPI) -> AsyncIterator[None]:
        yield
        await engine.dispose()

    site = FastAPI(lifespan=fastapi.Holdfast(app, lifespan=own).lifespan)

    @site.post("/count")
    async def enqueue() -> tuple[int, str]:
        return await backend("view"), (await count.aenqueue("default")).id

    with Kit(app) as kit:
        for _ in range(2):  # the second site has another loop
            with TestClient(site) as client:
                connected, job = client.post("/count").json()
                kit.drain()
                assert app.jobs.result(job).value == [connected, True]
                with app.tenant("acme"):
                    assert kit.run(count, "acme") == (connected, True), "in the caller's tenant"
        assert kit.run(double, 2) == 4, "no site runs"


def test_changes_without_a_page_are_accepted_from_programs_only(app: App) -> None:
    hosted = fastapi.Holdfast(app)
    site = FastAPI(lifespan=hosted.lifespan)
    hosted.mount(site, "/jobs", identity=operator)
    job = {"kind": "add", "payload": {"a": 2, "b": 2}}
    with TestClient(site) as client:

        def post(**headers: str) -> int:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return int(client.post("/jobs/api/v1/jobs", headers=ADA | named, json=job).status_code)

        assert post() == 201, "no browser"
        assert post(cookie="session=1") == 403, "a browser without Sec-Fetch-Site and Origin may have sent it"
        assert post(cookie="session=1", sec_fetch_site="same-origin") == 201
        assert post(sec_fetch_site="cross-site") == 403


def test_mistakes_in_mounting_name_the_right_value(app: App) -> None:
    with pytest.raises(InvalidSetting, match="Did you mean concurrency") as unknown:
        starlette.Holdfast(app, worker={"concurency": 4})  # type: ignore[arg-type]
    assert unknown.value.code == "unknown_option"
    with pytest.raises(InvalidSetting) as without_roles:
        identity("ada")
    assert (without_roles.value.code, "operator" in str(without_roles.value.fix)) == ("invalid_identity", True)
    site = Starlette()
    starlette.Holdfast(app).mount(site, "/jobs", authenticate=lambda request: "ada")  # type: ignore[arg-type, return-value]
    with TestClient(site) as client, pytest.raises(InvalidSetting, match="authenticate returned str"):
        client.get("/jobs/")


async def test_live_pages_end_when_the_process_is_stopped(app: App) -> None:
    """Otherwise a server would wait for them and never end the lifespan."""
    signals: list[int] = []
    hosted = Hosted(app)
    service = hosted.service(by_scope)

    def handler(number: int, frame: object) -> None:
        signals.append(number)

    before = signal.signal(signal.SIGTERM, handler)
    try:
        async with hosted.running():
            signal.raise_signal(signal.SIGTERM)
            await asyncio.wait_for(service.state.stopping.wait(), 20)
            assert service.state.live.closed
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)
    assert signals == [signal.SIGTERM]
