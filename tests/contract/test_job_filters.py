"""Every filter of job lists: both stores and the pure predicate select the same jobs, page by page, by an index."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any, get_type_hints

import pytest

from holdfast import App
from holdfast.cli.options import JobFilterOptions
from holdfast.engine.job import Job, worker_holder
from holdfast.engine.order import Move
from holdfast.engine.states import State
from holdfast.errors import InvalidInput, InvalidSetting, NotFound
from holdfast.features.assembly import Store
from holdfast.features.audit.store import ActionFilter
from holdfast.features.dead_letters.model import GroupFilter
from holdfast.features.dead_letters.store import filter_json
from holdfast.features.jobs.search import parse
from holdfast.server.parameters import _search
from holdfast.stores.job_filters import BY_NAME, FILTERS
from holdfast.stores.requests import JobConditions, JobFilter
from tests.support.direct_sql import ByHand
from tests.support.features import keep, sweep
from tests.support.schedules import MONDAY, at, set_time
from tests.support.stores import BROKEN, FINAL, claim, forward, open_lease, put, put_one, settle, spec, take

pytestmark = pytest.mark.req("SC-23", "CX-14", "CX-23")

WORKER = worker_holder("0190cccc-0000-7000-8000-000000000001", "here", 7)
ELSEWHERE = ("fingerprint", "since", "until")
"""Compared in other tests: the ids of a test's jobs do not have the time of its clock."""
OTHER = worker_holder("0190dddd-0000-7000-8000-000000000002", "there", 8)


@pytest.fixture
def app(store: Store) -> Iterator[App]:
    with closing(App(store.url, name="tests", enqueued_by="tester")) as app_of_test:

        @app_of_test.job(domain="billing")
        def pay(amount: int = 1) -> None: ...

        @app_of_test.job(domain="billing")
        def refund(amount: int = 1) -> None: ...

        @app_of_test.job
        def report(scope: str = "all") -> None: ...

        yield app_of_test


@pytest.fixture
def jobs(app: App, store: Store) -> list[Job]:
    """Jobs with every fact, newest first: of templates, schedules and workflows, with keys, tags and workers."""
    app.kinds.register()
    set_time(app, MONDAY)
    app.templates.set("monthly", "report", {"scope": "month"})
    app.templates.enqueue("monthly")
    app.templates.set("monthly", "report", {"scope": "year"})
    app.templates.enqueue("monthly")
    app.schedules.add("nightly", "@hourly", kind="report")
    app.schedules.add("weekly", "@hourly", template="monthly")
    for hours in (1, 2):
        at(app, MONDAY + timedelta(hours=hours))
    flow = app.workflow("publish")
    images = flow.group("images")
    for _ in range(2):
        images.add("pay", {"amount": 1})
    flow.add("refund", {"amount": 2}, name="last")
    flow.start()
    parent = put_one(store, "parent")
    for n in range(12):
        put(
            store,
            spec(
                ("pay", "refund", "report", "mail.send")[n % 4],
                queue=("default", "slow")[n % 2],
                agent=("planner", None)[n % 2],
                executor=("gpu", None, None)[n % 3],
                key=f"key-{n}" if n % 3 == 0 else None,
                tags=(("red",), ("red", "blue"), ("customer:7",), ("customer:8", "blue"))[n % 4],
                uses=("key:acme", "resource:gpu-0") if n % 4 == 1 else (),
                external_ref=f"ref-{n % 2}" if n % 3 else None,
                correlation_id=f"order-{n % 3}",
                parent_id=parent if n % 5 == 0 else None,
            ),
        )
        forward(store, 1)
    for holder, outcome in ((WORKER, BROKEN), (OTHER, None), (WORKER, FINAL)):
        claimed = claim(store, open_lease(store, holder), want=4)
        if outcome is not None:
            for each in claimed:
                settle(store, each, outcome)
    return list(store.run(store.jobs.list(JobFilter(tenant="default", limit=1000))))


def paged(store: Store, limit: int, **wanted: Any) -> list[str]:
    """The ids of all pages."""
    found: list[str] = []
    while True:
        before = found[-1] if found else None
        page = store.run(store.jobs.list(JobFilter(tenant="default", limit=limit, before=before, **wanted)))
        found += [job.id for job in page]
        if len(page) < limit:
            return found


def values_of(name: str, jobs: list[Job]) -> list[Any]:
    """Values of a filter that some jobs have and others do not."""
    if name in ("tag", "any_tag"):
        return [("red",), ("red", "blue"), ("customer:*",), ("customer:*", "blue"), ("customer:7", "red"), ("green",)]
    if name == "limit_key":
        return ["acme", "gpu-0"]
    if name == "worker":
        return [WORKER, OTHER, WORKER.split()[1], OTHER.split()[1][:8], "nobody"]
    field = BY_NAME[name].field or name
    return list(dict.fromkeys(value for job in jobs if (value := getattr(job, field)) is not None))


@pytest.mark.every_case
@pytest.mark.parametrize("name", [name for name in BY_NAME if name not in ELSEWHERE])
def test_stores_and_predicate_agree_on_every_filter(store: Store, jobs: list[Job], name: str) -> None:
    values = values_of(name, jobs)
    assert values, name
    if name == "template_version":
        combined: list[dict[str, Any]] = [{"template": "monthly", name: value} for value in values]
    else:
        combined = [{name: value} for value in values]
    more: list[dict[str, Any]] = [
        {},
        {"state": State.QUEUED},
        {"kind": "pay"},
        {"tag": ("blue",)},
        {"domain": "billing"},
    ]
    some = 0
    for wanted in combined:
        for other in more:
            both = {**other, **wanted}
            expected = [job.id for job in jobs if all(BY_NAME[key].holds(job, both[key]) for key in both)]
            assert paged(store, 1000, **both) == expected, both
            assert paged(store, 2, **both) == expected, both
            some += 0 < len(expected) < len(jobs)
    assert some, f"{name} does not tell jobs apart"


def test_list_by_group_of_dead_letters(store: Store, jobs: list[Job]) -> None:
    for group in store.run(store.dead_letters.groups(GroupFilter(tenant="default"))):
        letters = paged(store, 2, fingerprint=group.fingerprint)
        assert letters == [job.id for job in jobs if job.id in letters]
        assert len(letters) == group.open
        assert paged(store, 2, fingerprint=group.fingerprint, tag="none") == []


@pytest.mark.req("JF-23", "DP-29")
def test_job_shows_its_origin_domain_worker_and_queue_time(app: App, store: Store, jobs: list[Job]) -> None:
    for job in jobs:
        assert store.run(store.jobs.get(job.id, "default")) == job, "the view and the list agree"
    scheduled = [job for job in jobs if job.schedule == "nightly"]
    assert [job.scheduled_for for job in scheduled] == [MONDAY + timedelta(hours=hours) for hours in (2, 1)]
    assert {job.schedule_id for job in scheduled} == {app.schedules.get("nightly").id}
    made = [(job.template, job.template_version) for job in jobs if job.template and not job.schedule]
    assert made == [("monthly", 2), ("monthly", 1)]
    assert {job.part for job in jobs if job.workflow_id} == {"images", None}
    assert {job.domain for job in jobs if job.kind in ("pay", "refund")} == {"billing"}
    assert {job.domain for job in jobs if job.kind == "report"} == {None}
    held = [job for job in jobs if job.state is State.IN_PROGRESS]
    assert {job.worker for job in held} == {OTHER}


@pytest.mark.req("JF-23")
def test_queued_at_is_the_time_of_the_last_return_to_the_queue(store: Store) -> None:
    first = forward(store)
    job_id = put_one(store)
    assert _job(store, job_id).queued_at == first
    assert _job(store, job_id).worker is None
    forward(store, 5)
    store.run(store.jobs.move(job_id, Move.of(True, False, None, None, None), None, "ada", "default"))
    assert _job(store, job_id).queued_at == first, "a move is no return to the queue"
    settle(store, take(store), BROKEN)
    assert _job(store, job_id).queued_at == first
    later = forward(store, 600)
    store.run(store.leases.promote())
    assert _job(store, job_id).queued_at == later


def _job(store: Store, job_id: str) -> Job:
    (listed,) = store.run(store.jobs.list(JobFilter(tenant="default")))
    found = store.run(store.jobs.get(job_id, "default"))
    assert found == listed
    return listed


def test_lists_stay_within_their_tenant(store: Store, jobs: list[Job]) -> None:
    for name in BY_NAME.keys() - {*ELSEWHERE}:
        for value in values_of(name, jobs)[:2]:
            wanted = {"template": "monthly"} if name == "template_version" else {}
            assert store.run(store.jobs.list(JobFilter(tenant="acme", **wanted | {name: value}))) == []


def test_every_surface_has_every_filter(app: App) -> None:
    names = {each.name for each in FILTERS}
    assert names == set(get_type_hints(JobConditions))
    assert names <= {field.name for field in dataclasses.fields(JobFilter)}
    assert {each.query for each in FILTERS} == inspect.signature(_search).parameters.keys() - {"app", "q"}
    assert names - {"state"} == {field.name for field in dataclasses.fields(JobFilterOptions)}
    texts = {"id": "0190cccc-0000-7000-8000-000000000001", "number": "1", "time": "1h", "state": "queued"}
    for each in FILTERS:
        text = f"{each.qualifier}:{texts.get(each.values, 'x')}"
        given = parse(f"template:x {text}" if each.name == "template_version" else text, MONDAY).given
        assert each.name in given


@pytest.mark.req("CX-23")
@pytest.mark.parametrize("tag", [["a", "b"], ("a", "b")])
def test_several_tags_in_one_list(app: App, store: Store, tag: Any) -> None:
    both, one = put(store, spec(tags=("a", "b")), spec(tags=("a",)))
    assert [job.id for job in app.jobs.list(tag=tag)] == [both]
    assert [job.id for job in app.jobs.list(tag="a")] == [one, both]
    assert [job.id for job in app.jobs.list(any_tag=tag)] == [one, both]
    assert [job.id for job in app.jobs.search("tag:a tag:b").jobs] == [both]
    assert [job.id for job in app.jobs.search("any_tag:b any_tag:none").jobs] == [both]


@pytest.mark.parametrize(
    "wanted",
    [{"tag": 7}, {"tag": []}, {"tag": ["a", 7]}, {"any_tag": ["t"] * 21}, {"kind": 7}, {"template_version": 1}],
)
def test_wrong_values_are_refused_alike(app: App, wanted: Any) -> None:
    with pytest.raises(InvalidSetting):
        app.jobs.list(**wanted)


@pytest.mark.req("CX-23")
def test_purge_removes_labels_and_limit_keys(store: Store, by_hand: ByHand) -> None:
    put(store, spec(tags=("customer:7", "blue"), uses=("key:acme", "resource:r")))
    assert by_hand.execute("select count(*) from job_tag") == [(4,)]
    settle(store, take(store))
    keep(store, clean=1, purge=2)
    forward(store, 60)
    sweep(store)
    forward(store, 60)
    put(store, spec())  # the newest row of SQLite's ledger stays
    sweep(store)
    assert by_hand.execute("select count(*) from job_tag") == [(0,)]


@pytest.mark.req("CX-23")
def test_labels_and_limit_keys_of_jobs_inserted_by_hand(store: Store, by_hand: ByHand) -> None:
    insert = "insert into job (tenant, kind, tags, uses) values ('default', 'work', :tags, :uses)"
    lists = ('["customer:acme", "blue"]', '["key:acme", "resource:r"]')
    if by_hand.name != "sqlite":
        lists = ("{customer:acme,blue}", "{key:acme,resource:r}")
    by_hand.execute(insert, dict(zip(("tags", "uses"), lists, strict=True)))
    rows = by_hand.execute("select t.tag from job_tag t order by t.tag")
    assert {tag for (tag,) in rows} == {"customer:acme", "customer:*", "blue", " key:acme"}
    other = "insert into job_tag (tenant, tag, job_id) select tenant, :tag, id from job"
    for tag in ("red", "blue*", "*", "customer:", " resource:r", "key:acme"):
        assert by_hand.refusal(other, {"tag": tag}) is not None, tag


# --- external references (CX-22) ---


@pytest.mark.req("CX-22")
@pytest.mark.every_case
@pytest.mark.parametrize("ended", [False, True])
def test_external_reference_is_set_after_creation(app: App, store: Store, ended: bool) -> None:
    job_id = put_one(store)
    if ended:
        settle(store, take(store))
    app.jobs.set_external_ref(job_id, "crm-1")
    assert [job.id for job in app.jobs.list(external_ref="crm-1")] == [job_id]
    app.jobs.set_external_ref(job_id, "crm-2")
    app.jobs.set_external_ref(job_id, "crm-2")
    assert app.jobs.list(external_ref="crm-1") == []
    assert app.jobs.get(job_id).external_ref == "crm-2"
    app.jobs.set_external_ref(job_id, None)
    assert app.jobs.get(job_id).external_ref is None
    actions = store.run(store.audit.actions(ActionFilter(tenant="default", subject="job")))
    changes = [(each.name, each.type, each.changed, each.actor) for each in actions]
    expected = [[None, "crm-1"], ["crm-1", "crm-2"], ["crm-2", None]]
    assert sorted(changes, key=str) == sorted(
        [(job_id, "change", {"external_ref": pair}, "tester") for pair in expected], key=str
    )


@pytest.mark.req("CX-22")
def test_external_reference_of_another_tenant_is_refused(app: App, store: Store) -> None:
    job_id = put_one(store, tenant="acme")
    with pytest.raises(NotFound):
        app.jobs.set_external_ref(job_id, "crm-1")
    for wrong in ("", " ", "x" * 256, 7):
        with pytest.raises(InvalidInput):
            app.jobs.set_external_ref(job_id, wrong)  # type: ignore[arg-type]
    app.jobs.set_external_ref(job_id, "crm-1", tenant="acme")
    assert app.jobs.list(external_ref="crm-1") == []
    assert [job.id for job in app.jobs.list(external_ref="crm-1", tenant="acme")] == [job_id]


@pytest.mark.req("CX-22")
def test_reference_that_is_changed_by_hand_is_recorded(store: Store, by_hand: ByHand) -> None:
    job_id = put_one(store)
    by_hand.execute(f"update job set external_ref = 'x' where id = '{job_id}'")
    (action,) = store.run(store.audit.actions(ActionFilter(tenant="default", subject="job")))
    assert action.changed == {"external_ref": [None, "x"]}
    assert by_hand.refusal(f"update job set external_ref = '{'x' * 256}' where id = '{job_id}'") is not None


# --- health of a domain (DP-29) ---


@pytest.mark.req("DP-29")
def test_health_of_a_domain_counts_its_jobs_alone(app: App, store: Store, jobs: list[Job]) -> None:
    mine = [job for job in jobs if job.domain == "billing"]
    health = app.health.get(domain="billing")
    counted = (health.backlog, health.scheduled, health.in_progress, health.dead_letter_open)
    waiting = [job for job in mine if job.state is State.QUEUED and job.due_at is None]
    assert counted == (
        len(waiting),
        sum(job.due_at is not None for job in mine),
        sum(job.state is State.IN_PROGRESS for job in mine),
        sum(job.state is State.DEAD_LETTER for job in mine),
    )
    assert 0 < health.backlog < app.health.get().backlog
    assert health.waiting_kinds == tuple(sorted({job.kind for job in waiting}))
    assert health.oldest_queued_age_s is not None
    everywhere = app.health.get(domain="billing", tenant="*")
    assert (everywhere.backlog, everywhere.dead_letter_open) == (health.backlog, health.dead_letter_open)
    nothing = app.health.get(domain="none")
    assert (nothing.backlog, nothing.dead_letter_open, nothing.oldest_queued_age_s) == (0, 0, None)
    app.limits.set(kind=waiting[0].kind, concurrency=1)
    put(store, *(spec(waiting[0].kind) for _ in range(4)))
    claim(store, open_lease(store), want=50)
    limited = app.health.get(domain="billing")
    assert limited.parked > 0
    assert limited.scheduled == health.scheduled, "parked jobs are counted apart"


@pytest.mark.req("DP-29")
def test_kinds_are_registered_with_their_domain(app: App) -> None:
    app.kinds.register()
    assert [(kind.name, kind.domain) for kind in app.kinds.list(domain="billing")] == [
        ("pay", "billing"),
        ("refund", "billing"),
    ]
    assert app.kinds.set("pay", "Pay.", domain="finance").domain == "finance"
    assert app.kinds.register() == 1
    assert app.kinds.get("pay").domain == "billing"
    with pytest.raises(InvalidSetting):
        app.kinds.set("pay", domain=" ")


# --- SQL: list_jobs and is_wanted ---

ARGUMENTS = {
    "state": "in_state",
    "kind": "of_kind",
    "queue": "in_queue",
    "tag": "with_tags",
    "any_tag": "with_any_tag",
    "domain": "of_domain",
    "external_ref": "with_external_ref",
    "key": "with_key",
    "limit_key": "with_limit_key",
    "agent": "of_agent",
    "executor": "for_executor",
    "worker": "of_worker",
    "correlation_id": "with_correlation",
    "parent_id": "of_parent",
    "workflow_id": "of_workflow",
    "part": "of_part",
    "template": "from_template",
    "template_version": "from_template_version",
    "schedule": "from_schedule",
    "scheduled_for": "scheduled_for",
    "fingerprint": "of_group",
    "since": "created_from",
    "until": "created_until",
}
"""The argument of the SQL function ``list_jobs`` for each filter."""


def test_sql_functions_have_every_filter(store: Store, jobs: list[Job], by_hand: ByHand) -> None:
    if store.embedded:
        pytest.skip("SQLite has no functions")
    assert ARGUMENTS.keys() == BY_NAME.keys()
    for name in BY_NAME.keys() - {*ELSEWHERE}:
        for value in values_of(name, jobs)[:4]:
            if name == "worker" and value == OTHER.split()[1][:8]:
                continue  # a name or a whole id
            given: Any = list(value) if isinstance(value, tuple) else str(value) if name == "state" else value
            sql = f"select id from list_jobs({ARGUMENTS[name]} => :value, want => 1000, for_tenant => 'default')"
            expected = [job.id for job in jobs if BY_NAME[name].holds(job, value)]
            assert [str(row[0]) for row in by_hand.execute(sql, {"value": given})] == expected, (name, value)
            if name == "worker":
                continue
            more: dict[str, Any] = {"template": "monthly"} if name == "template_version" else {}
            wanted = filter_json(JobFilter(tenant="default", **more | {name: value}))
            sql = "select id from job where is_wanted(id, cast(:wanted as json), 'default') order by id desc"
            found = {str(row[0]) for row in by_hand.execute(sql, {"wanted": wanted})}
            assert found == set(expected), (name, value)


def test_operation_refuses_a_worker(app: App) -> None:
    with pytest.raises(InvalidSetting, match="worker"):
        app.operations.start("cancel", worker=WORKER)  # type: ignore[call-arg]


@pytest.mark.req("JF-23")
def test_repository_takes_a_tenant(app: App, store: Store) -> None:
    put_one(store, tenant="default")
    theirs = app.repository(tenant="acme")
    job_id = theirs.enqueue("pay", {"amount": 2})
    assert [work.id for work in theirs.claim(10)] == [job_id]
    assert app.jobs.get(job_id, tenant="acme").state is State.IN_PROGRESS
    theirs.mark_success(job_id)
    assert app.jobs.list(tenant="acme", state="succeeded")[0].id == job_id
    theirs.close()
    with pytest.raises(InvalidSetting):
        app.repository(tenant="*")
