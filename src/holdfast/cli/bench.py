"""``holdfast bench``: measure enqueue rate, processing rate and pickup latency on the user's database.

It enqueues jobs one by one and in bulk, lets one worker process run them all, and then enqueues single jobs for an idle
worker. Its jobs are in a separate queue and tenant, which the worker serves exclusively. Enqueuing is timed here; the
other figures come from the ledger, by the database's clock.
"""

from __future__ import annotations

import asyncio
import math
import random
import secrets
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from holdfast import config
from holdfast.app import App
from holdfast.app.internals import session_of
from holdfast.cli import options
from holdfast.cli.demo import without_password
from holdfast.cli.demo_workers import Reading, read
from holdfast.cli.failures import FAILED
from holdfast.cli.output import console, emit, print_fields, say, span
from holdfast.cli.session import is_absent, refuse_unready
from holdfast.cli.supervisor import STOP, ChildProcess, Plan, how_it_ended
from holdfast.engine.declared import Help
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.states import State
from holdfast.errors import HoldfastError, InvalidSetting, Refused
from holdfast.features.assembly import Store
from holdfast.kind import Kind
from holdfast.stores.requests import JobFilter
from holdfast.stores.sqlite.connections import database_path
from holdfast.worker.worker import WorkerOptions

MAX_NAMED = 3  # ids that a problem lists


@dataclass(frozen=True, slots=True)
class Rate:
    jobs: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.jobs / self.seconds if self.seconds > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles of the seconds from enqueue to start."""

    jobs: int
    p50: float
    p95: float
    p99: float


def drained(ids: Collection[str], reading: Reading) -> Rate:
    """Return the rate from the first start to the last end, which excludes the start of the worker process."""
    jobs = set(ids)
    starts = [event.at for event in reading.events if event.job_id in jobs and event.to_state is State.IN_PROGRESS]
    ends = [event.at for event in reading.events if event.job_id in jobs and event.to_state.finished]
    seconds = (max(ends) - min(starts)).total_seconds() if starts and ends else 0.0
    return Rate(len(jobs), seconds)


def picked_up(ids: Sequence[str], reading: Reading) -> Latency:
    """Return the pickup latency of these jobs."""
    jobs = set(ids)
    enqueued = {e.job_id: e.at for e in reading.events if e.job_id in jobs and e.from_state is None}
    waits = [
        (event.at - enqueued[event.job_id]).total_seconds()
        for event in reading.events
        if event.job_id in enqueued and event.to_state is State.IN_PROGRESS and event.attempt == 1
    ]
    return Latency(len(waits), *(percentile(waits, share) for share in (0.50, 0.95, 0.99)))


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest rank, which is a measured value; NaN without values."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def problems_of(accepted: Collection[str], reading: Reading) -> list[str]:
    """Return violations of: each accepted job has started once and succeeded, and there are no other jobs."""
    started: dict[str, int] = defaultdict(int)
    succeeded: dict[str, int] = defaultdict(int)
    for event in reading.events:
        started[event.job_id] += event.to_state is State.IN_PROGRESS
        succeeded[event.job_id] += event.to_state is State.SUCCEEDED
    jobs = reading.jobs
    wrong = {
        "are not in the database": [job_id for job_id in accepted if job_id not in jobs],
        "have not succeeded": [job_id for job_id, job in jobs.items() if job.state is not State.SUCCEEDED],
        "did not start exactly once": [job_id for job_id in jobs if started[job_id] != 1],
        "did not succeed exactly once": [job_id for job_id in jobs if succeeded[job_id] != 1],
        "were not enqueued by this benchmark": sorted(jobs.keys() - set(accepted)),
    }
    return [f"{len(ids)} jobs {what}: {', '.join(ids[:MAX_NAMED])}" for what, ids in wrong.items() if ids]


class View:
    """Shows each phase: with a progress bar on a terminal, else with a line."""

    def __init__(self) -> None:
        self._bars: Progress | None = None
        if sys.stderr.isatty():
            columns = (TextColumn("{task.description:<20}"), BarColumn(), MofNCompleteColumn())
            self._bars = Progress(*columns, console=console(stderr=True), transient=True)
            self._bars.start()

    def phase(self, name: str, total: int) -> None:
        if self._bars is None:
            say(f"{name}: {total:,} jobs" if total > 1 else f"{name} …")
        else:
            self._bars.add_task(name, total=total)

    def done(self, count: int) -> None:
        """Update the count of the current phase."""
        if self._bars is not None:
            self._bars.update(self._bars.task_ids[-1], completed=count)

    def close(self) -> None:
        if self._bars is not None:
            self._bars.stop()


def print_result(result: Result, concurrency: int) -> None:
    pickup = result.pickup
    print_fields(
        [
            ("enqueue, one by one", _rate(result.single)),
            ("enqueue, in bulk", _rate(result.bulk)),
            (f"drain, {concurrency} at a time", _rate(result.drain)),
            ("pick-up", f"p50 {span(pickup.p50)}, p95 {span(pickup.p95)}, p99 {span(pickup.p99)} ({pickup.jobs} jobs)"),
            ("checked", "; ".join(result.problems) or f"{result.jobs:,} jobs, each started once and succeeded"),
        ]
    )


def _rate(rate: Rate) -> str:
    return f"{rate.per_second:,.0f} jobs/s ({rate.jobs:,} in {span(rate.seconds)})"


QUEUE = "holdfast-bench"
TARGET = "holdfast.cli.bench:worker_app"


def declare(app: App) -> Kind[[int], None]:
    @app.job("holdfast.bench", queue=QUEUE)
    async def nothing(number: int) -> None:
        pass

    return nothing


def worker_app() -> App:
    """Return the app of the worker process. The database comes from the environment."""
    app = App(name="holdfast bench")
    declare(app)
    return app


SINGLES, BATCH = 500, 500
TRICKLE, PAUSE = 200, (0.005, 0.045)
POLL = 0.2
STALL_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class Result:
    """The figures. ``jobs`` and ``events`` are the numbers of rows that the benchmark has left."""

    single: Rate
    bulk: Rate
    drain: Rate
    pickup: Latency
    jobs: int
    events: int
    problems: list[str]


class Bench:
    """Runs the phases."""

    def __init__(self, app: App, view: View) -> None:
        self._app = app
        self._view = view
        self._kind: Kind[[int], None] = declare(app)
        self._accepted: list[str] = []

    async def run(self, jobs: int, concurrency: int) -> Result:
        session = session_of(self._app)
        singles = max(1, min(SINGLES, jobs // 10))
        single = self._one_by_one(singles)
        bulk = self._in_bulk(jobs - singles)
        stored = list(self._accepted)
        child = await ChildProcess.start(self._plan(concurrency))
        ending = asyncio.create_task(child.ended())
        try:
            await self._all_ended("drain", ending)
            trickled = await self._trickle()
            await self._all_ended("pick-up", ending)
        finally:
            child.order(STOP)
            await ending
        # The worker has ended, so this read sees the final state.
        self._view.phase("check", 1)
        reading = read(session.store, session.tenant)
        return Result(
            single,
            bulk,
            drained(stored, reading),
            picked_up(trickled, reading),
            len(reading.jobs),
            len(reading.events),
            problems_of(self._accepted, reading),
        )

    def _one_by_one(self, count: int) -> Rate:
        """Enqueue each job in a separate transaction, as a web request does."""
        self._view.phase("enqueue, one by one", count)
        began = time.perf_counter()
        for number in range(count):
            self._accepted.append(self._kind.enqueue(number).id)
            self._view.done(number + 1)
        return Rate(count, time.perf_counter() - began)

    def _in_bulk(self, count: int) -> Rate:
        self._view.phase("enqueue, in bulk", count)
        began = time.perf_counter()
        for first in range(0, count, BATCH):
            numbers = range(first, min(first + BATCH, count))
            handles = self._app.enqueue_many(self._kind.prepare(number) for number in numbers)
            self._accepted += [handle.id for handle in handles]
            self._view.done(numbers.stop)
        return Rate(count, time.perf_counter() - began)

    async def _trickle(self) -> list[str]:
        """Enqueue single jobs for an idle worker, to measure how soon they start."""
        self._view.phase("pick-up", TRICKLE)
        before = len(self._accepted)
        for number in range(TRICKLE):
            self._accepted.append(self._kind.enqueue(number).id)
            self._view.done(number + 1)
            await asyncio.sleep(random.uniform(*PAUSE))
        return self._accepted[before:]

    async def _all_ended(self, phase: str, ending: asyncio.Task[int]) -> None:
        """Wait until every accepted job has ended. Raises if the worker ends before, or makes no progress."""
        session = session_of(self._app)
        store, total = session.store, len(self._accepted)
        if phase == "drain":
            self._view.phase(phase, total)
        ended, deadline = -1, time.monotonic() + STALL_TIMEOUT
        while ended < total:
            states = store.run(store.jobs.counts(session.tenant))
            now = sum(count for state, count in states.items() if state.finished)
            if now > ended:
                ended, deadline = now, time.monotonic() + STALL_TIMEOUT
                if phase == "drain":
                    self._view.done(ended)
            if ending.done():
                raise _failed(f"the worker {how_it_ended(ending.result())}")
            if time.monotonic() > deadline:
                raise _failed(f"no job has ended for {STALL_TIMEOUT:.0f} s; {total - ended:,} are left")
            if ended < total:
                await asyncio.sleep(POLL)

    def _plan(self, concurrency: int) -> Plan:
        session = session_of(self._app)
        return Plan(
            app=TARGET,
            url=session.store.url,
            options=WorkerOptions(queues=(QUEUE,), tenant=session.tenant, concurrency=concurrency, grace=5.0),
            program=sys.argv[0],
            log_level="warning",
            as_json=True,
        )


def _failed(why: str) -> HoldfastError:
    return HoldfastError(f"the benchmark could not finish: {why}", code="bench_failed")


JOBS, CONCURRENCY = 5_000, 50
SCRATCH_HINT = "On SQLite, name a file that does not exist yet: it is removed afterwards."
STAYS = "Finished jobs and their ledger cannot be deleted by hand; they stay until a retention policy removes them."


def bench(
    url: options.Url = None,
    jobs: Annotated[int, Help("Number of jobs.", "N", low=100, high=500_000)] = JOBS,
    concurrency: options.Concurrency = CONCURRENCY,
    keep: Annotated[bool, Help("Keep the SQLite file that the benchmark created.")] = False,
    yes: Annotated[bool, Help("Do not ask for confirmation if the database has other jobs.")] = False,
    as_json: options.Json = False,
) -> None:
    """Measure your own database: enqueue rate, processing rate and pickup latency.

    The benchmark uses a separate queue and tenant. Its jobs do nothing, so the rates are upper bounds. It checks that
    each job has started once and succeeded. The rows stay; a SQLite file that did not exist before is removed.
    """
    tenant = f"holdfast-bench-{secrets.token_hex(4)}"
    with closing(App(config.database_url(url), tenant=tenant, name="holdfast bench")) as app:
        is_new = is_absent(session_of(app).store)
        if not is_new:
            refuse_unready(session_of(app).store)
            _confirm(session_of(app).store, jobs, yes=yes)
        with _scratch(session_of(app).store, remove=is_new and not keep):
            session_of(app).make_ready()
            with closing(View()) as view:
                result = asyncio.run(Bench(app, view).run(jobs, concurrency))
    if as_json:
        emit(document(result, app, concurrency, removed=is_new and not keep))
    else:
        sys.stderr.flush()
        print_result(result, concurrency)
    _print_remains(result, app, removed=is_new and not keep)
    if result.problems:
        raise typer.Exit(FAILED)


def document(result: Result, app: App, concurrency: int, *, removed: bool) -> dict[str, Any]:
    session = session_of(app)
    pickup = result.pickup
    return {
        "ok": not result.problems,
        "url": without_password(session.store.url),
        "tenant": session.tenant,
        "queue": QUEUE,
        "concurrency": concurrency,
        "enqueue_single": _rate_to_json(result.single),
        "enqueue_bulk": _rate_to_json(result.bulk),
        "drain": _rate_to_json(result.drain),
        "pickup": {
            "jobs": pickup.jobs,
            **{name: round(getattr(pickup, name) * 1000, 3) for name in ("p50", "p95", "p99")},
            "unit": "ms",
        },
        "left": {"jobs": 0, "events": 0} if removed else {"jobs": result.jobs, "events": result.events},
        "problems": result.problems,
    }


def _rate_to_json(rate: Rate) -> dict[str, Any]:
    return {"jobs": rate.jobs, "seconds": round(rate.seconds, 4), "per_second": round(rate.per_second, 1)}


def _confirm(store: Store, jobs: int, *, yes: bool) -> None:
    """Ask for confirmation before adding rows to a database that has other jobs."""
    if yes or not _holds_jobs(store):
        return
    warning = f"This database has other jobs. The benchmark would add {jobs + TRICKLE:,} and their ledger, which stay."
    if not sys.stdin.isatty():
        raise InvalidSetting(warning, code="confirmation_required", fix=f"Pass --yes to continue. {SCRATCH_HINT}")
    say(f"{warning} {SCRATCH_HINT if store.embedded else ''}".rstrip())
    typer.confirm("Continue?", abort=True, err=True)


def _holds_jobs(store: Store) -> bool:
    try:
        return bool(store.run(store.jobs.list(JobFilter(tenant=EVERY_TENANT, limit=1))))
    except Refused:
        return True  # this role may not read all jobs, so there may be others


@contextmanager
def _scratch(store: Store, *, remove: bool) -> Iterator[None]:
    try:
        yield
    finally:
        if remove:
            store.close()
            path = database_path(store.url)
            for suffix in ("", "-wal", "-shm"):
                Path(path + suffix).unlink(missing_ok=True)


def _print_remains(result: Result, app: App, *, removed: bool) -> None:
    session = session_of(app)
    if removed:
        say("The database file was created for this benchmark and has been removed.")
        return
    say(f"The database keeps {result.jobs:,} jobs and {result.events:,} events, tenant {session.tenant}.")
    say(f"{STAYS} {SCRATCH_HINT if session.store.embedded else ''}".rstrip())
