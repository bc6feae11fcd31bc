"""Fault 29: a job that takes its worker with it, every time: a dead letter at its crash limit, and the others go on.

Somebody has to start the workers again, as an init system would; here it is the test.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from holdfast import App, Retry, State
from tests.faults.checker import IN_TIME, check
from tests.faults.effects import effects, runs
from tests.faults.load import PATIENT
from tests.faults.waiting import all_ended, states
from tests.support.stores import put, put_one, spec
from tests.support.waiting import until
from tests.support.worker_processes import Crew

pytestmark = pytest.mark.req("CX-10", "CX-15", "DP-8", "DP-15")


def watch_over(app: App, crew: Crew, poison: list[str], workers: int) -> int:
    """Start a worker for each that has died until the poison is dead; answers how many died."""
    died = 0

    def dead() -> bool:
        nonlocal died
        fallen = workers - len(crew.alive)
        died += fallen
        crew.start(fallen)
        return set(states(app, poison)) == {State.DEAD_LETTER}

    until(dead, "the poison is a dead letter", 60)
    return died


@pytest.mark.slow
@pytest.mark.parametrize(("url", "how"), [("sqlite", "kill"), ("postgres", "segfault")], indirect=["url"])
def test_poison_ends_in_the_dead_letters(app: App, crew: Crew, folder: Path, how: str) -> None:
    poison = [put_one(app._store, "poison", payload={"how": how}, retry=Retry(max_attempts=5, max_crashes=1))]
    others = put(app._store, *(spec("work", payload={"nap": 0.01}, retry=PATIENT) for _ in range(40)))
    crew.start(2)
    died = watch_over(app, crew, poison, workers=2)
    all_ended(app, 41)
    picture = check(app._store.url, [*poison, *others], folder=folder, within=IN_TIME)
    job = app.jobs.get(poison[0])
    assert (job.crashes, job.retries, job.attempt, job.error_code) == (2, 0, 2, "worker_lost")
    assert runs(folder)[poison[0]] == died == 2
    ends = {member.process.returncode for member in crew.members if not member.alive}
    assert ends == {-signal.SIGKILL if how == "kill" else -signal.SIGSEGV}
    assert {picture.rows[job].state for job in others} == {State.SUCCEEDED}


@pytest.mark.req("SC-7")
@pytest.mark.parametrize(("url", "kind"), [("sqlite", "hold"), ("postgres", "poison")], indirect=["url"])
def test_a_job_that_must_not_run_twice_is_not_run_again(app: App, crew: Crew, folder: Path, kind: str) -> None:
    """At most once: no retries, no crashes. After a crash it is visibly dead, and a person decides."""
    once = put_one(app._store, kind, retry=Retry(max_attempts=1, max_crashes=0))
    victim = crew.start_one()
    until(lambda: effects(folder), "it has begun")
    if kind == "hold":
        victim.kill()
    victim.wait()
    (folder / "go").touch()
    crew.start_one()
    more = put(app._store, *(spec("work", retry=PATIENT) for _ in range(3)))
    all_ended(app, 4)
    picture = check(app._store.url, [once, *more], folder=folder)
    assert (picture.rows[once].state, runs(folder)[once]) == (State.DEAD_LETTER, 1)
    assert [step.type for step in picture.ledgers[once]] == ["enqueue", "take", "lapse", "bury"]
