"""Holdfast, by its public names only: the app, ``enqueue``, ``enqueue_many``, and a worker in this process."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

from link import Link

import holdfast
from holdfast.worker.worker import WorkerOptions


def main() -> None:
    link = Link(sys.argv)
    app = holdfast.App(link.url)
    released = asyncio.Event()
    hold = bool(link.options.get("hold"))
    steps = link.options.get("steps", 0)

    @app.job()
    async def noop(number: int) -> None:
        link.record.ran(number)
        if hold:
            await released.wait()

    async def note(number: int) -> int:
        link.record.ran(number)
        return number

    @app.job()
    async def scripted(ctx: holdfast.Context, number: int) -> None:
        for place in range(steps):
            await ctx.step("note", note, number * steps + place)

    @app.job()
    async def waiting(ctx: holdfast.Context, number: int) -> None:
        link.record.ran(number)
        match number % 3:
            case 0:
                await ctx.approval("release", summary=f"Release order {number}")
            case 1:
                await ctx.sleep(timedelta(days=30))
            case _:
                await ctx.wait_for_event("paid", match={"order": number})

    def bulk() -> None:
        kind = {"steps": scripted, "waits": waiting}.get(link.options.get("kind", ""), noop)
        app.enqueue_many(kind.prepare(number) for number in range(link.options["count"]))

    def single() -> None:
        for number in range(link.options["count"]):
            noop.enqueue(number)

    async def work() -> None:
        worker = app.worker(WorkerOptions(concurrency=link.options["concurrency"]))
        await link.aready()
        running = asyncio.create_task(worker.run())
        await link.await_stop()
        released.set()
        worker.stop()
        await running
        await app._store.leave_loop()

    match link.command:
        case "prepare":
            app._store.migrate()
        case "single":
            app.jobs.list(limit=1)  # the connection is open before the clock starts
            link.timed(single)
        case "bulk":
            app.jobs.list(limit=1)
            link.timed(bulk)
        case "paced":
            app.jobs.list(limit=1)
            link.paced(noop.enqueue)
        case "work":
            app.jobs.list(limit=1)
            asyncio.run(work())
            link.finish()
    app.close()


main()
