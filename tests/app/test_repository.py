"""`app.repository()`: the small interface for programs that run their own loop (HK-4)."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from holdfast import App, Context, PayloadPolicy, State
from holdfast.app.internals import session_of
from holdfast.app.repository import JobRepository
from holdfast.errors import Conflict, InvalidPayload, InvalidSetting, NotFound, StaleLease, StoreUnavailable
from holdfast.features.payloads.model import HIDDEN
from holdfast.stores.flow import Flow
from tests.app.conftest import NewApp
from tests.support.stores import forward
from tests.support.workers import work_off

pytestmark = pytest.mark.req("HK-4")


@pytest.fixture
def repository(app: App) -> JobRepository:
    return app.repository(ttl="30s")


def job_state(app: App, job_id: str) -> State:
    job = app.jobs.get(job_id)
    return job.state


def test_claim_and_mark_without_a_worker(app: App, repository: JobRepository) -> None:
    ids = [repository.enqueue("resize", {"image": n}) for n in range(3)]
    works = repository.claim(10)
    assert [(work.id, work.kind, work.payload, work.attempt) for work in works] == [
        (job_id, "resize", {"image": n}, 1) for n, job_id in enumerate(ids)
    ]
    assert repository.claim() == []
    repository.mark_success(ids[0], {"ok": True})
    repository.mark_success(ids[1])
    repository.mark_failure(ids[2], "no such image", code="missing", permanent=True)
    assert [job_state(app, job_id) for job_id in ids] == [State.SUCCEEDED, State.SUCCEEDED, State.DEAD_LETTER]
    result = session_of(app).run(session_of(app).store.jobs.result(ids[0], "default"))
    assert result is not None
    assert result.value == {"ok": True}
    dead_letter = app.jobs.get(ids[2])
    assert (dead_letter.error_code, dead_letter.error_message) == ("missing", "no such image")
    repository.close()


@pytest.mark.req("DP-11")
def test_jobs_record_enqueued_by_and_source(app: App, repository: JobRepository) -> None:
    job = app.jobs.get(repository.enqueue("x"))
    assert (job.enqueued_by, job.source_system, job.payload) == ("tester", "repository", {})


@pytest.mark.req("CX-9", "JF-5")
def test_failure_is_retried_by_the_job_policy(app: App, repository: JobRepository) -> None:
    job_id = repository.enqueue("x")
    for attempt in range(1, 11):
        forward(session_of(app).store, 7_201)  # past the longest backoff
        (work,) = repository.claim()
        assert work.attempt == attempt
        repository.mark_failure(job_id, "busy")
    job = app.jobs.get(job_id)
    assert (job.state, job.retries, job.error_code) == (State.DEAD_LETTER, 9, "failed")


@pytest.mark.req("DP-5")
def test_key_returns_the_first_job(repository: JobRepository) -> None:
    first = repository.enqueue("x", {"n": 1}, key="k")
    assert repository.enqueue("x", {"n": 1}, key="k") == first
    with pytest.raises(Conflict) as caught:
        repository.enqueue("x", {"n": 2}, key="k")
    assert caught.value.code == "idempotency_conflict"


@pytest.mark.req("DP-9")
def test_future_job_is_claimed_when_it_is_due(app: App, repository: JobRepository) -> None:
    now = forward(session_of(app).store)
    job_id = repository.enqueue("x", run_at=now + timedelta(minutes=5))
    assert repository.claim() == []
    forward(session_of(app).store, 301)
    assert [work.id for work in repository.claim()] == [job_id]


def test_claim_reads_only_its_queue(app: App, repository: JobRepository) -> None:
    handle = app.enqueue("x", queue="other")
    assert repository.claim() == []
    assert [work.id for work in repository.claim(queue="other")] == [handle.id]


@pytest.mark.req("JF-1")
def test_repository_sees_only_its_tenant(app: App, new_app: NewApp, repository: JobRepository) -> None:
    theirs = new_app(tenant="acme").enqueue("x")
    assert repository.claim() == []
    assert [work.id for work in new_app(tenant="acme").repository().claim()] == [theirs.id]


@pytest.mark.req("SC-19")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("", {}),
        ("a\x00b", {}),
        ("x", {"key": " "}),
        ("x", {"run_at": datetime(2100, 1, 1)}),
    ],
)
def test_invalid_values_are_refused(app: App, repository: JobRepository, kind: str, options: dict[str, object]) -> None:
    with pytest.raises(InvalidSetting):
        repository.enqueue(kind, **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidPayload):
        repository.enqueue("x", {"value": float("nan")})
    assert app.jobs.list() == []


def test_only_jobs_claimed_here_can_be_marked(app: App, new_app: NewApp, repository: JobRepository) -> None:
    job_id = repository.enqueue("x")
    for mark in (repository.mark_success, lambda each: repository.mark_failure(each, "no")):
        with pytest.raises(NotFound) as caught:
            mark(job_id)
        assert caught.value.code == "not_claimed"
    (work,) = repository.claim()
    with pytest.raises(NotFound):
        new_app().repository().mark_success(work.id)
    repository.mark_success(work.id)
    with pytest.raises(NotFound):
        repository.mark_success(work.id)


@pytest.mark.req("DP-7", "DP-8")
def test_expired_lease_loses_the_jobs_and_marking_them_fails(
    app: App, new_app: NewApp, repository: JobRepository
) -> None:
    job_id = repository.enqueue("x")
    (work,) = repository.claim()
    forward(session_of(app).store, 31)
    other = new_app().repository()
    (taken,) = other.claim() or other.claim()  # the first call frees it; this or the next call claims it
    assert (taken.id, taken.attempt) == (job_id, 2)
    with pytest.raises(StaleLease):
        repository.mark_success(work.id, "stale")
    other.mark_success(job_id, "fresh")
    result = session_of(app).run(session_of(app).store.jobs.result(job_id, "default"))
    assert result is not None
    assert result.value == "fresh"


@pytest.mark.req("DP-7")
def test_every_call_renews_the_lease(app: App, repository: JobRepository) -> None:
    for _ in range(4):
        repository.enqueue("x")
    works = repository.claim(4)
    for work in works:
        forward(session_of(app).store, 20)  # each step within the lease, all of them far beyond it
        repository.mark_success(work.id)
    assert {job.state for job in app.jobs.list()} == {State.SUCCEEDED}
    assert {job.attempt for job in app.jobs.list()} == {1}


@pytest.mark.req("SC-19")
def test_failed_mark_can_be_repeated(app: App, repository: JobRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = repository.enqueue("x")
    (work,) = repository.claim()

    def unreachable(flow: Flow[object]) -> object:
        raise StoreUnavailable("the database cannot be reached")

    with monkeypatch.context() as patch:
        patch.setattr(session_of(app).store, "run", unreachable)
        with pytest.raises(StoreUnavailable):
            repository.mark_success(work.id)
    assert job_state(app, job_id) is State.IN_PROGRESS
    repository.mark_success(work.id)
    assert job_state(app, job_id) is State.SUCCEEDED


def test_closing_frees_claimed_jobs(app: App, new_app: NewApp, repository: JobRepository) -> None:
    job_id = repository.enqueue("x")
    repository.claim()
    repository.close()
    repository.close()
    other = new_app().repository()
    (work,) = other.claim() or other.claim()
    assert (work.id, work.attempt) == (job_id, 2)


@pytest.mark.req("CX-5", "CX-6")
@pytest.mark.every_case
@pytest.mark.parametrize("source", ["code", "rule", "agent"])
@pytest.mark.parametrize("verdict", ["approve", "deny"])
def test_claim_asks_for_the_approval_that_a_job_needs(app: App, source: str, verdict: str) -> None:
    if source == "code":
        app.job("pay", requires_approval={"approvers": ["ada"]})(lambda: None)
    elif source == "rule":
        app.payload_rules.set("pay", requires_approval={"approvers": ["ada"]})
    else:
        app.agents.set("buyer", name="Buyer", requires_approval=True)
    handle = app.enqueue("pay", {}, agent="buyer") if source == "agent" else app.enqueue("pay", {})
    jobs = app.repository()
    assert jobs.claim(5) == []
    (approval,) = app.approvals.list()
    assert (approval.name, approval.job_id) == ("run", handle.id)
    getattr(app.approvals, verdict)(approval.id, by="ada")
    claimed = jobs.claim(5)
    assert [work.id for work in claimed] == ([handle.id] if verdict == "approve" else [])
    if claimed:
        jobs.mark_success(handle.id)
    else:
        assert handle.get().error_code == "denied"
    jobs.close()


@pytest.mark.req("CX-6")
def test_claim_does_not_bypass_a_decision_of_the_handler(app: App) -> None:
    @app.job("pay")
    async def pay(ctx: Context) -> None:
        await ctx.approval("pay", summary="Pay?", on_deny="resume")

    handle = pay.enqueue()
    work_off(app)
    app.approvals.deny(app.approvals.list()[0].id, by="ada")
    jobs = app.repository()
    assert jobs.claim(5) == []
    assert handle.get().error_code == "approval_not_asked"
    jobs.close()


@pytest.mark.every_case
@pytest.mark.req("CX-5", "DP-4")
def test_claim_for_another_tenant_follows_its_rules(app: App, new_app: NewApp) -> None:
    theirs = new_app(tenant="acme")
    theirs.payload_rules.set("pay", requires_approval={"approvers": ["cfo"]}, restricted=True)
    theirs.enqueue("pay", {"to": "Rosalind"})
    jobs = app.repository(tenant="acme")
    assert jobs.claim(5) == []
    (approval,) = theirs.approvals.list()
    assert (approval.approvers, approval.data) == (("cfo",), {"payload": HIDDEN})
    jobs.close()


@pytest.mark.every_case
@pytest.mark.req("DP-4")
def test_approval_of_a_kind_that_is_restricted_in_code_hides_its_payload(app: App) -> None:
    app.job("pay", requires_approval=True, payload_rules=PayloadPolicy(restricted=True))(lambda to: None)
    app.enqueue("pay", {"to": "Rosalind"})  # no worker has written the rule yet
    jobs = app.repository()
    assert jobs.claim(5) == []
    assert app.approvals.list()[0].data == {"payload": HIDDEN}
    jobs.close()
