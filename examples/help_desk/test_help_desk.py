"""The tests of the help desk, on the database that HOLDFAST_URL names."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from jobs import app
from models import Order, create_tables, make_session
from web import site

ADA = {"x-user": "ada"}


async def work() -> None:
    """Run the jobs that are due, as a worker would."""
    while (await app.atick(limit=10)).taken:
        pass


async def desk() -> None:
    await create_tables()
    async with make_session() as session:
        session.add_all([Order(number=4711, total=80), Order(number=4712, total=15, delivered=True)])
        await session.commit()
    transport = httpx.ASGITransport(site)
    async with (
        site.router.lifespan_context(site),
        httpx.AsyncClient(transport=transport, base_url="http://desk") as web,
    ):
        written: Any = [
            (await web.post("/tickets", params={"customer": "bob", "order": order, "text": "It never came"})).json()
            for order in (4711, 4712)
        ]
        await work()
        assert (await web.get(f"/tickets/{written[1]['ticket']}")).json()["reply"] == "It was delivered."
        assert (await web.get(f"/tickets/{written[0]['ticket']}")).json()["reply"] is None

        # The refund waits for a person, who decides on the dashboard or over its API.
        assert (await web.get("/jobs/")).status_code == 401
        assert "refund" in (await web.get("/jobs/approvals", headers=ADA)).text
        (approval,) = (await web.get("/jobs/api/v1/approvals", headers=ADA)).json()["items"]
        decided = await web.post(
            f"/jobs/api/v1/approvals/{approval['id']}/approve", json={"data": {"amount": 70}}, headers=ADA
        )
        assert decided.status_code == 200, decided.text
        await work()
        assert (await web.get(f"/tickets/{written[0]['ticket']}")).json()["reply"] == "70 euros are on their way."
        jobs = (await web.get("/jobs/api/v1/jobs", headers=ADA)).json()["items"]
        assert {job["state"] for job in jobs} == {"succeeded"}
    async with make_session() as session:
        assert (await session.get_one(Order, 4711)).refunded == 70
    await app.aclose()


def test_help_desk() -> None:
    asyncio.run(desk())
