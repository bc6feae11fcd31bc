"""Fault 6: the server committed and its response is lost. Clients create the ids, so a retry finds the job."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pytest

from holdfast import App, Backoff, Context, Handle, Retry, State, SyncContext
from holdfast.app.internals import session_of
from holdfast.engine.outcome import Failed, Outcome, Snoozed, Succeeded
from holdfast.engine.settlement import decide
from holdfast.errors import Refused, StoreUnavailable
from holdfast.features.assembly import open_store
from tests.app.notes import notes, prepare_notes
from tests.support.ledger import check_ledger
from tests.support.proxy import Fate, Proxy
from tests.support.stores import claim, open_lease
from tests.support.waiting import until
from tests.support.workers import work_off

pytestmark = pytest.mark.req("DP-5", "CX-15", "HF-3")

ENQUEUE, SETTLE = b".enqueue_", b"settle_many"


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    with Proxy(postgres_url) as proxy:
        yield proxy


@pytest.fixture
def app(proxy: Proxy, postgres_url: str) -> Iterator[App]:
    with closing(App(proxy.url, name="tests", enqueued_by="tester")) as app:
        yield app
    with closing(open_store(postgres_url)) as store:
        check_ledger(store)


OPTIONS: list[dict[str, Any]] = [{}, {"key": "k"}, {"dedupe": "skip"}, {"key": "k", "dedupe": "coalesce"}]


@pytest.mark.parametrize("fate", ["answer", "request"])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "+".join(options) or "plain")
def test_enqueue_with_a_lost_response_creates_one_job(app: App, proxy: Proxy, options: Any, fate: Fate) -> None:
    proxy.cut(ENQUEUE, fate, times=2)
    handle = app.enqueue("x", {"n": 1}, **options)
    assert (handle.created, handle.reason, proxy.cuts) == (True, None, 1 if fate == "answer" else 2)
    assert [job.id for job in app.jobs.list()] == [handle.id]
    if options:
        assert app.enqueue("x", {"n": 1}, **options).id == handle.id


async def test_async_enqueue_with_a_lost_response_creates_one_job(app: App, proxy: Proxy) -> None:
    proxy.cut(ENQUEUE)
    handle = await app.aenqueue("x", {"n": 1})
    assert (handle.created, proxy.cuts) == (True, 1)
    assert [job.id for job in await app.jobs.alist()] == [handle.id]
    await app.aclose()


def test_batch_with_a_lost_response_returns_the_original_answers(app: App, proxy: Proxy) -> None:
    @app.job()
    def send(to: str) -> None: ...

    earlier = send.using(key="old").enqueue("z")
    orphan = send.using(parent="01a1de87-6b74-70b8-bbed-192362a7945f")
    calls = [send.prepare("a"), send.using(key="old").prepare("z"), send.using(key="k").prepare("b")]
    calls += [send.using(key="k").prepare("b"), send.using(key="old").prepare("other"), orphan.prepare("c")]
    proxy.cut(ENQUEUE)
    handles = app.enqueue_many(calls)
    assert proxy.cuts == 1
    assert [(handle.created, handle.reason) for handle in handles] == [
        (True, None),
        (False, "duplicate_key"),
        (True, None),
        (False, "duplicate_key"),
        (False, "idempotency_conflict"),
        (False, "parent_not_found"),
    ]
    assert {job.id for job in app.jobs.list()} == {earlier.id, handles[0].id, handles[2].id}


@pytest.mark.parametrize("options", OPTIONS[:2], ids=["plain", "key"])
def test_retry_recognises_a_first_attempt_that_is_still_running(
    app: App, proxy: Proxy, postgres_url: str, options: Any
) -> None:
    """The connection is cut while the server still works: the retry meets the first attempt and recognises it."""
    handles: list[Handle[Any]] = []
    app.jobs.list()  # the pool has a connection
    with psycopg.connect(postgres_url) as blocker, psycopg.connect(postgres_url, autocommit=True) as watcher:
        waiting = "select count(*) from pg_locks where not granted"
        blocker.execute("lock table holdfast.event in share mode")
        caller = threading.Thread(target=lambda: handles.append(app.enqueue("x", {"n": 1}, **options)))
        caller.start()
        until(lambda: watcher.execute(waiting).fetchone() == (1,), "the first attempt waits for the lock")
        proxy.cut_all()
        until(lambda: watcher.execute(waiting).fetchone() == (2,), "the retry waits for the first attempt")
        blocker.rollback()
    caller.join(30)
    assert [handle.created for handle in handles] == [True]
    assert [job.id for job in app.jobs.list()] == [handles[0].id]


def test_enqueue_survives_a_pool_of_dead_connections(app: App, proxy: Proxy) -> None:
    pool = session_of(app).store._pools.thread_pool()  # type: ignore[union-attr]
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(pool.connection())
    proxy.cut_all()
    assert app.enqueue("x").created


def test_read_survives_a_pool_of_dead_connections(app: App, proxy: Proxy) -> None:
    pool = session_of(app).store._pools.thread_pool()  # type: ignore[union-attr]
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(pool.connection())
    proxy.cut_all()
    assert app.jobs.list() == []


async def test_async_read_survives_a_pool_of_dead_connections(app: App, proxy: Proxy) -> None:
    connections = await session_of(app).store._pools.loop_pool()  # type: ignore[union-attr]
    taken = [await connections.take(10.0) for _ in range(8)]
    for connection in taken:
        await connections.give_back(connection)
    proxy.cut_all()
    try:
        assert await app.jobs.alist() == []
    finally:
        await app.aclose()


def test_cancel_with_a_lost_response_is_not_repeated(app: App, proxy: Proxy) -> None:
    handle = app.enqueue("x")
    proxy.cut(b"cancel_many")
    with pytest.raises(StoreUnavailable):
        handle.cancel()
    assert handle.state() == State.CANCELLED


@pytest.mark.parametrize("fate", ["answer", "request"])
@pytest.mark.parametrize("fails", [False, True])
def test_settlement_with_a_lost_response_counts_once(
    app: App, proxy: Proxy, fails: bool, fate: Fate, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job(retry=Retry(backoff=Backoff(base=60, jitter=False)))
    async def work(n: int) -> int:
        if fails:
            raise ArithmeticError
        return n

    handles = app.enqueue_many(work.prepare(n) for n in range(5))
    # An exchange that carries settlements: each status is preceded by its length.
    proxy.cut(b"\0\0\0\x05retry" if fails else b"\0\0\0\x09succeeded", fate)
    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        work_off(app)
    assert proxy.cuts == 1
    assert "no longer claimed by this worker" not in caplog.text
    ends = [[event.type for event in handle.history()] for handle in handles]
    expected = ["enqueue", "take", "fail", "retry"] if fails else ["enqueue", "take", "succeed"]
    assert ends == [expected] * 5
    if not fails:
        assert [handle.result(timeout=5) for handle in handles] == list(range(5))


@pytest.mark.parametrize("fate", ["answer", "request"])
def test_direct_settlements_with_a_lost_response_count_once(app: App, proxy: Proxy, fate: Fate) -> None:
    """Everything the first attempt settled counts; a job that was cancelled in between is stale, as before."""
    store = session_of(app).store
    lease = open_lease(store)
    handles = [app.enqueue("x") for _ in range(4)]
    taken = claim(store, lease, 4)
    outcomes: list[Outcome] = [Succeeded("1"), Failed("broken", "it broke"), Snoozed(60.0), Succeeded()]
    settlements = [decide(one, outcome, 1.0) for one, outcome in zip(taken, outcomes, strict=True)]
    app.jobs.cancel(handles[3].id)
    proxy.cut(SETTLE, fate)
    assert store.run(store.leases.settle(lease, settlements, "*")) == [handles[3].id]
    assert proxy.cuts == 1
    ends = [handle.history()[2].type for handle in handles]
    assert ends == ["succeed", "fail", "snooze", "cancel"]


@pytest.mark.parametrize("form", ["sync", "async"])
def test_transaction_with_a_lost_commit_response_counts_once(
    app: App, proxy: Proxy, postgres_url: str, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    prepare_notes(postgres_url)

    @app.job("sync")
    def pay(ctx: SyncContext) -> None:
        with ctx.transaction(result="paid") as connection:
            connection.execute("insert into note values ('mine')")
            proxy.cut(b"COMMIT", after=b"insert into note")

    @app.job("async")
    async def apay(ctx: Context) -> None:
        async with ctx.transaction(result="paid") as connection:
            await connection.execute("insert into note values ('mine')")
            proxy.cut(b"COMMIT", after=b"insert into note")

    handle = app.enqueue(form)
    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        work_off(app)
    assert (handle.result(timeout=5), handle.get().attempt, notes(postgres_url)) == ("paid", 1, ["mine"])
    assert "although the response was lost" in caplog.text


@pytest.mark.req("CX-7")
@pytest.mark.parametrize("fate", ["answer", "request"])
@pytest.mark.parametrize("way", ["id", "token"])
def test_approval_decision_with_a_lost_response_counts_once(app: App, proxy: Proxy, way: str, fate: Fate) -> None:
    @app.job("pay")
    async def pay(ctx: Context) -> str:
        return (await ctx.approval("pay", summary="Pay?")).by or ""

    handle = pay.enqueue()
    work_off(app)
    (approval,) = app.approvals.list()
    reference = approval.id if way == "id" else app.approvals.issue_token(approval.id, person="ada")
    proxy.cut(b"COMMIT", fate)
    assert app.approvals.approve(reference, by="ada") == "approved"
    assert proxy.cuts == 1
    assert [vote.person for vote in app.approvals.get(approval.id).votes] == ["ada"]
    with pytest.raises(Refused) as second:
        app.approvals.approve(reference, by="ada")
    assert second.value.code == "already_decided"
    work_off(app)
    assert handle.result(timeout=5) == "ada"
