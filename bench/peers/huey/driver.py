"""huey on SQLite: write-ahead log, ``fsync=True`` (synchronous = FULL, as Holdfast), results off, its own consumer."""

from __future__ import annotations

import logging
import sys
import time

from huey import SqliteHuey
from link import Link


def main() -> None:
    logging.disable(logging.INFO)
    link = Link(sys.argv)
    huey = SqliteHuey(
        "bench", filename=link.url, fsync=True, results=False, journal_mode="wal", cache_mb=64, timeout=30
    )
    record, work = link.record, link.options.get("work_ms", 0) / 1e3

    @huey.task()
    def noop(number: int) -> None:
        if work:
            time.sleep(work)
        record.ran(number)

    def single() -> None:
        for number in range(link.options["count"]):
            noop(number)

    match link.command:
        case "prepare":
            huey.pending_count()
        case "single" | "bulk":  # it has no bulk call
            huey.pending_count()
            link.timed(single)
        case "paced":
            huey.pending_count()
            link.paced(noop)
        case "work":
            consumer = huey.create_consumer(
                workers=link.options["workers"], periodic=False, initial_delay=0.001, backoff=1.05, max_delay=0.002
            )
            link.ready()
            consumer.start()
            link.wait_for_stop()
            consumer.stop(graceful=True)
            link.finish()


main()
