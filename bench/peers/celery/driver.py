"""Celery on Redis: one process with the solo pool (no transfer between processes for no-ops), results off."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading

from celery import Celery
from celery.worker import state
from link import Link


def main() -> None:
    logging.disable(logging.WARNING)
    link = Link(sys.argv)
    app = Celery("bench", broker=link.url)
    app.conf.update(
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        worker_prefetch_multiplier=link.options.get("prefetch", 500),
        worker_disable_rate_limits=True,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        broker_connection_retry_on_startup=True,
    )
    record = link.record

    @app.task(name="noop")
    def noop(number: int) -> None:
        record.ran(number)

    def single() -> None:
        with app.producer_or_acquire() as producer:
            for number in range(link.options["count"]):
                noop.apply_async((number,), producer=producer)

    def leave() -> None:
        link.wait_for_stop()
        state.should_stop = 0

    match link.command:
        case "single" | "bulk":  # it has no bulk call
            link.timed(single)
        case "paced":
            link.paced(lambda number: noop.apply_async((number,)))
        case "work":
            worker = app.Worker(
                pool="solo", without_gossip=True, without_mingle=True, without_heartbeat=True, quiet=True, events=False
            )
            threading.Thread(target=leave, daemon=True).start()
            link.ready()
            with contextlib.suppress(SystemExit):
                worker.start()
            link.finish()


main()
