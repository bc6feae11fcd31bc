"""PgQueuer on asyncpg and uvloop, by its tuning guide: one connection per queue manager, large batches."""

from __future__ import annotations

import asyncio
import logging
import sys
from datetime import timedelta

import asyncpg
import uvloop
from link import Link, chunks
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries


async def prepare(link: Link) -> None:
    queries = Queries(AsyncpgDriver(await asyncpg.connect(link.url)))
    await queries.install()
    await queries.optimize_autovacuum()


async def enqueue(link: Link) -> None:
    queries = Queries(AsyncpgDriver(await asyncpg.connect(link.url)))
    count = link.options["count"]

    async def one(number: int) -> None:
        await queries.enqueue("noop", str(number).encode())

    async def single() -> None:
        for number in range(count):
            await one(number)

    async def bulk() -> None:
        for numbers in chunks(count, link.options["batch"]):
            size = len(numbers)
            await queries.enqueue(["noop"] * size, [str(number).encode() for number in numbers], [0] * size)

    if link.command == "paced":
        await link.apaced(one)
    else:
        await link.atimed(single if link.command == "single" else bulk)


async def work(link: Link) -> None:
    managers = [
        PgQueuer(AsyncpgDriver(await asyncpg.connect(link.url))) for _ in range(link.options.get("managers", 1))
    ]
    record, released, hold = link.record, asyncio.Event(), bool(link.options.get("hold"))
    work = link.options.get("work_ms", 0) / 1e3
    for manager in managers:

        @manager.entrypoint("noop")
        async def noop(job: Job) -> None:
            if work:
                await asyncio.sleep(work)
            record.ran(int(job.payload or b"0"))
            if hold:
                await released.wait()

    await link.aready()
    running = [
        asyncio.create_task(manager.run(batch_size=link.options["batch"], dequeue_timeout=timedelta(seconds=30)))
        for manager in managers
    ]
    await link.await_stop()
    released.set()
    for manager in managers:
        manager.shutdown.set()
    await asyncio.gather(*running)
    link.finish()


async def main() -> None:
    logging.disable(logging.INFO)
    link = Link(sys.argv)
    match link.command:
        case "prepare":
            await prepare(link)
        case "work":
            await work(link)
        case _:
            await enqueue(link)


uvloop.run(main())
