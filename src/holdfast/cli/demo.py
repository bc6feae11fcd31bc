"""``holdfast demo``: real worker processes, thousands of jobs, one ``kill -9``, and a check of the result.

``demo_workers`` has the jobs, the processes and the check; this module the sequence of events and the display.
"""

from __future__ import annotations

import re
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from holdfast.app.internals import session_of
from holdfast.cli.demo_workers import Mix, Verdict, WorkerPool, WorkerProcess, check, declare, make_app, read
from holdfast.cli.failures import FAILED
from holdfast.cli.options import Json
from holdfast.cli.output import STYLES, console, emit, plain, say, write
from holdfast.engine.declared import Help
from holdfast.engine.job import Event
from holdfast.engine.states import State
from holdfast.features.assembly import Store
from holdfast.stores.requests import JobFilter

LINE_EVERY = 1.0
SHOWN = (State.QUEUED, State.IN_PROGRESS, State.RETRY_WAITING, State.SUCCEEDED, State.DEAD_LETTER)


@dataclass(frozen=True, slots=True)
class Frame:
    """One refresh of the display. ``running`` has the number and pid of each worker and how many jobs it runs; None for
    a worker that has ended."""

    total: int
    ended: int
    states: Mapping[State, int]
    running: Sequence[tuple[int, int, int | None]]


class View:
    """Shows messages and figures: on a terminal the figures are below scrolling messages, else there is a line per
    second."""

    def __init__(self) -> None:
        self._live: Live | None = None
        if sys.stderr.isatty():
            self._live = Live(console=console(stderr=True), refresh_per_second=10, transient=True)
        self._next = 0.0

    def tell(self, message: str) -> None:
        if self._live is None:
            say(message)
        else:
            self._live.console.print(Text(plain(message), style="dim"))

    def show(self, frame: Frame) -> None:
        if self._live is not None:
            self._live.update(render(frame))
            self._live.start()  # has an effect the first time only
        elif time.monotonic() >= self._next or frame.ended >= frame.total:
            self._next = time.monotonic() + LINE_EVERY
            counts = ", ".join(f"{frame.states.get(state, 0):,} {state}" for state in SHOWN)
            say(f"{frame.ended:,} of {frame.total:,} ended ({counts})")

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()


def render(frame: Frame) -> Group:
    states = Table.grid(padding=(0, 2))
    states.add_row(*(Text(state, STYLES.get(state, "")) for state in SHOWN))
    states.add_row(*(Text(f"{frame.states.get(state, 0):,}", "bold") for state in SHOWN))
    workers = Table.grid(padding=(0, 2))
    for number, pid, running in frame.running:
        status = Text("killed", "red") if running is None else Text("▪" * running, "cyan")
        workers.add_row(Text(f"worker {number}"), Text(f"pid {pid}", "dim"), status)
    bar = Table.grid(padding=(0, 2))
    ended = Text(f"{frame.ended:,} of {frame.total:,} ended")
    bar.add_row(ProgressBar(total=frame.total, completed=frame.ended, width=50), ended)
    return Group(Text(), bar, Text(), states, Text(), workers)


def print_summary(outcome: Outcome, store: str) -> None:
    verdict = outcome.verdict
    numbers = (
        ("accepted", verdict.accepted, True),
        ("succeeded", verdict.succeeded, True),
        ("retried, then ended", verdict.retried, True),
        ("recovered after kill -9", verdict.recovered, verdict.recovered > 0),
        ("dead letters, as designed", verdict.dead_letter, True),
        ("lost", verdict.lost, verdict.lost == 0),
        ("run twice to the end", verdict.run_twice, verdict.run_twice == 0),
        ("illegal steps", verdict.illegal, verdict.illegal == 0),
    )
    write(Text(f"Holdfast on {store}: {outcome.seconds:.1f} s, checked in the database", style="bold"))
    for name, number, good in numbers:
        write(Text.assemble(_mark(good), f" {name:<26}", (f"{number:>7,}", "bold")))
    replayed = f" ledger replays to the current states ({verdict.events:,} events)"
    write(Text.assemble(_mark(verdict.ledger_ok), replayed))
    for problem in outcome.problems:
        write(Text.assemble(_mark(False), " ", plain(problem)))


def _mark(good: bool) -> tuple[str, str]:
    return ("✓", "green") if good else ("✗", "bold red")


PAGE = 1000


class Tail:
    """Follows the ledger in pages, each event once. The counts per state come from the database."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self._tenant = tenant
        self._cursor: str | None = None
        self._last: dict[str, Event] = {}
        self.states: Mapping[State, int] = {}

    def read(self) -> None:
        """Read new events and the counts."""
        while page := self._store.run(self._store.ledger.read(self._cursor, PAGE, self._tenant)):
            self._last.update((event.job_id, event) for event in page)
            self._cursor = page[-1].cursor
            if len(page) < PAGE:
                break
        self.states = self._store.run(self._store.jobs.counts(self._tenant))

    @property
    def ended(self) -> int:
        return sum(count for state, count in self.states.items() if state.finished)

    def count_running(self, worker: WorkerProcess) -> int:
        """Return how many jobs the worker was running when the ledger was last read."""
        return sum(
            event.to_state is State.IN_PROGRESS and worker.is_author(event.actor) for event in self._last.values()
        )

    def running_jobs(self, worker: WorkerProcess) -> set[str]:
        """Return the jobs that the worker is running: the ledger tells who started a job, the job that it runs."""
        self.read()
        filters = JobFilter(tenant=self._tenant, state=State.IN_PROGRESS, limit=PAGE)
        running = self._store.run(self._store.jobs.list(filters))
        return {
            job.id
            for job in running
            if (event := self._last.get(job.id)) is not None
            and event.attempt == job.attempt
            and worker.is_author(event.actor)
        }


POLL = 0.1
# How long a frozen worker's last statements may take to reach the database.
IN_FLIGHT = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings of one run. ``timeout`` is in seconds."""

    url: str
    tenant: str
    logs: Path
    jobs: int
    workers: int
    timeout: float


@dataclass(slots=True)
class Outcome:
    """``killed`` is the pid of the worker that was killed, ``held`` the number of jobs that it was running."""

    verdict: Verdict
    seconds: float
    workers: list[dict[str, object]]
    killed: int | None
    held: int
    problems: list[str]

    @property
    def ok(self) -> bool:
        return not self.problems


@dataclass(slots=True)
class _Kill:
    """The worker that was killed and the jobs it was running; empty before the kill."""

    worker: WorkerProcess | None = None
    held: set[str] = field(default_factory=set)


def run(plan: Plan, view: View) -> Outcome:
    began = time.monotonic()
    mix = Mix(plan.jobs)
    with closing(make_app(plan.url, plan.tenant)) as app:
        if not session_of(app).store.schema().current:
            app.migrate()
        with closing(WorkerPool(plan.url, plan.tenant, plan.logs)) as pool:
            for _ in range(plan.workers):
                view.tell(f"started worker {pool.start().number} with pid {pool.workers[-1].pid}")
            accepted = [handle.id for handle in app.enqueue_many(mix.calls(declare(app))) if handle.created]
            view.tell(f"{len(accepted):,} jobs accepted")
            tail = Tail(session_of(app).store, plan.tenant)
            kill = _watch(plan, view, pool, tail, len(accepted), began + plan.timeout)
        # The workers have ended, so this read sees the final state.
        view.tell("workers stopped; reading every job and the whole ledger")
        verdict = check(accepted, mix.always_fails, read(session_of(app).store, plan.tenant))
    killed = None if kill.worker is None else kill.worker.pid
    problems = [*verdict.problems, *pool.failures()]
    if killed is None:
        problems.append("no worker was killed while it was running jobs")
    workers: list[dict[str, object]] = [{"pid": worker.pid, "end": worker.end} for worker in pool.workers]
    return Outcome(verdict, time.monotonic() - began, workers, killed, len(kill.held), problems)


def _watch(plan: Plan, view: View, pool: WorkerPool, tail: Tail, total: int, deadline: float) -> _Kill:
    """Follow the ledger until all jobs have ended. Kill a worker when half of them have."""
    kill = _Kill()
    while time.monotonic() < deadline:
        tail.read()
        running = [(w.number, w.pid, tail.count_running(w) if w.alive else None) for w in pool.workers]
        view.show(Frame(total, tail.ended, tail.states, running))
        if tail.ended >= total:
            return kill
        if not pool.alive:
            view.tell("no worker is running any more")
            return kill
        if kill.worker is None and tail.ended >= total // 2:
            kill = _try_to_kill(pool, tail, view)
        time.sleep(POLL)
    view.tell(f"not everything had ended after {plan.timeout:.0f} s")
    return kill


def _try_to_kill(pool: WorkerPool, tail: Tail, view: View) -> _Kill:
    """Freeze the busiest worker and kill it if it is running jobs. Frozen, it cannot finish them before the kill."""
    busiest = max(pool.alive, key=tail.count_running)
    busiest.freeze()
    time.sleep(IN_FLIGHT)
    held = tail.running_jobs(busiest)
    if not held:
        busiest.thaw()
        return _Kill()
    busiest.kill()
    view.tell(f"killed worker {busiest.number} (pid {busiest.pid}) with SIGKILL; it held {len(held)} jobs")
    view.tell(f"started worker {pool.start().number} with pid {pool.workers[-1].pid} in its place")
    return _Kill(busiest, held)


JOBS, WORKERS = 2000, 3
TIMEOUT, JOBS_PER_SECOND = 24.0, 100
TERMINATED = 128 + signal.SIGTERM
_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/@]*(?=@)|(?<=[?&])password=[^&]*")


def demo(
    url: Annotated[str | None, Help("Database URL; default: a new SQLite file.", "URL")] = None,
    jobs: Annotated[int, Help("Number of jobs.", "N", low=40, high=100_000)] = JOBS,
    workers: Annotated[int, Help("Number of workers.", "N", low=2, high=32)] = WORKERS,
    keep: Annotated[bool, Help("Keep the database file and print how to inspect it.")] = False,
    as_json: Json = False,
) -> None:
    """Run many jobs, kill a worker and check that nothing was lost.

    HOLDFAST_URL is not read: without --url the demo creates a temporary SQLite file. In a database that you name it
    uses a new tenant, so you can repeat it.
    """
    with _stopped_by_sigterm(), _folder(keep) as folder:
        is_temporary = url is None
        plan = Plan(
            url=f"sqlite:///{folder}/demo.db" if url is None else url,
            tenant="demo" if is_temporary else f"demo-{secrets.token_hex(4)}",
            logs=folder,
            jobs=jobs,
            workers=workers,
            # Long enough for a busy machine, and short enough to end within half a minute. More jobs have more time.
            timeout=TIMEOUT + max(0, jobs - JOBS) / JOBS_PER_SECOND,
        )
        with closing(View()) as view:
            outcome = run(plan, view)
        store = "sqlite" if plan.url.startswith("sqlite:") else "postgresql"
        if as_json:
            emit(document(outcome, plan, store, kept=keep or not is_temporary))
        else:
            sys.stderr.flush()
            print_summary(outcome, store)
        if keep or not is_temporary:
            _print_location(plan, folder if keep else None)
    raise typer.Exit(0 if outcome.ok else FAILED)


def document(outcome: Outcome, plan: Plan, store: str, *, kept: bool) -> dict[str, Any]:
    figures = asdict(outcome.verdict)
    del figures["problems"]
    return {
        "ok": outcome.ok,
        **figures,
        "seconds": round(outcome.seconds, 2),
        "store": store,
        "tenant": plan.tenant,
        "url": without_password(plan.url) if kept else None,
        "workers": outcome.workers,
        "killed": outcome.killed,
        "held": outcome.held,
        "problems": outcome.problems,
    }


def _print_location(plan: Plan, folder: Path | None) -> None:
    target = f"--url '{without_password(plan.url)}' --tenant {plan.tenant}"
    if folder is not None:
        say(f"Kept in {folder}")
    say("To inspect it:")
    say(f"  holdfast dead-letters list {target}")
    say(f"  holdfast events --limit 20 {target}")


def without_password(url: str) -> str:
    """Remove the password from a URL."""
    return _PASSWORD.sub(lambda match: match[1] or "", url)


@contextmanager
def _folder(keep: bool) -> Iterator[Path]:
    if keep:
        yield Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the stack, as Ctrl-C does, so that the workers are ended and the file is removed."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(TERMINATED)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
