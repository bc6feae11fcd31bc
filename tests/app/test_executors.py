"""Executors: the database keeps the list of allowed labels (DP-6); jobs can name their executor (DP-23)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast import App, Handle
from holdfast.app.internals import session_of
from holdfast.errors import HoldfastError, InvalidSetting, NotFound, Refused
from holdfast.stores.requests import ClaimRequest
from tests.support.direct_sql import PostgresByHand
from tests.support.stores import decide_on
from tests.support.waiting import until
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("DP-6")


def code(raised: pytest.ExceptionInfo[HoldfastError]) -> str:
    return raised.value.code


def test_executors_are_added_listed_and_removed(app: App) -> None:
    app.migrate()
    assert app.executors.list() == []
    one = app.executors.set("gpu")
    app.executors.set("planner", "generator")
    assert [(each.label, each.role, each.added_by) for each in app.executors.list()] == [
        ("gpu", "executor", "tester"),
        ("planner", "generator", "tester"),
    ]
    assert app.executors.set("gpu") == one, "setting it again changes nothing"
    assert app.executors.set("planner", "executor").role == "executor"
    app.executors.remove("planner")
    with pytest.raises(NotFound) as missing:
        app.executors.remove("planner")
    assert code(missing) == "executor_not_found"
    with pytest.raises(InvalidSetting) as bad:
        app.executors.set("x", "boss")  # type: ignore[arg-type]
    assert code(bad) == "invalid_role"


def test_unlisted_executor_cannot_open_a_lease_and_a_removed_one_cannot_claim(app: App) -> None:
    @app.job()
    def quick() -> None: ...

    handles = [quick.enqueue() for _ in range(3)]
    store = session_of(app).store
    lease = store.run(store.leases.open("w", 60, "*", "odd")).id
    request = ClaimRequest(lease=lease, queues=("default",), want=1)
    (claimed,) = store.run(store.leases.exchange([], request)).claims
    app.executors.set("gpu")
    app.executors.set("planner", "generator")
    for label in ("odd", "planner", "worker"):
        with pytest.raises(Refused) as refused:
            store.run(store.leases.open("w", 60, "*", label))
        assert code(refused) == "executor_refused"
    for take in (lambda: store.run(store.leases.exchange([], request)), lambda: store.run(store.leases.claim(request))):
        with pytest.raises(Refused) as refused:
            take()
        assert code(refused) == "executor_refused"
    exchange = store.run(store.leases.exchange([decide_on(claimed)], request))
    assert (exchange.claims, exchange.stale) == ([], []), "the settlement is recorded"
    assert handles[0].state() == "succeeded"
    with pytest.raises(Refused):
        work_off(app)
    work_off(app, executor="gpu")
    assert [handle.state() for handle in handles] == ["succeeded"] * 3


def test_removed_worker_finishes_its_job_and_exits(app: App) -> None:
    release = threading.Event()

    @app.job()
    def hold() -> str:
        release.wait(20)
        return "done"

    app.migrate()
    app.executors.set("gpu")
    handle = hold.enqueue()
    with working(app, executor="gpu") as background:
        until(lambda: handle.state() == "in_progress", "the job runs")
        app.executors.set("other")
        app.executors.remove("gpu")
        hold.enqueue()
        release.set()
        assert handle.result(10) == "done"
        until(lambda: not background.alive, "the worker has exited")
    assert app.jobs.list()[0].state == "queued"


def test_worker_removed_while_settling_claims_no_later_job(app: App) -> None:
    """The list check and the job query are two statements: a removal between them must take effect."""
    if session_of(app).store.embedded:
        pytest.skip("SQLite has one writer at a time, so nothing happens between the two")

    @app.job()
    def quick() -> None: ...

    first = quick.enqueue()
    store = session_of(app).store
    app.executors.set("gpu")
    lease = store.run(store.leases.open("w", 60, "*", "gpu")).id
    request = ClaimRequest(lease=lease, queues=("default",), want=1)
    (claimed,) = store.run(store.leases.exchange([], request)).claims

    def remove_while_the_exchange_waits() -> Handle[None]:
        hand = PostgresByHand(store.url)
        try:
            hand.begin()
            hand.execute("select from job_state where id = :id for update", {"id": first.id})
            held.set()
            ((blocking,),) = hand.execute("select pg_backend_pid()")
            waiting = "select 1 from pg_locks where not granted and :pid = any (pg_blocking_pids(pid))"
            until(lambda: hand.execute(waiting, {"pid": blocking}), "the exchange waits for the row")
            app.executors.set("other")
            app.executors.remove("gpu")
            return quick.enqueue()
        finally:
            hand.commit()
            hand.close()

    held = threading.Event()
    with ThreadPoolExecutor(1) as background:
        removal = background.submit(remove_while_the_exchange_waits)
        assert held.wait(20)
        exchange = store.run(store.leases.exchange([decide_on(claimed)], request))
        later = removal.result(20)
    assert (exchange.claims, exchange.stale) == ([], [])
    assert (first.state(), later.state()) == ("succeeded", "queued")


@pytest.mark.req("DP-25")
def test_kinds_are_registered_in_one_call_and_built_in_kinds_have_aliases(app: App) -> None:
    @app.job()
    def known() -> None:
        """Do what is known.

        And more."""

    app.migrate()
    assert (app.kinds.register(), app.kinds.register()) == (1, 0)
    assert [(each.name, each.description) for each in app.kinds.list()] == [("known", "Do what is known.")]
    app.policies.set(unknown_kinds="refuse")
    known.enqueue()
    with pytest.raises(Refused) as refused:
        app.enqueue_many([known.prepare(), app.prepare("typo")])
    assert code(refused) == "kind_unregistered"
    request = app.enqueue("connector.http.request", {"method": "GET", "url": "https://a.example/"})
    assert request.get().kind == "http.request"
    with pytest.raises(InvalidSetting) as wrong:
        app.policies.set(unknown_kinds="sometimes")  # type: ignore[arg-type]
    assert code(wrong) == "invalid_policy"


@pytest.mark.req("DP-23")
def test_executor_can_be_set_wherever_a_queue_can(app: App) -> None:
    @app.job(executor="gpu-1")
    def train(n: int = 0) -> None: ...

    @app.job()
    def plain() -> None: ...

    @app.on("started")
    @app.job(executor="gpu-2")
    def follow(event: dict[str, object]) -> None: ...

    app.migrate()
    work_off(app)  # stores the declarations
    app.templates.set("t", "plain", executor="gpu-1")
    app.schedules.add("s", "every 1h", kind="plain", executor="gpu-1")
    flow = app.workflow("w")
    flow.add(plain.using(executor="gpu-1"))
    flow.add(plain)
    flow.start()
    app.send_event("started")
    named = [
        train.enqueue(),
        plain.using(executor="gpu-1").enqueue(),
        app.enqueue("elsewhere", {}, executor="gpu-1"),
        app.templates.enqueue("t"),
    ]
    fired = app.schedules.run("s")
    many = [train.prepare(n) for n in range(3)] + [train.using(executor="gpu-3").prepare(9)]
    bulk = app.enqueue_many(many)
    assert [handle.get().executor for handle in bulk] == ["gpu-1"] * 3 + ["gpu-3"]
    assert {app.jobs.get(each).executor for each in (fired, *(handle.id for handle in named))} == {"gpu-1"}
    assert len(app.jobs.list(executor="gpu-1")) == 5 + 3 + 1
    work_off(app)
    assert {job.executor for job in app.jobs.list(state="succeeded")} == {None}
    work_off(app, executor="gpu-1")
    waiting = {(job.kind, job.executor) for job in app.jobs.list(state="queued")}
    assert waiting == {("elsewhere", "gpu-1"), ("train", "gpu-3"), ("follow", "gpu-2")}
    for bad in ("", "*", 7, "x" * 101):
        with pytest.raises(HoldfastError):
            plain.using(executor=bad).enqueue()  # type: ignore[arg-type]
