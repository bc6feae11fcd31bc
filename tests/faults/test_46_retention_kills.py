"""Fault 46: the process that runs retention and usage counting crashes at any point. A purged job leaves no rows, and
each event is counted once."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import App
from holdfast.app.internals import session_of
from tests.faults.crash_points import EXIT_CODE, CrashPoint, start_worker
from tests.support.direct_sql import open_by_hand
from tests.support.features import keep, sweep
from tests.support.stores import put, put_one, spec, work

JOBS = 30
POINTS = (
    CrashPoint("retention.sweep", "before", 2),
    CrashPoint("retention.sweep", "within", 2),
    CrashPoint("retention.sweep", "after", 2),
    CrashPoint("usage.count", "after", 1),
    CrashPoint("retention.sweep", "after", 1),
)


@pytest.mark.req("DP-16", "HK-5", "CX-15")
def test_retention_and_usage_survive_crashes(app: App, folder: Path) -> None:
    store = session_of(app).store
    ids = put(store, *(spec(payload={"number": number}, tags=("t",), key=f"k-{number}") for number in range(JOBS)))
    work(store, want=JOBS)
    keep(store, None, "1h")
    store.run(store.clock.set(timedelta(hours=2), None))
    for point in POINTS:
        victim = start_worker(store.url, folder, point, burst=False)
        victim.join(60)
        assert victim.exitcode == EXIT_CODE, (point, (folder / "worker.log").read_text())
    put_one(store)  # the newest row of SQLite's ledger must stay
    store.run(store.clock.set(timedelta(hours=3), None))
    sweep(store)
    store.run(store.audit.seal("tests"))  # a partly sealed job is not purged
    store.run(store.clock.set(timedelta(hours=4), None))
    sweep(store)
    by_hand = open_by_hand(store.url)
    try:
        contents = by_hand.contents()
        purges = repr(contents.pop("action"))  # names the purged jobs for the audit
        assert [table for table, rows in contents.items() if any(job_id in repr(rows) for job_id in ids)] == []
        assert [job_id for job_id in ids if job_id not in purges] == []
        assert by_hand.execute("select count(*) from job_tag") == [(0,)]
    finally:
        by_hand.close()
    (used,) = app.usage.list(by=())
    assert (used.enqueued, used.started, used.succeeded) == (JOBS + 1, JOBS, JOBS)
