"""The test kit follows runs that continue, with time travel and crashes."""

from __future__ import annotations

import pytest

from holdfast import App, Context, State
from holdfast.testing import Kit

pytestmark = pytest.mark.req("HF-18")

app = App("sqlite:///:memory:", name="continuing_kit")


def read(day: int) -> int:
    return day


@app.job
async def watch(ctx: Context, day: int) -> int:
    today = await ctx.step("read", read, day)
    await ctx.sleep("1d")
    if day < 3:
        await ctx.continue_as(today + 1)
    return today


def test_a_loop_of_days(kit_url: str | None) -> None:
    with Kit(app, kit_url) as kit:
        kit.crash_at("read", "after")
        first = watch.enqueue(1)
        for _ in range(4):
            kit.drain()
            kit.travel("1d")
        kit.drain()
        jobs = [*app.jobs.list(kind="watch")][::-1]
        assert [(job.payload["day"], job.state) for job in jobs] == [(day, State.SUCCEEDED) for day in (1, 2, 3)]
        assert (jobs[0].id, jobs[0].crashes) == (first.id, 1)
        assert app.jobs.details(first.id).continued_as == jobs[1].id
