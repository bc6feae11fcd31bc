"""Enqueueing: what is stored, what is refused, and that a refusal stores nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import App, Backoff, Context, PayloadPolicy, Retry, State, SyncContext
from holdfast.app.internals import kinds_of, session_of
from holdfast.engine.job import Job
from holdfast.errors import Conflict, InvalidArguments, InvalidInput, InvalidSetting, NotFound
from holdfast.kind import Kind
from tests.app.conftest import NewApp
from tests.support.workers import work_off

SOON = datetime(2100, 1, 1, tzinfo=UTC)


def declare(app: App) -> Kind[..., str]:
    """Loosely typed: most of these tests make calls that a type checker rejects."""

    @app.job()
    def send(to: str, copies: int = 1) -> str:
        return f"{to} x{copies}"

    return send


def stored(app: App) -> list[Job]:
    return app.jobs.list(tenant="*", limit=1000)


@pytest.mark.req("HF-5", "DP-11")
def test_job_is_stored_as_enqueued(app: App) -> None:
    handle = declare(app).enqueue("ada", copies=2)
    job = handle.get()
    assert (handle.created, handle.reason) == (True, None)
    assert (job.id, job.kind, job.tenant, job.queue, job.state) == (
        handle.id,
        "send",
        "default",
        "default",
        State.QUEUED,
    )
    assert job.payload == {"to": "ada", "copies": 2}
    assert (job.enqueued_by, job.source_system) == ("tester", "tests")
    assert [(event.type, event.actor) for event in handle.history()] == [("enqueue", "tester")]


@pytest.mark.req("HF-5")
async def test_async_job_is_stored_as_enqueued(app: App) -> None:
    handle = await declare(app).aenqueue("ada")
    assert (await handle.astate(), (await handle.aget()).payload) == (State.QUEUED, {"to": "ada"})
    assert [event.type for event in await handle.ahistory()] == ["enqueue"]
    assert [job.id for job in await app.jobs.alist()] == [handle.id]
    job = await app.jobs.aget(handle.id)
    assert job.id == handle.id
    await app.aclose()


@pytest.mark.req("HF-5")
def test_enqueue_by_name_accepts_unknown_kinds(app: App) -> None:
    declare(app)
    known = app.enqueue("send", {"to": "ada"}, priority=3)
    other = app.enqueue("elsewhere", [1, 2])
    assert (known.get().payload, known.get().priority, other.get().payload) == ({"to": "ada"}, 3, [1, 2])
    with pytest.raises(InvalidArguments):
        app.enqueue("send", {"unto": "ada"})
    assert len(stored(app)) == 2


@pytest.mark.req("CX-19", "CX-17", "DP-9", "DP-10", "CX-9")
def test_every_option_is_stored(app: App) -> None:
    parent = app.enqueue("parent", correlation_id="c-0")
    workflow = app.enqueue("workflow").id
    policy = Retry(max_attempts=7, backoff=Backoff(base=2, jitter=False), max_crashes=1)
    handle = (
        declare(app)
        .using(
            run_at=SOON,
            deadline=SOON + timedelta(days=1),
            queue="mail",
            priority=-5,
            key="k-1",
            tags=["b", "a"],
            parent=parent.id,
            correlation_id="c-1",
            causation_id="e-9",
            workflow_id=workflow,
            external_ref="ext:7",
            agent="scribe",
            retry=policy,
            enqueued_by="ada",
        )
        .enqueue("x")
    )
    job = handle.get()
    assert (job.run_at, job.due_at, job.deadline_at) == (SOON, SOON, SOON + timedelta(days=1))
    assert (job.queue, job.priority, job.idempotency_key, job.tags) == ("mail", -5, "k-1", ("b", "a"))
    assert (job.parent_id, job.correlation_id, job.causation_id) == (parent.id, "c-1", "e-9")
    assert (job.workflow_id, job.external_ref, job.agent) == (workflow, "ext:7", "scribe")
    assert (job.max_attempts, job.max_crashes, job.enqueued_by) == (7, 1, "ada")
    assert job.backoff == policy.backoff.to_json()
    assert [job.id for job in app.jobs.list(tag="a")] == [handle.id]


@pytest.mark.req("DP-9")
@pytest.mark.parametrize("delay", [90, 90.0, "90s", "1m30s", timedelta(seconds=90)])
def test_delay_counts_from_the_database_clock(app: App, delay: Any) -> None:
    before = session_of(app).run(session_of(app).store.clock.now())
    job = declare(app).using(delay=delay).enqueue("x").get()
    after = session_of(app).run(session_of(app).store.clock.now())
    assert job.due_at is not None
    assert before <= job.due_at - timedelta(seconds=90) <= after


@pytest.mark.req("HF-5")
@pytest.mark.parametrize(
    "value", ["\\u0000", "é😀\u2028", "\x01\x7f", 10**999, -0.0, 1e23, 5e-324, [[]], {"": None}, True]
)
def test_unusual_values_round_trip_exactly(app: App, value: Any) -> None:
    handle = app.enqueue("odd", {"value": value})
    stored_value = handle.get().payload["value"]
    assert stored_value == value
    assert type(stored_value) is type(value)


@pytest.mark.req("DP-5")
def test_idempotency_key_returns_the_first_job(app: App, new_app: NewApp) -> None:
    once = declare(app).using(key="r-1")
    first, again = once.enqueue("x"), once.enqueue("x")
    assert (again.id, again.created, again.reason) == (first.id, False, "duplicate_key")
    other = declare(new_app()).using(key="r-1").enqueue("x")
    assert other.id == first.id
    with pytest.raises(Conflict) as caught:
        once.enqueue("y")
    assert caught.value.code == "idempotency_conflict"
    assert first.id in str(caught.value)
    assert len(stored(app)) == 1


@pytest.mark.req("HK-2")
def test_dedupe_returns_the_active_job_with_equal_content(app: App) -> None:
    skip, coalesce = (declare_named(app, name).using(dedupe=name) for name in ("skip", "coalesce"))
    for kind in (skip, coalesce):
        first, again, other = kind.enqueue("x"), kind.enqueue("x"), kind.enqueue("y")
        assert (again.id, again.created, again.reason) == (first.id, False, "duplicate_content")
        assert other.created
        app.jobs.cancel(first.id)
        assert kind.enqueue("x").created


def declare_named(app: App, name: str) -> Kind[[str], None]:
    @app.job(name)
    def handler(to: str) -> None: ...

    return handler


@pytest.mark.req("DP-10")
def test_parent_must_exist(app: App) -> None:
    with pytest.raises(NotFound) as caught:
        declare(app).using(parent="01a1de87-6b74-70b8-bbed-192362a7945f").enqueue("x")
    assert caught.value.code == "parent_not_found"
    assert stored(app) == []


@pytest.mark.req("JF-1", "DP-10")
def test_parent_must_belong_to_the_same_tenant(app: App) -> None:
    parent = app.enqueue("p", tenant="acme")
    with pytest.raises(NotFound):
        declare(app).using(parent=parent.id).enqueue("x")
    assert declare_named(app, "child").using(parent=parent.id, tenant="acme").enqueue("x").created


@pytest.mark.req("DP-11")
def test_enqueued_by_and_source_are_never_blank(url: str, new_app: NewApp) -> None:
    app = new_app(name=None, enqueued_by=None)
    job = app.enqueue("x").get()
    assert job.enqueued_by.strip()
    assert job.source_system.strip()
    wrong: tuple[dict[str, Any], ...] = ({"name": " "}, {"enqueued_by": " "}, {"tenant": " "}, {"tenant": "*"})
    for settings in wrong:
        with pytest.raises(InvalidSetting):
            App(url, **settings)


@pytest.mark.req("SC-19", "DP-5")
def test_enqueue_many_answers_in_order_and_reports_refusals(app: App) -> None:
    send = declare(app)
    unknown = "01a1de87-6b74-70b8-bbed-192362a7945f"
    handles = app.enqueue_many(
        [
            send.prepare("a"),
            send.using(key="k").prepare("b"),
            send.using(key="k").prepare("b"),
            send.using(key="k").prepare("c"),
            send.using(parent=unknown).prepare("d"),
            send.using(tenant="acme").prepare("e"),
            send.prepare("f"),
        ]
    )
    assert [(handle.created, handle.reason) for handle in handles] == [
        (True, None),
        (True, None),
        (False, "duplicate_key"),
        (False, "idempotency_conflict"),
        (False, "parent_not_found"),
        (True, None),
        (True, None),
    ]
    assert [handles[n].get().payload["to"] for n in (0, 1, 2, 5, 6)] == ["a", "b", "b", "e", "f"]
    assert (handles[5].tenant, handles[1].id) == ("acme", handles[2].id)
    with pytest.raises(InvalidInput):
        handles[4].state()
    order = [job.payload["to"] for job in reversed(app.jobs.list())]
    assert order == ["a", "b", "f"]


@pytest.mark.req("SC-19")
def test_enqueue_many_stores_nothing_if_one_call_is_invalid(app: App) -> None:
    send = declare(app)
    with pytest.raises(InvalidArguments):
        app.enqueue_many(send.prepare(*args) for args in (("a",), (), ("c",)))
    assert stored(app) == []
    assert app.enqueue_many([]) == []


@pytest.mark.req("HF-5")
async def test_async_enqueue_many_keeps_the_order(app: App) -> None:
    send = declare(app)
    handles = await app.aenqueue_many(send.prepare("x", n) for n in range(5))
    assert [(await handle.aget()).payload["copies"] for handle in handles] == list(range(5))
    await app.aclose()


@pytest.mark.req("HF-5")
def test_kind_can_be_declared_only_once(app: App) -> None:
    kind = declare(app)
    with pytest.raises(InvalidSetting) as caught:
        declare(app)
    assert caught.value.code == "duplicate_kind"
    with pytest.raises(InvalidSetting, match="is already a job"):
        app.job(kind)


@pytest.mark.req("HF-5")
def test_job_decorator_works_without_parentheses(app: App) -> None:
    @app.job
    def double(n: int) -> int:
        return 2 * n

    @app.job
    async def triple(ctx: Context, n: int) -> int:
        return 3 * n + 0 * ctx.attempt

    @app.job
    def add(ctx: SyncContext, n: int, m: int = 1) -> int:
        return n + m + 0 * ctx.attempt

    handles = double.enqueue(4), triple.enqueue(4), add.enqueue(4, m=2)
    work_off(app)
    assert [handle.result(timeout=5) for handle in handles] == [8, 12, 6]
    assert (double.name, triple.parameters, double(5)) == ("double", ("n",), 10)


@pytest.mark.req("HF-5")
def test_job_options_are_checked_at_declaration(app: App) -> None:
    with pytest.raises(InvalidSetting) as caught:
        app.job(colour="red", memory="1GB")  # type: ignore[call-overload]
    assert (caught.value.code, caught.value.message) == ("unknown_option", "unknown options: colour, memory")
    with pytest.raises(InvalidSetting, match="rules must be a PayloadPolicy"):
        app.job(payload_rules={"signal_only": True})  # type: ignore[call-overload]
    for wrong in ({}, {"forbidden": ["token"]}, {"max_bytes": "little"}):
        with pytest.raises(InvalidSetting):
            PayloadPolicy(**wrong)
    assert kinds_of(app) == {}


@pytest.mark.req("HF-5")
def test_using_does_not_change_the_kind(app: App) -> None:
    send = declare(app)
    urgent = send.using(priority=9).using(queue="fast")
    assert (urgent.enqueue("x").get().priority, urgent.enqueue("x").get().queue) == (9, "fast")
    assert (send.enqueue("x").get().priority, send.enqueue("x").get().queue) == (0, "default")
    assert send("ada", copies=3) == "ada x3"


@pytest.mark.req("CX-19", "CX-9")
def test_a_deadline_is_a_time_or_a_duration_from_now(app: App) -> None:
    send, now = declare(app), session_of(app).run(session_of(app).store.clock.now())

    def seconds_left(job: Job) -> float:
        assert job.deadline_at is not None
        return (job.deadline_at - now).total_seconds()

    for deadline in (600, 600.0, "10m", timedelta(minutes=10)):
        assert 600 <= seconds_left(send.using(deadline=deadline).enqueue("x").get()) < 630
    assert 600 <= seconds_left(app.enqueue("elsewhere", deadline="10m", delay=5).get()) < 630
    many = app.enqueue_many(send.using(deadline="10m").prepare(name) for name in "abc")
    assert all(600 <= seconds_left(handle.get()) < 630 for handle in many)
    app.agents.set("hasty", max_wait=300)
    assert 300 <= seconds_left(send.using(deadline="10m", agent="hasty").enqueue("x").get()) < 330
    assert 60 <= seconds_left(send.using(deadline="1m", agent="hasty").enqueue("x").get()) < 90
    wf = app.workflow("soon")
    job = wf.add(send.using(deadline="10m"), "x")
    assert 600 <= seconds_left(wf.start()[job].get()) < 630
    with pytest.raises(InvalidSetting, match="is not a deadline"):
        send.using(deadline="tomorrow").enqueue("x")
