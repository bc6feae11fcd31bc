"""Fault 42: thousands of jobs fail at once: their retries are spread over time."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest

from holdfast import App, Backoff, Retry, State
from holdfast.app.internals import session_of
from tests.faults.checker import check
from tests.faults.workload import enqueue_jobs, state_counts
from tests.support.direct_sql import open_by_hand
from tests.support.waiting import until
from tests.support.worker_processes import Crew

pytestmark = pytest.mark.req("CX-9", "CX-15")

SPAN = 1000.0
BINS = 20


def delays(app: App) -> list[float]:
    """Return the time from each first failure to its due retry, from the ledger."""
    with closing(open_by_hand(session_of(app).store.url)) as by_hand:
        seconds = "at / 1e6" if by_hand.name == "sqlite" else "extract(epoch from at)::float8"
        # Only first failures: a job with a tiny delay fails again before the others have failed once.
        rows = by_hand.execute(f"select {seconds}, meta from event where type = 'retry' and attempt = 1")
    metas = [(at, json.loads(meta) if isinstance(meta, str) else meta) for at, meta in rows]
    return [datetime.fromisoformat(meta["due_at"]).timestamp() - at for at, meta in metas]


@pytest.mark.parametrize(
    "jobs",
    [
        700,
        pytest.param(2_000, marks=pytest.mark.slow),
        pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)
def test_retries_are_spread_evenly(app: App, crew: Crew, folder: Path, jobs: int) -> None:
    """Delays are uniform over the span, so each twentieth of it has about a twentieth of the jobs."""
    policy = Retry(max_attempts=3, max_crashes=100, backoff=Backoff(base=SPAN, factor=2.0, cap=SPAN))
    ids = enqueue_jobs(app, jobs, kind="herd", retry=policy)
    crew.start(2, lease=5.0, concurrency=50, options=("--log-level", "error"))
    until(lambda: len(delays(app)) == jobs, "all jobs have failed", 240)
    values = delays(app)
    # The delay counts from the start of a settlement, and the ledger is written a moment later.
    assert min(values) > -1
    assert max(values) <= SPAN + 1
    share = Counter(min(BINS - 1, int(each / SPAN * BINS)) for each in values)
    expected = jobs / BINS
    assert len(share) == BINS
    # Five standard deviations either way.
    assert all(abs(count - expected) < 5 * expected**0.5 for count in share.values()), sorted(share.items())
    # The next jobs run at once.
    ids += enqueue_jobs(app, 20)
    until(lambda: state_counts(app).get(State.SUCCEEDED, 0) == 20, "the next jobs are done")
    check(session_of(app).store.url, ids, ended=False)
