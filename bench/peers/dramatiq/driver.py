"""dramatiq on Redis: one process, worker threads, a deep prefetch, its default middleware."""

from __future__ import annotations

import logging
import os
import sys

from link import Link

link = Link(sys.argv)
os.environ["dramatiq_queue_prefetch"] = str(link.options.get("prefetch", 500))  # noqa: SIM112 (its own name)

import dramatiq  # noqa: E402
from dramatiq.brokers.redis import RedisBroker  # noqa: E402


def main() -> None:
    logging.disable(logging.WARNING)
    broker = RedisBroker(url=link.url)
    dramatiq.set_broker(broker)
    record = link.record

    @dramatiq.actor(queue_name="noop")
    def noop(number: int) -> None:
        record.ran(number)

    def single() -> None:
        for number in range(link.options["count"]):
            noop.send(number)

    match link.command:
        case "single" | "bulk":  # it has no bulk call
            broker.client.ping()
            link.timed(single)
        case "paced":
            broker.client.ping()
            link.paced(noop.send)
        case "work":
            worker = dramatiq.Worker(broker, worker_threads=link.options["threads"], worker_timeout=100)
            broker.client.ping()
            link.ready()
            worker.start()
            link.wait_for_stop()
            worker.stop()
            link.finish()


main()
