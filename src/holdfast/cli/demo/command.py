"""``holdfast demo``: start workers, enqueue jobs, kill a worker, and check the result."""

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
from holdfast.cli.demo.view import Frame, Tail, View, make_view, print_summary
from holdfast.cli.demo.workers import Mix, WorkerPool, WorkerProcess, declare, make_app
from holdfast.cli.failures import FAILED
from holdfast.cli.options import Json
from holdfast.cli.output import emit, say
from holdfast.features.assembly import open_store

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
        if not app._store.schema().current:
            app._store.migrate()
        with WorkerPool(plan.url, plan.tenant, plan.logs) as pool:
            for _ in range(plan.workers):
                view.tell(f"started worker {pool.start().number} with pid {pool.workers[-1].pid}")
            accepted = [handle.id for handle in app.enqueue_many(mix.calls(declare(app))) if handle.created]
            view.tell(f"{len(accepted):,} jobs accepted")
            tail = Tail(app._store, plan.tenant)
            kill = _watch(plan, view, pool, tail, len(accepted), began + plan.timeout)
        # The workers have ended, so this read sees the final state.
        view.tell("workers stopped; reading every job and the whole ledger")
        verdict = judge(accepted, mix.always_fails, read(app._store, plan.tenant))
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
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Database URL; default: a new SQLite file.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=40, max=100_000, help="Number of jobs.")] = JOBS,
    workers: Annotated[int, typer.Option("--workers", metavar="N", min=2, max=32, help="Number of workers.")] = WORKERS,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the database file and print how to inspect it.")] = False,
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
        with make_view() as view:
            outcome = run(plan, view)
        store = "sqlite" if _is_embedded(plan.url) else "postgresql"
        if as_json:
            emit(document(outcome, plan, store, kept=keep or not is_temporary))
        else:
            sys.stderr.flush()
            print_summary(outcome, store)
        if keep or not is_temporary:
            _print_location(plan, folder if keep else None)
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


def _is_embedded(url: str) -> bool:
    with closing(open_store(url)) as store:
        return store.embedded


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
