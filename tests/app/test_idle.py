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
from holdfast.engine.outcome import Failed, Held
from holdfast.engine.settlement import decide
from holdfast.features.dead_letters.model import NewOperation
from holdfast.features.limits.model import Rule
from holdfast.features.payloads.model import RuleDraft
from holdfast.features.postgres import PostgresStore
from holdfast.features.workflows.model import CallbackSpec
from holdfast.stores.flow import Flow
from holdfast.stores.postgres import pools
from holdfast.stores.requests import KNOWN_TASKS, DueWork, JobFilter
from holdfast.worker import lease, maintenance
from holdfast.worker.maintenance import SAFETY_POLL
from holdfast.worker.options import WorkerOptions
from holdfast.worker.worker import Worker
from tests.faults.crash_points import operations_of
from tests.support import schedules
from tests.support.features import keep, subscribe
from tests.support.steps import asking, running
from tests.support.stores import TENANT, apply, forward, new_id, put, put_one, spec
from tests.support.waiting import until
from tests.support.workers import working
from tests.support.workflows import Flow as Planned

pytestmark = pytest.mark.req("SC-13", "JF-3")

MEASURED = 7.0
PACES = {"promote_every": 0.5, "sweep_every": 5.0}
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
def test_idle_worker_makes_few_transactions_over_two_connections(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transactions are counted where they begin: the server reports up to ten seconds late."""
    monkeypatch.setattr(pools, "KEPT_FOR", 0.3)
    monkeypatch.setattr(pools, "MAX_IDLE", 0.3)  # connections from the start are closed when unused
    default = WorkerOptions()
    options = {name: getattr(default, name) for name in ("lease_ttl", "poll", "promote_every", "sweep_every")}
    monkeypatch.setattr(maintenance, "FORCED_EVERY", 1e6)  # after those of the start
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

        until(lambda: rests(worker), "the worker has done its first maintenance")
        until(lambda: connections() == 2, "the worker is idle")
        since = time.monotonic()
        time.sleep(MEASURED)
        found = sum(since <= each <= since + MEASURED for each in started)
        until(lambda: connections() <= 2, "the worker is still idle")
    assert found <= 2, "a query every five seconds"


def rests(worker: Worker) -> bool:
    """Whether the worker queries rarely, because it is told of new work."""
    maintenance = worker._maintenance
    return maintenance is not None and maintenance.awaits and worker.store.listening


# -- rest ---------------------------------------------------------------------------------------------------------


def _short_lease(store: PostgresStore) -> None:
    store.run(store.leases.open("worker", 1.0, "*"))


def _end_of_lease(store: PostgresStore) -> None:
    store.run(store.leases.end(store.run(store.leases.open("worker", 30.0, "*")).id, "closed", "*"))


def _retry(store: PostgresStore) -> None:
    _, claimed = running(store)
    assert apply(store, claimed.lease, decide(claimed, Failed("broken", "it broke"), 0.0)) == []


TOLD: dict[str, Callable[[PostgresStore], object]] = {
    "delayed job": lambda store: put_one(store, delay=1.0),
    "deadline": lambda store: put(store, spec(deadline_at=store.run(store.clock.now()) + timedelta(seconds=1))),
    "retry": _retry,
    "approval": lambda store: asking(store, expires_in=30.0),
    "callback": lambda store: _callback(store),
    "schedule": lambda store: schedules.add(store),
    "operation": lambda store: _operation(store),
    "subscription": lambda store: subscribe(store, "all", "job.*"),
    "limit": lambda store: store.run(store.limits.set(Rule("queue", "default", 1), "ada", TENANT)),
    "short lease": _short_lease,
    "end of a lease": _end_of_lease,
}


@pytest.mark.parametrize("what", sorted(TOLD))
@pytest.mark.sample(2)
def test_resting_worker_is_told_of_new_work(store: PostgresStore, what: str) -> None:
    """Otherwise it would find it up to five seconds later, and before it did within one."""
    with closing(App(store.url)) as app, working(app, queues=("unused",), **PACES) as background:
        worker = background.worker
        assert worker is not None
        until(lambda: rests(worker), "the worker rests")
        with psycopg.connect(store.url, autocommit=True) as connection:
            until(lambda: connection.execute(AWAITED).fetchone() == (1,), "its listener awaits news")
            upkeep = worker._maintenance
            assert upkeep is not None
            until(lambda: not upkeep._told.is_set(), "it has queried after that")
            told: list[float] = []
            upkeep.told = lambda: told.append(time.monotonic())  # type: ignore[method-assign]
            TOLD[what](store)
            until(lambda: told, "the worker is told")


AWAITED = """
    select count(*)::int from pg_locks
     where locktype = 'advisory' and mode = 'ShareLock' and classid::bigint = hashtext('holdfast')::bigint & 4294967295
       and objid::bigint = hashtext('  upkeep')::bigint & 4294967295
       and database = (select oid from pg_database where datname = current_database())
"""


@pytest.mark.slow
def test_resting_worker_promotes_a_job_in_time(postgres_url: str) -> None:
    ran: list[float] = []
    with closing(App(postgres_url)) as app:

        @app.job()
        async def task() -> None:
            ran.append(time.monotonic())

        with working(app, **PACES) as background:
            worker = background.worker
            assert worker is not None
            until(lambda: rests(worker), "the worker rests")
            for delay in (0.2, 2.0):
                ran.clear()
                began = time.monotonic()
                task.using(delay=delay).enqueue()
                until(lambda: ran, "the job ran")
                assert delay - 0.1 <= ran[0] - began < delay + 1.5


def test_restless_worker_is_not_told(postgres_url: str) -> None:
    """Told twice in ten seconds, it queries at the usual pace and releases the lock: commits do not notify."""
    with (
        closing(PostgresStore(postgres_url)) as store,
        closing(App(postgres_url)) as app,
        working(app, queues=("unused",), **PACES) as background,
        psycopg.connect(postgres_url, autocommit=True) as connection,
    ):
        worker = background.worker
        assert worker is not None
        until(lambda: rests(worker), "the worker rests")

        def restless() -> bool:
            put_one(store, delay=100.0)
            return not rests(worker)

        until(restless, "the worker was told often enough")
        until(lambda: connection.execute(AWAITED).fetchone() == (0,), "its listener awaits no news")


@pytest.mark.slow
def test_flood_of_notifications_causes_few_queries(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    queries: list[float] = []
    query = PostgresStore.due_work

    async def counted(store: PostgresStore, *arguments: Any) -> DueWork | None:
        queries.append(time.monotonic())
        return await query(store, *arguments)

    monkeypatch.setattr(PostgresStore, "due_work", counted)
    with (
        closing(App(postgres_url)) as app,
        working(app, **PACES) as background,
        psycopg.connect(postgres_url, autocommit=True) as connection,
    ):
        worker = background.worker
        assert worker is not None
        until(lambda: rests(worker), "the worker rests")
        queries.clear()
        for _ in range(30):
            connection.execute("select pg_notify('holdfast', '')")
            time.sleep(0.06)
        assert len(queries) <= 6, "two at once, then one a second"


# -- renewal ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_query_renews_the_lease(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread would need a connection of its own. An operator's request to stop arrives with the answer."""
    monkeypatch.setattr(lease, "LONG_LEASE", 6.0)
    monkeypatch.setattr(lease, "LATE", 2.0)
    by_thread: list[Flow[Any]] = []
    run = PostgresStore.run

    def counted(store: PostgresStore, flow: Flow[Any]) -> Any:
        by_thread.extend([flow] if "leases.renew" in operations_of(flow) else [])
        return run(store, flow)

    monkeypatch.setattr(PostgresStore, "run", counted)
    monkeypatch.setattr(maintenance, "SAFETY_POLL", 0.5)
    with (
        closing(App(postgres_url)) as app,
        working(app, lease_ttl=6.0, **PACES) as background,
    ):
        worker = background.worker
        assert worker is not None
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            until(
                lambda: connection.execute("select max(renewals) >= 3 from holdfast.lease").fetchone() == (True,),
                "the lease is renewed",
            )
        assert by_thread == []
        app.workers.drain(worker.name)
        until(lambda: worker._stopping, "the worker was asked to stop")


@pytest.mark.slow
def test_thread_renews_the_lease_if_queries_fail(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "LONG_LEASE", 1.0)

    async def fails(*_: Any) -> None:
        raise RuntimeError("no query")

    monkeypatch.setattr(PostgresStore, "due_work", fails)
    with closing(App(postgres_url)) as app, working(app, lease_ttl=1.5) as background:
        assert background.worker is not None
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            until(
                lambda: connection.execute("select max(renewals) >= 3 from holdfast.lease").fetchone() == (True,),
                "the lease is renewed",
            )
        assert not background.worker._keeper.lost


# -- due work -----------------------------------------------------------------------------------------------------


def _operation(store: PostgresStore) -> None:
    wanted = JobFilter(tenant=TENANT)
    store.run(store.operations.start(NewOperation(new_id(), "redrive", None, None, 10), wanted, "ada", TENANT))


def _orphaned_file(store: PostgresStore) -> None:
    job = new_id()
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(
            "insert into holdfast.orphaned_file (tenant, ref, job_id, at, again_at) values (%s, %s, %s, now(), now())",
            (TENANT, f"artifact://x/{job}/y", job),
        )


def _overdue(store: PostgresStore) -> None:
    put(store, spec(deadline_at=store.run(store.clock.now()) + timedelta(seconds=30)))


def _callback(store: PostgresStore) -> None:
    flow = Planned(store, {"a": ""}, callbacks=(CallbackSpec(spec("tell"), "success", None),))
    flow.start()
    flow.run("a")


def _held(store: PostgresStore) -> None:
    _, claimed = running(store)
    held = Held("steps_changed", "other steps", delay=60.0, since=claimed.created_at.isoformat(), tried=["code"])
    assert apply(store, claimed.lease, decide(claimed, held, 1.0)) == []


WORK: dict[str, Callable[[PostgresStore], object]] = {
    "promote": lambda store: put_one(store, delay=30.0),
    "expire": _overdue,
    "recover": lambda store: store.run(store.leases.open("worker", 30.0, "*")),
    "approvals": lambda store: asking(store, expires_in=30.0),
    "schedules": lambda store: schedules.add(store),
    "limits": lambda store: store.run(store.limits.set(Rule("queue", "default", 1), "ada", TENANT)),
    "aging": lambda store: store.run(store.queues.set_aging("default", 60.0, 1, 100, "ada", TENANT)),
    "subscriptions": lambda store: subscribe(store, "all", "job.*"),
    "operations": _operation,
    "seal": put_one,
    "retention": lambda store: keep(store, "1d"),
    "orphans": _orphaned_file,
    "callbacks": _callback,
    "held": _held,
    "rules": lambda store: store.run(store.payload_rules.set(RuleDraft.of("import", max_bytes=400), "ada", TENANT)),
}


def test_every_maintenance_task_is_covered() -> None:
    assert set(WORK) == KNOWN_TASKS


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
    assert due_work(store, third).leads, "the other leases have expired"


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

            def a_poll_finds_a_job() -> bool:  # it may also be found by a claim that something else has caused
                taken = worker.taken
                with psycopg.connect(postgres_url, autocommit=True) as connection:
                    connection.execute("set holdfast.notify = off")
                    connection.execute("select holdfast.enqueue('task')")
                until(lambda: worker.taken > taken, "the next poll finds the job")
                return worker._poll_interval() == worker.options.poll

            until(a_poll_finds_a_job, "a poll has found a job that was not announced")
