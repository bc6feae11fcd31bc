"""Fault 46: whoever sweeps and counts is gone at any moment. What goes has gone whole, and each event counts once."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import App
from tests.faults.crashing import GONE, Point, start
from tests.support.direct_sql import open_by_hand
from tests.support.features import keep, sweep
from tests.support.stores import put, put_one, spec, work

JOBS = 30
POINTS = (
    Point("retention.sweep", "before", 2),
    Point("retention.sweep", "within", 2),
    Point("retention.sweep", "after", 2),
    Point("usage.count", "after", 1),
    Point("retention.sweep", "after", 1),
)


@pytest.mark.req("DP-16", "HK-5", "CX-15")
def test_sweepers_that_die(app: App, folder: Path) -> None:
    store = app._store
    ids = put(store, *(spec(payload={"number": number}, tags=("t",), key=f"k-{number}") for number in range(JOBS)))
    work(store, want=JOBS)
    keep(store, None, "1h")
    store.run(store.clock.set(timedelta(hours=2), None))
    for point in POINTS:
        victim = start(store.url, folder, point, burst=False)
        victim.join(60)
        assert victim.exitcode == GONE, (point, (folder / "crashing.log").read_text())
    put_one(store)  # the newest row of SQLite's ledger has to stay
    store.run(store.clock.set(timedelta(hours=3), None))
    sweep(store)
    store.run(store.audit.seal("tests"))  # a job that is sealed in part is not purged yet
    store.run(store.clock.set(timedelta(hours=4), None))
    sweep(store)
    by_hand = open_by_hand(store.url)
    try:
        found = by_hand.contents()
        purges = repr(found.pop("action"))  # names what it has removed, so that the audit can check it
        assert [table for table, rows in found.items() if any(job_id in repr(rows) for job_id in ids)] == []
        assert [job_id for job_id in ids if job_id not in purges] == []
        assert by_hand.execute("select count(*) from job_tag") == [(0,)]
    finally:
        by_hand.close()
    (used,) = app.usage.list(by=())
    assert (used.enqueued, used.started, used.succeeded) == (JOBS + 1, JOBS, JOBS)
