"""The programs on the pages about hooks and web frameworks run as printed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from litestar.testing import TestClient as LitestarClient
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from holdfast import App, Retry
from holdfast.testing import Kit
from tests.docs.guide_blocks import block_with
from tests.support.waiting import until
from tests.support.workers import work_off

FASTAPI, LITESTAR = "Holdfast(app, worker=True)\nsite = FastAPI", "HoldfastPlugin(app, worker=True"
ADA = {"x-user": "ada"}
UNKNOWN = ("01a1de74-eb8c-70f1-843b-cac5f6817387", "7")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs use a file in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))


def program(guide: str, part: str, change: tuple[str, str] = ("", ""), **names: Any) -> dict[str, Any]:
    """Run the block with this text as the module ``shop``, where frameworks look up annotations; return its names."""
    module = sys.modules["shop"] = ModuleType("shop")
    module.__dict__.update(names)
    exec(compile(block_with(guide, part).replace(*change), f"{guide}.md", "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


@pytest.fixture
def shop() -> Iterator[dict[str, Any]]:
    names: dict[str, Any] = {}
    yield names
    names["app"].close()


@pytest.mark.req("HF-8")
@pytest.mark.parametrize("framework", [FASTAPI, LITESTAR])
def test_fastapi_and_litestar(framework: str, shop: dict[str, Any]) -> None:
    shop |= program("web-applications", framework)
    app: App = shop["app"]
    client: Any = (TestClient if framework == FASTAPI else LitestarClient)(shop["site"])
    with client:
        job = client.post("/orders", params={"email": "ada@example.com"}).json()["job"]
        until(lambda: app.jobs.handle(job).get().state == "succeeded", "the job has run")
        assert client.get("/jobs/api/v1/jobs").status_code == 401
        assert len(client.get("/jobs/api/v1/jobs", headers=ADA).json()["items"]) == 1
        if framework == FASTAPI:
            assert client.get(f"/receipts/{job}").json() == "succeeded"
            assert [client.get(f"/receipts/{wrong}").status_code for wrong in UNKNOWN] == [404, 404]


@pytest.mark.req("HF-8")
def test_recipe_for_tests_with_fastapi(shop: dict[str, Any]) -> None:
    shop |= program("web-applications", FASTAPI, change=("worker=True", "worker=False"))
    names = program("web-applications", "(holdfast_kit)", TestClient=TestClient, site=shop["site"])
    recipe = names["test_an_order_sends_a_receipt"]
    for _ in range(2):
        with Kit(shop["app"]) as kit:
            recipe(kit)


@pytest.mark.req("HF-8")
def test_flask(shop: dict[str, Any]) -> None:
    shop |= program("web-applications", "Flask(__name__)")
    client = shop["site"].test_client()
    job = client.post("/orders", data={"email": "ada@example.com"}).get_json()["job"]
    assert shop["site"].test_cli_runner().invoke(args=["holdfast", "worker", "--burst"]).exit_code == 0
    assert client.get(f"/receipts/{job}").get_json() == {"state": "succeeded"}
    assert [client.get(f"/receipts/{wrong}").status_code for wrong in UNKNOWN] == [404, 404]


@pytest.mark.req("HF-8")
def test_sqlalchemy(shop: dict[str, Any]) -> None:
    shop |= program("transactions", "url_of(engine)")
    assert [job.kind for job in shop["app"].jobs.list()] == ["send_receipt"]
    engine, order = shop["engine"], shop["Order"]
    order.closed = False
    shop |= program("transactions", "AttemptSession(", engine=engine, app=shop["app"], Order=order)
    shop["close_order"].enqueue(1)
    work_off(shop["app"])
    assert shop["app"].jobs.count(kind="close_order").counts["succeeded"] == 1
    with Session(engine) as session:
        assert session.get(order, 1) is not None
    engine.dispose()


@pytest.mark.req("HF-13")
def test_hooks_guide(shop: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    shop |= program("hooks", "def page_somebody")
    app: App = shop["app"]
    handle = app.job("fails", retry=Retry(max_attempts=1))(lambda: 1 / 0).enqueue()
    work_off(app)
    output = capsys.readouterr().out
    assert output.splitlines()[:2] == [f"start fails {handle.id}", "end fails"]
    assert "fails failed for good: division by zero" in output
    made = program("hooks", "hooks=[payments]", app=app)
    assert app.hooks.of_ends("charge", app.tenant) is not None
    assert made["charge"].name == "charge"
