"""Absurd: tasks with durable steps. Its command creates the schema; its workers share one process."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import psycopg
from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL
from link import Link

QUEUE = "steps"


def client(link: Link) -> AsyncAbsurd:
    app = AsyncAbsurd(link.url, queue_name=QUEUE)
    steps = link.options.get("steps", 0)

    @app.register_task("scripted")
    async def scripted(params: Any, ctx: Any) -> None:
        async def note() -> int:
            link.record.ran(number)
            return number

        for place in range(steps):
            number = params["number"] * steps + place
            await ctx.step(f"note {place}", note)

    return app


async def main() -> None:
    link = Link(sys.argv)
    app = client(link)

    async def bulk() -> None:
        for number in range(link.options["count"]):
            await app.spawn("scripted", {"number": number})

    match link.command:
        case "prepare":
            with psycopg.connect(link.url, autocommit=True) as connection:
                connection.execute(BUNDLED_SCHEMA_SQL)
            await app.create_queue(QUEUE)
        case "bulk":
            await app.list_queues()  # the connection is open before the clock starts
            await link.atimed(bulk)
        case "work":
            # A client has one connection, which its tasks share: several clients are faster.
            apps = [client(link) for _ in range(link.options["clients"])]
            for each in apps:
                await each.list_queues()
            await link.aready()
            working = [
                asyncio.create_task(
                    each.start_worker(
                        f"worker {number}",
                        concurrency=link.options["concurrency"],
                        batch_size=link.options.get("batch"),
                        poll_interval=link.options["poll"],
                    )
                )
                for number, each in enumerate(apps)
            ]
            await link.await_stop()
            for each in apps:
                each.stop_worker()
            await asyncio.gather(*working)
            for each in apps:
                await each.close()
            link.finish()
    await app.close()


asyncio.run(main())
