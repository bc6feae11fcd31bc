"""The app of fault 35, which the workers and producers of both releases import: it uses only what both offer.

As a program (`python -m tests.faults.upgrade_app NAME SERVICE PAUSE`) it is a producer: until the folder has a file
`enough`, it enqueues a bit of everything, through the database and through the service, every PAUSE seconds, and notes
what was accepted.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from holdfast import App, Backoff, Context, Retry, SyncContext
from holdfast.remote import Client
from tests.faults.effects import record_effect

FOLDER = Path(os.environ["HOLDFAST_TEST_FOLDER"])
SOON = Backoff(base=0.05, factor=1.0, cap=0.05, jitter=False)

app = App(name="upgrade", enqueued_by="tester")


def _record(ctx: Context | SyncContext, what: str) -> None:
    record_effect(FOLDER, ctx.job_id, ctx.attempt, what)


@app.job
def plain(ctx: SyncContext, number: int) -> int:
    _record(ctx, "begun")
    time.sleep(0.01)
    _record(ctx, "ended")
    return number


@app.job(retry=Retry(max_attempts=3, backoff=SOON))
def flaky(ctx: SyncContext, number: int) -> int:
    _record(ctx, "begun")
    if not ctx.checkpoint.load("failed", False):
        ctx.checkpoint.save(True, "failed")
        raise RuntimeError("the first time")
    _record(ctx, "ended")
    return number


@app.job(retry=Retry(max_attempts=2, backoff=SOON))
def doomed(ctx: SyncContext) -> None:
    _record(ctx, "begun")
    raise RuntimeError("each time")


@app.job
async def walk(ctx: Context, number: int) -> int:
    """Between its steps the job waits, and a worker of the other release may continue it."""
    _record(ctx, "begun")
    before = await ctx.step("first", _step, ctx.job_id, ctx.attempt, "first", number)
    await ctx.sleep(0.3, "rest")
    after = await ctx.step("second", _step, ctx.job_id, ctx.attempt, "second", before)
    _record(ctx, "ended")
    return after


def _step(job: str, attempt: int, name: str, number: int) -> int:
    record_effect(FOLDER, job, attempt, f"step {name}")
    return number


@app.job
async def asks(ctx: Context, number: int) -> int:
    """The producer decides, or sends the event."""
    _record(ctx, "begun")
    if number % 2:
        await ctx.approval("go", summary="Go on?")
    else:
        await ctx.wait_for_event("go", match={"job": ctx.job_id})
    _record(ctx, "ended")
    return number


@app.job
def limited(ctx: SyncContext) -> None:
    """A limit holds for this kind."""
    _record(ctx, "begun")
    time.sleep(0.03)
    _record(ctx, "ended")


@app.schedule("every 1s", name="tick", missed="all")
@app.job
def tick(ctx: SyncContext) -> None:
    _record(ctx, "begun")
    _record(ctx, "ended")


@app.job
def page(ctx: SyncContext, number: int) -> int:
    _record(ctx, "begun")
    _record(ctx, "ended")
    return number


@app.job
def book(ctx: SyncContext, pages: list[int]) -> int:
    _record(ctx, "begun")
    _record(ctx, "ended")
    return sum(pages)


class Producer:
    def __init__(self, name: str, client: Client) -> None:
        self._client, self._name = client, name

    def run(self, pause: float) -> None:
        number = 0
        while not (FOLDER / "enough").exists():
            number += 1
            self._round(number)
            time.sleep(pause)

    def _round(self, number: int) -> None:
        self._note(*(plain.enqueue(number).id, flaky.enqueue(number).id, walk.enqueue(number).id))
        self._note(
            limited.enqueue().id, *(handle.id for handle in app.enqueue_many([plain.prepare(n) for n in (1, 2)]))
        )
        remote = self._client.enqueue("plain", {"number": number}, key=f"{self._name}-{number}")
        self._note(remote.id, self._client.enqueue("limited").id)
        if number % 4 == 0:
            workflow = app.workflow("issue")
            workflow.add(book, workflow.map(page, range(3)))
            self._note(workflow.start().id, file="workflows")
            self._note(doomed.enqueue().id)
            assert remote.result(timeout=120) == number
        if number % 4 == 1:
            asked = asks.enqueue(number // 4)
            self._note(asked.id)
            self._answer(asked.id, by_event=number // 4 % 2 == 0)

    def _answer(self, job: str, *, by_event: bool) -> None:
        if by_event:
            app.send_event("go", {"job": job})
            return
        while not (open_ := app.approvals.list(job_id=job)):
            time.sleep(0.05)
        app.approvals.approve(open_[0].id, by="ada")

    def _note(self, *ids: str, file: str = "accepted") -> None:
        with (FOLDER / f"{file}-{self._name}").open("a") as noted:
            noted.writelines(f"{each}\n" for each in ids)


if __name__ == "__main__":
    with Client(sys.argv[2], token=os.environ["HOLDFAST_TEST_TOKEN"]) as client:
        Producer(sys.argv[1], client).run(float(sys.argv[3]))
