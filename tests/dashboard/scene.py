"""One of everything that the pages show, made by real jobs, with hostile text wherever people write."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, Field

from holdfast import App, Context, Retry
from holdfast.app.internals import kinds_of
from tests.support.workers import work_off

T = TypeVar("T")

# Text that must never become markup, nor break out of attributes, templates, URLs or headers.
HOSTILE = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script>{{7*7}}&amp;%0d%0aé‮"
NAME = "a/b?c#d <b>&\"'{{7*7}}"


class Budget(BaseModel):
    limit: int = Field(ge=1, le=1000, description=HOSTILE)
    reason: str = Field(title=HOSTILE)
    urgent: bool = False


@dataclass
class Scene:
    approval: str
    token: str
    group: str
    job: str
    dead: str
    workflow: str
    schedule: str = NAME


def the(value: T | None) -> T:
    """The value, which must not be None."""
    assert value is not None
    return value


def is_inert(page: str) -> bool:
    """Whether no hostile string became markup or was evaluated by a template."""
    return "<img src=x" not in page and "<script>alert" not in page and "<b>&" not in page and "a/b?c#d 49" not in page


def escaped(text: str) -> str:
    return html.escape(text).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")


def declare(app: App) -> None:
    """Declare the kinds of the scene, so that pages check the arguments of their jobs."""

    @app.job("pay", timeout=30)
    async def pay(ctx: Context) -> Any:
        decision = await ctx.approval(
            "big-payment", summary=HOSTILE, data={"to": HOSTILE}, form=Budget, not_requester=True, expires_in="1h"
        )
        return decision.data.limit

    @app.job("broken", retry=Retry(max_attempts=1))
    async def broken(text: str) -> None:
        if text != "mended":
            raise ValueError(HOSTILE)

    @app.job("part")
    async def part(n: int) -> int:
        return n


def play(app: App) -> Scene:
    declare(app)
    kinds = kinds_of(app)
    job = kinds["pay"].kind.enqueue()
    dead = kinds["broken"].kind.enqueue(HOSTILE)
    kinds["broken"].kind.enqueue(HOSTILE)
    flow = app.workflow("publish")
    first = flow.add(kinds["part"].kind, 1, name=HOSTILE[:60])
    last = flow.add(kinds["part"].kind, 2, after=first, name="last")
    flow.add(kinds["part"].kind, 3, after=[first, last], name="end")
    started = flow.start()
    app.schedules.add(NAME, "30 2 * 3 SUN", kind="part", tz="Europe/Paris", payload={"n": 5})
    work_off(app)
    (approval,) = app.approvals.list()
    (group,) = app.dead_letters.groups()
    app.dead_letters.note(group.fingerprint, HOSTILE)
    app.pauses.set(queue="shut", reason=HOSTILE, tenant="default")
    app.limits.set(queue="mail", concurrency=3)
    app.enqueue("part", {"n": 9}, queue="mail", tags=[])
    app.audit.seal()
    return Scene(
        approval.id,
        app.approvals.issue_token(approval.id, person="ada", expires_in="1h"),
        group.fingerprint,
        job.id,
        dead.id,
        started.id,
    )
