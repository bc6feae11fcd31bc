"""Fault 51: a row holds nonsense in some column. That job is dead-lettered or shown as unreadable; all others go on.

Every column of every table is tried, with every nonsense that fits its type and that the table accepts. The columns
come from the catalogue of each store, so one that is added later is tried as well.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from itertools import groupby

import pytest

from holdfast import App, Context, HoldfastError, Job, State
from holdfast.stores.requests import JobFilter
from tests.faults.scenery import furnish, reads
from tests.faults.spoiling import Column, Spoiler, open_spoiler, spoil
from tests.support.stores import claim, forward, open_lease, put, spec
from tests.support.workers import work_off

pytestmark = pytest.mark.req("CX-1", "CX-15", "DP-8", "DP-15")

# A row with another key is another row, or nobody's: nothing is asked of it but that it stops no other.
IDENTITY = {"id", "n", "tenant"}
# It is for whoever asks for that kind or queue, is held by whoever has that lease, or is due never.
ELSEWHERE = {"kind", "queue", "state", "lease", "due_at", "executor"}
# The engine's own registers, one row each: what time it is, what is switched on. There is no other row to go on with.
REGISTERS = {"clock", "dispatch", "migration", "upkeep", "usage_place", "round", "moved", "ready"}
# Have a test of their own below.
JOBS = {"job", "job_state"}


@pytest.fixture
def app(url: str) -> Iterator[App]:
    with closing(App(url, name="tests", enqueued_by="tester")) as app:

        @app.job("work")
        async def work() -> None: ...

        app._store.migrate()
        yield app


@pytest.fixture
def spoiler(app: App, url: str) -> Iterator[Spoiler]:
    with closing(open_spoiler(url)) as spoiler:
        yield spoiler


class Crowd:
    """Good jobs in every state that workers and maintenance look at, and between them as many as are to be spoilt."""

    def __init__(self, app: App, bad: int) -> None:
        self._app = app
        self.good: list[str] = []
        self.bad: list[list[str]] = []
        store = app._store
        lease = open_lease(store, ttl=60.0)
        later = store.run(store.clock.now()) + timedelta(seconds=1.0)
        self._add(bad, priority=100)
        claim(store, lease, bad + 2)
        self._add(bad, priority=100)
        claim(store, lease, bad + 2, begin=False)
        self._add(bad, run_at=later)
        self._add(bad)
        store.run(store.leases.end(lease, "closed", "*"))
        forward(store, 2.0)

    def _add(self, bad: int, **fields: object) -> None:
        first, *between, last = put(self._app._store, *(spec("work", **fields) for _ in range(bad + 2)))
        self.good += [first, last]
        self.bad.append(between)


@pytest.mark.parametrize("table", sorted(JOBS))
def test_no_job_stops_the_others(app: App, spoiler: Spoiler, table: str) -> None:
    tried = [(c, v) for c in spoiler.columns() if c.table == table for v in spoiler.nonsense(c)]
    crowd = Crowd(app, len(tried))
    spoilt: dict[str, Column] = {}
    with spoiler.unguarded():
        for ids in crowd.bad:
            for job_id, (column, value) in zip(ids, tried, strict=True):
                if spoiler.update(column, value, "id", job_id):
                    spoilt[job_id] = column
    assert len({column.name for column in spoilt.values()}) > 20
    work_off(app, lease_ttl=60.0)
    jobs = {job.id: job for job in listed(app)}
    assert {jobs[job_id].state for job_id in crowd.good} == {State.SUCCEEDED}
    for job_id, column in spoilt.items():
        if column.name not in IDENTITY:
            found = app.jobs.get(job_id)
            assert found is not None, (column, "is lost")
            ended = found.state.finished or found.unreadable or found.due_at is not None
            assert ended or column.name in ELSEWHERE, (column, found.state)


NESTED = "[" * 500 + "]" * 500
UNREADABLE = {
    "sqlite": {"payload": NESTED, "tags": "[null]", "backoff": "{"},
    "postgres": {"payload": NESTED, "tags": "{NULL}", "backoff": "7"},
}


@pytest.mark.parametrize("by", ["worker", "tick"])
def test_a_job_that_cannot_be_read_becomes_a_dead_letter_with_the_reason(
    app: App, spoiler: Spoiler, url: str, by: str
) -> None:
    ran: list[str] = []

    @app.job("told")
    async def told(ctx: Context) -> None:
        ran.append(ctx.job_id)

    bad = {column: app.enqueue("told") for column in UNREADABLE["sqlite"]}
    good = app.enqueue("told")
    columns = {column.name: column for column in spoiler.columns() if column.table == "job"}
    with spoiler.unguarded():
        for name, value in UNREADABLE["sqlite" if url.startswith("sqlite") else "postgres"].items():
            assert spoiler.update(columns[name], value, "id", bad[name].id)
    if by == "worker":
        work_off(app)
    else:
        app.tick()
    assert ran == [good.id], "no handler is called with what was not read"
    for name, handle in bad.items():
        job = handle.get()
        code = "payload_too_deep" if name == "payload" else "unreadable_job"
        assert (job.state, job.error_code) == (State.DEAD_LETTER, code), name
        assert job.error_message


def listed(app: App) -> list[Job]:
    found: list[Job] = []
    before = None
    while page := app._store.run(app._store.jobs.list(JobFilter(tenant="*", limit=200, before=before))):
        found += page
        before = page[-1].id
    return found


@pytest.mark.slow
def test_no_other_row_stops_anything(app: App, spoiler: Spoiler, caplog: pytest.LogCaptureFixture) -> None:
    furnish(app)
    tables = {name: list(columns) for name, columns in groupby(spoiler.columns(), lambda column: column.table)}
    spoilt: dict[str, set[str]] = {}
    with spoiler.unguarded():
        for table, columns in tables.items():
            if table not in REGISTERS | JOBS:
                spoilt[table] = spoil(spoiler, table, columns)
    assert sum(map(len, spoilt.values())) > 150, spoilt
    failed = []
    for name, flow in reads(app, {table: spoiler.rows(table) for table in spoilt}):
        try:
            app._store.run(flow)
        except HoldfastError as error:
            if error.code != "not_found":
                failed.append(f"{name}: {error}")
        except Exception as error:
            failed.append(f"{name}: {error!r}")
    assert failed == []
    good = put(app._store, *(spec("work") for _ in range(5)))
    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        work_off(app, lease_ttl=60.0)
    assert {app.jobs.handle(job_id).state() for job_id in good} == {State.SUCCEEDED}
    # A subscription whose own row is bad fails alone and is logged by name. No maintenance task may fail as a whole.
    logged = [record.getMessage()[:200] for record in caplog.records]
    assert [line for line in logged if line.startswith("Maintenance")] == []
