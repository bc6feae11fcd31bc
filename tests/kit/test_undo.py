"""The test kit runs undo jobs, also after a crash at one of their steps."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import App, Context, Retry
from holdfast.testing import Kit

pytestmark = pytest.mark.req("HF-18")

app = App("sqlite:///:memory:", name="undo_kit")
done: list[str] = []


def book(what: str) -> str:
    done.append(f"book {what}")
    return what


def cancel(what: str) -> None:
    done.append(f"cancel {what}")


@app.job(retry=Retry(max_attempts=1))
async def travel(ctx: Context) -> None:
    await ctx.step("flight", book, "flight", undo=cancel)
    await ctx.step("hotel", book, "hotel", undo=cancel)
    raise ValueError("no car")


@pytest.mark.parametrize("when", ["before", "after", "saved"])
def test_crash_at_a_step_of_an_undo(kit_url: str | None, when: Any) -> None:
    done.clear()
    with Kit(app, kit_url) as kit:
        kit.crash_at("undo hotel", when)
        travel.enqueue()
        kit.drain(check=False)
        kit.travel("1m")
        kit.drain(check=False)
    expected = ["cancel hotel"] * (2 if when == "after" else 1)
    assert done[2:] == [*expected, "cancel flight"]
