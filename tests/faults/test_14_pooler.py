"""Fault 14: everything works the same through a transaction pooler, a real PgBouncer.

Its clients share one or two server connections: session state that one client leaves there (a prepared statement, a
setting, a LISTEN) affects the next, and state that a client expects is gone.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from holdfast import App, Context, State, SyncContext
from holdfast.app.internals import session_of
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.features.assembly import open_store
from holdfast.features.health.commands import level
from holdfast.features.postgres import PostgresStore
from holdfast.stores.flow import Flow, Statement, Steps
from holdfast.stores.postgres import pipeline as between
from holdfast.stores.requests import JobFilter
from tests.faults.checker import check
from tests.faults.workload import AT_ONCE, enqueue_jobs, wait_for_all
from tests.support.ledger import check_ledger
from tests.support.pgbouncer import Pooler
from tests.support.stores import claim, open_lease, put, spec, work
from tests.support.waiting import until
from tests.support.worker_processes import Crew
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("SC-19", "DP-20")

# Longer than any test: with this poll interval nothing happens by polling.
NEVER = 120.0
COUNT = "select count(*) from pg_prepared_statements"


@pytest.fixture(params=[1, 2], ids=["one connection", "two connections"])
def pooled(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[Pooler]:
    with Pooler(postgres_url, "transaction", request.param) as pooler:
        yield pooler


@pytest.fixture
def single(postgres_url: str) -> Iterator[Pooler]:
    """A pooler with one server connection for all clients."""
    with Pooler(postgres_url, "transaction", 1) as pooler:
        yield pooler


def _count() -> Steps[int]:
    rows = yield Statement(COUNT)
    return int(rows[0][0])


PREPARED = Flow(_count, writes=False, single=True)


# -- jobs -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_workers_run_jobs_through_pooler_despite_kill(
    pooled: Pooler, folder: Path, postgres_url: str, choice: random.Random
) -> None:
    """Each worker has several connections and repeats the same statements on all of them."""
    with closing(App(pooled.url(), name="tests", enqueued_by="tester")) as app, Crew(pooled.url(), folder) as crew:
        crew.start(1, options=("--no-notify", "--processes", "2"))
        crew.start(1, options=("--no-notify",))
        ids = [
            job_id
            for kind in ("work", "awork", "save", "walk", "flaky")
            for job_id in enqueue_jobs(app, 10, kind, retry=AT_ONCE)
        ]
        ids += [app.enqueue("work", {"number": n}).id for n in range(20)]
        until(lambda: app.jobs.list(state=State.SUCCEEDED, limit=5), "some jobs have ended")
        crew.members[1].kill()
        crew.start(1, options=("--no-notify",))
        wait_for_all(app, len(ids))
        assert {job.state for job in app.jobs.list(limit=200)} == {State.SUCCEEDED}
        assert not re.search("Database unavailable|exchange with the database failed", crew.said()), crew.said()
    check(postgres_url, ids, folder=folder)


@pytest.mark.slow
def test_first_migration_runs_through_pooler(empty_postgres_url: str) -> None:
    with Pooler(empty_postgres_url) as pooler, closing(open_store(pooler.url())) as store:
        assert store.migrate().current
        assert store.migrate().current
        work(store, want=len(put(store, *(spec() for _ in range(10)))))
        check_ledger(store)


@pytest.mark.slow
async def test_sync_async_and_borrowed_enqueue_through_pooler(pooled: Pooler) -> None:
    with closing(App(pooled.url(), name="tests", enqueued_by="tester")) as app:

        @app.job()
        async def double(n: int) -> int:
            return 2 * n

        handles = [await double.aenqueue(n) for n in range(12)]
        handles += [await asyncio.to_thread(double.enqueue, n) for n in range(12)]
        async with await psycopg.AsyncConnection.connect(pooled.url(), prepare_threshold=None) as theirs:
            for n in range(8):
                handles.append(await double.using(connection=theirs).aenqueue(n))
        await asyncio.to_thread(work_off, app, notify=False)
        expected = [2 * n for n in (*range(12), *range(12), *range(8))]
        assert await asyncio.gather(*(handle.aresult(timeout=30) for handle in handles)) == expected
        await session_of(app).store.leave_loop()


def test_handler_transactions_run_through_pooler(pooled: Pooler) -> None:
    """Each repeats a statement often enough for the driver to prepare it, on a connection shared with other clients."""
    with closing(App(pooled.url(), name="tests", enqueued_by="tester")) as app:
        with psycopg.connect(pooled.url()) as connection:
            connection.execute("create table note (says text)")

        @app.job()
        async def anote(ctx: Context, says: str) -> None:
            async with ctx.transaction() as theirs:
                for _ in range(8):
                    await theirs.execute("insert into note values (%s)", (says,))

        @app.job()
        def note(ctx: SyncContext, says: str) -> None:
            with ctx.transaction() as theirs:
                for _ in range(8):
                    theirs.execute("insert into note values (%s)", (says,))

        for n in range(4):
            anote.enqueue(f"a{n}")
            note.enqueue(f"b{n}")
        work_off(app, notify=False, concurrency=2)
        assert [job.state for job in app.jobs.list()] == [State.SUCCEEDED] * 8
        with psycopg.connect(pooled.url()) as connection:
            rows = connection.execute("select says, count(*) from note group by says order by says").fetchall()
        assert rows == [(f"{letter}{n}", 8) for letter in "ab" for n in range(4)]


# -- session state --------------------------------------------------------------------------------------------


def _session_state(url: str) -> dict[str, Any]:
    """Read the state that the next client finds on the connection."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            "select pg_backend_pid(), coalesce(current_setting('holdfast.tenant', true), ''),"
            " coalesce(current_setting('holdfast.actor', true), ''), current_setting('search_path'),"
            " current_user::text, current_setting('statement_timeout'), array(select pg_listening_channels()),"
            " (select count(*) from pg_prepared_statements), (select count(*) from pg_cursors),"
            " (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()),"
            " pg_my_temp_schema()::text"
        ).fetchone()
        assert row is not None
    names = ("pid", "tenant", "actor", "path", "role", "timeout", "channels", "prepared", "cursors", "locks", "temp")
    return dict(zip(names, row, strict=True))


@pytest.fixture
def plain_role(postgres_url: str) -> Iterator[str]:
    """A login role under row-level security with the rights of workers and producers."""
    name = "holdfast_behind_a_pooler"
    password = sql.Literal(psycopg.conninfo.conninfo_to_dict(postgres_url)["password"])
    granted = ("holdfast_producer", "holdfast_executor")
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(sql.SQL("drop role if exists {}").format(sql.Identifier(name)))
        admin.execute(sql.SQL("create role {} login password {}").format(sql.Identifier(name), password))
        for role in granted:
            admin.execute(sql.SQL("grant {} to {}").format(sql.Identifier(role), sql.Identifier(name)))
        yield name
        admin.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


@pytest.mark.req("JF-1", "JF-2")
def test_tenants_on_one_connection_stay_isolated(postgres_url: str, plain_role: str, choice: random.Random) -> None:
    """Two programs with a tenant each and one without share the same server process."""
    jobs: dict[str, list[str]] = {"acme": [], "umbrella": []}
    with Pooler(postgres_url, "transaction", 1, roles=[plain_role]) as pooler:
        url = pooler.url(plain_role)
        clean = _session_state(url)
        assert (clean["tenant"], clean["actor"], clean["channels"], clean["prepared"]) == ("", "", [], 0)
        with closing(PostgresStore(url)) as one, closing(PostgresStore(url)) as two:
            for _ in range(40):
                (mine, store), (other, _) = choice.sample([("acme", one), ("umbrella", two)], 2)
                match choice.randrange(5):
                    case 0:
                        jobs[mine] += put(store, *(spec() for _ in range(choice.randint(1, 3))), tenant=mine)
                    case 1:
                        with pytest.raises(HoldfastError):
                            store.run(store.jobs.enqueue([spec(), spec(kind=" ")], mine))
                    case 2:
                        work(store, tenant=mine)
                    case 3:
                        with pytest.raises(HoldfastError):
                            claim(store, open_lease(store, tenant=mine), tenant=other)
                    case _:
                        assert all(store.run(store.jobs.get(job_id, mine)) is None for job_id in jobs[other])
                listed = store.run(store.jobs.list(JobFilter(tenant=mine, limit=1000)))
                assert sorted(job.id for job in listed) == sorted(jobs[mine])
                assert _session_state(url) == clean
                with psycopg.connect(url) as unbound:
                    assert unbound.execute("select count(*) from holdfast.job").fetchone() == (0,)
    with closing(open_store(postgres_url)) as direct:
        check_ledger(direct)


@pytest.mark.req("JF-1", "JF-2")
def test_session_settings_of_other_clients_have_no_effect(postgres_url: str, plain_role: str) -> None:
    """Another program with the same role may have left any session settings; the next client gets its own tenant."""
    with Pooler(postgres_url, "transaction", 1, roles=[plain_role]) as pooler:
        url = pooler.url(plain_role)
        with psycopg.connect(url, autocommit=True) as careless:
            careless.execute("set search_path = nowhere")
            careless.execute("set holdfast.tenant = 'acme'")
        with closing(PostgresStore(url)) as store:
            theirs, ours = put(store, spec(), tenant="acme"), put(store, spec(), tenant="umbrella")
            listed = store.run(store.jobs.list(JobFilter(tenant="umbrella", limit=10)))
            assert [job.id for job in listed] == ours
            assert store.run(store.jobs.get(theirs[0], "umbrella")) is None
            assert [job.id for job in work(store, tenant="umbrella", want=5)] == ours
            state = _session_state(url)
            assert (state["tenant"], state["path"]) == ("acme", "nowhere"), "the same server process"


def test_worker_leaves_no_session_state(single: Pooler) -> None:
    clean = _session_state(single.url())
    with closing(App(single.url(), name="tests", enqueued_by="tester")) as app:

        @app.job()
        async def steps(ctx: Context, n: int) -> int:
            return sum([await ctx.step(f"step {i}", int, i) for i in range(n)])

        @app.job()
        async def asks(ctx: Context) -> str | None:
            return (await ctx.approval("pay", summary="Pay?", approvers=["ada"])).by

        app.limits.set(key="narrow", concurrency=1)
        app.schedule("every 1s", kind=steps, name="sums", payload={"n": 2})
        wanted = [steps.using(limit_key="narrow").enqueue(4) for _ in range(6)]
        approved = asks.enqueue()
        with working(app, notify=False):
            assert [handle.result(timeout=30) for handle in wanted] == [6] * 6
            (approval,) = until(lambda: app.approvals.list(), "the job waits for approval")
            app.approvals._decide("approve", approval.id, "ada")
            assert approved.result(timeout=30) == "ada"
            until(
                lambda: len(app.jobs.list(kind="steps", state=State.SUCCEEDED)) > len(wanted), "the schedule has fired"
            )
        assert _session_state(single.url()) == clean
        check_ledger(session_of(app).store)


# -- notifications --------------------------------------------------------------------------------------------


@pytest.mark.req("JF-7", "JF-6")
def test_worker_without_notifications_warns_once_and_polls(
    single: Pooler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(between, "NOTIFIED_WITHIN", 0.3)  # the notification never arrives, so the wait can be short
    clean = _session_state(single.url())
    with closing(App(single.url(), name="tests", enqueued_by="tester")) as app, caplog.at_level(logging.WARNING):

        @app.job()
        async def double(n: int) -> int:
            return 2 * n

        with working(app, poll=0.05):
            until(lambda: "pool_mode = transaction" in caplog.text, "the worker has given up listening")
            assert [double.enqueue(n).result(timeout=30) for n in range(4)] == [0, 2, 4, 6]
        assert caplog.text.count("Notifications are unavailable") == 1, "one warning"
    assert _session_state(single.url()) == clean, "a LISTEN left behind would reveal our queues to other clients"


@pytest.mark.req("JF-7", "JF-6")
def test_session_pooler_delivers_notifications(postgres_url: str, caplog: pytest.LogCaptureFixture) -> None:
    with (
        Pooler(postgres_url, "session", 30) as pooler,
        closing(App(pooler.url(), name="tests", enqueued_by="tester")) as app,
        closing(App(pooler.url(), name="tests", enqueued_by="tester")) as elsewhere,
    ):

        @elsewhere.job()
        async def double(n: int) -> int:
            return 2 * n

        with working(elsewhere, poll=NEVER) as beside:
            until(lambda: beside.worker and beside.worker._asleep, "the worker is idle")
            assert [app.enqueue("double", {"n": n}).result(timeout=30) for n in range(8)] == list(range(0, 16, 2))
        assert "Notifications are unavailable" not in caplog.text


# -- diagnosis ------------------------------------------------------------------------------------------------


@pytest.mark.req("DP-22")
@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_doctor_reports_pooler(postgres_url: str, mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(between, "NOTIFIED_WITHIN", {"transaction": 0.3, "session": 30.0}[mode])
    with closing(open_store(postgres_url)) as store:
        (direct,) = [each for each in store.diagnose() if each.name == "pooler"]
    assert (direct.ok, "none" in direct.says) == (True, True)
    with Pooler(postgres_url, mode, 4) as pooler, closing(open_store(pooler.url())) as store:
        (finding,) = [each for each in store.diagnose() if each.name == "pooler"]
    assert finding.ok == (mode == "session")
    assert finding.ok or (level(finding, strict=False) == "advice" and "--no-notify" in str(finding.fix))


@pytest.mark.req("DP-22")
def test_statement_pooler_is_refused(postgres_url: str) -> None:
    with Pooler(postgres_url, "statement") as pooler, closing(open_store(pooler.url())) as store:
        for call in (store.migrate, lambda: store.run(store.jobs.list(JobFilter(tenant="default")))):
            with pytest.raises(StoreUnavailable, match="pool_mode = transaction") as refused:
                call()
            assert refused.value.code == "statement_pooling"


# -- without a pooler -----------------------------------------------------------------------------------------


@pytest.mark.req("SC-18")
async def test_direct_connection_prepares_frequent_statements(postgres_url: str) -> None:
    """Direct connections do not pay for the support of poolers."""
    with closing(PostgresStore(postgres_url, pool_size=1)) as store:
        for _ in range(8):
            store.run(PREPARED)
            await store.arun(PREPARED)
        assert (store.run(PREPARED), await store.arun(PREPARED)) == (1, 1)
        await store.leave_loop()
        with store.transaction() as lent:
            for _ in range(8):
                lent.execute("select 1")
            assert lent.execute(COUNT).fetchone() == (1,)
        async with store.atransaction() as lent_too:
            for _ in range(8):
                await lent_too.execute("select 1")
            assert await (await lent_too.execute(COUNT)).fetchone() == (1,)
