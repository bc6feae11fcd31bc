"""The check of the demo: it passes a correct database and reports what is wrong with any other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from holdfast.cli.demo_workers import ALWAYS_FAILS, Reading, Verdict, check
from holdfast.engine.job import Event, Job
from holdfast.engine.states import TRANSITIONS, State

pytestmark = pytest.mark.req("CX-15", "CX-4")

NOON = datetime(2027, 1, 31, 12, tzinfo=UTC)
TO = {(step.source, step.type.value): step.target for step in TRANSITIONS}

# One that succeeds, one whose worker was killed, one that failed once, and one that always fails.
HISTORIES = {
    "quick": "enqueue take succeed",
    "rescued": "enqueue take lease_expired retry due take succeed",
    "flaky": "enqueue take fail retry due take succeed",
    ALWAYS_FAILS: "enqueue take fail dead_letter",
}


def job(kind: str, state: State, attempt: int) -> Job:
    given = {"id": kind, "kind": kind, "state": state, "attempt": attempt, "tags": ()}
    return Job(**{field.name: given.get(field.name) for field in dataclasses.fields(Job)})  # type: ignore[arg-type]


def sound() -> tuple[dict[str, Job], list[Event]]:
    jobs: dict[str, Job] = {}
    events: list[Event] = []
    for kind, history in HISTORIES.items():
        state: State | None = None
        attempt = 0
        for event_type in history.split():
            target = TO[state, event_type]
            attempt += event_type == "take"
            events.append(Event(len(events) + 1, kind, "demo", kind, event_type, state, target, attempt, NOON, "w", {}))
            state = target
        assert state is not None
        jobs[kind] = job(kind, state, attempt)
    return jobs, events


def checked(jobs: dict[str, Job], events: list[Event]) -> Verdict:
    return check(list(HISTORIES), 1, Reading(jobs, events))


def without(event_type: str, job_id: str) -> Verdict:
    jobs, events = sound()
    kept = [event for event in events if (event.type, event.job_id) != (event_type, job_id)]
    assert len(kept) < len(events)
    return checked(jobs, kept)


def test_correct_database_passes() -> None:
    verdict = checked(*sound())
    assert verdict.ok, verdict.problems
    assert (verdict.accepted, verdict.succeeded, verdict.dead_letter) == (4, 3, 1)
    assert (verdict.retried, verdict.recovered) == (1, 1)
    assert (verdict.lost, verdict.run_twice, verdict.illegal, verdict.ledger_ok) == (0, 0, 0, True)


@pytest.mark.parametrize(
    ("event_type", "job_id"), [("take", "quick"), ("enqueue", "quick"), ("succeed", "quick"), ("due", "flaky")]
)
def test_missing_event_is_reported(event_type: str, job_id: str) -> None:
    verdict = without(event_type, job_id)
    assert not verdict.ok
    assert not verdict.ledger_ok
    assert any(job_id in problem for problem in verdict.problems)


def test_missing_ledger_is_reported() -> None:
    jobs, events = sound()
    verdict = checked(jobs, [event for event in events if event.job_id != "quick"])
    assert not verdict.ledger_ok
    assert "the ledger is empty" in verdict.problems[0]


def test_missing_job_counts_as_lost() -> None:
    jobs, events = sound()
    del jobs["quick"]
    verdict = checked(jobs, events)
    assert (verdict.lost, verdict.ledger_ok) == (1, False)
    assert any("accepted but not finished: quick" in problem for problem in verdict.problems)


def changed(change: Callable[[dict[str, Job], list[Event]], None]) -> Verdict:
    jobs, events = sound()
    change(jobs, events)
    return checked(jobs, events)


def test_unfinished_job_counts_as_lost() -> None:
    def change(jobs: dict[str, Job], events: list[Event]) -> None:
        jobs["quick"] = job("quick", State.IN_PROGRESS, 1)
        events[:] = [event for event in events if (event.type, event.job_id) != ("succeed", "quick")]

    verdict = changed(change)
    assert (verdict.ok, verdict.lost, verdict.ledger_ok) == (False, 1, True)


def test_job_that_succeeded_twice_is_reported() -> None:
    verdict = changed(lambda _, events: events.append(events[2]))
    assert (verdict.ok, verdict.run_twice, verdict.ledger_ok) == (False, 1, False)


def test_illegal_transition_is_reported() -> None:
    def change(jobs: dict[str, Job], events: list[Event]) -> None:
        events[1] = dataclasses.replace(events[1], type="succeed", to_state=State.SUCCEEDED)

    verdict = changed(change)
    assert (verdict.ok, verdict.illegal, verdict.ledger_ok) == (False, 1, False)


def test_state_that_contradicts_the_ledger_is_reported() -> None:
    verdict = changed(lambda jobs, _: jobs.update(quick=job("quick", State.CANCELLED, 1)))
    assert not verdict.ledger_ok
    assert any("the ledger ends in succeeded, the job is cancelled" in problem for problem in verdict.problems)


def test_wrong_attempt_count_is_reported() -> None:
    assert not changed(lambda jobs, _: jobs.update(quick=job("quick", State.SUCCEEDED, 2))).ledger_ok


def test_unexpected_dead_letter_is_reported() -> None:
    def change(jobs: dict[str, Job], events: list[Event]) -> None:
        jobs["quick"] = dataclasses.replace(jobs[ALWAYS_FAILS], id="quick", kind="quick")

    verdict = changed(change)
    assert verdict.dead_letter == 2
    assert any("dead letters other than the 1 designed: quick" in problem for problem in verdict.problems)


def test_missing_recovery_after_the_kill_is_reported() -> None:
    jobs, events = sound()
    del jobs["rescued"]
    left = [event for event in events if event.job_id != "rescued"]
    verdict = check([name for name in HISTORIES if name != "rescued"], 1, Reading(jobs, left))
    assert verdict.problems == ("no job was recovered after the kill",)


def test_unknown_job_is_reported() -> None:
    jobs, events = sound()
    verdict = check([name for name in HISTORIES if name != "quick"], 1, Reading(jobs, events))
    assert any("in the database but never accepted: quick" in problem for problem in verdict.problems)
