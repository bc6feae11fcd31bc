"""The database load of an idle worker, and that the worker still finds its maintenance work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from holdfast import App
from holdfast.features.dead_letters.model import NewOperation
from holdfast.features.limits.model import Rule
from holdfast.features.postgres import PostgresStore
from holdfast.features.workflows.model import CallbackSpec
from holdfast.stores.due import KNOWN, DueWork
from holdfast.stores.flow import Flow
from holdfast.stores.postgres import pools
from holdfast.stores.requests import JobFilter
from holdfast.worker.worker import SAFETY_POLL, WorkerOptions
from tests.support import schedules
from tests.support.features import keep, subscribe
from tests.support.steps import asking
from tests.support.stores import TENANT, forward, new_id, put, put_one, spec
from tests.support.waiting import until
from tests.support.workers import working
from tests.support.workflows import Flow as Planned

pytestmark = pytest.mark.req("SC-13", "JF-3")

MEASURED = 4.0
CONNECTIONS = "select count(*) - 1 from pg_stat_activity where datname = current_database()"


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(postgres_url)) as opened:
        yield opened


def due_work(store: PostgresStore, lease: str | None = None, tenant: str = "*") -> DueWork:
    async def once() -> DueWork | None:
        try:
            return await store.due_work(lease, tenant)
        finally:
            await store.leave_loop()

    due = asyncio.run(once())
    assert due is not None
    return due


# -- load ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_idle_worker_makes_few_transactions_over_three_connections(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transactions are counted where they begin: the server reports up to ten seconds late."""
    monkeypatch.setattr(pools, "KEPT_FOR", 0.3)
    monkeypatch.setattr(pools, "MAX_IDLE", 0.3)  # connections from the start are closed when unused
    default = WorkerOptions()
    options = {name: getattr(default, name) for name in ("lease_ttl", "poll", "promote_every", "sweep_every")}
    started: list[float] = []
    arun, run = PostgresStore.arun, PostgresStore.run

    async def counted(store: PostgresStore, flow: Flow[Any]) -> Any:
        started.append(time.monotonic())
        return await arun(store, flow)

    def counted_too(store: PostgresStore, flow: Flow[Any]) -> Any:
        started.append(time.monotonic())
        return run(store, flow)

    monkeypatch.setattr(PostgresStore, "arun", counted)
    monkeypatch.setattr(PostgresStore, "run", counted_too)
    with (
        psycopg.connect(postgres_url, autocommit=True) as connection,
        closing(App(postgres_url)) as app,
        working(app, **options) as background,
    ):
        worker = background.worker
        assert worker is not None

        def connections() -> int:
            row = connection.execute(CONNECTIONS).fetchone()
            assert row is not None
            return int(row[0])

        until(lambda: worker._poll_interval() == SAFETY_POLL, "the worker has done its first maintenance")
        until(lambda: connections() == 3, "the worker is idle")
        since = time.monotonic()
        time.sleep(MEASURED)
        until(lambda: connections() <= 3, "the worker is still idle")
        passed = time.monotonic() - since
        rate = sum(since <= each <= since + passed for each in started) / passed
    assert rate <= 3.0


# -- due work -----------------------------------------------------------------------------------------------------


def _operation(store: PostgresStore) -> None:
    wanted = JobFilter(tenant=TENANT)
    store.run(store.operations.start(NewOperation(new_id(), "redrive", None, None, 10), wanted, "ada", TENANT))


def _orphaned_file(store: PostgresStore) -> None:
    job = new_id()
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(
            "insert into holdfast.leftover (tenant, ref, job_id, at, again_at) values (%s, %s, %s, now(), now())",
            (TENANT, f"artifact://x/{job}/y", job),
        )


def _overdue(store: PostgresStore) -> None:
    put(store, spec(deadline_at=store.run(store.clock.now()) + timedelta(seconds=30)))


def _callback(store: PostgresStore) -> None:
    flow = Planned(store, {"a": ""}, callbacks=(CallbackSpec(spec("tell"), "success", None),))
    flow.start()
    flow.run("a")


WORK: dict[str, Callable[[PostgresStore], object]] = {
    "promote": lambda store: put_one(store, delay=30.0),
    "expire": _overdue,
    "reap": lambda store: store.run(store.leases.open("worker", 30.0, "*")),
    "approvals": lambda store: asking(store, expires_in=30.0),
    "schedules": lambda store: schedules.add(store),
    "limits": lambda store: store.run(store.limits.set(Rule("queue", "default", 1), "ada", TENANT)),
    "aging": lambda store: store.run(store.queues.set_aging("default", 60.0, 1, 100, "ada", TENANT)),
    "subscriptions": lambda store: subscribe(store, "all", "job.*"),
    "operations": _operation,
    "seal": put_one,
    "retention": lambda store: keep(store, "1d"),
    "leftovers": _orphaned_file,
    "callbacks": _callback,
}


def test_every_maintenance_task_is_covered() -> None:
    assert set(WORK) == KNOWN


@pytest.mark.parametrize("task", sorted(WORK))
def test_due_work_is_found(store: PostgresStore, task: str) -> None:
    store.run(store.retention.sweep())  # a new database is pruned first
    while store.run(store.audit.seal("test")):
        pass
    before = due_work(store)
    assert task not in before.tasks
    WORK[task](store)
    forward(store, 1e8 if task == "schedules" else 60.0)
    assert task in due_work(store).tasks
    # A future time is not due, and the next due time is known.
    if task == "promote":
        put_one(store, delay=12.0)
        store.run(store.leases.promote())
        due = due_work(store)
        assert "promote" not in due.tasks
        assert due.next_in == pytest.approx(12.0, abs=0.1)


def test_worker_started_first_leads(store: PostgresStore) -> None:
    def worker(tenant: str = "*") -> str:
        opened = store.run(store.leases.open("worker", 30.0, tenant, "worker", (), (), 4))
        return opened.id

    assert due_work(store).leads, "without workers, the service leads"
    store.run(store.leases.open("over HTTP", 30.0, "*"))
    assert due_work(store).leads, "a lease over HTTP does no maintenance"
    first, second, third = worker(), worker(), worker()
    assert [due_work(store, lease).leads for lease in (first, second, third, None)] == [True, False, False, False]
    assert due_work(store, worker("acme"), "acme").leads
    store.run(store.leases.end(first, "closed", "*"))
    assert [due_work(store, lease).leads for lease in (second, third)] == [True, False]
    forward(store, 31.0)
    assert due_work(store, third).leads, "the other leases have lapsed"


# -- notifications ------------------------------------------------------------------------------------------------


def test_worker_polls_rarely_only_while_notifications_arrive(postgres_url: str) -> None:
    with closing(App(postgres_url)) as app, working(app) as background:
        worker = background.worker
        assert worker is not None
        until(lambda: worker._poll_interval() == SAFETY_POLL, "the worker listens and polls rarely")
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(f'alter database "{connection.info.dbname}" set holdfast.notify = off')
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
        until(
            lambda: worker._poll_interval() == worker.options.poll,
            "without notifications it polls at the configured interval",
        )


@pytest.mark.slow
def test_poll_that_finds_jobs_shortens_the_interval(postgres_url: str) -> None:
    """Notifications may be off for a single producer: then only a poll finds its jobs."""
    with closing(App(postgres_url)) as app:

        @app.job()
        async def task() -> None: ...

        with working(app) as background:
            worker = background.worker
            assert worker is not None
            until(lambda: worker._poll_interval() == SAFETY_POLL, "the worker listens and polls rarely")
            with psycopg.connect(postgres_url, autocommit=True) as connection:
                connection.execute("set holdfast.notify = off")
                connection.execute("select holdfast.enqueue('task')")
            until(lambda: worker.taken == 1, "the next poll finds the job")
            assert worker._poll_interval() == worker.options.poll
