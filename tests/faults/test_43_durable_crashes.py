"""Fault 3 for durable jobs: a worker is killed before, within and after every write of a job with five steps, an
approval, a sleep and an event; another worker continues, and the job ends the same way.

At every point, a stored step is not run again; a step that was not stored runs once more, under the same key; no
approval, sleep or wait is repeated.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from holdfast import App, State
from holdfast.app.internals import session_of
from holdfast.engine.job import Job
from holdfast.engine.states import FINISHED
from holdfast.engine.steps import Step
from tests.faults.checker import RECOVERY_LIMIT, check
from tests.faults.durable_jobs import CALLS, ORDER_KINDS, RESULT, STEPS
from tests.faults.effects import Effect, effects
from tests.faults.kill_points import KILLED_FILE, run_worker
from tests.faults.workload import PATIENT
from tests.support.forkserver import start_call
from tests.support.stores import put, spec
from tests.support.waiting import until
from tests.support.worker_processes import ROOT

pytestmark = pytest.mark.req("HF-6", "CX-8", "CX-15", "CX-5", "SC-11", "DP-8")

GUIDE = ROOT / "docs" / "guides" / "recovery.md"
STORES = ("sqlite", "postgres")
LIMIT = 60.0


@dataclass(frozen=True)
class Case:
    """`moment` is where the worker is killed, or with the target "child" a child process of it."""

    store: str
    kind: str
    moment: str
    target: str = "worker"

    def __str__(self) -> str:
        return f"{self.store}-{self.kind}-{self.moment}{'' if self.target == 'worker' else ' (child)'}"

    @property
    def held(self) -> bool:
        return self.moment not in NOT_HELD


# At these moments no worker holds the job, so a lost worker does not affect it.
NOT_HELD = {"after ask", "after pause sleep", "after pause event", "after succeed"}
NOT_HELD |= {"while it asks", "while it sleeps", "while it waits"}


class OrderRun:
    """One order on one database. Approves it, sends its event, and starts the next worker."""

    def __init__(self, app: App, folder: Path, case: Case) -> None:
        self._app, self._folder, self._case = app, folder, case
        (self.id,) = put(session_of(app).store, spec(case.kind, retry=PATIENT))
        self._workers: list[ForkServerProcess] = []
        self.at_kill: tuple[dict[str, Step], Counter[str]] | None = None
        """The stored steps and the recorded effects when the worker was killed."""

    @property
    def job(self) -> Job:
        job = self._app.jobs.get(self.id)
        assert job is not None
        return job

    @property
    def steps(self) -> dict[str, Step]:
        return {
            step.name: step
            for step in session_of(self._app).store.run(session_of(self._app).store.steps.list(self.id, "*"))
        }

    @property
    def done(self) -> Counter[str]:
        return Counter(effect.what.split()[0] for effect in effects(self._folder) if " " in effect.what)

    def run(self) -> None:
        victim = self._start(self._case.moment)
        end = time.monotonic() + LIMIT
        try:
            while (job := self.job).state not in FINISHED:
                assert time.monotonic() < end, f"{job.state} {job.attempt} {self._log()}"
                if not victim.is_alive() and self.at_kill is None:
                    self._record_kill(victim)
                    self._start(None)
                self._respond(job, victim)
                time.sleep(0.05)
            if self.at_kill is None and victim.is_alive() and self._case.target == "worker":
                victim.join(5)
            if self.at_kill is None and not victim.is_alive():
                self._record_kill(victim)
        finally:
            for worker in self._workers:
                worker.kill()
                worker.join(10)
        killed = (self._folder / KILLED_FILE).exists() or self._case.moment.startswith("while")
        assert killed, f"no process reached {self._case.moment}\n{self._log()}"

    def _start(self, moment: str | None) -> ForkServerProcess:
        worker = start_call(run_worker, session_of(self._app).store.url, str(self._folder), moment, self._case.target)
        self._workers.append(worker)
        return worker

    def _record_kill(self, victim: ForkServerProcess) -> None:
        victim.join(5)
        assert victim.exitcode == -9, f"{victim.exitcode}\n{self._log()}"
        self.at_kill = self.steps, self.done

    def _respond(self, job: Job, victim: ForkServerProcess) -> None:
        """Kill the worker if that is due during this wait; otherwise approve the job or send its event."""
        waits = self._waits(job)
        if waits is None:
            return
        if self._case.moment == f"while it {waits}" and self.at_kill is None:
            victim.kill()
            victim.join(10)
        elif waits == "asks":
            (approval,) = self._app.approvals.list()
            self._app.approvals.approve(approval.id, by="ada")
        elif waits == "waits":
            self._app.send_event("shipped", {"job": self.id, "what": "parcel 7"}, key=self.id)

    def _waits(self, job: Job) -> str | None:
        if job.state is State.WAITING_FOR_APPROVAL:
            return "asks"
        if job.state is not State.RETRY_WAITING:
            return None
        last = max(self.steps.values(), key=lambda step: step.n, default=None)
        if last is None or last.over:
            return None
        return {"sleep": "sleeps", "event": "waits"}.get(last.kind)

    def _log(self) -> str:
        log = self._folder / "worker.log"
        return log.read_text()[-4000:] if log.exists() else "(nothing)"


def run_case(app: App, folder: Path, case: Case) -> None:
    run = OrderRun(app, folder, case)
    run.run()
    snapshot = check(session_of(app).store.url, [run.id], folder=folder, within=RECOVERY_LIMIT)
    job, operations = run.job, [event.type for event in snapshot.ledgers[run.id]]
    result = session_of(app).store.run(session_of(app).store.jobs.result(run.id, "*"))
    assert (job.state, job.retries, result and result.value) == (State.SUCCEEDED, 0, RESULT)
    assert (operations.count("ask"), operations.count("approve"), operations.count("snooze")) == (1, 1, 2)

    # A worker that dies while it holds the job counts as a crash.
    attempts = session_of(app).store.run(session_of(app).store.jobs.attempts(run.id, "*"))
    assert job.crashes == sum(attempt.outcome == "crashed" for attempt in attempts) >= int(case.held)
    # On a busy machine another worker may have been too slow to renew its lease.
    late = job.crashes - int(case.held)
    check_records(run.steps, effects(folder), f"default:{case.kind}:{run.id}")
    check_effects(run, case, late)


def check_records(steps: dict[str, Step], done: list[Effect], key: str) -> None:
    """Every call has one finished record. Effects have one key per step, and occur once per attempt and not after the
    record."""
    assert [(step.n, step.kind, step.name) for step in steps.values()] == CALLS
    assert all(step.over or (step.kind == "sleep" and step.is_late) for step in steps.values())
    for name in STEPS:
        own = [effect for effect in done if effect.what.startswith(f"{name} ")]
        assert {effect.what for effect in own} == {f"{name} {key}:{steps[name].n}"}
        assert max(effect.attempt for effect in own) == steps[name].attempt
        assert len({effect.attempt for effect in own}) == len(own)


def check_effects(run: OrderRun, case: Case, late: int) -> None:
    """Steps stored at the kill did not run again; others ran once more: only the interrupted step, or both of the two
    that run concurrently."""
    done, subject = run.done, case.moment.split()[-1]
    if run.at_kill is not None:
        stored, before = run.at_kill
        for name in STEPS:
            again = 0 if name in stored else 1 + late
            assert before[name] <= done[name] <= before[name] + again, name
    twice = {name for name in STEPS if done[name] > 1}
    assert late or twice <= ({"pack", "label"} if subject in ("pack", "label") else {subject}), twice
    if subject in STEPS and case.moment.startswith(("leave", "before save", "within save")):
        assert 2 <= done[subject] <= 2 + late


# -- the points ------------------------------------------------------------------------------------------------

CONCURRENT_CASES = 8

SAVES = [f"{when} save {name}" for name in STEPS for when in ("before", "after")]
INSIDE = [f"{when} {name}" for name in STEPS for when in ("enter", "leave")]
ENDS = ("ask", "pause sleep", "pause event", "succeed")
SETTLES = [f"{when} {end}" for end in ENDS for when in ("before", "after")]
TAKES = [f"after take {attempt}" for attempt in (1, 2, 3, 4)]
WAITS = ["while it asks", "while it sleeps", "while it waits"]
OTHERS = ["decline charge", "before remember", "after remember"]
ALL = [*TAKES, *INSIDE, *SAVES, *OTHERS, *SETTLES, *WAITS]
# On PostgreSQL an operation is one statement that the server commits: there is no point within it.
WITHIN = [f"within {what}" for what in (*(f"save {name}" for name in STEPS), *ENDS)]

IN_A_THREAD = [
    *("after take 1", "after take 3", "enter reserve", "leave reserve", "before save reserve", "after save reserve"),
    *("leave pack", "before save pack", "after save label", "decline charge", "leave charge", "after save charge"),
    *("before remember", "before ask", "after ask", "before pause sleep", "after pause event", "before save bill"),
    *("before succeed", "after succeed"),
]
IN_A_PROCESS = [
    *("leave reserve", "before save reserve", "after save reserve", "before save pack", "before ask", "after take 2"),
    *("decline charge", "before pause event", "before succeed"),
]
IN_THE_CHILD = ["leave reserve", "after save charge", "before save bill"]

CASES = [
    *(Case(store, "order", moment) for store in STORES for moment in ALL),
    *(Case("sqlite", "order", moment) for moment in WITHIN),
    *(Case(store, "order_in_thread", moment) for store in STORES for moment in IN_A_THREAD),
    *(Case(store, "order_in_process", moment) for store in STORES for moment in IN_A_PROCESS),
    *(Case(store, "order_in_process", moment, "child") for store in STORES for moment in IN_THE_CHILD),
]


# One kind of handler runs on both stores every time, each of the others on one.
SOAK_ONLY = {("postgres", "order_in_thread"), ("sqlite", "order_in_process")}
SELECTED = [
    pytest.param(case, marks=pytest.mark.soak) if (case.store, case.kind) in SOAK_ONLY else case for case in CASES
]


@pytest.mark.sample(6)
@pytest.mark.turns(3)
@pytest.mark.parametrize("case", SELECTED, ids=str)
def test_order_recovers_from_kill(case_results: dict[Case, Future[None]], case: Case) -> None:
    case_results[case].result(timeout=100)


def test_guide_names_existing_moments() -> None:
    section = GUIDE.read_text(encoding="utf-8").split("## Handlers with steps")[1].split("\n## ")[0]
    rows = [line.split("|")[4] for line in section.splitlines() if line.count("|") == 5]
    moments = {moment for row in rows[2:] for moment in re.findall("`([^`]+)`", row)}
    assert len(moments) > 15
    assert moments <= {case.moment for case in CASES}


def test_every_handler_form_has_enough_kill_points() -> None:
    for store in STORES:
        for kind, least in zip(ORDER_KINDS, (30, 20, 10), strict=True):
            assert sum((case.store, case.kind) == (store, kind) for case in CASES) >= least


# -- at random -------------------------------------------------------------------------------------------------


class Orders:
    """Many orders of all kinds, which are approved and sent their events."""

    def __init__(self, app: App, choice: random.Random) -> None:
        self._app, self._choice = app, choice
        self.jobs: dict[str, str] = {}

    def add(self, count: int) -> None:
        kinds = [self._choice.choice(ORDER_KINDS) for _ in range(count)]
        ids = put(session_of(self._app).store, *(spec(kind, retry=PATIENT, payload={"pause": 0.05}) for kind in kinds))
        self.jobs |= dict(zip(ids, kinds, strict=True))
        for job in ids:
            if self._choice.random() < 0.5:
                self._send_event(job)  # before the job waits for it

    def unfinished(self) -> list[str]:
        counts = session_of(self._app).store.run(session_of(self._app).store.jobs.counts("*"))
        if not any(counts.get(state) for state in set(State) - FINISHED):
            return []
        return [job.id for job in self._app.jobs.list(limit=1000) if job.state not in FINISHED]

    def respond(self) -> list[str]:
        """Approve and send events; returns the unfinished orders."""
        for approval in self._app.approvals.list():
            self._app.approvals.approve(approval.id, by="ada")
        unfinished = self.unfinished()
        for job in unfinished:
            self._send_event(job)
        return unfinished

    def _send_event(self, job: str) -> None:
        self._app.send_event("shipped", {"job": job, "what": "parcel 7"}, key=job)


def kill_at_random(app: App, folder: Path, choice: random.Random, kills: int) -> None:
    orders = Orders(app, choice)
    orders.add(10)
    workers = [start_call(run_worker, session_of(app).store.url, str(folder), None, "worker") for _ in range(2)]
    try:
        for _ in range(kills):
            time.sleep(choice.uniform(0.02, 0.7))  # a random moment
            victim = workers.pop(choice.randrange(2))
            victim.kill()
            victim.join(10)
            workers.append(start_call(run_worker, session_of(app).store.url, str(folder), None, "worker"))
            orders.add(max(0, 10 - len(orders.respond())))
        until(lambda: not orders.respond(), "all orders have ended", 120)
    finally:
        for worker in workers:
            worker.kill()
            worker.join(10)
    snapshot = check(session_of(app).store.url, orders.jobs, folder=folder)
    assert {row.state for row in snapshot.rows.values()} == {State.SUCCEEDED}
    by_job: dict[str, list[Effect]] = {job: [] for job in orders.jobs}
    for effect in effects(folder):
        by_job[effect.job].append(effect)
    for job, kind in orders.jobs.items():
        steps = {step.name: step for step in session_of(app).store.run(session_of(app).store.steps.list(job, "*"))}
        check_records(steps, by_job[job], f"default:{kind}:{job}")
        result = session_of(app).store.run(session_of(app).store.jobs.result(job, "*"))
        assert result is not None
        assert result.value == RESULT
    print(f"{len(orders.jobs)} jobs, {kills} kills")


@pytest.mark.slow
def test_orders_survive_random_kills(app: App, folder: Path, choice: random.Random) -> None:
    kill_at_random(app, folder, choice, kills=10)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_orders_survive_two_hundred_random_kills(app: App, folder: Path, choice: random.Random) -> None:
    kill_at_random(app, folder, choice, kills=200)
