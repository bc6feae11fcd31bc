"""Approvals: a job requests a decision, frees its worker slot and resumes with the decision (CX-5, CX-6, CX-7)."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel, Field

from holdfast import App, Approval, ApprovalNotice, Context, Decision, Handle, State, SyncContext
from holdfast.app.internals import session_of
from holdfast.errors import HoldfastError, InvalidInput, NotFound, Refused, StoreUnavailable
from holdfast.stores.flow import Flow
from tests.app.conftest import NewApp
from tests.support.stores import forward
from tests.support.workers import QUICK, work_off

pytestmark = pytest.mark.req("CX-5", "CX-7")


class Budget(BaseModel):
    limit: int = Field(ge=1, le=1000)
    reason: str


def request_approval(app: App, **options: Any) -> Handle[Any]:
    """Enqueue, as `tester`, a job that requests an approval with these options and returns the decision."""

    @app.job("pay", timeout=30)
    async def pay(ctx: Context) -> list[Any]:
        decision: Decision[Any] = await ctx.approval("big-payment", **({"summary": "Pay 12,000"} | options))
        data = decision.data.model_dump() if isinstance(decision.data, BaseModel) else decision.data
        return [decision.approved, decision.state, decision.by, decision.how, decision.comment, data]

    return pay.enqueue()


def approval_of(app: App) -> Approval:
    (approval,) = app.approvals.list()
    return approval


def refused(call: Any) -> str:
    with pytest.raises(HoldfastError) as caught:
        call()
    return caught.value.code


def later(app: App, span: timedelta) -> None:
    session_of(app).run(session_of(app).store.clock.set(span, None))


def test_waiting_job_holds_no_worker_and_resumes_with_the_decision(app: App) -> None:
    handle = request_approval(app, data={"to": "ACME"}, approvers=["ada", "bob"])
    work_off(app)
    job, approval = handle.get(), approval_of(app)
    assert job.state is State.WAITING_FOR_APPROVAL
    assert (approval.name, approval.summary, approval.data, approval.requester) == (
        "big-payment",
        "Pay 12,000",
        {"to": "ACME"},
        "tester",
    )
    work_off(app)
    assert job.attempt == handle.get().attempt == 1
    assert app.approvals.approve(approval.id, by="ada", comment="fine") == "approved"
    assert handle.state() is State.QUEUED
    work_off(app)
    assert handle.result(timeout=5) == [True, "approved", "ada", "python", "fine", None]
    assert [event.type for event in handle.history()] == ["enqueue", "take", "ask", "approve", "take", "succeed"]
    assert handle.history()[3].actor == "ada"


def test_denied_job_fails_with_the_reason(app: App) -> None:
    handle = request_approval(app)
    work_off(app)
    assert app.approvals.deny(approval_of(app).id, by="bob", comment="too much") == "denied"
    job = handle.get()
    assert (job.state, job.error_code, job.error_message) == (State.FAILED, "denied", "denied by bob: too much")
    assert [event.type for event in handle.history()][-1] == "deny"
    assert app.approvals.list() == []


def test_denied_job_resumes_when_on_deny_is_resume(app: App) -> None:
    handle = request_approval(app, on_deny="resume")
    work_off(app)
    app.approvals.deny(approval_of(app).id, by="bob", comment="no")
    work_off(app)
    assert handle.result(timeout=5) == [False, "denied", "bob", "python", "no", None]
    assert [event.type for event in handle.history()][3] == "deny"


@pytest.mark.parametrize(
    ("options", "state", "event_type"),
    [
        ({}, State.FAILED, "expire"),
        ({"on_expire": "deny", "on_deny": "resume"}, State.QUEUED, "expire"),
        ({"on_expire": "approve"}, State.QUEUED, "approve"),
        ({"on_expire": "remind"}, State.WAITING_FOR_APPROVAL, "ask"),
    ],
)
def test_expired_approval_follows_its_on_expire_policy(
    app: App, options: dict[str, Any], state: State, event_type: str
) -> None:
    handle = request_approval(app, expires_in="1h", **options)
    work_off(app)
    approval = approval_of(app)
    later(app, timedelta(hours=2))
    if options.get("on_expire") != "remind":
        assert refused(lambda: app.approvals.approve(approval.id, by="ada")) == "approval_expired"
    assert session_of(app).run(session_of(app).store.approvals.attend()) == 1
    assert session_of(app).run(session_of(app).store.approvals.attend()) == 0
    assert (handle.state(), handle.history()[-1].type) == (state, event_type)
    if state is State.FAILED:
        assert handle.get().error_code == "approval_expired"
    elif state is State.WAITING_FOR_APPROVAL:
        assert app.approvals.get(approval.id).approval.reminders == 1
        app.approvals.approve(approval.id, by="ada")
    work_off(app)
    if state is not State.FAILED:
        assert handle.result(timeout=5)[1] in ("approved", "expired")


def test_quorum_counts_distinct_people(app: App) -> None:
    handle = request_approval(app, approvers=["ada", "bob", "eve"], quorum=2, not_requester=True)
    work_off(app)
    approval = approval_of(app)
    assert app.approvals.approve(approval.id, by="ada") == "open"
    assert refused(lambda: app.approvals.approve(approval.id, by="ada")) == "already_voted"
    assert refused(lambda: app.approvals.approve(approval.id, by="mallory")) == "not_an_approver"
    assert handle.state() is State.WAITING_FOR_APPROVAL
    assert app.approvals.approve(approval.id, by="eve", comment="second") == "approved"
    assert refused(lambda: app.approvals.deny(approval.id, by="bob")) == "already_decided"
    assert [vote.person for vote in app.approvals.get(approval.id).votes] == ["ada", "eve"]
    work_off(app)
    assert handle.result(timeout=5)[2] == "eve"


def test_requester_cannot_decide_when_not_requester_is_set(app: App) -> None:
    request_approval(app, not_requester=True)
    work_off(app)
    assert refused(lambda: app.approvals.approve(approval_of(app).id, by="tester")) == "requester_may_not_decide"
    assert app.approvals.approve(approval_of(app).id, by="ada") == "approved"


def test_form_data_is_validated_and_returned_typed(app: App) -> None:
    handle = request_approval(app, form=Budget)
    work_off(app)
    approval = approval_of(app)
    cases: list[Any] = [None, [], {}, {"limit": 5}, {"limit": "five", "reason": "x"}, {"limit": 0, "reason": "x"}]
    for data in cases:
        assert refused(lambda data=data: app.approvals.approve(approval.id, by="ada", data=data)) == "form_invalid"
    assert app.approvals.approve(approval.id, by="ada", data={"limit": 500, "reason": "campaign"}) == "approved"
    work_off(app)
    assert handle.result(timeout=5)[5] == {"limit": 500, "reason": "campaign"}


def test_unknown_form_types_are_ignored(app: App) -> None:
    request_approval(app, form={"properties": {"when": {"type": "moment"}}, "required": ["when"]})
    work_off(app)
    assert refused(lambda: app.approvals.approve(approval_of(app).id, by="ada", data={})) == "form_invalid"
    assert app.approvals.approve(approval_of(app).id, by="ada", data={"when": "noon"}) == "approved"


def test_approver_check_precedes_form_validation(app: App) -> None:
    request_approval(app, form=Budget, approvers=["ada"])
    work_off(app)
    assert (
        refused(lambda: app.approvals.approve(approval_of(app).id, by="mallory", data={"limit": 0}))
        == "not_an_approver"
    )
    assert refused(lambda: app.approvals.approve(approval_of(app).id, by="ada", data={"limit": 0})) == "form_invalid"


def test_denial_requires_no_form_data(app: App) -> None:
    request_approval(app, form={"type": "object", "required": ["limit"]})
    work_off(app)
    assert app.approvals.deny(approval_of(app).id, by="ada") == "denied"


@pytest.mark.req("CX-6")
def test_token_decides_once_for_the_person_it_was_issued_to(app: App, new_app: NewApp) -> None:
    handle = request_approval(app, approvers=["ada", "bob"], quorum=2)
    work_off(app)
    approval = approval_of(app)
    token = app.approvals.issue_token(approval.id, person="ada")
    assert token.startswith("hfa_")
    hashes = session_of(app).run(session_of(app).store.approvals.token_hashes(approval.id, "default"))
    assert len(hashes) == 1
    assert token not in hashes[0]
    assert refused(lambda: app.approvals.issue_token(approval.id, person="mallory")) == "not_an_approver"
    assert (
        refused(lambda: app.approvals.approve(token[:-1] + ("x" if token[-1] != "x" else "y"), by="ada"))
        == "token_unknown"
    )
    # The token counts as Ada's vote even when another person uses it.
    assert app.approvals.approve(token, by="mallory") == "open"
    assert refused(lambda: app.approvals.approve(token)) == "token_used"
    short = app.approvals.issue_token(approval.id, person="bob", expires_in="1h")
    later(app, timedelta(hours=2))
    assert refused(lambda: app.approvals.approve(short)) == "token_expired"
    assert app.approvals.approve(app.approvals.issue_token(approval.id), by="bob") == "approved"
    work_off(app)
    assert handle.result(timeout=5)[2] == "bob"
    assert refused(lambda: app.approvals.issue_token(approval.id)) == "already_decided"


@pytest.mark.req("CX-6")
def test_token_of_another_approval_or_tenant_is_refused(app: App, new_app: NewApp) -> None:
    request_approval(app)
    other = new_app(tenant="other")
    work_off(app)
    approval = approval_of(app)
    token = app.approvals.issue_token(approval.id)
    assert refused(lambda: other.approvals.approve(token, by="ada")) == "not_found"
    assert refused(lambda: other.approvals.approve(approval.id, by="ada")) == "not_found"
    with pytest.raises(NotFound):
        other.approvals.get(approval.id)
    assert other.approvals.list() == []
    forged = token.replace(approval.id.replace("-", ""), "0" * 32)
    assert refused(lambda: app.approvals.approve(forged, by="ada")) == "not_found"
    for nonsense in ("", "hfa_x_y", "hfa_" + "g" * 32 + "_" + "a" * 43, "no id"):
        with pytest.raises(InvalidInput):
            app.approvals.approve(nonsense, by="ada")
    assert refused(lambda: app.approvals.approve(token)) == "person_required"


def test_cancelling_a_waiting_job_withdraws_its_approval(app: App) -> None:
    handle = request_approval(app)
    work_off(app)
    approval = approval_of(app)
    assert not app.jobs.cancel(handle.id, reason="changed my mind")[0].refused
    assert handle.state() is State.CANCELLED
    assert app.approvals.get(approval.id).approval.state == "withdrawn"
    assert refused(lambda: app.approvals.approve(approval.id, by="ada")) == "already_decided"


def test_deadline_passes_while_waiting_for_approval(app: App) -> None:
    @app.job()
    def pay(ctx: SyncContext) -> None:
        ctx.approval("pay", summary="Pay")

    now = session_of(app).run(session_of(app).store.clock.now())
    handle = pay.using(deadline=now + timedelta(hours=1)).enqueue()
    work_off(app)
    assert handle.state() is State.WAITING_FOR_APPROVAL
    later(app, timedelta(hours=2))
    session_of(app).run(session_of(app).store.leases.expire())
    assert (handle.state(), handle.get().error_code) == (State.FAILED, "deadline_passed")
    assert app.approvals.list() == []


def test_reminders_and_escalation_run_notifier_jobs(app: App) -> None:
    notices: list[tuple[str, int, str | None]] = []

    @app.approval_notifier()
    def tell(notice: ApprovalNotice) -> None:
        approval = app.approvals.get(notice.approval_id).approval
        notices.append((notice.what, notice.number, ",".join(approval.people)))

    request_approval(app, approvers=["ada"], remind_every="1h", escalate_after="3h", escalate_to=["boss"])
    work_off(app)
    approval = approval_of(app)
    assert refused(lambda: app.approvals.approve(approval.id, by="boss")) == "not_an_approver"
    for hours in (1, 2, 4):
        later(app, timedelta(hours=hours, minutes=5))
        session_of(app).run(session_of(app).store.approvals.attend())
        work_off(app)
    assert notices[:3] == [("asked", 0, "ada"), ("reminder", 1, "ada"), ("reminder", 2, "ada")]
    assert sorted(notices[3:]) == [("escalated", 2, "ada,boss"), ("reminder", 3, "ada,boss")]
    assert app.approvals.approve(approval.id, by="boss") == "approved"


@pytest.mark.parametrize("way", ["async", "thread"])
def test_kind_can_require_approval_before_running(app: App, way: str) -> None:
    ran: list[int] = []
    if way == "async":

        @app.job("wipe", requires_approval={"approvers": ["ada"], "expires_in": "1d"})
        async def wipe(ctx: Context) -> str:
            ran.append(ctx.attempt)
            await ctx.step("one", lambda: 1)
            return "wiped"

    else:

        @app.job("wipe", requires_approval=True)
        def wipe(ctx: SyncContext, disk: str = "", password: str = "") -> str:
            ran.append(ctx.attempt)
            return ctx.step("one", lambda: "wiped")

    handle: Handle[str] = app.enqueue("wipe", {"disk": "sda", "password": "hunter22"} if way == "thread" else None)
    work_off(app)
    assert (handle.state(), ran) == (State.WAITING_FOR_APPROVAL, [])
    approval = approval_of(app)
    assert (approval.name, approval.n) == ("run", 0)
    assert approval.data == {"payload": {"disk": "sda", "password": "***"} if way == "thread" else {}}
    app.approvals.approve(approval.id, by="ada")
    work_off(app)
    assert handle.result(timeout=5) == "wiped"
    assert ran == [2]
    denied = app.enqueue("wipe")
    work_off(app)
    app.approvals.deny(approval_of(app).id, by="ada")
    assert denied.state() is State.FAILED
    assert ran == [2]


@pytest.mark.every_case
@pytest.mark.parametrize("way", ["worker", "repository"])
def test_rule_of_an_operator_beats_the_approval_in_code(app: App, way: str) -> None:
    app.job("pay", requires_approval={"approvers": ["intern"]})(lambda: None)
    work_off(app)  # writes the rule of the code
    app.payload_rules.set("pay", requires_approval={"approvers": ["cfo"]})
    app.enqueue("pay")
    if way == "worker":
        work_off(app)
    else:
        with closing(app.repository()) as jobs:
            assert jobs.claim() == []
    assert approval_of(app).approvers == ("cfo",)


@pytest.mark.every_case
@pytest.mark.req("SC-19")
@pytest.mark.parametrize("at_most_once", [False, True])
def test_job_does_not_run_while_the_rules_are_unknown(
    app: App, monkeypatch: pytest.MonkeyPatch, at_most_once: bool
) -> None:
    ran: list[int] = []
    app.job("pay", at_most_once=at_most_once)(lambda: ran.append(1))
    app.payload_rules.set("pay", requires_approval=True)
    handle = app.enqueue("pay")

    def unreachable(*_: object) -> Flow[Any]:
        raise StoreUnavailable("the database cannot be reached")

    with monkeypatch.context() as patch:
        patch.setattr(session_of(app).store.payload_rules, "list", unreachable)
        app.tick()
    assert (ran, handle.state(), app.approvals.list()) == ([], State.RETRY_WAITING, [])
    with monkeypatch.context() as patch:
        patch.setattr(session_of(app).store.payload_rules, "declare", unreachable)
        app.job("other", requires_approval=True)(lambda: None)
        forward(session_of(app).store, 10)
        app.tick()  # the rules are read, although those of the code cannot be written
    assert (ran, handle.state()) == ([], State.WAITING_FOR_APPROVAL)


@pytest.mark.every_case
def test_workers_of_two_tenants_in_one_process_keep_their_rules_apart(app: App, new_app: NewApp) -> None:
    ran: list[int] = []
    app.job("pay")(lambda: ran.append(1))
    theirs = new_app(tenant="acme")
    theirs.payload_rules.set("pay", requires_approval=True)
    theirs.enqueue("pay")

    async def run() -> None:
        worker = app.worker(**QUICK, burst=True, tenant="acme")
        app.worker(**QUICK, tenant="other")
        await worker.run()
        await app.aclose()

    asyncio.run(run())
    assert ran == []
    assert len(theirs.approvals.list()) == 1


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("first", "second", "agreed"),
    [
        ({"limit": 1}, {"limit": 1.0}, {"limit": 1}),
        (None, {}, {}),
        ({"more": [2.0, {"a": 3}]}, {"more": [2, {"a": 3.0}]}, {"more": [2, {"a": 3}]}),
    ],
)
def test_values_that_count_together_are_the_data_of_the_decision(
    app: App, first: Any, second: Any, agreed: Any
) -> None:
    handle = request_approval(app, form={"type": "object"}, quorum=2)
    work_off(app)
    approval = approval_of(app)
    assert app.approvals.approve(approval.id, by="ada", data=first) == "open"
    assert app.approvals.approve(approval.id, by="bob", data=second) == "approved"
    work_off(app)
    assert json.dumps(handle.result(timeout=5)[5]) == json.dumps(agreed)


@pytest.mark.req("CX-16")
def test_agent_can_require_approval_for_all_its_jobs(app: App) -> None:
    ran: list[str | None] = []

    @app.job()
    async def plan(ctx: Context) -> None:
        ran.append(ctx.agent)

    app.agents.set("planner", kind="plan", requires_approval=True)
    app.agents.set("clerk", kind="plan")
    handle = plan.using(agent="planner").enqueue()
    plan.using(agent="clerk").enqueue()
    plan.using(agent="unregistered").enqueue()
    plan.enqueue()
    work_off(app)
    assert sorted(str(agent) for agent in ran) == ["None", "clerk", "unregistered"]
    approval = approval_of(app)
    assert (approval.job_id, approval.name) == (handle.id, "run")
    assert approval.summary.startswith("Run plan for planner")
    app.approvals.approve(approval.id, by="ada")
    work_off(app)
    assert ran[-1] == "planner"


@pytest.mark.parametrize(
    "options",
    [
        {"summary": ""},
        {"summary": "x" * 2_001},
        {"quorum": 0},
        {"quorum": 2, "approvers": ["ada"]},
        {"approvers": "ada"},
        {"approvers": ["ada", "ada"]},
        {"on_expire": "approve"},
        {"on_expire": "approve", "expires_in": 5, "form": {"type": "object"}},
        {"on_expire": "later", "expires_in": 5},
        {"on_deny": "shrug"},
        {"escalate_to": ["boss"]},
        {"data": "x" * 70_000},
        {"form": 7},
        {"colour": "red"},
        {"expires_in": -1},
    ],
)
def test_invalid_approval_options_are_refused(app: App, options: dict[str, Any]) -> None:
    handle = request_approval(app, **options)
    work_off(app)
    code = handle.get().error_code
    assert code in ("invalid_approval", "unknown_option", "invalid_duration", "payload_too_large")
    assert app.approvals.list() == []


@pytest.mark.slow
@pytest.mark.parametrize("round_", range(3))
def test_twenty_concurrent_deciders_make_one_decision(app: App, round_: int) -> None:
    """Fault 34 in short: approve, deny and cancel concurrently."""
    handle = request_approval(app, expires_in="1h")
    work_off(app)
    approval = approval_of(app)
    answers: list[str] = []
    barrier = threading.Barrier(20)

    def decide(n: int) -> None:
        barrier.wait(20)
        try:
            if n % 10 == 9:
                answers.append("refused" if app.jobs.cancel(handle.id)[0].refused else "cancelled")
            elif n % 2:
                answers.append(app.approvals.approve(approval.id, by=f"person {n}"))
            else:
                answers.append(app.approvals.deny(approval.id, by=f"person {n}"))
        except HoldfastError as error:
            answers.append(error.code)

    threads = [threading.Thread(target=decide, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 20
    decided = [answer for answer in answers if answer in ("approved", "denied")]
    cancelled = answers.count("cancelled")
    # A cancel may follow an approval: the job is back in its queue by then.
    assert len(decided) + cancelled >= 1
    assert len(decided) <= 1
    assert cancelled <= 1
    assert app.approvals.get(approval.id).approval.state == (decided[0] if decided else "withdrawn")
    work_off(app)
    assert handle.get().state.finished


def test_form_without_required_fields_may_be_empty(app: App) -> None:
    form = {"type": "object", "properties": {"limit": {"type": "integer", "default": 7}}, "additionalProperties": False}
    handle = request_approval(app, form=form)
    work_off(app)
    approval = approval_of(app)
    wrong: list[Any] = [{"limit": "much"}, {"other": 1}, [], "text"]
    for data in wrong:
        assert refused(lambda data=data: app.approvals.approve(approval.id, by="ada", data=data)) == "form_invalid"
    assert app.approvals.approve(approval.id, by="ada") == "approved"
    work_off(app)
    assert handle.result(timeout=1) == [True, "approved", "ada", "python", None, None]


@pytest.mark.req("DP-22")
def test_refused_person_and_the_approvers_are_named(app: App) -> None:
    request_approval(app, approvers=["ada", "bob"])
    work_off(app)
    approval = approval_of(app)
    token = app.approvals.issue_token(approval.id)

    def message(call: Callable[[], object]) -> str:
        with pytest.raises(Refused) as caught:
            call()
        assert caught.value.code == "not_an_approver"
        assert "app.approvals.get(id)" in str(caught.value.fix)
        return caught.value.message

    named = "the decision does not count: mallory is not one of its approvers: ada, bob"
    assert message(lambda: app.approvals.approve(approval.id, by="mallory")) == named
    assert message(lambda: asyncio.run(app.approvals.adeny(approval.id, by="mallory"))) == named
    assert message(lambda: app.approvals.issue_token(approval.id, person="mallory")) == named.replace(
        "the decision does not count", "no token is issued"
    )
    # The holder of a token is not told about other people.
    by_token = message(lambda: app.approvals.approve(token, by="mallory"))
    assert by_token == "the decision does not count: mallory is not one of its approvers"


@pytest.mark.req("DP-22")
def test_error_names_the_first_of_many_approvers(app: App) -> None:
    request_approval(app, approvers=[f"person-{number}" for number in range(15)])
    work_off(app)
    with pytest.raises(Refused, match=r"mallory is not one of its approvers: person-0, .*, person-9 and 5 more \["):
        app.approvals.approve(approval_of(app).id, by="mallory")
