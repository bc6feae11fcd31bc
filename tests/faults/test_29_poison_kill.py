"""Fault 29: a job that kills its worker every time becomes a dead letter at its crash limit; other jobs continue.

The test restarts the workers, as an init system would.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from holdfast import App, Retry, State
from holdfast.app.internals import session_of
from tests.faults.checker import RECOVERY_LIMIT, check
from tests.faults.effects import effects, runs
from tests.faults.workload import PATIENT, states, wait_for_all
from tests.support.stores import put, put_one, spec
from tests.support.waiting import until
from tests.support.worker_processes import Crew

pytestmark = pytest.mark.req("CX-10", "CX-15", "DP-8", "DP-15")


def restart_until_dead(app: App, crew: Crew, poison: list[str], workers: int) -> int:
    """Replace each dead worker until the poison job is a dead letter; returns how many workers died."""
    died = 0

    def dead() -> bool:
        nonlocal died
        missing = workers - len(crew.alive)
        died += missing
        crew.start(missing)
        return set(states(app, poison)) == {State.DEAD_LETTER}

    until(dead, "the poison job is a dead letter", 60)
    return died


@pytest.mark.slow
@pytest.mark.parametrize(("url", "how"), [("sqlite", "kill"), ("postgres", "segfault")], indirect=["url"])
def test_job_that_kills_workers_is_dead_lettered(app: App, crew: Crew, folder: Path, how: str) -> None:
    poison = [
        put_one(session_of(app).store, "poison", payload={"how": how}, retry=Retry(max_attempts=5, max_crashes=1))
    ]
    others = put(session_of(app).store, *(spec("work", payload={"nap": 0.01}, retry=PATIENT) for _ in range(40)))
    crew.start(2)
    died = restart_until_dead(app, crew, poison, workers=2)
    wait_for_all(app, 41)
    snapshot = check(session_of(app).store.url, [*poison, *others], folder=folder, within=RECOVERY_LIMIT)
    job = app.jobs.get(poison[0])
    assert (job.crashes, job.retries, job.attempt, job.error_code) == (2, 0, 2, "worker_lost")
    assert runs(folder)[poison[0]] == died == 2
    ends = {member.process.returncode for member in crew.members if not member.alive}
    assert ends == {-signal.SIGKILL if how == "kill" else -signal.SIGSEGV}
    assert {snapshot.rows[job].state for job in others} == {State.SUCCEEDED}


@pytest.mark.req("SC-7")
@pytest.mark.parametrize(("url", "kind"), [("sqlite", "hold"), ("postgres", "poison")], indirect=["url"])
def test_at_most_once_job_is_not_repeated_after_crash(app: App, crew: Crew, folder: Path, kind: str) -> None:
    """With no retries and no crashes allowed, a crash makes a dead letter, and a person decides."""
    once = put_one(session_of(app).store, kind, retry=Retry(max_attempts=1, max_crashes=0))
    victim = crew.start_one()
    until(lambda: effects(folder), "the job runs")
    if kind == "hold":
        victim.kill()
    victim.wait()
    (folder / "go").touch()
    crew.start_one()
    more = put(session_of(app).store, *(spec("work", retry=PATIENT) for _ in range(3)))
    wait_for_all(app, 4)
    snapshot = check(session_of(app).store.url, [once, *more], folder=folder)
    assert (snapshot.rows[once].state, runs(folder)[once]) == (State.DEAD_LETTER, 1)
    assert [event.type for event in snapshot.ledgers[once]] == ["enqueue", "take", "lease_expired", "dead_letter"]
