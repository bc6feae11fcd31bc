"""The demo's story: start workers, enqueue, kill one with its hands full, replace it, wait for the end, judge."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.cli.demo.check import Verdict, judge, read
from holdfast.cli.demo.crew import Crew, WorkerProcess
from holdfast.cli.demo.kinds import Mix, declare, make_app
from holdfast.cli.demo.tail import Tail
from holdfast.cli.demo.view import Scene, View

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
        if not app.store.schema().current:
            app.store.migrate()
        with Crew(plan.url, plan.tenant, plan.logs) as crew:
            for _ in range(plan.workers):
                view.tell(f"started worker {crew.start().number} with pid {crew.workers[-1].pid}")
            accepted = [handle.id for handle in app.enqueue_many(mix.calls(declare(app))) if handle.created]
            view.tell(f"{len(accepted):,} jobs accepted")
            tail = Tail(app.store, plan.tenant)
            kill = _watch(plan, view, crew, tail, len(accepted), began + plan.patience)
        # Nobody writes any more: what is read now is the end.
        view.tell("workers stopped; reading every job and the whole ledger")
        verdict = judge(accepted, mix.always_fails, read(app.store, plan.tenant))
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
