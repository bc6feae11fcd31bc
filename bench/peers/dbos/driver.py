"""DBOS: workflows of durable steps on a queue. Its threads, connections and polling are set by the catalog."""

from __future__ import annotations

import sys

from dbos import DBOS, DBOSConfig
from link import Link

QUEUE = "steps"
POLL = 0.01  # seconds; its default is 1


def main() -> None:
    link = Link(sys.argv)
    steps = link.options.get("steps", 0)
    pool = link.options.get("pool", 20)
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": link.url,
        "application_version": "1",
        "log_level": "ERROR",
        "sys_db_pool_size": pool,
        "max_executor_threads": link.options.get("threads"),
        "db_engine_kwargs": link.options.get("engine", {}),
    }
    DBOS(config=config)

    if link.options.get("coroutines"):

        @DBOS.step()
        async def anote(number: int) -> int:
            link.record.ran(number)
            return number

        @DBOS.workflow()
        async def scripted(number: int) -> None:
            for place in range(steps):
                await anote(number * steps + place)

    else:

        @DBOS.step()
        def note(number: int) -> int:
            link.record.ran(number)
            return number

        @DBOS.workflow()
        def scripted(number: int) -> None:
            for place in range(steps):
                note(number * steps + place)

    def bulk() -> None:
        for number in range(link.options["count"]):
            DBOS.enqueue_workflow(QUEUE, scripted, number)

    match link.command:
        case "prepare":
            DBOS.launch()
        case "bulk":
            DBOS.listen_queues([])
            DBOS.launch()
            DBOS.register_queue(QUEUE, worker_concurrency=0, polling_interval_sec=POLL)
            link.timed(bulk)
        case "work":
            # Launched and connected before the clock starts: until then the queue lets nothing through.
            DBOS.launch()
            link.ready()
            DBOS.register_queue(
                QUEUE,
                worker_concurrency=link.options["concurrency"],
                polling_interval_sec=link.options["poll"],
                on_conflict="always_update",
            )
            link.wait_for_stop()
            DBOS.destroy(workflow_completion_timeout_sec=10)
            link.finish()
            return
    DBOS.destroy()


main()
