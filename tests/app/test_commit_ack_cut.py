"""Fault 6: the server has committed, and its answer is lost. Ids are made by the client, so it finds out."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pytest

from holdfast import App, Backoff, Context, Handle, Retry, State, SyncContext
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
def test_an_enqueue_whose_answer_is_lost_is_one_job(app: App, proxy: Proxy, options: Any, fate: Fate) -> None:
    proxy.cut(ENQUEUE, fate, times=2)
    handle = app.enqueue("x", {"n": 1}, **options)
    assert (handle.created, handle.reason, proxy.cuts) == (True, None, 1 if fate == "answer" else 2)
    assert [job.id for job in app.jobs.list()] == [handle.id]
    if options:
        assert app.enqueue("x", {"n": 1}, **options).id == handle.id


async def test_and_in_async_code(app: App, proxy: Proxy) -> None:
    proxy.cut(ENQUEUE)
    handle = await app.aenqueue("x", {"n": 1})
    assert (handle.created, proxy.cuts) == (True, 1)
    assert [job.id for job in await app.jobs.alist()] == [handle.id]
    await app.aclose()


def test_a_batch_gets_the_answers_it_would_have_had(app: App, proxy: Proxy) -> None:
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
def test_a_first_try_that_is_still_on_its_way(app: App, proxy: Proxy, postgres_url: str, options: Any) -> None:
    """Cut off while the server is still at it: the second try meets the first, and knows it for its own."""
    found: list[Handle[Any]] = []
    app.jobs.list()  # the pool has a connection
    with psycopg.connect(postgres_url) as blocker, psycopg.connect(postgres_url, autocommit=True) as watcher:
        waiting = "select count(*) from pg_locks where not granted"
        blocker.execute("lock table holdfast.event in share mode")
        caller = threading.Thread(target=lambda: found.append(app.enqueue("x", {"n": 1}, **options)))
        caller.start()
        until(lambda: watcher.execute(waiting).fetchone() == (1,), "the first try waits for the lock")
        proxy.cut_all()
        until(lambda: watcher.execute(waiting).fetchone() == (2,), "the second try waits for the first")
        blocker.rollback()
    caller.join(30)
    assert [handle.created for handle in found] == [True]
    assert [job.id for job in app.jobs.list()] == [found[0].id]


def test_a_pool_full_of_dead_connections_is_gone_through(app: App, proxy: Proxy) -> None:
    pool = app._store._pools.thread_pool()  # type: ignore[attr-defined]
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(pool.connection())
    proxy.cut_all()
    assert app.enqueue("x").created


def test_and_by_whoever_only_looks(app: App, proxy: Proxy) -> None:
    pool = app._store._pools.thread_pool()  # type: ignore[attr-defined]
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(pool.connection())
    proxy.cut_all()
    assert app.jobs.list() == []


async def test_and_so_in_async_code(app: App, proxy: Proxy) -> None:
    connections = await app._store._pools.loop_pool()  # type: ignore[attr-defined]
    taken = [await connections.take(10.0) for _ in range(8)]
    for connection in taken:
        await connections.give_back(connection)
    proxy.cut_all()
    try:
        assert await app.jobs.alist() == []
    finally:
        await app.aclose()


def test_what_cannot_be_repeated_is_not(app: App, proxy: Proxy) -> None:
    handle = app.enqueue("x")
    proxy.cut(b"cancel_many")
    with pytest.raises(StoreUnavailable):
        handle.cancel()
    assert handle.state() == State.CANCELLED


@pytest.mark.parametrize("fate", ["answer", "request"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_settlement_whose_answer_is_lost_counts_once(
    app: App, proxy: Proxy, fails: bool, fate: Fate, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job(retry=Retry(backoff=Backoff(base=60, jitter=False)))
    async def work(n: int) -> int:
        if fails:
            raise ArithmeticError
        return n

    handles = app.enqueue_many(work.prepare(n) for n in range(5))
    # A turn that brings settlements: each word with its length before it.
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
def test_settlements_by_hand_count_as_well(app: App, proxy: Proxy, fate: Fate) -> None:
    """All that our first try ended is ours; what was taken from us in between is stale, now as before."""
    store = app._store
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


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_block_whose_commit_is_not_answered(
    app: App, proxy: Proxy, postgres_url: str, colour: str, caplog: pytest.LogCaptureFixture
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

    handle = app.enqueue(colour)
    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        work_off(app)
    assert (handle.result(timeout=5), handle.get().attempt, notes(postgres_url)) == ("paid", 1, ["mine"])
    assert "although the response was lost" in caplog.text


@pytest.mark.req("CX-7")
@pytest.mark.parametrize("fate", ["answer", "request"])
@pytest.mark.parametrize("way", ["id", "token"])
def test_a_decision_whose_answer_is_lost_is_one_word(app: App, proxy: Proxy, way: str, fate: Fate) -> None:
    @app.job("pay")
    async def pay(ctx: Context) -> str:
        return (await ctx.approval("pay", summary="Pay?")).by or ""

    handle = pay.enqueue()
    work_off(app)
    (approval,) = app.approvals.list()
    word = approval.id if way == "id" else app.approvals.issue_token(approval.id, person="ada")
    proxy.cut(b"COMMIT", fate)
    assert app.approvals.approve(word, by="ada") == "approved"
    assert proxy.cuts == 1
    assert [vote.person for vote in app.approvals.get(approval.id).votes] == ["ada"]
    with pytest.raises(Refused) as second:
        app.approvals.approve(word, by="ada")
    assert second.value.code == "already_decided"
    work_off(app)
    assert handle.result(timeout=5) == "ada"
