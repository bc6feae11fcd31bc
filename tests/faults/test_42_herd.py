"""Fault 42: thousands of jobs fail in the same moment: their retries are spread and do not return together."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest

from holdfast import App, Backoff, Retry, State
from tests.faults.checker import check
from tests.faults.load import load
from tests.faults.waiting import counts
from tests.support.direct_sql import open_by_hand
from tests.support.waiting import until
from tests.support.worker_processes import Crew

pytestmark = pytest.mark.req("CX-9", "CX-15")

SPAN = 1000.0
BINS = 20


def delays(app: App) -> list[float]:
    """From each failure to the time its retry is due, as the ledger has it."""
    with closing(open_by_hand(app._store.url)) as by_hand:
        seconds = "at / 1e6" if by_hand.name == "sqlite" else "extract(epoch from at)::float8"
        # Of the first failure: who draws next to nothing is back, and fails again, before the others are through.
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
def test_retries_are_spread(app: App, crew: Crew, folder: Path, jobs: int) -> None:
    """Each delay is drawn evenly from the whole span, so every twentieth of it has about a twentieth of the jobs."""
    policy = Retry(max_attempts=3, max_crashes=100, backoff=Backoff(base=SPAN, factor=2.0, cap=SPAN))
    ids = load(app, jobs, kind="herd", retry=policy)
    crew.start(2, lease=5.0, concurrency=50, options=("--log-level", "error"))
    until(lambda: len(delays(app)) == jobs, "all have failed", 240)
    found = delays(app)
    # The delay counts from when a batch is settled, and the ledger is written at the end of it: a moment later.
    assert min(found) > -1
    assert max(found) <= SPAN + 1
    share = Counter(min(BINS - 1, int(each / SPAN * BINS)) for each in found)
    expected = jobs / BINS
    assert len(share) == BINS
    # Five standard deviations either way.
    assert all(abs(count - expected) < 5 * expected**0.5 for count in share.values()), sorted(share.items())
    # The server is well: what comes behind them is done at once.
    ids += load(app, 20)
    until(lambda: counts(app).get(State.SUCCEEDED, 0) == 20, "the next jobs are done")
    check(app._store.url, ids, ended=False)
