"""Fault 3, of durable jobs: a worker is killed before, in and after every boundary of a job with five steps, an
approval, a sleep and an event; another one goes on, and the job ends the same way.

What the step contract promises, for every point: a step that was remembered when the worker died is not run again; one
that was not is run once more, under the same key; nothing is asked, slept or waited for twice.
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
from holdfast.engine.job import Job
from holdfast.engine.states import FINISHED
from holdfast.engine.steps import Step
from tests.faults.checker import IN_TIME, check
from tests.faults.effects import Effect, effects
from tests.faults.journey import CALLS, COLOURS, PATIENT, RESULT, STEPS
from tests.faults.killing import GONE, serve
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
    """`moment` is where the worker is killed, or (`whom`) the child process of one."""

    store: str
    colour: str
    moment: str
    whom: str = "worker"

    def __str__(self) -> str:
        return f"{self.store}-{self.colour}-{self.moment}{'' if self.whom == 'worker' else ' (child)'}"

    @property
    def held(self) -> bool:
        return self.moment not in LET_GO


# Then the job is in nobody's hands, and a lost worker is nothing to it.
LET_GO = {"after ask", "after pause sleep", "after pause event", "after succeed"}
LET_GO |= {"while it asks", "while it sleeps", "while it waits"}


class Journey:
    """One job on one database, and who helps it along: approves, sends the event, starts the next worker."""

    def __init__(self, app: App, folder: Path, case: Case) -> None:
        self._app, self._folder, self._case = app, folder, case
        (self.id,) = put(app._store, spec(case.colour, retry=PATIENT))
        self._workers: list[ForkServerProcess] = []
        self.dead_with: tuple[dict[str, Step], Counter[str]] | None = None
        """What was remembered, and what had been done outside, when the worker was killed."""

    @property
    def job(self) -> Job:
        found = self._app.jobs.get(self.id)
        assert found is not None
        return found

    @property
    def steps(self) -> dict[str, Step]:
        return {step.name: step for step in self._app._store.run(self._app._store.steps.list(self.id, "*"))}

    @property
    def done(self) -> Counter[str]:
        return Counter(effect.what.split()[0] for effect in effects(self._folder) if " " in effect.what)

    def run(self) -> None:
        victim = self._start(self._case.moment)
        end = time.monotonic() + LIMIT
        try:
            while (job := self.job).state not in FINISHED:
                assert time.monotonic() < end, f"{job.state} {job.attempt} {self._said()}"
                if not victim.is_alive() and self.dead_with is None:
                    self._bury(victim)
                    self._start(None)
                self._help(job, victim)
                time.sleep(0.05)
            if self.dead_with is None and victim.is_alive() and self._case.whom == "worker":
                victim.join(5)
            if self.dead_with is None and not victim.is_alive():
                self._bury(victim)
        finally:
            for worker in self._workers:
                worker.kill()
                worker.join(10)
        killed = (self._folder / GONE).exists() or self._case.moment.startswith("while")
        assert killed, f"nobody came to {self._case.moment}\n{self._said()}"

    def _start(self, moment: str | None) -> ForkServerProcess:
        worker = start_call(serve, self._app._store.url, str(self._folder), moment, self._case.whom)
        self._workers.append(worker)
        return worker

    def _bury(self, victim: ForkServerProcess) -> None:
        victim.join(5)
        assert victim.exitcode == -9, f"{victim.exitcode}\n{self._said()}"
        self.dead_with = self.steps, self.done

    def _help(self, job: Job, victim: ForkServerProcess) -> None:
        """Whoever is to be killed while the job waits is killed before anything is done about it."""
        waits = self._waits(job)
        if waits is None:
            return
        if self._case.moment == f"while it {waits}" and self.dead_with is None:
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

    def _said(self) -> str:
        log = self._folder / "killing.log"
        return log.read_text()[-4000:] if log.exists() else "(nothing)"


def play(app: App, folder: Path, case: Case) -> None:
    journey = Journey(app, folder, case)
    journey.run()
    picture = check(app._store.url, [journey.id], folder=folder, within=IN_TIME)
    job, operations = journey.job, [step.type for step in picture.ledgers[journey.id]]
    result = app._store.run(app._store.jobs.result(journey.id, "*"))
    assert (job.state, job.retries, result and result.value) == (State.SUCCEEDED, 0, RESULT)
    assert (operations.count("ask"), operations.count("approve"), operations.count("snooze")) == (1, 1, 2)

    # Who died with the job in hand is counted as a crash, who died without it is not.
    attempts = app._store.run(app._store.jobs.attempts(journey.id, "*"))
    assert job.crashes == sum(attempt.outcome == "crashed" for attempt in attempts) >= int(case.held)
    # On a machine that is busy enough another worker may have been too slow to keep its lease.
    late = job.crashes - int(case.held)
    check_records(journey.steps, effects(folder), f"default:{case.colour}:{journey.id}")
    check_effects(journey, case, late)


def check_records(steps: dict[str, Step], done: list[Effect], key: str) -> None:
    """One for each call, and all of them over; each effect under one key, once an attempt, none after its record."""
    assert [(step.n, step.kind, step.name) for step in steps.values()] == CALLS
    assert all(step.over or (step.kind == "sleep" and step.is_late) for step in steps.values())
    for name in STEPS:
        left = [effect for effect in done if effect.what.startswith(f"{name} ")]
        assert {effect.what for effect in left} == {f"{name} {key}:{steps[name].n}"}
        assert max(effect.attempt for effect in left) == steps[name].attempt
        assert len({effect.attempt for effect in left}) == len(left)


def check_effects(journey: Journey, case: Case, late: int) -> None:
    """What was remembered when somebody died was not done again, what was not is done once more: nothing but the step
    that was under way, or both of the two that run at once."""
    done, subject = journey.done, case.moment.split()[-1]
    if journey.dead_with is not None:
        remembered, before = journey.dead_with
        for name in STEPS:
            again = 0 if name in remembered else 1 + late
            assert before[name] <= done[name] <= before[name] + again, name
    twice = {name for name in STEPS if done[name] > 1}
    assert late or twice <= ({"pack", "label"} if subject in ("pack", "label") else {subject}), twice
    if subject in STEPS and case.moment.startswith(("leave", "before save", "within save")):
        assert 2 <= done[subject] <= 2 + late


# -- the points ------------------------------------------------------------------------------------------------

AT_A_TIME = 8

SAVES = [f"{when} save {name}" for name in STEPS for when in ("before", "after")]
INSIDE = [f"{when} {name}" for name in STEPS for when in ("enter", "leave")]
ENDS = ("ask", "pause sleep", "pause event", "succeed")
SETTLES = [f"{when} {end}" for end in ENDS for when in ("before", "after")]
TAKES = [f"after take {attempt}" for attempt in (1, 2, 3, 4)]
WAITS = ["while it asks", "while it sleeps", "while it waits"]
OTHERS = ["decline charge", "before remember", "after remember"]
ALL = [*TAKES, *INSIDE, *SAVES, *OTHERS, *SETTLES, *WAITS]
# On PostgreSQL an operation is one statement, and the server commits it: there is no within.
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
    *(Case(store, "journey", moment) for store in STORES for moment in ALL),
    *(Case("sqlite", "journey", moment) for moment in WITHIN),
    *(Case(store, "journey_in_a_thread", moment) for store in STORES for moment in IN_A_THREAD),
    *(Case(store, "journey_in_a_process", moment) for store in STORES for moment in IN_A_PROCESS),
    *(Case(store, "journey_in_a_process", moment, "child") for store in STORES for moment in IN_THE_CHILD),
]


# One kind of handler is played on both stores in every run, each of the others on one.
ELSEWHERE = {("postgres", "journey_in_a_thread"), ("sqlite", "journey_in_a_process")}
PLAYED = [
    pytest.param(case, marks=pytest.mark.soak) if (case.store, case.colour) in ELSEWHERE else case for case in CASES
]


@pytest.mark.sample(6)
@pytest.mark.turns(3)
@pytest.mark.parametrize("case", PLAYED, ids=str)
def test_killed(played: dict[Case, Future[None]], case: Case) -> None:
    played[case].result(timeout=100)


def test_the_guide_tells_of_these_moments() -> None:
    section = GUIDE.read_text(encoding="utf-8").split("## Handlers with steps")[1].split("\n## ")[0]
    rows = [line.split("|")[4] for line in section.splitlines() if line.count("|") == 5]
    told = {moment for row in rows[2:] for moment in re.findall("`([^`]+)`", row)}
    assert len(told) > 15
    assert told <= {case.moment for case in CASES}


def test_there_are_enough_points() -> None:
    """As the issue asks: twenty or more, on each store."""
    for store in STORES:
        for colour, least in zip(COLOURS, (30, 20, 10), strict=True):
            assert sum((case.store, case.colour) == (store, colour) for case in CASES) >= least


# -- at random -------------------------------------------------------------------------------------------------


class Crowd:
    """Many journeys at once, some of each colour, and somebody who helps all of them along."""

    def __init__(self, app: App, choice: random.Random) -> None:
        self._app, self._choice = app, choice
        self.jobs: dict[str, str] = {}

    def add(self, count: int) -> None:
        colours = [self._choice.choice(COLOURS) for _ in range(count)]
        ids = put(self._app._store, *(spec(colour, retry=PATIENT, payload={"pause": 0.05}) for colour in colours))
        self.jobs |= dict(zip(ids, colours, strict=True))
        for job in ids:
            if self._choice.random() < 0.5:
                self._tell(job)  # before it waits for it

    def under_way(self) -> list[str]:
        counts = self._app._store.run(self._app._store.jobs.counts("*"))
        if not any(counts.get(state) for state in set(State) - FINISHED):
            return []
        return [job.id for job in self._app.jobs.list(limit=1000) if job.state not in FINISHED]

    def help(self) -> list[str]:
        for approval in self._app.approvals.list():
            self._app.approvals.approve(approval.id, by="ada")
        left = self.under_way()
        for job in left:
            self._tell(job)
        return left

    def _tell(self, job: str) -> None:
        self._app.send_event("shipped", {"job": job, "what": "parcel 7"}, key=job)


def kill_at_random(app: App, folder: Path, choice: random.Random, kills: int) -> None:
    crowd = Crowd(app, choice)
    crowd.add(10)
    workers = [start_call(serve, app._store.url, str(folder), None, "worker") for _ in range(2)]
    try:
        for _ in range(kills):
            time.sleep(choice.uniform(0.02, 0.7))  # that is the fault: any moment
            victim = workers.pop(choice.randrange(2))
            victim.kill()
            victim.join(10)
            workers.append(start_call(serve, app._store.url, str(folder), None, "worker"))
            crowd.add(max(0, 10 - len(crowd.help())))
        until(lambda: not crowd.help(), "all of them have ended", 120)
    finally:
        for worker in workers:
            worker.kill()
            worker.join(10)
    picture = check(app._store.url, crowd.jobs, folder=folder)
    assert {row.state for row in picture.rows.values()} == {State.SUCCEEDED}
    by_job: dict[str, list[Effect]] = {job: [] for job in crowd.jobs}
    for effect in effects(folder):
        by_job[effect.job].append(effect)
    for job, colour in crowd.jobs.items():
        steps = {step.name: step for step in app._store.run(app._store.steps.list(job, "*"))}
        check_records(steps, by_job[job], f"default:{colour}:{job}")
        result = app._store.run(app._store.jobs.result(job, "*"))
        assert result is not None
        assert result.value == RESULT
    print(f"{len(crowd.jobs)} jobs, {kills} kills")


@pytest.mark.slow
def test_killed_at_random(app: App, folder: Path, choice: random.Random) -> None:
    kill_at_random(app, folder, choice, kills=10)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_killed_two_hundred_times(app: App, folder: Path, choice: random.Random) -> None:
    kill_at_random(app, folder, choice, kills=200)
