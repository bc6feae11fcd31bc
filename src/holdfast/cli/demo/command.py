"""``holdfast demo`` and its story."""

from __future__ import annotations

import re
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from holdfast.cli.demo.check import Verdict, judge, read
from holdfast.cli.demo.view import Scene, Tail, View, make_view, print_summary
from holdfast.cli.demo.workers import Crew, Mix, WorkerProcess, declare, make_app
from holdfast.cli.failures import FAILED
from holdfast.cli.options import Json
from holdfast.cli.output import emit, say
from holdfast.features.assembly import open_store

LOOK = 0.1
SETTLING = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    url: str
    tenant: str
    logs: Path
    jobs: int
    workers: int
    patience: float


@dataclass(slots=True)
class Outcome:
    """``killed`` and ``held``: the worker that was killed, and how many jobs it had in its hands."""

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
    """What is known of the kill; nothing before it."""

    worker: WorkerProcess | None = None
    held: set[str] = field(default_factory=set)


def run(plan: Plan, view: View) -> Outcome:
    began = time.monotonic()
    mix = Mix(plan.jobs)
    with closing(make_app(plan.url, plan.tenant)) as app:
        if not app._store.schema().current:
            app._store.migrate()
        with Crew(plan.url, plan.tenant, plan.logs) as crew:
            for _ in range(plan.workers):
                view.tell(f"started worker {crew.start().number} with pid {crew.workers[-1].pid}")
            accepted = [handle.id for handle in app.enqueue_many(mix.calls(declare(app))) if handle.created]
            view.tell(f"{len(accepted):,} jobs accepted")
            tail = Tail(app._store, plan.tenant)
            kill = _watch(plan, view, crew, tail, len(accepted), began + plan.patience)
        # Nobody writes any more: what is read now is the end.
        view.tell("workers stopped; reading every job and the whole ledger")
        verdict = judge(accepted, mix.always_fails, read(app._store, plan.tenant))
    killed = None if kill.worker is None else kill.worker.pid
    problems = [*verdict.problems, *crew.failures()]
    if killed is None:
        problems.append("no worker was killed with jobs in its hands")
    workers: list[dict[str, object]] = [{"pid": worker.pid, "end": worker.end} for worker in crew.workers]
    return Outcome(verdict, time.monotonic() - began, workers, killed, len(kill.held), problems)


def _watch(plan: Plan, view: View, crew: Crew, tail: Tail, total: int, deadline: float) -> _Kill:
    """Follow the ledger to the end, and kill a worker on the way."""
    kill = _Kill()
    while time.monotonic() < deadline:
        tail.read()
        hands = [(w.number, w.pid, tail.in_hand(w) if w.alive else None) for w in crew.workers]
        view.show(Scene(total, tail.ended, tail.states, hands))
        if tail.ended >= total:
            return kill
        if not crew.alive:
            view.tell("no worker is alive any more")
            return kill
        if kill.worker is None and tail.ended >= total // 2:
            kill = _try_to_kill(crew, tail, view)
        time.sleep(LOOK)
    view.tell(f"not everything had ended after {plan.patience:.0f} s")
    return kill


def _try_to_kill(crew: Crew, tail: Tail, view: View) -> _Kill:
    """Freeze the busiest worker, see that it holds jobs, and only then kill it: what it held is known for sure."""
    busiest = max(crew.alive, key=tail.in_hand)
    busiest.freeze()
    time.sleep(SETTLING)  # what it had sent to the database before is through
    held = tail.held_by(busiest)
    if not held:
        busiest.thaw()
        return _Kill()
    busiest.kill()
    view.tell(f"killed worker {busiest.number} (pid {busiest.pid}) with SIGKILL; it held {len(held)} jobs")
    view.tell(f"started worker {crew.start().number} with pid {crew.workers[-1].pid} in its place")
    return _Kill(busiest, held)


JOBS, WORKERS = 2000, 3
PATIENCE, A_SECOND = 24.0, 100
TERMINATED = 128 + signal.SIGTERM
_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/@]*(?=@)|(?<=[?&])password=[^&]*")


def demo(
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Database URL; default: a new SQLite file.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=40, max=100_000, help="Number of jobs.")] = JOBS,
    workers: Annotated[int, typer.Option("--workers", metavar="N", min=2, max=32, help="Number of workers.")] = WORKERS,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the database file and print how to inspect it.")] = False,
    as_json: Json = False,
) -> None:
    """Run many jobs, kill a worker and check that nothing was lost.

    HOLDFAST_URL is not read: without --url the demo makes a SQLite file of its own. On a database that is
    named it keeps to a new tenant, so it can be repeated.
    """
    with _stopped_by_sigterm(), _place(keep) as folder:
        own = url is None
        plan = Plan(
            url=f"sqlite:///{folder}/demo.db" if url is None else url,
            tenant="demo" if own else f"demo-{secrets.token_hex(4)}",
            logs=folder,
            jobs=jobs,
            workers=workers,
            # Long enough for a busy machine, short enough to end within half a minute; more jobs have more time.
            patience=PATIENCE + max(0, jobs - JOBS) / A_SECOND,
        )
        with make_view() as view:
            outcome = run(plan, view)
        store = "sqlite" if _is_embedded(plan.url) else "postgresql"
        if as_json:
            emit(document(outcome, plan, store, kept=keep or not own))
        else:
            sys.stderr.flush()
            print_summary(outcome, store)
        if keep or not own:
            _tell_where(plan, folder if keep else None)
    raise typer.Exit(0 if outcome.ok else FAILED)


def document(outcome: Outcome, plan: Plan, store: str, *, kept: bool) -> dict[str, Any]:
    verdict = outcome.verdict
    return {
        "ok": outcome.ok,
        "accepted": verdict.accepted,
        "succeeded": verdict.succeeded,
        "dead_letter": verdict.dead_letter,
        "retried": verdict.retried,
        "recovered": verdict.recovered,
        "lost": verdict.lost,
        "run_twice": verdict.run_twice,
        "illegal": verdict.illegal,
        "ledger_ok": verdict.ledger_ok,
        "events": verdict.events,
        "seconds": round(outcome.seconds, 2),
        "store": store,
        "tenant": plan.tenant,
        "url": without_password(plan.url) if kept else None,
        "workers": outcome.workers,
        "killed": outcome.killed,
        "held": outcome.held,
        "problems": outcome.problems,
    }


def _tell_where(plan: Plan, folder: Path | None) -> None:
    target = f"--url '{without_password(plan.url)}' --tenant {plan.tenant}"
    if folder is not None:
        say(f"Kept in {folder}")
    say("To look at it:")
    say(f"  holdfast jobs list --state dead_letter {target}")
    say(f"  holdfast events --limit 20 {target}")


def without_password(url: str) -> str:
    """What may be printed of a URL."""
    return _PASSWORD.sub(lambda found: found[1] or "", url)


def _is_embedded(url: str) -> bool:
    with closing(open_store(url)) as store:
        return store.embedded


@contextmanager
def _place(keep: bool) -> Iterator[Path]:
    if keep:
        yield Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """SIGTERM unwinds as Ctrl-C does, so that the workers are ended and the file is removed."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(TERMINATED)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
