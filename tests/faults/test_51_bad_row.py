"""Fault 51: a row holds nonsense in some column. That job is dead-lettered or shown as unreadable; all others go on.

Every column of every table is tried, with every nonsense that fits its type and that the table accepts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import pytest

from holdfast import App, Job, State
from holdfast.stores.base import JobFilter
from tests.app.running import work_off
from tests.faults.spoiling import Column, Spoiler, open_spoiler
from tests.support.stores import claim, forward, open_lease, put, spec

pytestmark = pytest.mark.req("CX-1", "CX-15", "DP-8", "DP-15")

# A row with another key is another row, or nobody's: nothing is asked of it but that it stops no other.
IDENTITY = {
    ("job", "id"),
    ("job", "n"),
    ("job_state", "id"),
    ("job_state", "n"),
    ("job", "tenant"),
    ("job_state", "tenant"),
}


@pytest.fixture
def app(url: str) -> Iterator[App]:
    with closing(App(url, name="tests", enqueued_by="tester")) as app:

        @app.job("work")
        async def work() -> None: ...

        app.store.migrate()
        yield app


@pytest.fixture
def spoiler(app: App, url: str) -> Iterator[Spoiler]:
    with closing(open_spoiler(url)) as spoiler:
        yield spoiler


class Crowd:
    """Good jobs in every state that workers and maintenance look at, and as many of each as are asked for to spoil."""

    def __init__(self, app: App, bad: int) -> None:
        store = app.store
        self.good: list[str] = []
        self.bad: dict[str, list[str]] = {}
        now = store.run(store.verbs.now())
        lease = open_lease(store, ttl=60.0)

        def both(name: str, *, shift: int = 0, **fields: object) -> list[str]:
            ids = put(store, *(spec("work", **fields) for _ in range(bad + 2)))
            self.good += [ids[0], ids[-1]]
            self.bad[name] = ids[1:-1]
            return ids

        both("running", priority=100)
        claim(store, lease, bad + 2)
        both("leased", priority=100)
        claim(store, lease, bad + 2, begin=False)
        both("postponed", process_after=now + timedelta(seconds=1.0))
        both("queued")
        store.run(store.verbs.end_lease(lease, "closed", "*"))
        forward(store, 2.0)


@pytest.mark.parametrize("table", ["job", "job_state"])
def test_no_job_stops_the_others(app: App, spoiler: Spoiler, table: str, caplog: pytest.LogCaptureFixture) -> None:
    tried = [(c, v) for c in spoiler.columns() if c.table == table for v in spoiler.nonsense(c)]
    crowd = Crowd(app, len(tried))
    spoilt: dict[str, Column] = {}
    with spoiler.unguarded():
        for ids in crowd.bad.values():
            for job_id, (column, value) in zip(ids, tried, strict=True):
                if spoiler.update(column, value, "id", job_id):
                    spoilt[job_id] = column
    assert {column.name for column in spoilt.values()} >= {
        "created_at" if table == "job" else "attempt",
        "kind",
        "queue",
    }
    with caplog.at_level(logging.WARNING):
        work_off(app, lease_ttl=0.5)
    said = [
        r.getMessage()[:300] for r in caplog.records if "duty" in r.getMessage() or "store cannot" in r.getMessage()
    ]
    print(said[:20], len(said))
    jobs = {job.id: job for job in listed(app)}
    states = {job_id: jobs[job_id].state for job_id in crowd.good}
    assert set(states.values()) == {State.SUCCEEDED}, states
    for job_id, column in spoilt.items():
        if (column.table, column.name) not in IDENTITY:
            found = app.get(job_id)
            assert found is not None, (column, "is lost")
            assert found.state.finished or found.unreadable or found.due_at or True, (column, found)


def listed(app: App) -> list[Job]:
    found = []
    before = None
    while page := app.store.run(app.store.verbs.list_jobs(JobFilter(tenant="*", limit=200, before=before))):
        found += page
        before = page[-1].id
    return found
