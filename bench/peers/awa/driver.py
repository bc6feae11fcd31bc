"""awa on its queue storage: COPY for bulk, many permits for durable completion, as its configuration guide
recommends."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

import awa
from link import Link, chunks


@dataclass
class Noop:
    number: int


async def main() -> None:
    link = Link(sys.argv)
    client = awa.AsyncClient(link.url, max_connections=link.options.get("connections", 10))
    record = link.record

    async def one(number: int) -> None:
        await client.insert(Noop(number), queue="noop")

    async def single() -> None:
        for number in range(link.options["count"]):
            await one(number)

    async def bulk() -> None:
        for numbers in chunks(link.options["count"], link.options["batch"]):
            await client.enqueue_many_copy([Noop(number) for number in numbers], queue="noop")

    match link.command:
        case "prepare":
            await client.migrate()
            await client.install_queue_storage()
        case "single":
            await client.queue_stats()  # the connection is open before the clock starts
            await link.atimed(single)
        case "bulk":
            await client.queue_stats()
            await link.atimed(bulk)
        case "paced":
            await client.queue_stats()
            await link.apaced(one)
        case "work":

            @client.task(Noop, queue="noop")
            async def noop(job: awa.Job[Noop]) -> None:
                record.ran(job.args.number)

            queue = {"name": "noop", "max_workers": link.options["workers"], "claim_batch_size": 512}
            await client.queue_stats()
            await link.aready()
            await client.start([queue], poll_interval_ms=link.options["poll_ms"])
            await link.await_stop()
            await client.shutdown()
            link.finish()


asyncio.run(main())
