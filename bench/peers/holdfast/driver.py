"""Holdfast, by its public names only: the app, ``enqueue``, ``enqueue_many``, and workers in this process.

The option ``kind`` chooses a variant of the jobs. ``apps`` is the number of workers, each with an app, a thread and an
event loop of its own.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from link import Link

import holdfast
from holdfast.app.internals import session_of

PAD = "x" * 8_000
QUEUES, TENANTS = 20, 50
AT_ONCE = holdfast.Retry(max_attempts=3, backoff=holdfast.Backoff(base=0.0, jitter=False))


class Bench:
    """An app with all kinds of jobs."""

    def __init__(self, link: Link) -> None:
        self.link, self.app = link, holdfast.App(link.url)
        self.released = asyncio.Event()
        app, ran, lock = self.app, link.record.ran, threading.Lock()
        hold, steps = bool(link.options.get("hold")), link.options.get("steps", 0)
        work = link.options.get("work_ms", 0) / 1e3

        @app.job()
        async def noop(number: int) -> None:
            if work:
                await asyncio.sleep(work)
            ran(number)
            if hold:
                await self.released.wait()

        @app.job()
        def threads(number: int) -> None:
            with lock:
                ran(number)

        @app.job(retry=AT_ONCE)
        async def flaky(ctx: holdfast.Context, number: int) -> None:
            if number % 10 == 0 and ctx.attempt == 1:
                raise ConnectionError("the first attempt fails")
            ran(number)

        @app.job()
        async def large(number: int, text: str) -> None:
            ran(number)

        async def note(number: int) -> int:
            ran(number)
            return number

        @app.job()
        async def scripted(ctx: holdfast.Context, number: int) -> None:
            for place in range(steps):
                await ctx.step("note", note, number * steps + place)

        @app.job()
        async def waiting(ctx: holdfast.Context, number: int) -> None:
            ran(number)
            match number % 3:
                case 0:
                    await ctx.approval("release", summary=f"Release order {number}")
                case 1:
                    await ctx.sleep(timedelta(days=30))
                case _:
                    await ctx.wait_for_event("paid", match={"order": number})

        @app.job()
        async def value(number: int) -> int:
            ran(number)
            return number

        self.noop = noop
        self.prepared: dict[str, Callable[[int], Any]] = {
            "noop": noop.prepare,
            "threads": threads.prepare,
            "flaky": flaky.prepare,
            "steps": scripted.prepare,
            "waits": waiting.prepare,
            "value": value.prepare,
            "large": lambda number: large.prepare(number, PAD),
            "tagged": lambda number: noop.using(tags=["shop", "mail"], key=f"order-{number}").prepare(number),
        }
        match link.options.get("kind"):
            case "priorities":
                levels = [noop.using(priority=level).prepare for level in range(100)]
                self.prepared["priorities"] = lambda number: random.choice(levels)(number)
            case "queues":
                places = [app.job(name=f"noop-{n}", queue=f"queue-{n}")(noop.function).prepare for n in range(QUEUES)]
                self.prepared["queues"] = lambda number: places[number % QUEUES](number)
            case "tenants":
                owners = [noop.using(tenant=f"tenant-{n}").prepare for n in range(TENANTS)]
                self.prepared["tenants"] = lambda number: owners[number % TENANTS](number)

    def bulk(self) -> None:
        prepare = self.prepared[self.link.options.get("kind", "noop")]
        self.app.enqueue_many(prepare(number) for number in range(self.link.options["count"]))

    def single(self) -> None:
        for number in range(self.link.options["count"]):
            self.noop.enqueue(number)

    async def work(self, ready: Callable[[], Any]) -> None:
        worker = self.app.worker(concurrency=self.link.options["concurrency"])
        await asyncio.to_thread(ready)
        running = asyncio.create_task(worker.run())
        await self.link.await_stop()
        self.released.set()
        worker.stop()
        await running
        await session_of(self.app).store.leave_loop()


def work(link: Link, first: Bench) -> None:
    others = [Bench(link) for _ in range(1, link.options.get("apps", 1))]
    all_ready = threading.Barrier(len(others) + 1)
    threads = [threading.Thread(target=lambda each=each: asyncio.run(each.work(all_ready.wait))) for each in others]
    for thread in threads:
        thread.start()

    def ready() -> None:
        link.ready()
        all_ready.wait()

    asyncio.run(first.work(ready))
    for thread in threads:
        thread.join()
    for each in others:
        each.app.close()
    link.finish()


def main() -> None:
    link = Link(sys.argv)
    bench = Bench(link)
    if link.command == "prepare":
        bench.app.migrate()
    else:
        bench.app.jobs.list(limit=1)  # the connection is open before the clock starts
    match link.command:
        case "single":
            link.timed(bench.single)
        case "bulk":
            link.timed(bench.bulk)
        case "paced":
            link.paced(bench.noop.enqueue)
        case "work":
            work(link, bench)
    bench.app.close()


main()
