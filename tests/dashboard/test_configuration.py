"""Pages of queues, workers and the configuration: contents and actions."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.engine.job import worker_holder
from tests.api.conftest import client_of
from tests.dashboard.scene import HOSTILE, NAME, declare, is_inert
from tests.support.stores import new_id
from tests.support.workers import work_off

pytestmark = [pytest.mark.req("JF-16"), pytest.mark.parametrize("url", ["sqlite"], indirect=True)]


async def post(http: httpx2.AsyncClient, path: str, **data: str) -> int:
    return (await http.post(path, data=data)).status_code


async def test_queues_are_listed_when_empty_and_paused_and_limited_from_their_row(
    app: App, http: httpx2.AsyncClient
) -> None:
    declare(app)

    @app.job("quiet", queue="night/1")
    async def quiet() -> None: ...

    page = (await http.get("/queues")).text
    assert "/queues/night%2F1" in page
    assert 'name="concurrency"' in page
    assert (await http.get("/queues/night%2F1")).text.count("No jobs in this queue") == 1
    row = {"what": "queue", "name": "night/1", "back": "/queues"}
    assert await post(http, "/pause", **row) == 422, "a pause needs a reason"
    paused = await http.post("/pause", data=row | {"reason": "moon", "for": "1h"})
    assert paused.headers["location"] == "/queues"
    assert await post(http, "/limits", scope="queue", name="night/1", concurrency="2", back="/queues") == 303
    page = (await http.get("/queues")).text
    assert "moon" in page
    assert "concurrency 2" in page
    redirected = await http.post("/resume", data=row | {"back": "//elsewhere.example"})
    assert redirected.headers["location"] == "/limits", "a path that leaves the service is not followed"
    assert app.pauses.list() == []
    app.enqueue("part", {"n": 1})
    app.enqueue("broken", {"text": "bad"})
    await asyncio.to_thread(work_off, app)
    page = (await http.get("/queues")).text
    assert "50 %" in page, "one of two attempts failed"
    for path in ("/?by=queue", "/?by=kind&range=15m", "/?range=nonsense&by=nonsense"):
        answer = await http.get(path)
        assert (answer.status_code, "last 15 minutes" in answer.text) == (200, True), path


async def test_worker_is_drained_from_its_row(app: App, http: httpx2.AsyncClient) -> None:
    session_of(app).make_ready()
    run, leases = session_of(app).run, session_of(app).store.leases
    mine, shared = (worker_holder(new_id(), "host-7", pid) for pid in (1, 2))
    own = run(leases.open(mine, 30, "acme", "worker", (), ("default",), 4, "9.9")).id
    shared_lease = run(leases.open(shared, 30, "*")).id
    async with client_of(app, role="operator", tenant="acme") as acme:
        page = (await acme.get("/workers")).text
        assert "host-7" in page
        assert "9.9" in page
        assert page.count('value="drain"') == 1, "one tenant cannot drain a shared worker"
        drain = {"worker": mine, "mode": "drain"}
        assert 'name="confirmed"' in (await acme.post("/workers", data=drain)).text
        assert await post(acme, "/workers", **drain, confirmed="yes") == 303
        assert await post(acme, "/workers", worker=shared, mode="stop", confirmed="yes") == 403
        assert await post(acme, "/workers", worker="nobody", mode="stop", confirmed="yes") == 404
        assert "draining" in (await acme.get("/workers")).text
    assert run(leases.renew(own, 30, "acme")) == "drain"
    assert await post(http, "/workers", worker=shared, mode="stop", confirmed="yes") == 303
    assert run(leases.renew(shared_lease, 30, "*")) == "stop"
    with app.tenant("acme"):
        (action, *_) = app.audit.actions(limit=1)
    assert (action.subject, action.changed) == ("worker", {"stop_request": [None, "drain"]})


async def test_configuration_is_listed_and_changed(app: App, http: httpx2.AsyncClient) -> None:
    declare(app)
    app.agents.set("planner", name=NAME, kind="part")
    app.templates.set("once", kind="part", payload={"n": 3})
    app.subscriptions.set("after", "order.*", "part")
    app.reservations.set(new_id(), resource="printer", reason="paper", ttl=60)
    app.enqueue("part", {"n": 1})
    list(app.events.read("ledger-reader"))

    assert await post(http, "/agents", agent="planner") == 422, "a reason is required"
    assert await post(http, "/agents", agent="planner", reason=HOSTILE) == 303
    assert await post(http, "/executors", label="gpu", role="executor") == 303
    assert await post(http, "/connectors", name="http.request", hosts="a.example, b.example", enabled="no") == 303
    assert await post(http, "/payload-rules", kind="part", restricted="yes", max_bytes="1KB") == 303
    assert await post(http, "/retention", kind="part", state="succeeded", clean_after="30d") == 303
    assert await post(http, "/subscriptions", name="after", do="pause") == 303
    app.kinds.set("part", HOSTILE)
    app.event_types.set("order.paid", domain="billing")
    app.policies.set(unknown_agents="warn")
    app.enqueue("part", {"n": 2}, agent="stranger")
    pages = {
        "/registry": ("order.paid", "billing", "part", "unknown_agents", "warn", "stranger"),
        "/agents": ("planner", "disabled"),
        "/executors": ("gpu",),
        "/connectors": ("a.example, b.example", "disabled"),
        "/payload-rules": ("restricted", "payload up to 1 KB"),
        "/retention": ("succeeded", "30 d"),
        "/subscriptions": ("order.*", "paused", "ledger-reader"),
        "/templates": ("once", "version"),
        "/limits": ("resource printer", "paper"),
        "/usage": ("No usage data yet",),
    }
    for path, texts in pages.items():
        page = (await http.get(path)).text
        assert [text for text in texts if text not in page] == [], path
        assert is_inert(page), path
    assert "&quot;n&quot;: 3" not in (await http.get("/templates")).text, "the payload is restricted"

    made = await http.post("/templates", data={"name": "once", "do": "enqueue"})
    assert made.headers["location"].startswith("/jobs/")
    (held,) = app.reservations.list()
    undo = (
        ("/agents", {"agent": "planner", "do": "enable"}),
        ("/executors/remove", {"label": "gpu"}),
        ("/connectors/remove", {"name": "http.request"}),
        ("/payload-rules/remove", {"kind": "part"}),
        ("/retention/remove", {"kind": "part", "state": "succeeded"}),
        ("/subscriptions", {"name": "after", "do": "resume"}),
        ("/subscriptions", {"name": "after", "do": "remove"}),
        ("/consumers", {"name": "ledger-reader", "do": "now"}),
        ("/consumers", {"name": "ledger-reader", "do": "remove"}),
        ("/templates", {"name": "once", "do": "remove"}),
        ("/reservations/release", {"id": held.id}),
    )
    for path, data in undo:
        assert await post(http, path, **data, confirmed="yes") == 303, path
    assert await post(http, "/consumers", name="x", do="nothing") == 422
    assert await post(http, "/subscriptions", name="x", do="nothing") == 422
    left = (app.executors, app.connectors, app.payload_rules, app.retention, app.subscriptions, app.templates)
    assert [namespace.list() for namespace in left] == [[]] * 6
    assert (app.consumers.list(), app.reservations.list()) == ([], [])
    work = {"part": 1}
    await asyncio.to_thread(work_off, app)
    await asyncio.to_thread(app.usage.count)
    page = (await http.get("/usage?days=7")).text
    assert [kind for kind in work if f"/kinds/{kind}" not in page] == []
