"""Templates (SC-8): named, versioned definitions with defaults; a job records the version it was made from."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta

import pytest

from holdfast import App, Retry
from holdfast.engine.names import PagePosition
from holdfast.errors import Conflict, InvalidArguments, InvalidInput, InvalidSetting, NotFound
from holdfast.features.assembly import Store
from tests.support.direct_sql import open_by_hand
from tests.support.schedules import MONDAY, at, made, set_time, template

pytestmark = pytest.mark.req("SC-8")


@pytest.fixture
def app(store: Store) -> Iterator[App]:
    with closing(App(store.url, name="tests", enqueued_by="tester")) as app_of_test:

        @app_of_test.job(queue="reports", priority=3)
        def report(scope: str, month: int = 1) -> str:
            return f"{scope} {month}"

        yield app_of_test


def test_change_makes_a_new_version_and_keeps_the_others(app: App) -> None:
    policy = Retry(max_attempts=2)
    first = app.templates.set("monthly", "report", {"scope": "month"}, queue="slow", retry=policy)
    assert (first.version, first.kind, first.payload, first.created_by) == (1, "report", {"scope": "month"}, "tester")
    assert (
        app.templates.set("monthly", "report", {"scope": "month"}, queue="slow", retry=Retry(max_attempts=2)) == first
    )
    second = app.templates.set("monthly", "report", {"scope": "month", "month": 2}, tags=["t"])
    assert (second.version, second.options) == (2, {"tags": ["t"]})
    assert app.templates.get("monthly") == second
    assert app.templates.get("monthly", 1) == first
    assert app.templates.versions("monthly") == [second, first]
    assert app.templates.list() == [second]

    app.templates.remove("monthly")
    with pytest.raises(NotFound):
        app.templates.get("monthly")
    assert app.templates.list() == []
    assert [(each.version, each.removed) for each in app.templates.versions("monthly")] == [
        (3, True),
        (2, False),
        (1, False),
    ]
    for gone in (lambda: app.templates.remove("monthly"), lambda: app.templates.enqueue("monthly")):
        with pytest.raises(NotFound, match="template_not_found"):
            gone()
    assert app.templates.set("monthly", "report").version == 4


def test_job_records_its_template_version(app: App, store: Store) -> None:
    set_time(app, MONDAY)
    app.templates.set(
        "monthly", "report", {"scope": "month"}, priority=7, retry=Retry(max_attempts=2), deadline="1h", tags=["t"]
    )
    first = app.templates.enqueue("monthly", month=3)
    app.templates.set("monthly", "report", {"scope": "year"})
    second = app.templates.enqueue("monthly")
    third = app.templates.using(version=1, queue="fast", key="k").enqueue("monthly", scope="week")
    again = app.templates.using(version=1, queue="fast", key="k").enqueue("monthly", scope="week")
    assert (again.created, again.id) == (False, third.id)

    job = app.jobs.get(first.id)
    assert (job.payload, job.queue, job.priority) == ({"scope": "month", "month": 3}, "reports", 7)
    assert (job.max_attempts, job.deadline_at, job.tags) == (2, MONDAY + timedelta(hours=1), ("t",))
    job = app.jobs.get(third.id)
    assert (job.payload, job.queue, job.idempotency_key) == ({"scope": "week"}, "fast", "k")
    origins = [store.run(store.templates.made_from(handle.id, "default")) for handle in (first, second, third)]
    assert [(each.template, each.template_version) for each in origins if each] == [
        ("monthly", 1),
        ("monthly", 2),
        ("monthly", 1),
    ]
    plain = app.enqueue("report", {"scope": "x"})
    assert store.run(store.templates.made_from(plain.id, "default")) is None


def test_schedule_uses_the_newest_template_version(app: App, store: Store) -> None:
    set_time(app, MONDAY)
    app.templates.set("monthly", "report", {"scope": "month"}, queue="slow")
    app.schedules.add("hourly", "0 * * * *", template="monthly", payload={"month": 5}, priority=1)
    app.templates.set("monthly", "report", {"scope": "year"}, queue="slow")
    at(app, MONDAY + timedelta(hours=1))
    (job,) = made(app, "report")
    assert (job.payload, job.queue, job.priority) == ({"scope": "year", "month": 5}, "slow", 1)
    origin = store.run(store.templates.made_from(job.id, "default"))
    assert origin is not None
    assert (origin.template, origin.template_version, origin.schedule) == ("monthly", 2, "hourly")


def test_invalid_templates_are_refused(app: App) -> None:
    app.templates.set("monthly", "report")
    with pytest.raises(Conflict, match="template_kind"):
        app.templates.set("monthly", "other")
    for payload in ({"scop": "typo"}, {"scope": 7}):
        with pytest.raises(InvalidArguments):
            app.templates.set("bad", "report", payload)
    for options, code in (
        ({"colour": "red"}, "unknown_option"),
        ({"priority": "high"}, "invalid_priority"),
        ({"tags": "t"}, "invalid_name"),
        ({"retry": 3}, "invalid_retry"),
        ({"deadline": "soon"}, "invalid_duration"),
    ):
        with pytest.raises(InvalidSetting, match=code):
            app.templates.set("bad", "report", **options)
    with pytest.raises(InvalidArguments):  # required arguments must be given
        app.templates.enqueue("monthly")
    assert [each.name for each in app.templates.list()] == ["monthly"]


def test_concurrent_changes_all_become_versions(store: Store) -> None:
    def put(day: int) -> None:
        store.run(store.templates.set(template(day=day), "ada", "default"))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(16)))
    versions = store.run(store.templates.versions("monthly", "default"))
    assert [each.version for each in versions] == list(range(16, 0, -1))
    assert sorted(each.payload["day"] for each in versions) == list(range(16))
    assert store.run(store.templates.list("acme")) == []


def test_newest_thousand_versions_are_kept_and_paged(store: Store) -> None:
    with closing(open_by_hand(store.url)) as by_hand:
        by_hand.execute(
            "with recursive n(i) as (select 1 union all select i + 1 from n where i < 1001)"
            " insert into template (tenant, name, version, kind, created_by, created_at)"
            " select 'default', 'monthly', i, 'report', 'ada', p.now from n, present p"
        )
        run = store.run
        assert run(store.templates.set(template(day=7), "ada", "default")).version == 1002  # type: ignore[union-attr]
        assert run(store.templates.get("monthly", "default", 2)) is None
        assert run(store.templates.remove("monthly", "ada", "default"))
        kept = run(store.templates.versions("monthly", "default"))
        assert [each.version for each in kept] == list(range(1003, 3, -1))
        first = run(store.templates.versions("monthly", "default", limit=3))
        after = PagePosition("default", str(first[-1].version))
        assert [*first, *run(store.templates.versions("monthly", "default", after, 2))] == kept[:5]
        of_every_tenant = run(store.templates.versions("monthly", "*", PagePosition("default", "5")))
        assert [each.version for each in of_every_tenant] == [4]
        with pytest.raises(InvalidInput, match="invalid_cursor"):
            run(store.templates.versions("monthly", "default", PagePosition("default", "x")))
        actions = by_hand.execute("select type, count(*) from action where subject = 'template' group by type")
        assert [tuple(row) for row in actions] == [("add", 1003)], "pruned versions are not recorded as removed"
        # By hand no version can be deleted early.
        with pytest.raises(Exception, match="never deleted"):
            by_hand.execute("delete from template where version = 4")
