"""Approvals and crashes in a kit: approve, deny, decisions, and a worker that is lost at a chosen point."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import App, Context, EventTimeout, State, SyncContext
from holdfast.app.internals import session_of
from holdfast.errors import HoldfastError
from holdfast.testing import JobWaits, Kit
from tests.support.ledger import check_ledger

pytestmark = pytest.mark.req("HF-7", "HF-6", "CX-7")

app = App("postgresql://user@127.0.0.1:1/none")
done: list[str] = []


def charge(amount: int) -> str:
    done.append(f"charge {amount}")
    return f"ref-{amount}"


def mail(ref: str) -> None:
    done.append(f"mail {ref}")


@app.job()
async def pay(ctx: Context, amount: int) -> str:
    if amount > 1000:
        await ctx.approval("big-payment", summary=f"Pay {amount}", approvers=["ada", "bob", "eve"], quorum=2)
    ref = await ctx.step("charge", charge, amount)
    await ctx.sleep("1h")
    await ctx.step("mail", mail, ref)
    return ref


@app.job()
def pay_in_a_thread(ctx: SyncContext, amount: int) -> str:
    ref = ctx.step("charge", charge, amount)
    try:
        ctx.wait_for_event("settled", match={"ref": ref}, timeout="1d")
    except EventTimeout:
        return "never"
    ctx.step("mail", mail, ref)
    return ref


due = {0: 10}


@app.job()
async def pay_what_is_due(ctx: Context) -> None:
    await ctx.approval("due", summary=f"Pay {due[0]}?")
    await ctx.step("charge", charge, due[0])


@pytest.fixture
def kit(kit_url: str | None) -> Iterator[Kit]:
    done.clear()
    with Kit(app, kit_url, timeout=60) as kit:
        yield kit
        check_ledger(session_of(app).store)


@pytest.mark.slow
def test_payment_is_approved_and_resumes(kit: Kit) -> None:
    handle = pay.enqueue(5000)
    kit.drain()
    assert [approval.summary for approval in kit.approvals()] == ["Pay 5000"]
    assert kit.approve("big-payment", comment="fine") == "approved"
    kit.drain()
    assert done == ["charge 5000"]
    kit.travel("1h")
    kit.drain()
    assert (handle.result(), done) == ("ref-5000", ["charge 5000", "mail ref-5000"])
    (decision,) = kit.decisions
    assert (decision.name, decision.state) == ("big-payment", "approved")
    assert [(vote.person, vote.verdict, vote.comment) for vote in decision.votes] == [
        ("ada", "approve", "fine"),
        ("bob", "approve", "fine"),
    ]


def test_votes_can_be_cast_one_at_a_time(kit: Kit) -> None:
    pay.enqueue(5000)
    kit.drain()
    assert kit.approve("big-payment", by="eve") == "open"
    assert kit.deny("big-payment", by="ada", comment="no") == "denied"
    assert kit.drain(check=False).attempts == 0
    assert done == []
    assert kit.decisions[0].state == "denied"


@pytest.mark.slow
def test_missing_and_ambiguous_approvals_are_refused(kit: Kit) -> None:
    with pytest.raises(HoldfastError, match="open approvals: none") as caught:
        kit.approve("big-payment")
    assert caught.value.code == "not_found"
    first, _ = pay.enqueue(5000), pay.enqueue(6000)
    kit.drain()
    with pytest.raises(HoldfastError) as caught:
        kit.approve("big-payment")
    assert caught.value.code == "approval_ambiguous"
    approval = next(approval for approval in kit.approvals() if approval.job_id == first.id)
    assert kit.approve(approval.id) == "approved"


def test_run_reports_what_a_waiting_job_waits_for(kit: Kit) -> None:
    with pytest.raises(JobWaits, match="waiting_for_approval"):
        kit.run(pay, 5000)
    with pytest.raises(JobWaits, match="retry_waiting"):
        kit.run(pay, 5)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after", "saved"])
@pytest.mark.parametrize("kind", [pay, pay_in_a_thread], ids=["async", "thread"])
def test_step_repeats_after_a_crash_only_if_it_was_not_saved(kit: Kit, kind: Any, when: Any) -> None:
    kit.crash_at("charge", when)
    handle = kind.enqueue(7)
    kit.drain()
    assert done == (["charge 7", "charge 7"] if when == "after" else ["charge 7"])
    job = handle.get()
    assert (job.state, job.crashes, job.attempt) == (State.RETRY_WAITING, 1, 2)
    app.send_event("settled", {"ref": "ref-7"})
    kit.travel("1h")
    kit.drain()
    assert handle.result() == "ref-7"
    assert done[-1] == "mail ref-7"
    assert "lease_expired" in [event.type for event in kit.history(handle)]


def test_repeated_crashes_at_one_step(kit: Kit) -> None:
    for when in ("before", "after", "saved"):
        kit.crash_at("charge", when)
    with pytest.raises(JobWaits):
        kit.run(pay, 7)
    assert done == ["charge 7", "charge 7"]


def test_crash_before_an_approval_and_before_a_sleep(kit: Kit) -> None:
    kit.crash_at("big-payment", "before")
    kit.crash_at("sleep", "before")
    handle = pay.enqueue(5000)
    kit.drain()
    assert handle.get().crashes == 1
    kit.approve("big-payment")
    kit.drain()
    kit.travel("1h")
    kit.drain()
    assert (handle.result(), done) == ("ref-5000", ["charge 5000", "mail ref-5000"])
    assert handle.get().crashes == 2


def test_too_many_crashes_dead_letter_the_job(kit: Kit) -> None:
    for _ in range(4):
        kit.crash_at("charge", "before")
    handle = pay.enqueue(7)
    report = kit.drain(check=False)
    assert (handle.state(), report.attempts) == (State.DEAD_LETTER, 4)
    assert handle.get().error_code == "worker_lost"


def test_crash_that_was_never_reached_fails_the_test(kit_url: str | None) -> None:
    kit = Kit(app, kit_url)
    kit.__enter__()
    kit.crash_at("no such step")
    kit.drain()
    with pytest.raises(AssertionError, match="never reached: after 'no such step'"):
        kit.__exit__(None, None, None)
    with Kit(app, kit_url) as kit, pytest.raises(HoldfastError):
        kit.crash_at("charge", "sometimes")  # type: ignore[arg-type]


def test_changed_question_is_reported(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    job = pay_what_is_due.enqueue()
    kit.drain()
    monkeypatch.setitem(due, 0, 1_000_000)
    kit.approve("due")
    kit.drain(check=False)
    assert (done, job.get().error_code) == ([], "question_changed")
