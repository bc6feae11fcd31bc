"""Common first guesses are accepted if they are unambiguous; otherwise the error names the right spelling."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, cast

import pytest

import holdfast
from holdfast import App, Backoff, Retry, WorkflowPlan, WorkflowRun
from holdfast.engine.hints import ATTRIBUTES
from holdfast.engine.ids import id_range
from holdfast.engine.payload import decode
from holdfast.engine.units import seconds
from holdfast.errors import InvalidArguments, InvalidInput, InvalidPayload, InvalidSetting
from holdfast.features.jobs.handle import Handle
from holdfast.features.schedules.recurrence import Timing
from holdfast.features.workflows.parts import Planned


@pytest.mark.req("CX-9", "DP-9")
@pytest.mark.parametrize(
    ("text", "length"),
    [("5 minutes", 300), ("1 hour, 30 minutes", 5400), ("1h30m", 5400), ("2 Days", 172_800), ("1.5 hours", 5400)],
)
def test_durations_are_read_in_words(text: str, length: float) -> None:
    assert seconds(text) == length
    for wrong in ("5 minuten", "minutes", "5 m m", "five minutes", "-5 minutes"):
        with pytest.raises(InvalidSetting, match="5 minutes"):
            seconds(wrong)


@pytest.mark.req("CX-9", "DP-22", "HF-5")
def test_unknown_option_error_suggests_valid_option() -> None:
    app = App("sqlite:///:memory:")

    @app.job()
    def send() -> None: ...

    def fix_of(**options: Any) -> str:
        with pytest.raises(InvalidSetting) as refused:
            send.using(**options)
        assert refused.value.code == "unknown_option"
        return refused.value.fix or ""

    assert "For eta use run_at" in fix_of(eta=1)
    assert "For countdown use delay" in fix_of(countdown=1)
    assert "For scheduled_at use run_at" in fix_of(scheduled_at=1)
    assert "Did you mean priority?" in fix_of(prioriti=1)
    assert "There are agent, causation_id" in fix_of(nonsense=1)
    with pytest.raises(InvalidSetting, match="Did you mean queue"):
        app.job(queu="mail")  # type: ignore[call-overload]
    with pytest.raises(InvalidSetting, match="Did you mean run_at"):
        app.prepare("send", run_att=1)  # type: ignore[call-arg]
    app.close()


@pytest.mark.req("CX-9", "DP-22")
def test_policy_error_suggests_valid_setting() -> None:
    with pytest.raises(InvalidSetting, match="use max_attempts, which counts the first attempt"):
        Retry(max_retries=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidSetting, match="use base"):
        Backoff(initial=3)  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match=r"Use handle.state\(\)"):
        Handle.__getattr__(object(), "status")  # type: ignore[attr-defined]


@pytest.fixture
def app() -> Iterator[App]:
    app = App("sqlite:///:memory:")
    yield app
    app.close()


@pytest.mark.req("CX-9", "DP-22")
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("delay", "Use add.enqueue(…)"),
        ("adelay", "Use add.aenqueue(…)"),
        ("apply_async", "Use add.using(delay=…, queue=…).enqueue(…)."),
        ("s", "Use add.prepare(…), or app.workflow(…).add(add, …)."),
        ("si", "Use add.prepare(…)"),
        ("signature", "Use add.prepare(…)"),
        ("map", "app.enqueue_many(add.prepare(x) for x in …)"),
        ("starmap", "wf.map(add, …)"),
        ("chunks", "wf.map(add, …)"),
        ("apply", "Call add(…) directly"),
        ("retry", "Raise holdfast.RetryLater(…)"),
    ],
)
def test_names_of_celery_tasks(app: App, name: str, hint: str) -> None:
    @app.job("math.add")
    def add(x: int, y: int) -> int:
        return x + y

    with pytest.raises(AttributeError) as refused:
        getattr(add, name)
    assert hint in str(refused.value)
    assert str(refused.value).endswith("See docs/guides/from-celery.md.")
    assert not hasattr(add, name)


@pytest.mark.req("CX-9", "DP-22")
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("task", "Use @app.job."),
        ("send_task", 'Use app.enqueue("kind", {…})'),
        ("conf", "Pass settings to App"),
        ("AsyncResult", "Use app.jobs.handle(id)."),
        ("control", "app.jobs.cancel(id)"),
        ("autodiscover_tasks", "Import the modules"),
        ("chain", "app.workflow"),
        ("add_periodic_task", "@app.schedule"),
    ],
)
def test_names_of_celery_apps(app: App, name: str, hint: str) -> None:
    with pytest.raises(AttributeError) as refused:
        getattr(app, name)
    assert hint in str(refused.value)
    assert not hasattr(app, name)


@pytest.mark.req("CX-9", "DP-22")
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("chain", "app.workflow"),
        ("group", "app.workflow"),
        ("chord", "app.workflow"),
        ("shared_task", "@app.job"),
        ("crontab", '@app.schedule("0 3 * * *")'),
        ("Celery", "holdfast.App(url)"),
        ("Ignore", "holdfast.Cancel"),
        ("Fail", "holdfast.Reject"),
    ],
)
def test_names_of_the_celery_package(name: str, hint: str) -> None:
    with pytest.raises(AttributeError) as refused:
        getattr(holdfast, name)
    assert hint in str(refused.value)
    with pytest.raises(ImportError) as not_imported:
        exec(f"from holdfast import {name}")
    assert hint in str(not_imported.value)
    assert not hasattr(holdfast, name)


@pytest.mark.req("CX-9", "DP-22")
def test_other_names_raise_the_usual_errors(app: App) -> None:
    @app.job
    def add(x: int, y: int) -> int:
        return x + y

    for thing, text in ((add, "'Kind' object"), (app, "'App' object"), (holdfast, "module 'holdfast'")):
        with pytest.raises(AttributeError, match=f"^{text} has no attribute 'nonsense'$"):
            getattr(thing, "nonsense")  # noqa: B009
    with pytest.raises(ImportError, match="cannot import name 'nonsense' from 'holdfast'"):
        exec("from holdfast import nonsense")
    assert repr(add) == "Kind('add', queue='default')"
    assert copy.copy(add) == add


@pytest.mark.req("CX-9", "DP-22")
def test_names_of_celery_results(app: App) -> None:
    handle = app.jobs.handle("01a1de74-eb8c-70f1-843b-cac5f6817387")
    for name, hint in (
        ("successful", 'state() == "succeeded"'),
        ("failed", "dead_letter"),
        ("revoke", "handle.cancel()"),
        ("forget", "retention"),
        ("info", "handle.progress()"),
        ("traceback", "handle.attempts()"),
        ("ready", "state().finished"),
    ):
        with pytest.raises(AttributeError) as refused:
            getattr(handle, name)
        assert hint in str(refused.value)
    with pytest.raises(InvalidArguments, match=r"Use handle.result\(timeout=…\)"):
        handle.get(timeout=10)  # type: ignore[arg-type]
    assert copy.copy(handle) == handle


@pytest.mark.req("CX-9", "DP-22")
@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("bind", "a first parameter ctx: holdfast.SyncContext"),
        ("autoretry_for", "retry=Retry(retry_on="),
        ("retry_backoff", "retry=Retry(backoff=Backoff(base=…, cap=…))"),
        ("retry_backoff_max", "Backoff(base=…, cap=…)"),
        ("retry_jitter", "Backoff("),
        ("default_retry_delay", "Backoff("),
        ("rate_limit", "app.limits.set(kind=…"),
        ("time_limit", "For time_limit use timeout"),
        ("soft_time_limit", "use timeout"),
        ("ignore_result", "return None"),
        ("acks_late", "at_most_once=True is the opposite"),
        ("reject_on_worker_lost", "at_most_once=True is the opposite"),
        ("base", "hooks=[…]"),
        ("serializer", "payloads are JSON"),
        ("expires", "using(deadline=…)"),
        ("countdown", "using(delay=…)"),
        ("delay", "using(delay=…)"),
        ("max_retries", "retry=Retry(max_attempts=…)"),
    ],
)
def test_options_of_celery_tasks(app: App, option: str, hint: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        app.job(**{option: 1})  # type: ignore[call-overload]
    assert (refused.value.code, hint in str(refused.value)) == ("unknown_option", True)
    assert "Did you mean" not in str(refused.value)


@pytest.mark.req("CX-9", "DP-22")
@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("routing_key", "use queue"),
        ("exchange", "use queue"),
        ("link", "job.on_success(…)"),
        ("link_error", "job.on_failure(…)"),
        ("headers", "use tags"),
        ("expires", "use deadline"),
        ("session", "use connection"),
        ("timeout", "@app.job(timeout=…)"),
        ("args", "pass the arguments to enqueue"),
    ],
)
def test_options_of_celery_calls(app: App, option: str, hint: str) -> None:
    @app.job
    def add(x: int, y: int) -> int:
        return x + y

    with pytest.raises(InvalidSetting) as refused:
        add.using(**cast("Any", {option: 1}))
    assert (refused.value.code, hint in str(refused.value)) == ("unknown_option", True)


@pytest.mark.req("CX-9", "DP-22")
def test_options_among_the_arguments(app: App) -> None:
    @app.job
    def add(number: int, y: int) -> int:
        return number + y

    def fix_of(**arguments: Any) -> str:
        with pytest.raises(InvalidArguments) as refused:
            add.enqueue(1, **arguments)
        return refused.value.fix or ""

    assert fix_of(y=2, delay=3) == "delay is an option: add.using(delay=…).enqueue(…)."
    assert fix_of(y=2, countdown=3).startswith("For countdown use delay")
    assert fix_of(y=2, session=3) == "For session use connection. Options go into using(…)."
    assert fix_of(y=2, numbr=3) == "Did you mean number?"
    assert fix_of(y=2, zzz=3) == "Pass the arguments of the handler's signature."
    assert fix_of(delay=3) == "delay is an option: add.using(delay=…).enqueue(…)."
    with pytest.raises(InvalidSetting, match="For broker use url, the first argument"):
        App("shop", broker="redis://")  # type: ignore[arg-type]


@pytest.mark.req("CX-9", "DP-22")
def test_arguments_of_a_kind_by_name(app: App) -> None:
    @app.job
    def add(x: int, y: int) -> int:
        return x + y

    fix = 'Pass the arguments as one dict: app.enqueue("add", {"x": …, "y": …}).'
    with pytest.raises(InvalidArguments, match="arguments passed as options") as refused:
        app.enqueue("add", x=1, y=2)  # type: ignore[call-arg]
    assert refused.value.fix == fix
    with pytest.raises(InvalidArguments, match="expected one payload, got 2") as refused:
        app.enqueue("add", 1, 2)  # type: ignore[arg-type]
    assert refused.value.fix == fix
    with pytest.raises(InvalidArguments, match="an object with the arguments by name, got tuple") as refused:
        app.enqueue("add", (1, 2))
    assert refused.value.fix == fix
    with pytest.raises(InvalidSetting, match="unknown options: x") as unknown:
        app.prepare("elsewhere", x=1)  # type: ignore[call-arg]
    assert 'app.enqueue("elsewhere", {"x": …})' in (unknown.value.fix or "")
    with pytest.raises(InvalidArguments, match="expected one payload"):
        asyncio.run(app.aenqueue("add", 1, 2))  # type: ignore[arg-type]


class Order:
    """An object of the caller's program."""


@pytest.mark.req("CX-9", "DP-22")
def test_arguments_of_another_type_are_named(app: App) -> None:
    @app.job
    def receipt(order: int, extra: object = None, untyped=None) -> None: ...  # type: ignore[no-untyped-def]

    def refused(*args: Any) -> str:
        with pytest.raises(InvalidInput) as caught:
            receipt.enqueue(*args)
        return str(caught.value)

    assert "order: Input should be a valid integer, got Order" in refused(Order())
    assert "Pass the id of the Order, not the object." in refused(Order())
    assert "got NoneType" in refused(None)
    assert "flush the session first" in refused(None)
    assert "a secret" not in refused("a secret")
    assert "Order is not JSON [payload_not_json]" in refused(1, Order())
    assert "the id of a database object" in refused(1, None, Order())
    assert "2,000,0" in refused(1, None, "x" * 2_000_000)
    assert "artifact store" in refused(1, None, "x" * 2_000_000)
    with pytest.raises(InvalidPayload, match="Write JSON, for example"):
        decode("to=5")


@pytest.mark.req("CX-9", "DP-22")
def test_intervals_and_mistakes_of_schedules(app: App) -> None:
    for interval in (30, 30.0, timedelta(seconds=30)):
        assert Timing.of(interval) == Timing.of("every 30s")
    assert Timing.of(1.5).every == timedelta(seconds=1.5)
    app.schedule(timedelta(hours=1), kind="tidy")
    mistakes: tuple[tuple[Any, str], ...] = (
        ({"cron": "0 3 * * *"}, "For cron use timing, the first argument"),
        ({"args": ("a",)}, "For args use payload={…}, the arguments by name"),
        ({"timezone": "UTC"}, "For timezone use tz"),
    )
    for definition, hint in mistakes:
        with pytest.raises(InvalidSetting) as refused:
            app.schedule("@daily", **definition)
        assert hint in str(refused.value)
    with pytest.raises(InvalidSetting, match="For cron use timing"):
        app.schedule(cron="0 3 * * *")  # type: ignore[call-arg]
    with pytest.raises(InvalidSetting, match='For example "0 9'):
        app.schedule()
    with pytest.raises(InvalidSetting, match="must be text of 1 to 200 characters, not list"):
        app.schedule(["@daily"])  # type: ignore[arg-type]


@pytest.mark.req("CX-9", "DP-22")
def test_retry_policies_that_are_none(app: App) -> None:
    for wrong in (3, False):
        with pytest.raises(InvalidSetting, match=r"for no retry Retry\(max_attempts=1\).*Presets: patient"):
            app.job(retry=wrong)  # type: ignore[call-overload]
    with pytest.raises(InvalidSetting, match=r"use Backoff\(base=5\)"):
        Retry(backoff=5)  # type: ignore[arg-type]


@pytest.mark.req("CX-9", "DP-22")
@pytest.mark.parametrize(
    ("url", "fix"),
    [
        ("postgresql+psycopg://localhost/shop", "Leave out +psycopg"),
        ("sqlite+aiosqlite:///shop.db", "Leave out +aiosqlite"),
        ("/tmp/shop.db", "Use sqlite:////tmp/shop.db."),
        ("shop.sqlite3", "Use sqlite:///shop.sqlite3."),
        ("shop", "App(url, name=…)"),
        ("redis://localhost", "Use sqlite:///jobs.db or postgresql://"),
        (7, "Use sqlite:///jobs.db or postgresql://"),
    ],
)
def test_urls_of_other_libraries(url: Any, fix: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        App(url)
    assert (refused.value.code, fix in (refused.value.fix or "")) == ("invalid_url", True)


@pytest.mark.req("CX-2")
def test_id_prefix_becomes_range_of_ids() -> None:
    assert id_range("01a1de74-eb") == (
        "01a1de74-eb00-0000-0000-000000000000",
        "01a1de74-ebff-ffff-ffff-ffffffffffff",
    )
    assert id_range("01A1DE74") == ("01a1de74-0000-0000-0000-000000000000", "01a1de74-ffff-ffff-ffff-ffffffffffff")
    for wrong in ("01a1d", "mail", "01a1de7-4eb", "01a1de74-eb8c-70f1-843b-cac5f6817387", ""):
        assert id_range(wrong) is None


@pytest.mark.req("DP-14", "DP-22")
def test_names_of_celery_workflows(app: App) -> None:
    @app.job
    def add(x: int, y: int) -> int:
        return x + y

    wf = app.workflow("sums")
    job = wf.add(add, 1, 2)
    group = wf.group("more")
    run = wf.start()
    for thing, name, hint in (
        (wf, "delay", "Use wf.start(), or await wf.astart()."),
        (wf, "apply_async", "Use wf.start()"),
        (wf, "enqueue", "Use wf.start()"),
        (wf, "adelay", "Use await wf.astart()."),
        (wf, "then", "wf.add(kind, …, after=job)"),
        (wf, "chain", "wf.add(kind, …, after=job)"),
        (wf, "chord", "wf.map(kind, items)"),
        (wf, "add_task", "Use wf.add(kind, …)."),
        (wf, "link_error", "wf.on_failure(kind, …)"),
        (wf, "result", "the run that wf.start() returns"),
        (group, "apply_async", "Use wf.start()"),
        (job, "then", "wf.add(kind, …, after=job)"),
        (job, "delay", "It starts with its workflow. Use wf.start()"),
        (job, "link", "job.on_success(kind, …)"),
        (job, "set_upstream", "job.wait_for(other)"),
        (job, "result", "run[job].result(timeout=…)"),
        (run, "get", "run[job].result()"),
        (run, "ready", "run.workflow().over"),
        (run, "state", "Use run.status()."),
        (run, "revoke", "app.workflows.cancel(run.id)"),
    ):
        with pytest.raises(AttributeError) as refused:
            getattr(thing, name)
        assert hint in str(refused.value), (thing, name)
        assert str(refused.value).endswith("See docs/guides/from-celery.md.")
        assert not hasattr(thing, name)
    for thing, text in ((wf, "WorkflowPlan"), (group, "Part"), (job, "Planned"), (run, "WorkflowRun")):
        with pytest.raises(AttributeError, match=f"^'{text}' object has no attribute 'nonsense'$"):
            getattr(thing, "nonsense")  # noqa: B009
    assert copy.copy(run) == run


@pytest.mark.req("DP-14", "DP-22")
def test_hints_name_only_attributes_that_workflows_lack() -> None:
    for owner, real in (("Workflow", WorkflowPlan), ("Planned", Planned), ("WorkflowRun", WorkflowRun)):
        assert [name for name in ATTRIBUTES[owner] if name in dir(real)] == []
