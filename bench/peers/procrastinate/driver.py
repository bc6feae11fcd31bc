"""Procrastinate on its psycopg connector with a pool; ``batch_defer_async`` for bulk; NOTIFY on."""

from __future__ import annotations

import asyncio
import logging
import sys

import procrastinate
import uvloop
from link import Link, chunks


async def main() -> None:
    logging.disable(logging.INFO)
    link = Link(sys.argv)
    size = link.options.get("pool", 4)
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=link.url, min_size=size, max_size=size))
    record = link.record

    @app.task(name="noop")
    async def noop(number: int) -> None:
        record.ran(number)

    async def one(number: int) -> None:
        await noop.defer_async(number=number)

    async def single() -> None:
        for number in range(link.options["count"]):
            await one(number)

    async def bulk() -> None:
        for numbers in chunks(link.options["count"], link.options["batch"]):
            await noop.batch_defer_async(*({"number": number} for number in numbers))

    async with app.open_async():
        match link.command:
            case "prepare":
                await app.schema_manager.apply_schema_async()
            case "single":
                await link.atimed(single)
            case "bulk":
                await link.atimed(bulk)
            case "paced":
                await link.apaced(one)
            case "work":
                await link.aready()
                running = asyncio.create_task(
                    app.run_worker_async(concurrency=link.options["concurrency"], install_signal_handlers=False)
                )
                await link.await_stop()
                running.cancel()  # its way to request a graceful end
                await asyncio.gather(running, return_exceptions=True)
                link.finish()


uvloop.run(main())
