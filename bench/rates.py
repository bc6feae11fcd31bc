"""The accuracy of rate limits: two workers, a backlog, and the number of jobs that they start in thirty seconds.

Each rate has a burst of one, once for a kind (jobs without a token are parked) and once for a whole queue (they stay in
the queue). The handlers record the start times; the first second is left out.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass

from bench.console import note
from bench.peers.backends import Backends
from bench.peers.catalog import BY_NAME, OURS, Subject
from bench.waiting import Beside
from holdfast import App
from holdfast.app.internals import session_of
from holdfast.worker.worker import Worker

WARM_UP = 1.0
WORKERS = 2


@dataclass(frozen=True)
class Sizes:
    rates: tuple[int, ...] = (5, 100, 1_000)
    seconds: float = 30.0
    scopes: tuple[str, ...] = ("kind", "queue")


QUICK = Sizes(seconds=5.0, scopes=("kind",))


def started(url: str, scope: str, rate: int, seconds: float) -> tuple[float, int]:
    """Return the jobs started per second, and the maximum in any one second."""
    begun: list[float] = []
    name = f"{scope}-{rate}"
    with ExitStack() as stack:
        apps = [stack.enter_context(closing(App(url))) for _ in range(WORKERS)]

        async def noop() -> None:
            begun.append(time.monotonic())

        noops = [each.job(name, queue=name)(noop) for each in apps]
        app = apps[0]
        app.migrate()
        if scope == "kind":
            app.limits.set(kind=name, rate=(rate, 1), burst=1)
        else:
            app.limits.set(queue=name, rate=(rate, 1), burst=1)
        jobs = [noops[0].prepare() for _ in range(int(rate * (seconds + WARM_UP) * 1.2) + 10)]
        for first in range(0, len(jobs), 1000):
            app.enqueue_many(jobs[first : first + 1000])
        workers: list[Worker] = []
        threads = [threading.Thread(target=_serve, args=(each, name, workers)) for each in apps]
        for thread in threads:
            thread.start()
        while not begun:
            time.sleep(0.01)
        time.sleep(seconds + WARM_UP + 0.5)
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join()
    start = min(begun) + WARM_UP
    within = sorted(at for at in begun if start <= at < start + seconds)
    return len(within) / seconds, max(
        sum(at <= other < at + 1 for other in within) for at in within[:: max(1, rate // 5)]
    )


def _serve(app: App, queue: str, workers: list[Worker]) -> None:
    async def run() -> None:
        worker = app.worker(queues=(queue,), concurrency=200)
        workers.append(worker)
        await worker.run()
        await session_of(app).store.leave_loop()

    asyncio.run(run())


def measure(backends: Backends, subject: Subject, sizes: Sizes) -> list[Beside]:
    found = []
    for scope in sizes.scopes:
        for rate in sizes.rates:
            with backends.fresh(subject.backend, "sqlite:///") as place:
                got, most = started(place.url, scope, rate, sizes.seconds)
            note(f"{subject.name} {scope} {rate}/s: {got:,.2f}/s, at most {most:,} in one second")
            found.append(Beside(subject.place, f"rate of a {scope}, {rate:,}/s", "jobs/s", rate, got, rate / got))
    return found


def run(backends: Backends, store: str, sizes: Sizes) -> list[Beside]:
    found: list[Beside] = []
    print("\nRate limits, two workers")
    for subject in (BY_NAME[name] for name in OURS):
        if store in (subject.backend, "both"):
            for row in measure(backends, subject, sizes):
                print(row.line(), flush=True)
                found.append(row)
    return found
