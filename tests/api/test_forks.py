"""Forks over HTTP."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import App, Context, State
from tests.api.conftest import client_of

pytestmark = pytest.mark.req("HF-10")


async def waiting(app: App) -> str:
    @app.job("pay")
    async def pay(ctx: Context) -> None:
        await ctx.step("quote <b>", lambda: 1)
        await ctx.step("charge", lambda: 2)
        await ctx.sleep("1h")

    handle = await pay.aenqueue()
    await asyncio.to_thread(app.run_worker, burst=True)
    assert await handle.astate() is State.RETRY_WAITING
    return handle.id


async def test_repeated_request_makes_one_fork(app: App) -> None:
    job = await waiting(app)
    async with client_of(app, role="operator") as http:
        body = {"from_step": "charge", "key": "request-7", "reason": "wrong account"}
        made = await http.post(f"/api/v1/jobs/{job}/fork", json=body)
        assert made.status_code == 200, made.text
        assert made.json() == {"id": made.json()["id"], "job_id": job, "from_step": 2, "created": True}
        again = await http.post(f"/api/v1/jobs/{job}/fork", json=body)
        assert (again.json()["id"], again.json()["created"]) == (made.json()["id"], False)
        other = await http.post(f"/api/v1/jobs/{job}/fork", json=body | {"from_step": 1})
        assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
        unknown = await http.post(f"/api/v1/jobs/{job}/fork", json={"from_step": "ship"})
        assert (unknown.status_code, unknown.json()["code"]) == (404, "no_such_step")
        for wrong in ({}, {"from_step": None}, {"from_step": -1}, {"from_step": 1, "also": 2}):
            assert (await http.post(f"/api/v1/jobs/{job}/fork", json=wrong)).status_code == 422, wrong
        details = (await http.get(f"/api/v1/jobs/{job}")).json()
        assert details["forks"] == [made.json()["id"]]
    async with client_of(app, role="viewer") as http:
        assert (await http.post(f"/api/v1/jobs/{job}/fork", json=body)).status_code == 403
    async with client_of(app, role="operator", tenant="other") as http:
        assert (await http.post(f"/api/v1/jobs/{job}/fork", json=body)).status_code == 404
