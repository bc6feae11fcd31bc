"""The jobs of the demo, its worker processes, and the check of the result.

There are quick and slow jobs, flaky ones, some that always fail, and some that start later. The worker processes load
``worker_app``, which reads the database and the tenant from the environment. ``check`` is a pure function of the
accepted ids, the jobs and the whole ledger.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast import config
from holdfast.app import App
from holdfast.context import SyncContext
from holdfast.engine.job import Event, Job
from holdfast.engine.retry import Backoff, Retry
from holdfast.engine.states import TRANSITIONS, EventType, State, Step, Transition, replay
from holdfast.features.assembly import Store
from holdfast.kind import Kind, Prepared
from holdfast.stores.host_files import open_private
from holdfast.stores.requests import JobFilter

TARGET = "holdfast.cli.demo_workers:worker_app"
LEASE = "1.5s"
CONCURRENCY = 8
STOP_TIMEOUT = 15.0


class WorkerProcess:
    """One process of ``holdfast worker``."""

    def __init__(self, number: int, environment: Mapping[str, str], log: Path) -> None:
        self.number = number
        self.log = log
        self.end = "running"
        command = [
            *(sys.executable, "-m", "holdfast", "worker", TARGET),
            *("--lease", LEASE, "--grace", "1s", "--poll", "100ms", "--concurrency", str(CONCURRENCY)),
            *("--log-level", "warning"),
        ]
        with open_private(log) as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # open as long as the demo runs: see _stop_with_parent
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,  # Ctrl-C goes to the demo only, which stops the workers
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def is_author(self, actor: str) -> bool:
        """Whether an event's actor is this worker, whose name ends in (host:pid)."""
        return actor.endswith(f":{self.pid})")

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self.end = "killed"

    def request_stop(self) -> None:
        if self.alive:
            self.thaw()
            self._process.terminate()

    def wait(self, timeout: float) -> None:
        """Wait for the process, and kill it if it does not end."""
        try:
            code = self._process.wait(timeout=max(0.0, timeout))
            if self.end == "running":
                # A process that gets SIGTERM before it has installed a handler is ended by the signal.
                self.end = "stopped" if code in (0, -signal.SIGTERM) else f"failed with {code}"
        except subprocess.TimeoutExpired:
            self.kill()
        finally:
            if self._process.stdin is not None:
                self._process.stdin.close()


class WorkerPool:
    """The worker processes of the demo. Closing it stops them."""

    def __init__(self, url: str, tenant: str, logs: Path) -> None:
        self._environment = {**os.environ, config.URL_VARIABLE: url, config.TENANT_VARIABLE: tenant}
        self._logs = logs
        self.workers: list[WorkerProcess] = []

    def start(self) -> WorkerProcess:
        number = len(self.workers) + 1
        worker = WorkerProcess(number, self._environment, self._logs / f"worker-{number}.log")
        self.workers.append(worker)
        return worker

    @property
    def alive(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers if worker.alive]

    def failures(self) -> list[str]:
        """Describe the workers that failed, with the end of their output."""
        return [
            f"worker {worker.number} {worker.end}: {_last_output(worker.log)}"
            for worker in self.workers
            if worker.end.startswith("failed")
        ]

    def close(self) -> None:
        for worker in self.workers:
            worker.request_stop()
        deadline = time.monotonic() + STOP_TIMEOUT
        for worker in self.workers:
            worker.wait(deadline - time.monotonic())


def _last_output(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return "; ".join(lines[-2:]) or "no output"


ALWAYS_FAILS = "always_fails"
LATER_BY = 3.0
SOON = Backoff(base=0.1, factor=2.0, cap=0.4)


@dataclass(frozen=True, slots=True)
class Kinds:
    greet: Kind[[int, float], str]
    render: Kind[[int, float], str]
    slow: Kind[[int, float], int]
    flaky: Kind[[int], int]
    always_fails: Kind[[int], None]
    later: Kind[[int], int]


def declare(app: App) -> Kinds:
    @app.job()
    async def greet(number: int, pause: float) -> str:
        await asyncio.sleep(pause)
        return f"hello, {number}"

    @app.job()
    def render(number: int, pause: float) -> str:
        time.sleep(pause)
        return f"page {number}"

    @app.job()
    async def slow(number: int, pause: float) -> int:
        await asyncio.sleep(pause)
        return number

    @app.job(retry=Retry(max_attempts=4, backoff=SOON))
    def flaky(ctx: SyncContext, failures: int) -> int:
        if ctx.attempt <= failures:
            raise ConnectionError("the line was busy")
        return ctx.attempt

    @app.job(ALWAYS_FAILS, retry=Retry(max_attempts=3, backoff=SOON))
    async def always_fails(number: int) -> None:
        raise ValueError(f"number {number} never works")

    @app.job()
    async def later(number: int) -> int:
        return number

    return Kinds(greet, render, slow, flaky, always_fails, later)


@dataclass(frozen=True, slots=True)
class Mix:
    """The numbers of jobs of each kind. The rest of the total is quick jobs."""

    total: int

    @property
    def always_fails(self) -> int:
        return max(1, self.total // 100)

    @property
    def later(self) -> int:
        return max(1, self.total // 400)

    def calls(self, kinds: Kinds) -> list[Prepared[Any]]:
        """Return the jobs in a random order, which is the same every time."""
        rng = random.Random(7)
        calls: list[Prepared[Any]] = [kinds.always_fails.prepare(n) for n in range(self.always_fails)]
        calls += [kinds.later.using(delay=LATER_BY).prepare(n) for n in range(self.later)]
        calls += [kinds.flaky.prepare(1 + n % 2) for n in range(self.total // 8)]
        calls += [kinds.slow.prepare(n, rng.uniform(0.08, 0.2)) for n in range(self.total // 5)]
        calls += [kinds.render.prepare(n, rng.uniform(0.01, 0.04)) for n in range(self.total // 5)]
        calls += [kinds.greet.prepare(n, rng.uniform(0.01, 0.04)) for n in range(self.total - len(calls))]
        rng.shuffle(calls)
        return calls


def make_app(url: str | None = None, tenant: str | None = None) -> App:
    return App(url, tenant=tenant or os.environ[config.TENANT_VARIABLE], name="holdfast demo")


def worker_app() -> App:
    threading.Thread(target=_stop_with_parent, name="holdfast-demo-parent", daemon=True).start()
    app = make_app()
    declare(app)
    return app


def _stop_with_parent() -> None:
    """Stop this worker when the demo ends, for whatever reason: that closes the other end of stdin."""
    while os.read(0, 64):  # not sys.stdin, whose lock would be held while the interpreter exits
        pass
    os.kill(os.getpid(), signal.SIGTERM)


PAGE = 1000
MAX_NAMED = 3  # ids that a problem lists

_STEPS = frozenset(TRANSITIONS)
_EVENT_TYPES = frozenset(EventType)


@dataclass(frozen=True, slots=True)
class Reading:
    """All jobs and events of one tenant."""

    jobs: Mapping[str, Job]
    events: Sequence[Event]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The figures, and the problems; ``ok`` without any."""

    accepted: int
    succeeded: int
    dead_letter: int
    retried: int
    recovered: int
    lost: int
    run_twice: int
    illegal: int
    ledger_ok: bool
    events: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


def read(store: Store, tenant: str) -> Reading:
    """Read all jobs and events of a tenant, in pages."""
    jobs: dict[str, Job] = {}
    before: str | None = None
    while batch := store.run(store.jobs.list(JobFilter(tenant=tenant, before=before, limit=PAGE))):
        jobs.update((job.id, job) for job in batch)
        before = batch[-1].id
    events: list[Event] = []
    cursor: str | None = None
    while page := store.run(store.ledger.read(cursor, PAGE, tenant)):
        events += page
        cursor = page[-1].cursor
    return Reading(jobs, events)


def check(accepted: Sequence[str], doomed: int, reading: Reading) -> Verdict:
    """Check the invariants. Exactly ``doomed`` jobs must end as dead letters."""
    jobs = reading.jobs
    ledgers: dict[str, list[Event]] = defaultdict(list)
    for event in reading.events:
        ledgers[event.job_id].append(event)
    states = Counter(job.state for job in jobs.values())
    dead = {job.id for job in jobs.values() if job.state is State.DEAD_LETTER}
    designed = {job.id for job in jobs.values() if job.kind == ALWAYS_FAILS}
    lost = [job_id for job_id in accepted if job_id not in jobs or not jobs[job_id].state.finished]
    twice = [job_id for job_id, ledger in ledgers.items() if _times(ledger, EventType.SUCCEED) > 1]
    illegal = [event.job_id for event in reading.events if not _legal(event)]
    recovered = {job_id for job_id, ledger in ledgers.items() if _was_lost(ledger) and ledger[-1].to_state.finished}
    mismatched = [
        *(f"{job_id}: {why}" for job_id, job in jobs.items() if (why := _mismatch(job, ledgers.get(job_id, [])))),
        *(f"{job_id}: has a ledger but no job" for job_id in ledgers.keys() - jobs.keys()),
    ]
    checks = (
        (not lost, "accepted but not finished", lost),
        (not jobs.keys() - set(accepted), "in the database but never accepted", jobs.keys() - set(accepted)),
        (states[State.SUCCEEDED] == len(accepted) - doomed, "neither succeeded nor meant to fail", dead - designed),
        (len(dead) == doomed and dead <= designed, f"dead letters other than the {doomed} designed", dead ^ designed),
        (not twice, "that succeeded twice", twice),
        (not illegal, "with an illegal transition", illegal),
        (not mismatched, "whose ledger does not lead to their state", mismatched),
        (bool(recovered), "no job was recovered after the kill", ()),
    )
    return Verdict(
        accepted=len(accepted),
        succeeded=states[State.SUCCEEDED],
        dead_letter=len(dead),
        retried=sum(_times(ledger, EventType.RETRY, after=EventType.FAIL) > 0 for ledger in ledgers.values()),
        recovered=len(recovered),
        lost=len(lost),
        run_twice=len(twice),
        illegal=len(illegal),
        ledger_ok=not mismatched and not illegal,
        events=len(reading.events),
        problems=tuple(_with_ids(problem, ids) for holds, problem, ids in checks if not holds),
    )


def _with_ids(problem: str, ids: Iterable[str]) -> str:
    """Format a problem: ``12 jobs accepted but not finished: a, b, c, …``."""
    names = sorted(ids)
    if not names:
        return problem
    more = ", …" if len(names) > MAX_NAMED else ""
    return f"{len(names)} jobs {problem}: {', '.join(names[:MAX_NAMED])}{more}"


def _times(ledger: Sequence[Event], event_type: EventType, after: EventType | None = None) -> int:
    """Count the events of a type; with ``after``, only those directly after an event of that type."""
    return sum(
        event.type == event_type and (after is None or (index > 0 and ledger[index - 1].type == after))
        for index, event in enumerate(ledger)
    )


def _was_lost(ledger: Sequence[Event]) -> bool:
    return any(event.type == EventType.LEASE_EXPIRED and event.from_state is State.IN_PROGRESS for event in ledger)


def _legal(event: Event) -> bool:
    return event.type in _EVENT_TYPES and Transition(event.from_state, EventType(event.type), event.to_state) in _STEPS


def _mismatch(job: Job, ledger: Sequence[Event]) -> str | None:
    """Replay the ledger and return how it contradicts the job, or None."""
    try:
        replayed = replay(Step(event.type, event.from_state, event.to_state) for event in ledger)
    except ValueError as error:
        return str(error)
    if replayed is not job.state:
        return f"the ledger ends in {replayed}, the job is {job.state}"
    started = [event.attempt for event in ledger if event.to_state is State.IN_PROGRESS]
    if started != list(range(1, job.attempt + 1)):
        return f"attempts {started} have started, the job counts {job.attempt}"
    return None
