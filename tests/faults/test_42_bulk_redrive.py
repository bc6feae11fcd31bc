"""Fault 42: many jobs become dead letters at once and are redriven in bulk while workers are killed."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import pytest

from holdfast import App, Retry, State
from holdfast.app.internals import session_of
from holdfast.features.dead_letters.model import Operation
from tests.faults.checker import check
from tests.faults.workload import enqueue_jobs, state_counts
from tests.support.direct_sql import open_by_hand
from tests.support.waiting import until
from tests.support.worker_processes import Crew

pytestmark = pytest.mark.req("DP-15", "CX-15")

SOAK = [pytest.mark.soak, pytest.mark.timeout(900)]


def events(app: App, event_type: str) -> Counter[str]:
    with closing(open_by_hand(session_of(app).store.url)) as by_hand:
        rows = by_hand.execute("select job_id from event where type = :type", {"type": event_type})
    return Counter(str(row[0]) for row in rows)


@pytest.mark.parametrize(
    ("url", "jobs"),
    [
        ("postgres", 100),
        pytest.param("sqlite", 100, marks=SOAK),
        *(pytest.param(store, 10_000, marks=SOAK) for store in ("sqlite", "postgres")),
    ],
    indirect=["url"],
)
def test_bulk_redrive_changes_each_job_once_despite_kills(app: App, crew: Crew, jobs: int) -> None:
    """Two workers are killed during the operation; others finish it. (Fault 3 shows that a batch is atomic.)"""
    ids = enqueue_jobs(app, jobs, kind="herd", retry=Retry(max_attempts=1, max_crashes=100))
    crew.start(2, lease=1.0, concurrency=50, options=("--log-level", "error"))
    until(lambda: state_counts(app).get(State.DEAD_LETTER, 0) == jobs, "all jobs are dead letters", 240)
    (group,) = app.dead_letters.groups()
    assert (group.open, group.times) == (jobs, jobs), "every dead letter was counted"
    # A low rate makes the operation last; the store enforces it for all workers.
    started = app.dead_letters.redrive(group.fingerprint, rate=jobs / 2.5)

    def now() -> Operation:
        return app.operations.get(started.id)

    for share in (0.01, 0.6):
        until(lambda share=share: now().done >= share * jobs, f"{share:.0%} of the jobs are redriven")  # type: ignore[misc]
        crew.alive[0].kill()
        crew.start(1, lease=1.0, concurrency=50, options=("--log-level", "error"))
    until(lambda: now().over, "the operation is over", 120)
    over = now()
    assert (over.state, over.total, over.done, over.refused) == ("done", jobs, jobs, 0)
    assert events(app, "redrive") == Counter(ids), "each job once"
    until(lambda: state_counts(app).get(State.DEAD_LETTER, 0) == jobs, "all jobs are dead letters again", 240)
    crew.stop()
    (after,) = app.dead_letters.groups()
    dead = events(app, "dead_letter").total()
    assert (after.open, after.times) == (jobs, dead)
    check(session_of(app).store.url, ids, ended=False)
