"""Pauses through the public API: running workers notice them and resume without a restart."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from holdfast import App, State
from holdfast.app.internals import session_of
from holdfast.errors import NotFound, Refused
from holdfast.worker.worker import Worker
from tests.app.conftest import NewApp
from tests.support.schedules import MINUTE, MONDAY, at, made, runs_of
from tests.support.stores import claim, open_lease, put, spec
from tests.support.waiting import until

pytestmark = pytest.mark.req("DP-18")


def start(app: App, **options: object) -> tuple[Worker, threading.Thread]:
    worker = app.worker(**options)  # type: ignore[arg-type]
    thread = threading.Thread(target=lambda: asyncio.run(worker.run()))
    thread.start()
    return worker, thread


def test_worker_resumes_as_soon_as_a_pause_is_removed(new_app: NewApp) -> None:
    """The worker sleeps much longer than this test may take and is notified."""
    app, operator = new_app(), new_app()

    @app.job()
    async def quick() -> None: ...

    @app.job(queue="other")
    async def slow() -> None: ...

    operator.pauses.set(everything=True, reason="moving", refuse_enqueue=False)
    worker, thread = start(app, queues=("default", "other"), poll=60.0)
    try:
        handles = [quick.enqueue(), slow.enqueue()]
        operator.pauses.set(kind="quick", reason="it loops")
        operator.pauses.set(queue="other", reason="it is full")
        operator.pauses.remove(everything=True)
        late = app.enqueue("quick")
        assert [each.what for each in operator.pauses.list()] == ["queue other", "kind quick"]
        operator.pauses.remove(queue="other")
        assert handles[1].result(timeout=30) is None
        assert {each.state for each in app.jobs.list(kind="quick")} == {State.QUEUED}
        assert app.jobs.why(late.id).reasons[0].code == "paused"
        operator.pauses.remove(kind="quick")
        for each in (handles[0], late):
            assert each.result(timeout=30) is None
        asyncio.run(_async_forms(new_app()))
    finally:
        worker._loop.call_soon_threadsafe(worker.stop)  # type: ignore[union-attr]
        thread.join()


async def _async_forms(app: App) -> None:
    await app.pauses.aset(everything=True, tenant="acme", reason="unpaid", refuse_enqueue=True)
    with pytest.raises(Refused, match=r"everything of tenant acme was paused by tester at .*: unpaid"):
        await app.aenqueue("quick", tenant="acme")
    await app.aenqueue("quick")
    await app.pauses.aremove(everything=True, tenant="acme")
    assert await app.pauses.alist() == []
    await app.aclose()


def test_claim_that_starts_after_the_pause_takes_no_job(new_app: NewApp) -> None:
    app = new_app()
    session_of(app).make_ready()
    put(session_of(app).store, *(spec("pay") for _ in range(3000)))
    over, stop = threading.Event(), threading.Event()
    wrong: list[str] = []
    rounds = [0, 0]
    taken = [0, 0]

    def take(number: int) -> None:
        store = session_of(new_app()).store
        lease = open_lease(store, f"worker-{number}", ttl=300)
        while not stop.is_set():
            later = over.is_set()
            got = claim(store, lease, 5)
            taken[number] += len(got)
            rounds[number] += later
            wrong.extend(each.id for each in got if later)
            time.sleep(0.005)  # the pausing call needs the write lock too

    threads = [threading.Thread(target=take, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: all(taken), "both have claimed jobs")
        app.pauses.set(kind="pay", reason="now")
        over.set()
        until(lambda: min(rounds) >= 3, "both have claimed again")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []


@pytest.mark.req("SC-9")
def test_schedules_skip_while_paused_and_follow_their_policy_afterwards(app: App) -> None:
    @app.job(queue="reports")
    def report() -> None: ...

    app.schedule("* * * * *", kind="report", name="once")
    app.schedule("* * * * *", kind="report", name="all", missed="all")
    at(app, MONDAY)
    for n, what in enumerate(({"everything": True}, {"queue": "reports"})):
        begin = MONDAY + 10 * n * MINUTE
        at(app, begin + MINUTE)
        before = len(made(app, "report"))
        app.pauses.set(reason="no", refuse_enqueue=True, **what)  # type: ignore[arg-type]
        for minutes in (2, 3, 4):
            at(app, begin + minutes * MINUTE)
        assert len(made(app, "report")) == before, what
        app.pauses.remove(**what)  # type: ignore[arg-type]
        at(app, begin + 5 * MINUTE)
        assert len(made(app, "report")) == before + 1 + 4, what
    assert [each[0] for each in runs_of(app.schedules.history("once"))].count("missed") >= 2


def test_disabled_agent_is_listed_as_a_pause_and_can_be_resumed(app: App) -> None:
    app.agents.set("bot")
    app.agents.disable("bot", reason="it loops")
    (pause,) = app.pauses.list()
    assert (pause.what, pause.reason, pause.refuse_enqueue) == ("agent bot of tenant default", "it loops", True)
    app.pauses.remove(agent="bot")
    assert app.pauses.list() == []
    app.enqueue("x", agent="bot")
    with pytest.raises(NotFound, match="agent bot is not paused") as gone:
        app.pauses.remove(agent="bot")
    assert gone.value.code == "not_paused"


@pytest.mark.req("DP-13")
def test_subscription_keeps_its_position_while_its_kind_is_paused(app: App) -> None:
    """No event is skipped while the jobs it would create are refused."""

    @app.on("job.succeeded", kind="first")
    @app.job()
    async def follow(event: dict[str, object]) -> None: ...

    @app.job()
    async def first() -> None: ...

    app.run_worker(burst=True)
    app.pauses.set(kind="follow", reason="not now", refuse_enqueue=True)
    first.enqueue()
    app.run_worker(burst=True, promote_every=0.02)
    assert app.jobs.list(kind="follow") == []
    (subscription,) = app.subscriptions.list()
    assert (subscription.failure, subscription.refused) == (None, 0)
    app.pauses.remove(kind="follow")
    app.tick()
    assert len(app.jobs.list(kind="follow")) == 1
