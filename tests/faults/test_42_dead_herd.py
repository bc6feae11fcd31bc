"""Fault 42, the end of it: a herd dies at once, and is redriven in bulk while the workers that do it are killed."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import pytest

from holdfast import App, Retry, State
from holdfast.features.dead_letters.model import Operation
from tests.faults.checker import check
from tests.faults.load import load
from tests.faults.waiting import counts
from tests.support.direct_sql import open_by_hand
from tests.support.waiting import until
from tests.support.worker_processes import Crew

pytestmark = pytest.mark.req("DP-15", "CX-15")

SOAK = [pytest.mark.soak, pytest.mark.timeout(900)]


def steps(app: App, event_type: str) -> Counter[str]:
    with closing(open_by_hand(app._store.url)) as by_hand:
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
def test_each_is_redriven_once_whoever_is_killed(app: App, crew: Crew, jobs: int) -> None:
    """Two workers, one after another, are killed in the middle of it; others do what is left. (That a batch is done or
    not done, wherever its worker dies, is fault 3's to show.)"""
    ids = load(app, jobs, kind="herd", retry=Retry(max_attempts=1, max_crashes=100))
    crew.start(2, lease=1.0, concurrency=50, options=("--log-level", "error"))
    until(lambda: counts(app).get(State.DEAD_LETTER, 0) == jobs, "all are dead", 240)
    (group,) = app.dead_letters.groups()
    assert (group.open, group.times) == (jobs, jobs), "many buried at once, and each was counted"
    # So few a second that it takes a while; it is the store that keeps to it, whoever works.
    started = app.dead_letters.redrive(group.fingerprint, rate=jobs / 2.5)

    def now() -> Operation:
        found = app.operations.get(started.id)
        return found

    for share in (0.01, 0.6):
        until(lambda share=share: now().done >= share * jobs, f"{share:.0%} are redriven")  # type: ignore[misc]
        crew.alive[0].kill()
        crew.start(1, lease=1.0, concurrency=50, options=("--log-level", "error"))
    until(lambda: now().over, "the operation is over", 120)
    over = now()
    assert (over.state, over.total, over.done, over.refused) == ("done", jobs, jobs, 0)
    assert steps(app, "redrive") == Counter(ids), "each once"
    until(lambda: counts(app).get(State.DEAD_LETTER, 0) == jobs, "all have died again", 240)
    crew.stop()
    (after,) = app.dead_letters.groups()
    buried = steps(app, "bury").total()
    assert (after.open, after.times) == (jobs, buried)
    check(app._store.url, ids, ended=False)
