"""Fault 51: a row has an invalid value in some column. Its job is dead-lettered or shown as unreadable; others run.

Every column of every table gets every invalid value that its type and the table accept. The columns come from the
catalogue of each store, so that new columns are included.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from itertools import groupby

import pytest

from holdfast import App, HoldfastError, Job, State
from holdfast.app.internals import session_of
from holdfast.stores.requests import JobFilter
from tests.faults.bad_rows import Column, RowEditor, fill_every_table, insert_bad_rows, open_editor, reads
from tests.support.stores import claim, forward, open_lease, put, spec
from tests.support.workers import work_off

pytestmark = pytest.mark.req("CX-1", "CX-15", "DP-8", "DP-15")

# A row with another key is another row: it must only not stop others.
IDENTITY = {"id", "n", "tenant"}
# With such a value the job belongs to another kind, queue or lease, or is never due.
NOT_CLAIMABLE = {"kind", "queue", "state", "lease", "due_at", "executor"}
# Internal tables with one row each, such as the clock: there is no other row to continue with.
SINGLE_ROW = {"clock", "dispatch", "migration", "ledger_epoch", "upkeep", "usage_place", "round", "moved", "ready"}
# These tables have a separate test.
JOBS = {"job", "job_state"}


@pytest.fixture
def app(url: str) -> Iterator[App]:
    with closing(App(url, name="tests", enqueued_by="tester")) as app:

        @app.job("work")
        async def work() -> None: ...

        app.migrate()
        yield app


@pytest.fixture
def editor(app: App, url: str) -> Iterator[RowEditor]:
    with closing(open_editor(url)) as editor:
        yield editor


class Jobs:
    """Good jobs in every state that workers and maintenance read, and between them `bad` jobs to be changed."""

    def __init__(self, app: App, bad: int) -> None:
        self._app = app
        self.good: list[str] = []
        self.bad: list[list[str]] = []
        store = session_of(app).store
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
        first, *between, last = put(session_of(self._app).store, *(spec("work", **fields) for _ in range(bad + 2)))
        self.good += [first, last]
        self.bad.append(between)


@pytest.mark.parametrize("table", sorted(JOBS))
def test_bad_job_row_does_not_stop_other_jobs(app: App, editor: RowEditor, table: str) -> None:
    tried = [(c, v) for c in editor.columns() if c.table == table for v in editor.invalid_values(c)]
    created = Jobs(app, len(tried))
    changed: dict[str, Column] = {}
    with editor.unguarded():
        for ids in created.bad:
            for job_id, (column, value) in zip(ids, tried, strict=True):
                if editor.update(column, value, "id", job_id):
                    changed[job_id] = column
    assert len({column.name for column in changed.values()}) > 20
    work_off(app, lease_ttl=60.0)
    jobs = {job.id: job for job in list_all(app)}
    assert {jobs[job_id].state for job_id in created.good} == {State.SUCCEEDED}
    for job_id, column in changed.items():
        if column.name not in IDENTITY:
            job = app.jobs.get(job_id)
            assert job is not None, (column, "is lost")
            ended = job.state.finished or job.unreadable or job.due_at is not None
            assert ended or column.name in NOT_CLAIMABLE, (column, job.state)


def list_all(app: App) -> list[Job]:
    jobs: list[Job] = []
    before = None
    while page := session_of(app).store.run(
        session_of(app).store.jobs.list(JobFilter(tenant="*", limit=200, before=before))
    ):
        jobs += page
        before = page[-1].id
    return jobs


@pytest.mark.slow
def test_bad_row_of_other_tables_stops_nothing(app: App, editor: RowEditor, caplog: pytest.LogCaptureFixture) -> None:
    fill_every_table(app)
    tables = {name: list(columns) for name, columns in groupby(editor.columns(), lambda column: column.table)}
    changed: dict[str, set[str]] = {}
    with editor.unguarded():
        for table, columns in tables.items():
            if table not in SINGLE_ROW | JOBS:
                changed[table] = insert_bad_rows(editor, table, columns)
    assert sum(map(len, changed.values())) > 150, changed
    failed = []
    for name, flow in reads(app, {table: editor.rows(table) for table in changed}):
        try:
            session_of(app).store.run(flow)
        except HoldfastError as error:
            if error.code != "not_found":
                failed.append(f"{name}: {error}")
        except Exception as error:
            failed.append(f"{name}: {error!r}")
    assert failed == []
    good = put(session_of(app).store, *(spec("work") for _ in range(5)))
    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        work_off(app, lease_ttl=60.0)
    assert {app.jobs.handle(job_id).state() for job_id in good} == {State.SUCCEEDED}
    messages = [record.getMessage()[:200] for record in caplog.records]
    failures = [message for message in messages if message.startswith("Maintenance task")]
    assert failures == [], "\n".join(failures)
