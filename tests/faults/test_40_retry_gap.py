"""Fault 40: the worker process exits around the write that turns a failure into a retry: exactly one retry.

In Holdfast the failure and its retry are one transaction, so there is no gap. These tests crash before and after it,
and within it where the store's transaction has several statements.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from holdfast import App, Backoff, Retry, State
from holdfast.app.internals import session_of
from tests.faults.checker import RECOVERY_LIMIT, check
from tests.faults.crash_points import EXIT_CODE, CrashPoint, When, recorded_operations, start_worker
from tests.faults.effects import runs
from tests.faults.workload import wait_for_all
from tests.support.stores import put_one
from tests.support.waiting import until

pytestmark = pytest.mark.req("SC-12", "CX-9", "CX-15")

THREE = Retry(max_attempts=3, max_crashes=100, backoff=Backoff(base=0.02, factor=1.0, cap=0.02, jitter=False))
# Long enough that a successor does not become due, and is claimed, before the exchange that creates it has ended.
SLOWLY = Retry(max_attempts=3, max_crashes=100, backoff=Backoff(base=0.6, factor=1.0, cap=0.6, jitter=False))


@pytest.mark.parametrize("when", ["before", "within", "after"])
def test_failure_has_one_retry_despite_crash(app: App, folder: Path, when: When) -> None:
    """A job that always fails has three attempts, wherever the first failure crashes."""
    if when == "within" and not session_of(app).store.embedded:
        pytest.skip("one statement, committed by the server: it has no inside")
    job = put_one(session_of(app).store, "fail", payload={"text": "no"}, retry=THREE)
    victim = start_worker(session_of(app).store.url, folder, CrashPoint("settling", when), burst=True, lease_ttl=1.5)
    victim.join(60)
    assert victim.exitcode == EXIT_CODE, f"no worker has settled: {recorded_operations(folder)}"
    rescuer = start_worker(
        session_of(app).store.url, folder, burst=False, lease_ttl=30.0
    )  # it is not the one to lose anything
    try:
        wait_for_all(app, 1)
    finally:
        rescuer.kill()
        rescuer.join(10)
    snapshot = check(session_of(app).store.url, [job], within=RECOVERY_LIMIT)
    steps = Counter(event.type for event in snapshot.ledgers[job])
    lost = 0 if when == "after" else 1
    assert steps["lease_expired"] == lost, "a crash does not count as a failure"
    assert (steps["fail"], steps["dead_letter"]) == (3, 1)
    assert steps["retry"] == 2 + lost
    assert snapshot.rows[job].state is State.DEAD_LETTER
    ended = app.jobs.get(job)
    assert (ended.retries, ended.crashes, ended.attempt) == (2, lost, 3 + lost)
    assert not runs(folder), "this handler records no effects"


@pytest.mark.slow
@pytest.mark.req("SC-6")
@pytest.mark.parametrize("when", ["before", "within", "after"])
def test_failure_has_one_successor_despite_crash(app: App, folder: Path, when: When) -> None:
    """The same with retries as new jobs; the crash also creates one."""
    if when == "within" and not session_of(app).store.embedded:
        pytest.skip("one statement, committed by the server: it has no inside")
    job = put_one(session_of(app).store, "fail", payload={"text": "no"}, retry=SLOWLY, retry_as="new_job")
    victim = start_worker(session_of(app).store.url, folder, CrashPoint("settling", when), burst=True, lease_ttl=1.5)
    victim.join(60)
    assert victim.exitcode == EXIT_CODE, f"no worker has settled: {recorded_operations(folder)}"
    lost = 0 if when == "after" else 1
    rescuer = start_worker(
        session_of(app).store.url, folder, burst=False, lease_ttl=30.0
    )  # it is not the one to lose anything
    try:
        until(lambda: app.jobs.chain(job)[-1].state is State.DEAD_LETTER, "the last job is dead")
    finally:
        rescuer.kill()
        rescuer.join(10)
    tries = app.jobs.chain(job)
    snapshot = check(session_of(app).store.url, [each.id for each in tries], within=RECOVERY_LIMIT)
    steps = Counter(event.type for ledger in snapshot.ledgers.values() for event in ledger)
    assert (steps["lease_expired"], steps["fail"], steps["dead_letter"], steps["retry"]) == (lost, 3, 1, 0)
    assert len(tries) == 3 + lost
    assert [each.attempt for each in tries] == [1] * len(tries), "each ran once"
    assert [each.state for each in tries] == [*[State.FAILED] * (2 + lost), State.DEAD_LETTER]
    assert (tries[-1].retries, tries[-1].crashes) == (2, lost)
