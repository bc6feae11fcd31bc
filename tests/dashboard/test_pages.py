"""Every page renders on every store, shows its content, and escapes user input."""

from __future__ import annotations

import asyncio
import re
from urllib.parse import quote

import httpx2
import pytest

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.features.audit.store import EventFilter
from tests.dashboard.scene import HOSTILE, Scene, escaped, is_inert, play
from tests.support.stores import claim, forward, open_lease, put_one

pytestmark = pytest.mark.req("JF-16")


async def test_every_page_shows_its_content_and_escapes_user_input(app: App, http: httpx2.AsyncClient) -> None:
    scene = await _play(app)
    safe = escaped(HOSTILE)
    pages = {
        "/approvals": (safe[:40], "0 of 1", "the requester"),
        "/approvals?state=approved": ("No approved approvals",),
        f"/approvals/{scene.approval}": (safe, "the requester of the job may not decide it"),
        "/dead-letters": ("ValueError", safe[:40]),
        "/dead-letters?text=img&order=count&resolved=1": ("ValueError",),
        f"/dead-letters/{scene.group}": (safe, scene.dead, "Redrive all 2"),
        f"/dead-letters/{scene.group}/jobs/{scene.dead}/edit": ("onerror", "payload"),
        "/workflows?show=all": ("publish", "succeeded", "3 of 3"),
        f"/workflows/{scene.workflow}": ("publish", '<svg class="gantt"', escaped(HOSTILE[:60]), "last"),
        "/schedules": ("02:30", "Europe/Paris"),
        f"/schedules/{quote(scene.schedule, safe='')}": ("Schedule time zone", "Clock change", "Run now"),
        f"/schedules/{quote(scene.schedule, safe='')}?zone=Asia/Tokyo": ("JST",),
        f"/schedules/{quote(scene.schedule, safe='')}?edit=1": ("Preview", "30 2 * 3 SUN"),
        "/new/schedule": ("Preview",),
        "/queues": ("mail", "shut", "concurrency 3", safe, "/queues/default"),
        "/queues/mail": ("Jobs per minute", "concurrency 3", "No worker serves this queue"),
        "/queues/default?range=7d": ("Show as table", "last 7 days", "/kinds/part"),
        "/kinds/part": ("Run time in seconds", "/queues/default"),
        "/kinds/nothing%2Fyet": ("No jobs of this kind", "nothing/yet"),
        "/workers": ("No worker is running", "holdfast worker MODULE:APP"),
        "/limits": ("queue shut of tenant default", safe, "No reservations"),
        "/usage": ("No usage data yet",),
        "/?range=24h&by=kind": ("Jobs per minute, last 24 hours", "/kinds/part"),
        "/agents": ("No agents",),
        "/executors": ("Every worker may execute jobs",),
        "/templates": ("No templates",),
        "/subscriptions": ("No subscriptions", "No consumers"),
        "/connectors": ("No connector settings",),
        "/payload-rules": ("No payload rules",),
        "/retention": ("Jobs are kept forever",),
        "/tenants": ("default",),
        "/audit": ("limit", "mail"),
        "/audit?show=events": (scene.job, "enqueue"),
        "/system": ("Holdfast", "up to date", "Needs attention"),
        f"/decide/{scene.token}": (safe, "Opening this page does not decide anything"),
    }
    before = _state(app)
    for path, texts in pages.items():
        answer = await http.get(path)
        assert answer.status_code == 200, (path, answer.text[-600:])
        for text in texts:
            assert text in answer.text, (path, text)
        assert is_inert(answer.text), path
    drawn = (await http.get(f"/workflows/{scene.workflow}/graph.json")).json()
    assert [len(drawn["nodes"]), len(drawn["edges"])] == [3, 3]
    assert _state(app) == before, "reading pages changes nothing"


async def test_every_number_of_the_overview_links_to_its_jobs(app: App, http: httpx2.AsyncClient) -> None:
    await _play(app)
    await app.aenqueue("later", {}, delay="1h", queue="calm")
    await app.aenqueue("now", {}, queue="busy")
    page = (await http.get("/")).text
    main = re.sub(r"<figure.*?</figure>", "", page[page.index("<main") : page.index("</main>")], flags=re.DOTALL)
    cells = re.findall(r'<td class="number">(.*?)</td>', main)
    assert len(cells) >= 3
    assert all(cell.startswith("<a href=") for cell in cells), cells
    figures = dict(re.findall(r'<a class="figure" href="([^"]*)"><span class="name">(Scheduled|Retrying)<', main))
    assert {name: path for path, name in figures.items()} == {
        "Scheduled": "/jobs?state=queued",
        "Retrying": "/jobs?state=retry_waiting",
    }
    assert "later" in (await http.get("/jobs?state=queued&q=queue:calm")).text


def _state(app: App) -> list[object]:
    """All events and actions, the approval and the schedules."""
    store, run = session_of(app).store, session_of(app).run
    recent = run(store.audit.recent_events(EventFilter(tenant="*", limit=1000)))
    (approval,) = app.approvals.list()
    return [recent.events, app.audit.actions(limit=1000), approval, app.schedules.list()]


async def _play(app: App) -> Scene:
    return await asyncio.to_thread(play, app)


@pytest.mark.req("DP-8")
async def test_page_of_a_job_says_that_its_worker_is_lost(app: App, http: httpx2.AsyncClient) -> None:
    def lose() -> str:
        forward(session_of(app).store)
        handle = app.enqueue("fine")
        claim(session_of(app).store, open_lease(session_of(app).store, "worker-7", ttl=30))
        return handle.id

    job_id = await asyncio.to_thread(lose)
    assert "worker lost" not in (await http.get(f"/jobs/{job_id}")).text
    await asyncio.to_thread(forward, session_of(app).store, 40)
    page = (await http.get(f"/jobs/{job_id}")).text
    assert "worker lost" in page
    assert re.search(r"lease expired .* UTC, waiting for take-over", page)


async def test_trace_of_a_job_is_on_its_page_only(app: App, http: httpx2.AsyncClient) -> None:
    trace = "trace:00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    job_id = put_one(session_of(app).store, tags=("urgent", trace))
    jobs = (await http.get("/jobs")).text
    assert '<span class="tag">urgent</span>' in jobs
    assert "trace:" not in jobs
    page = (await http.get(f"/jobs/{job_id}")).text
    assert trace in page
    assert "tag%3A%22trace" not in page
    assert "tag%3Atrace" not in page
