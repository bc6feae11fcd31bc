"""DBOS: workflows and durable steps, as sync functions in its threads, which are faster here than coroutines."""

from __future__ import annotations

import sys

from dbos import DBOS, DBOSConfig
from link import Link

QUEUE = "bench"


def main() -> None:
    link = Link(sys.argv)
    steps, threads = link.options.get("steps", 0), link.options.get("threads", 4)
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": link.url,
        "application_version": "1",
        "log_level": "ERROR",
        "max_executor_threads": threads,
        "sys_db_pool_size": threads,
    }
    DBOS(config=config)

    @DBOS.step()
    def note(number: int) -> int:
        link.record.ran(number)
        return number

    @DBOS.workflow()
    def scripted(number: int) -> None:
        for place in range(steps):
            note(number * steps + place)

    @DBOS.workflow()
    def noop(number: int) -> None:
        link.record.ran(number)

    def enqueue(number: int) -> None:
        DBOS.enqueue_workflow(QUEUE, scripted if link.options.get("kind") == "steps" else noop, number)

    def each() -> None:
        for number in range(link.options["count"]):
            enqueue(number)

    match link.command:
        case "prepare":
            DBOS.launch()
        case "single" | "bulk":  # it has no bulk call
            DBOS.listen_queues([])
            DBOS.launch()
            # A limit of zero holds the jobs back until the worker raises it. The worker reads the limit often.
            DBOS.register_queue(QUEUE, worker_concurrency=0, polling_interval_sec=0.01)
            link.timed(each)
        case "paced":
            DBOS.listen_queues([])
            DBOS.launch()
            link.paced(enqueue)
        case "work":
            DBOS.launch()  # connected before the clock starts
            link.ready()
            DBOS.register_queue(QUEUE, polling_interval_sec=link.options["poll"], on_conflict="always_update")
            link.wait_for_stop()
            DBOS.destroy(workflow_completion_timeout_sec=10)
            link.finish()
            return
    DBOS.destroy()


main()
