"""`app.on`, `app.subscriptions`, `app.consumers.list()`: events that create jobs (DP-12, DP-13)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import App, Retry, State
from holdfast.app.internals import session_of
from holdfast.errors import HoldfastError, InvalidSetting, NotFound
from holdfast.features.events.model import Subscription
from holdfast.stores.flow import Steps
from holdfast.worker.maintenance import feed
from tests.app.conftest import NewApp
from tests.support.waiting import until
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("DP-13", "DP-12")


def feed_subscriptions(app: App) -> int:
    """Run the subscription task of a worker once."""
    return asyncio.run(_afeed(app))


async def _afeed(app: App) -> int:
    try:
        return await feed(session_of(app).store, tenant="*")
    finally:
        await session_of(app).store.leave_loop()


def test_declared_subscription_is_stored_by_a_worker_and_creates_jobs(app: App, new_app: NewApp) -> None:
    seen: list[dict[str, Any]] = []

    @app.on("job.succeeded", kind="import_*")
    @app.job(queue="late", retry=Retry(max_attempts=2, retry_on=ValueError))
    def follow(event: dict[str, Any]) -> None:
        seen.append(event)

    @app.on("order.paid", match={"country": "fr"}, payload={"order": "$.data.order"}, name="paid", start="beginning")
    @app.job(queue="late")
    def ship(order: int) -> None:
        app.send_event("order.shipped", {"order": order})
        seen.append({"order": order})

    @app.job()
    def import_rows() -> None: ...

    app.send_event("order.paid", {"country": "fr", "order": 7})
    with working(app, queues=("default", "late")):
        until(lambda: len(app.subscriptions.list()) == 2, "the subscriptions are stored")
        job = import_rows.enqueue()
        job.wait(10)
        until(lambda: len(seen) == 2, "both jobs have run")
    assert {"order": 7} in seen
    (event,) = [each for each in seen if "job_id" in each]
    assert (event["job_id"], event["name"]) == (job.id, "job.succeed")
    (made,) = app.jobs.list(kind="follow")
    assert (made.queue, made.max_attempts, made.depth) == ("late", 2, 1)
    one = app.subscriptions.get("follow on job.succeed")
    assert one is not None
    assert (one.declared, one.kind, one.made) == (True, "import_*", 1)
    (event_sent,) = [each for each in app.events.read_sent("reader") if each.name == "order.shipped"]
    assert event_sent.cause_id == app.jobs.list(kind="ship")[0].id, "an event sent by a handler names its job"
    assert list(app.events.read_sent("reader")) == []
    other = new_app()
    other.job("follow")(lambda event: None)  # a program without declarations removes none
    work_off(other)
    assert len(other.subscriptions.list()) == 2


def test_subscription_is_created_paused_resumed_and_removed(app: App) -> None:
    app.migrate()
    one = app.subscriptions.set("audit", "job.*", "note", of_kind="pay", queue="audit", priority=2, max_depth=1)
    assert app.subscriptions.get("audit") == one
    assert app.subscriptions.list() == [one]
    app.enqueue("pay")
    assert app.subscriptions.behind(one.name) == 1
    assert feed_subscriptions(app) == 1
    (made,) = app.jobs.list(kind="note")
    assert (made.queue, made.priority) == ("audit", 2)
    (delivery,) = app.subscriptions.deliveries(app.subscriptions.list()[0].name)
    assert (delivery.job_id, delivery.refusal) == (made.id, None)
    assert app.subscriptions.pause("audit", reason="too many").paused_reason == "too many"
    app.enqueue("pay")
    assert feed_subscriptions(app) == 0
    assert app.subscriptions.resume("audit", skip=True).paused_at is None
    assert feed_subscriptions(app) == 0
    app.subscriptions.remove("audit")
    for missing in (app.subscriptions.remove, app.subscriptions.pause, app.subscriptions.resume):
        with pytest.raises(NotFound) as refused:
            missing("audit")
        assert refused.value.code == "subscription_not_found"


def test_burst_runs_jobs_of_events_sent_before_it_started(app: App) -> None:
    """However fast it finds no job to claim, its maintenance runs once before it ends."""
    seen: list[dict[str, Any]] = []

    @app.job()
    def note(event: dict[str, Any]) -> None:
        seen.append(event)

    app.migrate()
    app.subscriptions.set("payments", "order.paid", "note", start="beginning")
    app.send_event("order.paid", {"order": 7})
    work_off(app)
    assert [event["data"] for event in seen] == [{"order": 7}]


def test_failing_subscription_reports_its_error_once_and_blocks_no_other(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app.migrate()
    app.subscriptions.set("a bad one", "job.enqueue", "bad", of_kind="pay")
    app.subscriptions.set("good", "job.enqueue", "good", of_kind="pay")
    app.enqueue("pay")
    original = type(session_of(app).store.subscriptions)._create_jobs

    def broken(self: Any, whose: Subscription, wanted: Any) -> Steps[Any]:
        if whose.job_kind == "bad":
            raise ZeroDivisionError("it cannot be made")
        return (yield from original(self, whose, wanted))

    with monkeypatch.context() as patch:
        patch.setattr(type(session_of(app).store.subscriptions), "_create_jobs", broken)
        assert feed_subscriptions(app) == 1
        assert feed_subscriptions(app) == 0
    assert [record.getMessage() for record in caplog.records if "a bad one" in record.getMessage()] == [
        "Subscription a bad one failed: it cannot be made"
    ]
    bad, good = app.subscriptions.list()
    assert (bad.failure, good.failure, good.made) == ("it cannot be made", None, 1)
    assert feed_subscriptions(app) == 1, "it is retried, and the missed job is created"
    assert app.subscriptions.list()[0].failure is None


def test_tick_feeds_subscriptions(app: App) -> None:
    @app.on("job.succeeded", kind="first", start="beginning")
    @app.job()
    def second(event: dict[str, Any]) -> None: ...

    @app.job()
    def first() -> None: ...

    first.enqueue()
    assert app.tick().taken == 1
    assert app.tick().taken == 1
    assert app.jobs.list(kind="second")[0].state is State.SUCCEEDED


def test_consumers_are_listed_reset_and_removed(app: App) -> None:
    app.enqueue("x")
    app.send_event("news.sent", {})
    assert len(list(app.events.read("billing"))) == len(list(app.events.read_sent("news"))) == 1
    app.enqueue("x")
    behind = {each.name: (each.of, each.behind) for each in app.consumers.list()}
    assert behind == {"billing": ("jobs", 1), "news": ("application", 0)}
    app.consumers.reset("billing")
    assert len(list(app.events.read("billing"))) == 2
    app.consumers.reset("news", "beginning")
    assert len(list(app.events.read_sent("news"))) == 1
    app.enqueue("x")
    app.consumers.reset("billing", "now")
    assert list(app.events.read("billing")) == []
    app.consumers.remove("billing")
    for missing in (app.consumers.remove, app.consumers.reset):
        with pytest.raises(NotFound) as refused:
            missing("billing")
        assert refused.value.code == "consumer_not_found"


def test_invalid_subscriptions_are_refused(app: App) -> None:
    @app.job()
    def without_event() -> None: ...

    @app.job()
    def with_event(event: dict[str, Any]) -> None: ...

    def code(pattern: str, kind: Any, **wanted: Any) -> str:
        with pytest.raises(HoldfastError) as refused:
            app.on(pattern, **wanted)(kind)
        return refused.value.code

    assert code("job.succeeded", without_event) == "invalid_subscription"
    assert code("job.succeeded", len) == "invalid_subscription"
    assert code("job.sucess", with_event) == "invalid_pattern"
    app.on("job.succeeded", payload={})(without_event)
    app.on("job.failed")(with_event)
    assert code("job.fail", with_event) == "duplicate_subscription"
    with pytest.raises(InvalidSetting):
        app.subscriptions.set("x", "job.*", "y", nonsense=1)  # type: ignore[call-arg]
