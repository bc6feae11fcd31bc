"""A service runs maintenance tasks if asked to, without any request, and stops them when it stops."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.engine.states import State
from holdfast.server.app import make_service
from holdfast.server.auth import at_this_machine
from tests.api.serving import auntil, serving_asgi
from tests.app.conftest import NewApp
from tests.support.stores import claim, forward, job, open_lease, put_one

pytestmark = pytest.mark.req("JF-14", "SC-9", "HF-4")


def furnish(app: App) -> str:
    """A job under an expired lease, and a due schedule of a kind that an HTTP worker runs."""
    session_of(app).make_ready()
    store = session_of(app).store
    forward(store)
    lost = put_one(store, kind="theirs")
    assert claim(store, open_lease(store, ttl=10.0))
    app.schedules.add("nightly", "every 1h", kind="theirs", queue="nightly")
    forward(store, 3601.0)
    store.run(store.leases.open("token node", 3600.0, "*", "node", ["theirs"]))
    return lost


async def test_service_recovers_fires_and_seals_without_workers(app: App, new_app: NewApp) -> None:
    """With two servers at once."""
    lost = furnish(app)
    other, before = new_app(), asyncio.all_tasks()
    services = [make_service(one, authenticate=at_this_machine(one), maintenance="*") for one in (app, other)]

    def done() -> bool:
        sealed = session_of(app).run(session_of(app).store.audit.get_seal()) is not None
        return (
            sealed and job(session_of(app).store, lost).state is State.QUEUED and bool(app.schedules.history("nightly"))
        )

    async with serving_asgi(services[0]), serving_asgi(services[1]):
        await auntil(done, "recovered, fired and sealed")
    assert len(app.schedules.history("nightly")) == 1, "fired once"
    assert asyncio.all_tasks() == before, "no maintenance task keeps running"


async def test_maintenance_is_left_to_workers_by_default(app: App) -> None:
    lost = furnish(app)
    async with serving_asgi(make_service(app, authenticate=at_this_machine(app))):
        pass
    assert job(session_of(app).store, lost).state is State.IN_PROGRESS
    assert app.schedules.history("nightly") == []
