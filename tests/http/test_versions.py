"""Versions through the client: its results equal those of the local app."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from holdfast import Context
from holdfast.errors import HoldfastError
from tests.app.conftest import NewApp
from tests.http.conftest import Driver
from tests.support.workers import work_off

pytestmark = [
    pytest.mark.req("HF-10"),
    pytest.mark.parametrize(("url", "form"), [("sqlite", "awaiting"), ("postgres", "blocking")], indirect=["url"]),
]


@pytest.mark.every_case
def test_versions_are_listed_and_jobs_moved(base: str, drive: Callable[..., Driver], new_app: NewApp) -> None:
    app, client = new_app(version="1.0 <b>"), drive(base)

    @app.job(on_new_version="pin")
    async def pay(ctx: Context) -> None:
        if await ctx.patched("stock"):
            await ctx.wait_for_event("go")

    jobs = [pay.enqueue() for _ in range(2)]
    work_off(app)
    found = client.do(lambda c: c.versions.list())
    assert found == app.versions.list()
    assert [(each.version, each.pinned, each.unserved, each.safe_to_retire) for each in found] == [
        ("1.0 <b>", 2, True, False)
    ]
    patches = client.do(lambda c: c.versions.patches())
    assert patches == app.versions.patches()
    assert [(patch.name, patch.recorded, patch.removable) for patch in patches] == [("stock", 2, False)]
    assert client.do(lambda c: c.versions.held()) == []
    moved = client.do(lambda c: c.versions.move("1.0 <b>", to="2.0", jobs=[jobs[0].id], reason="try"))
    assert (moved.moved, moved.job_ids) == (1, (jobs[0].id,))
    assert {each.version: each.pinned for each in client.do(lambda c: c.versions.list())} == {"1.0 <b>": 1, "2.0": 1}
    for wrong in ({"to": ""}, {"to": "1.0 <b>"}, {"to": "x" * 300}, {"to": "2.0", "jobs": ["no id"]}):
        with pytest.raises(HoldfastError):
            client.do(partial(_move, wrong))


def _move(options: dict[str, Any], client: Any) -> Any:
    return client.versions.move("1.0 <b>", **options)
