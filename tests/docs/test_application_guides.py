"""The programs of the guides on web applications and workflows run and do what the text says."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from holdfast.errors import InvalidArguments
from tests.docs.guide_blocks import block_with
from tests.support.workers import work_off

pytestmark = pytest.mark.req("HF-5", "HF-3")


def module(name: str, code: str) -> ModuleType:
    made = ModuleType(name)
    exec(compile(code, name, "exec"), made.__dict__)
    return made


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch, sqlite_url: str) -> Any:
    """The module ``shop.jobs`` of the guide."""
    monkeypatch.setenv("HOLDFAST_URL", sqlite_url)
    declared = module("shop.jobs", block_with("web-applications", 'App(name="shop")'))
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.jobs", declared)
    return declared


def test_dashboard_is_mounted_with_its_lifespan(shop: Any) -> None:
    with TestClient(module("web", block_with("web-applications", "tokens_of")).web) as client:
        assert client.get("/ops/jobs/readyz").text == "ready\n"
        assert client.get("/ops/jobs/api/v1/jobs").status_code == 401


def test_order_needs_its_id_before_it_is_enqueued(shop: Any, sqlite_url: str) -> None:
    class Base(DeclarativeBase): ...

    class Order(Base):
        __tablename__ = "orders"
        id: Mapped[int] = mapped_column(primary_key=True)
        email: Mapped[str]

    engine = sa.create_engine(f"sqlite:///{sqlite_url.removeprefix('sqlite:///')}")
    Base.metadata.create_all(engine)
    block = block_with("web-applications", "session.flush()  # the database assigns")
    names = {"engine": engine, "Order": Order, "send_receipt": shop.send_receipt}
    with closing(shop.app) as app:
        assert app.jobs.list() == []  # creates the tables
        exec(compile(block, "guide", "exec"), names)
        assert [job.payload for job in app.jobs.list()] == [{"order": 1, "to": "ada@example.com"}]
        with Session(engine) as session:
            session.add(order := Order(email="bob@example.com"))
            job = shop.send_receipt.using(connection=session)
            with pytest.raises(InvalidArguments):
                job.enqueue(order.id, order.email)
    engine.dispose()


@pytest.mark.req("DP-13")
def test_nightly_workflow_is_planned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = module("warehouse", block_with("workflows", 'name="warehouse"')).__dict__
    with closing(names["app"]) as app:
        handle = names["nightly"].enqueue()
        work_off(app)
        (workflow,) = app.workflows.list()
        assert (handle.result(timeout=5), workflow.parent_id) == (workflow.id, handle.id)
        assert workflow.status == "succeeded"
        (report,) = app.jobs.list(kind="report")
        assert app.jobs.handle(report.id).result(timeout=5) == "31 rows"
        (schedule,) = app.schedules.list()
        assert (schedule.kind, schedule.overlap) == ("nightly", "skip")
