"""The display of the demo: progress while it runs, and the summary."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from holdfast.cli.demo.workers import WorkerProcess
from holdfast.cli.output import STYLES, console, plain, say, write
from holdfast.engine.job import Event
from holdfast.engine.states import State
from holdfast.features.assembly import Store
from holdfast.stores.requests import JobFilter

if TYPE_CHECKING:
    from holdfast.cli.demo.command import Outcome


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


class View(Protocol):
    def tell(self, message: str) -> None: ...
    def show(self, frame: Frame) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def make_view() -> View:
    return LiveView() if sys.stderr.isatty() else PlainView()


class PlainView:
    """Prints a line per second, for logs and pipes."""

    def __init__(self) -> None:
        self._next = 0.0

    def tell(self, message: str) -> None:
        say(message)

    def show(self, frame: Frame) -> None:
        if time.monotonic() < self._next and frame.ended < frame.total:
            return
        self._next = time.monotonic() + LINE_EVERY
        counts = ", ".join(f"{frame.states.get(state, 0):,} {state}" for state in SHOWN)
        say(f"{frame.ended:,} of {frame.total:,} ended ({counts})")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class LiveView:
    """Shows the current figures below scrolling messages."""

    def __init__(self) -> None:
        self._console = console(stderr=True)
        self._live = Live(console=self._console, refresh_per_second=10, transient=True)

    def tell(self, message: str) -> None:
        self._console.print(Text(plain(message), style="dim"))

    def show(self, frame: Frame) -> None:
        self._live.update(render(frame))
        self._live.start()  # has an effect the first time only

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
