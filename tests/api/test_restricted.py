"""A restricted kind is hidden on every surface: every GET of the service, as a viewer, never returns its data."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
from pydantic import BaseModel

from holdfast import App, Context, PayloadPolicy, Retry
from holdfast.server.app import make_service
from tests.api.conftest import client_of
from tests.api.serving import events_of, serving
from tests.support.reads import every_read
from tests.support.workers import work_off

pytestmark = pytest.mark.req("DP-4")

CANARY = "canary-4711"


class Form(BaseModel):
    dose: str = CANARY


def play(app: App, rules: PayloadPolicy | None) -> dict[str, list[str]]:
    """Jobs of one kind in every state that shows something a handler wrote, with a canary in each value."""
    options: dict[str, Any] = {} if rules is None else {"payload_rules": rules}

    @app.job("heal", retry=Retry(max_attempts=1), **options)
    async def heal(ctx: Context, secret: str, how: str) -> Any:
        ctx.log.info(f"log {CANARY}")
        await ctx.progress(0.5, f"progress {CANARY}")
        await ctx.checkpoint.save({"mark": CANARY}, name="mark")
        await ctx.artifact("file", data=CANARY.encode())
        await ctx.step("look", lambda: {"step": CANARY})
        if how == "wait":
            await ctx.wait_for_event("arrived", match={"patient": CANARY}, timeout="1h")
        if how == "ask":
            await ctx.approval("dose", summary=f"Give {CANARY}?", data={"dose": CANARY}, form=Form)
        if how == "fail":
            raise ValueError(CANARY)
        if how == "retry":
            await ctx.step_options(retry=Retry(max_attempts=9)).step("again", _fail)
        return {"result": CANARY}

    ids = [app.enqueue("heal", {"secret": CANARY, "how": how}).id for how in ("end", "wait", "ask", "fail", "retry")]
    flow = app.workflow("care")
    part = flow.add(heal, CANARY, "end", name="first")
    flow.add(heal, CANARY, "wait", after=part, name="last")
    started = flow.start()
    app.schedules.add("nightly", "0 3 * * *", kind="heal", payload={"secret": CANARY, "how": "end"})
    app.templates.set("usual", kind="heal", payload={"secret": CANARY, "how": "end"})
    work_off(app)
    decided = app.enqueue("heal", {"secret": CANARY, "how": "ask"}).id
    work_off(app)
    (asked,) = app.approvals.list(job_id=decided)
    app.approvals.approve(asked.id, by="ada", comment="yes", data={"dose": CANARY})
    work_off(app)
    ids += [job.id for job in app.jobs.list(limit=200) if job.id not in ids]
    groups = [group.fingerprint for group in app.dead_letters.groups()]
    return {
        "jobs": ids,
        "dead-letters": groups,
        "approvals": [each.id for each in app.approvals.list(state="all")],
        "workflows": [started.id],
        "schedules": ["nightly"],
        "templates": ["usual"],
        "kinds": ["heal"],
        "artifacts": ["file"],
    }


def _fail() -> None:
    raise ValueError(CANARY)


async def leaks(app: App, http: httpx2.AsyncClient, names: dict[str, list[str]]) -> list[str]:
    service, found = make_service(app, authenticate=lambda _: None), []
    for path in every_read(service, names):
        answer = await http.get(path)
        assert answer.status_code < 500, (path, answer.text[:300])
        if CANARY in answer.text:
            at = answer.text.index(CANARY)
            found.append(f"{path}: …{answer.text[max(0, at - 80) : at + 20]}")
    return found


@pytest.mark.parametrize("later", [False, True], ids=["restricted", "restricted-later"])
async def test_viewer_never_sees_data_of_a_restricted_kind(new_app: Any, tmp_path: Any, later: bool) -> None:
    app: App = new_app(artifacts=tmp_path)
    names = await asyncio.to_thread(play, app, None if later else PayloadPolicy(restricted=True))
    if later:
        await app.payload_rules.aset("heal", restricted=True)
    async with client_of(app, role="viewer") as http:
        assert await leaks(app, http, names) == []
        for search in (f"payload.secret:{CANARY}", CANARY):
            assert (await http.get("/api/v1/jobs", params={"q": search})).json()["items"] == [], "no oracle"
        events = (await http.get("/api/v1/events", params={"limit": 200})).json()["items"]
    async with serving(app) as address:
        path = f"/api/v1/events/stream?after={events[0]['cursor']}"
        async with asyncio.timeout(30), events_of(address, path) as stream:
            for _ in events[1:]:
                assert CANARY not in str(await anext(stream))
    async with client_of(app, role="approver") as http:
        shown = await http.get(f"/api/v1/approvals/{names['approvals'][0]}")
        assert f"Give {CANARY}?" in shown.text, "whoever may decide has to see the question"
