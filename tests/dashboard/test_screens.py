"""The screens: each is there on every store, says what it is about, and takes nothing of users' for markup."""

from __future__ import annotations

import asyncio
import re
from urllib.parse import quote

import httpx2
import pytest

from holdfast import App
from holdfast.features.audit.store import EventFilter
from tests.dashboard.scene import HOSTILE, Scene, escaped, is_inert, play

pytestmark = pytest.mark.req("JF-16")


async def test_every_screen_shows_what_there_is_and_nothing_of_it_is_markup(app: App, http: httpx2.AsyncClient) -> None:
    scene = await _played(app)
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
    before = _kept(app)
    for path, says in pages.items():
        answer = await http.get(path)
        assert answer.status_code == 200, (path, answer.text[-600:])
        for words in says:
            assert words in answer.text, (path, words)
        assert is_inert(answer.text), path
    drawn = (await http.get(f"/workflows/{scene.workflow}/graph.json")).json()
    assert [len(drawn["nodes"]), len(drawn["edges"])] == [3, 3]
    assert _kept(app) == before, "looking changes nothing"


async def test_every_number_of_the_overview_leads_to_what_it_counts(app: App, http: httpx2.AsyncClient) -> None:
    await _played(app)
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


def _kept(app: App) -> list[object]:
    """All that people and programs did, of jobs and of the configuration, and how the question stands."""
    store, run = app._session.store, app._session.run
    looked = run(store.audit.recent_events(EventFilter(tenant="*", limit=1000)))
    (approval,) = app.approvals.list()
    return [looked.events, app.audit.actions(limit=1000), approval, app.schedules.list()]


async def _played(app: App) -> Scene:
    return await asyncio.to_thread(play, app)
