"""The dashboard pages without a browser: rights, rejected input, and safe redirects."""

from __future__ import annotations

import asyncio
import re

import pytest

from holdfast import App, Retry
from holdfast.app.internals import kinds_of, session_of
from holdfast.engine.states import State
from holdfast.server.live import LedgerFeed
from holdfast.server.pages import local_path
from holdfast.server.rendering import THEME
from tests.api.conftest import client_of
from tests.api.serving import auntil

pytestmark = pytest.mark.req("JF-16")

YES = {"confirmed": "yes", "reason": "because"}


@pytest.fixture
def url(sqlite_url: str) -> str:
    """Pages are the same on every store; their reads are tested elsewhere."""
    return sqlite_url


def dead_letter(app: App, kind: str = "breaks") -> str:
    if kind not in kinds_of(app):

        @app.job(kind, retry=Retry(max_attempts=1))
        async def breaks(n: int) -> None:
            raise ValueError(n)

    job = app.enqueue(kind, {"n": 1}).id
    app.run_worker(burst=True)
    return job


ACTIONS = {
    "cancel": {},
    "redrive": {},
    "discard": {},
    "move": {"to": "last"},
    "run-now": {},
    "edit": {"payload": '{"n": 2}'},
}


@pytest.mark.slow
async def test_viewer_sees_no_buttons_and_is_refused(app: App) -> None:
    job = await asyncio.to_thread(dead_letter, app)
    waiting = (await app.aenqueue("breaks", {"n": 2})).id
    operation = await app.operations.astart("redrive", kind="nothing")
    async with client_of(app, role="viewer") as viewer, client_of(app, role="executor") as executor:
        for page in ("/", "/jobs", "/jobs?state=queued", f"/jobs/{job}", f"/jobs/{waiting}", "/operations"):
            shown = await viewer.get(page)
            assert shown.status_code == 200
            assert re.findall(r'<form[^>]*method="post"[^>]*action="([^"]*)"', shown.text) == ["/theme"]
            assert (await executor.get(page)).status_code == 403
        for name, fields in ACTIONS.items():
            refused = await viewer.post(f"/jobs/{job}/{name}", data={**YES, **fields})
            assert (refused.status_code, "missing_scope" in refused.text) == (403, True)
        for path in ("/jobs/act", f"/operations/{operation.id}/cancel"):
            assert (await viewer.post(path, data={**YES, "action": "redrive", "id": job})).status_code == 403
    assert (await app.jobs.aget(job)).state is State.DEAD_LETTER


@pytest.mark.slow
async def test_every_action_works_and_destructive_ones_need_confirmation(app: App) -> None:
    session_of(app).make_ready()
    jobs = [await asyncio.to_thread(dead_letter, app) for _ in range(4)]
    async with client_of(app, role="operator") as http:

        async def post(path: str, **fields: str) -> str:
            answer = await http.post(path, data=fields)
            if answer.status_code == 200:
                return re.sub(r"\s+", " ", re.search(r"<h1>(.*?)</h1>", answer.text, re.S).group(1))  # type: ignore[union-attr]
            assert answer.status_code == 303, answer.text
            shown = await http.get(answer.headers["location"])
            message = re.search(r'class="flash"[^>]*>(.*?)<', shown.text)
            return message.group(1) if message else answer.headers["location"]

        assert await post(f"/jobs/{jobs[0]}/discard") == ("Discarding needs a reason. Enter one and try again.")
        assert (
            await post(f"/jobs/{jobs[0]}/discard", reason="no use") == "Discard this dead letter (breaks) permanently?"
        )
        assert await post(f"/jobs/{jobs[0]}/discard", reason="no use", confirmed="yes") == "Discarded."
        assert await post(f"/jobs/{jobs[0]}/discard", reason="no use", confirmed="yes") == (
            "Refused: it is no longer a dead letter."
        )
        assert await post(f"/jobs/{jobs[1]}/redrive") == "Redriven: the job is queued again."
        assert await post(f"/jobs/{jobs[1]}/move", to="first") == "Moved: the job is first in its queue."
        assert await post(f"/jobs/{jobs[1]}/cancel") == "Cancel this job (breaks)?"
        assert (await post(f"/jobs/{jobs[1]}/cancel", confirmed="yes")).startswith("Cancelled.")
        later = (await app.aenqueue("breaks", {"n": 3}, delay=600)).id
        assert await post(f"/jobs/{later}/run-now") == "The job can start now."
        for wrong in ("{", "[" * 100_000, "", '{"n": NaN}', '{"n": "\\ud800"}'):
            assert (await http.post(f"/jobs/{jobs[2]}/edit", data={"payload": wrong})).status_code == 422, wrong[:20]
        assert (await http.post(f"/jobs/{jobs[2]}/edit", data={"payload": '{"m": 1}'})).status_code == 422
        assert await post(f"/jobs/{jobs[2]}/edit", payload='{"n": 7}') == "This job replaces the dead letter."
        assert (await http.post(f"/jobs/{jobs[3]}/move", data={"to": "elsewhere"})).status_code == 422
        assert await post("/jobs/act", action="redrive") == "No jobs selected."
        assert (await http.post("/jobs/act", data={"action": "burn", "id": later})).status_code == 422
        picked = {"action": "redrive", "id": [jobs[3], jobs[0]], "confirmed": "yes"}
        gone = await http.post("/jobs/act", data=picked)
        assert "1 redriven; 1 not" in (await http.get(gone.headers["location"])).text
        tracked = await post("/jobs/act", action="cancel", everything="yes", q="kind:breaks", confirmed="yes")
        assert tracked.startswith("/operations/")
        history = await session_of(app).arun(session_of(app).store.jobs.history(jobs[1], "default"))
        assert {event.actor for event in history if event.type in ("redrive", "cancel", "move")} == {"a operator"}


async def test_invalid_parameters_and_missing_objects_get_error_pages(app: App) -> None:
    async with client_of(app) as http:
        for path, status in {
            "/jobs?state=nonsense": 422,
            "/jobs?q=state:nonsense": 422,
            "/jobs?before=nonsense": 422,
            f"/jobs?q={'x' * 2_000}": 422,
            "/jobs?q=%00": 200,
            "/jobs/nonsense": 422,
            "/jobs/00000000-0000-7000-8000-000000000000": 404,
            "/operations/00000000-0000-7000-8000-000000000000": 404,
            "/operations?before=nonsense": 422,
            "/nonsense": 404,
        }.items():
            answer = await http.get(path)
            assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8"), path
        kept = await http.post("/theme", data={"theme": "dark", "back": "//evil.example/x"})
        assert kept.headers["location"] == "/"
        assert f"{THEME}=dark" in kept.headers["set-cookie"]
        assert 'data-theme="dark"' in (await http.get("/jobs")).text
        refused = await http.post("/theme", data={"theme": "<b>", "back": "/"})
        assert THEME not in refused.headers.get("set-cookie", "")


@pytest.mark.parametrize("path", ["https://evil.example", "//evil.example", "/\\evil", "javascript:1", "jobs", "/a\nb"])
def test_redirects_stay_on_this_site(path: str) -> None:
    assert local_path(path) == "/"
    assert local_path("/jobs?state=queued") == "/jobs?state=queued"


async def always() -> bool:
    return True


@pytest.mark.slow
async def test_change_signals_are_coarse_and_listeners_are_removed(app: App) -> None:
    """One message per interval, however many events; a listener that leaves is removed."""
    from holdfast.server.pages import signals

    session_of(app).make_ready()
    live = LedgerFeed(session_of(app))
    start = await live.place("default")
    await app.aenqueue("anything")
    messages = signals(live, "default", always, start, interval=0.2, keepalive=0.3)
    assert "event: here" in await anext(messages)
    assert "event: changed" in await anext(messages), "a change between the page and its stream"
    assert "event: here" in await anext(messages)
    await auntil(lambda: live.listeners == 1, "the listener is registered")
    for n in range(20):
        await app.aenqueue("anything", {"n": n})
    assert await anext(messages) == "event: changed\ndata: -\n\n"
    assert any("event: here" in message for message in [await anext(messages) for _ in range(4)])
    await messages.aclose()
    await auntil(lambda: live.listeners == 0, "no listener is left")
    await live.aclose()
