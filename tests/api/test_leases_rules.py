"""Checks before an HTTP worker gets a job, and the tick route."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import httpx2
import pytest

from holdfast import App, ApprovalNotice, Context
from holdfast.app.internals import session_of
from holdfast.engine.states import State
from tests.api.conftest import client_of
from tests.api.test_leases import LEASES, attempts_of, claim, lease_of, settle, work
from tests.app.conftest import NewApp
from tests.support.stores import put_one
from tests.support.workers import serve

pytestmark = pytest.mark.req("JF-14")

__all__ = ["work"]


@pytest.mark.slow
async def test_claim_waits_for_a_job_up_to_its_timeout(app: App, work: httpx2.AsyncClient) -> None:
    lease = await lease_of(work)
    waiting = asyncio.create_task(claim(work, lease, wait=20, kinds=["mail"]))
    await asyncio.sleep(0)
    await app.aenqueue("other", {})
    await app.aenqueue("mail", {})
    (job,) = await waiting
    assert job["kind"] == "mail"
    assert await claim(work, lease, wait=0.1, kinds=["mail"]) == []


@pytest.mark.slow
async def test_approval_and_at_most_once_apply_to_http_workers(app: App, work: httpx2.AsyncClient) -> None:
    @app.job("pay", requires_approval=True)
    def pay(amount: int) -> None:
        raise AssertionError("an HTTP worker runs it")

    @app.job("once", at_most_once=True)
    def once() -> None:
        raise AssertionError("an HTTP worker runs it")

    handle = await pay.aenqueue(7)
    lease = await lease_of(work)
    assert await claim(work, lease) == []
    (approval,) = await app.approvals.alist()
    assert approval.job_id == handle.id
    await app.approvals.aapprove(approval.id, by="ada")
    (job,) = await claim(work, lease)
    assert job["payload"] == {"amount": 7}
    single = await once.aenqueue()
    (job,) = await claim(work, lease)
    assert (await settle(work, lease, job, outcome="failed")).json()["ending"] == "dead_letter"
    assert (await app.jobs.aget(single.id)).state is State.DEAD_LETTER


@pytest.mark.req("CX-6")
@pytest.mark.parametrize("case", ["question", "denied", "asked in the handler"])
async def test_http_worker_does_not_bypass_a_decision(app: App, new_app: NewApp, case: str) -> None:
    """The code of the app changes while the job waits, and an HTTP worker claims it then."""
    code = {"question": "question_changed", "denied": "denied", "asked in the handler": "approval_not_asked"}[case]

    async def pay(ctx: Context) -> None:
        await ctx.approval("pay", summary="Pay?", on_deny="resume")

    if case == "asked in the handler":
        handle = await app.job("pay")(pay).aenqueue()
    else:
        handle = await app.job("pay", requires_approval={"data": {"limit": 10}})(pay).aenqueue()
    await serve(app, burst=True)
    (approval,) = await app.approvals.alist()
    await (app.approvals.adeny if case == "denied" else app.approvals.aapprove)(approval.id, by="ada")
    other = new_app()
    if case == "question":
        other.job("pay", requires_approval={"data": {"limit": 1_000_000}})(pay)
    async with client_of(other, role="admin") as work:
        assert await claim(work, await lease_of(work)) == []
    job = await app.jobs.aget(handle.id)
    assert (job.error_code, job.finished_at is not None) == (code, True)


async def _by_http(other: App) -> None:
    async with client_of(other, role="producer") as producer:
        assert (await producer.post("/api/v1/jobs", json={"kind": "pay"})).status_code == 201


async def _by_schedule(other: App) -> None:
    await other.schedules.aadd("daily", "@daily", kind="pay")
    await other.schedules.arun("daily")


ENQUEUED: dict[str, Callable[[App], Awaitable[object]]] = {
    "name": lambda other: other.aenqueue("pay", {}),
    "HTTP": _by_http,
    "the store, as by SQL": lambda other: asyncio.to_thread(put_one, session_of(other).store, "pay"),
    "schedule": _by_schedule,
}


@pytest.mark.req("CX-5", "JF-14")
@pytest.mark.every_case
@pytest.mark.parametrize("path", ENQUEUED)
async def test_service_without_the_code_applies_the_rules_of_a_kind(app: App, new_app: NewApp, path: str) -> None:
    """A worker of the app has stored its declarations. The service was started with the URL alone."""
    asked: list[str] = []

    @app.job("pay", requires_approval={"approvers": ["ada"], "expires_in": "2d"})
    def pay() -> None: ...

    @app.job("once", at_most_once=True)
    def once() -> None: ...

    @app.approval_notifier()
    def tell(notice: ApprovalNotice) -> None:
        asked.append(notice.approval_id)

    await serve(app, burst=True)
    other = new_app(name="service")
    await ENQUEUED[path](other)
    await other.aenqueue("once", {})
    async with client_of(other, role="executor") as work:
        lease = await lease_of(work)
        (job,) = await claim(work, lease, kinds=["pay", "once"], want=10)
        assert (await settle(work, lease, job, outcome="failed")).json()["ending"] == "dead_letter"
        (approval,) = await other.approvals.alist(approver="ada")
        assert (approval.approvers, approval.expires_at is not None) == (("ada",), True)
        await serve(app, burst=True)
        assert asked == [approval.id]
        await other.approvals.aapprove(approval.id, by="ada")
        (job,) = await claim(work, lease, kinds=["pay"])
        assert job["id"] == approval.job_id


@pytest.mark.req("CX-5", "JF-14")
async def test_rule_of_an_operator_requires_approval(app: App) -> None:
    ran: list[int] = []

    @app.job
    def pay() -> None:
        ran.append(1)

    await app.payload_rules.aset("pay", requires_approval={"approvers": ["ada"]})
    await pay.aenqueue()
    await serve(app, burst=True)
    (approval,) = await app.approvals.alist(approver="ada")
    assert ran == []
    await app.approvals.aapprove(approval.id, by="ada")
    await serve(app, burst=True)
    assert ran == [1]


async def test_restricted_payload_is_removed_from_errors(app: App, work: httpx2.AsyncClient) -> None:
    await app.payload_rules.aset("heal", restricted=True)
    handle = await app.aenqueue("heal", {"name": "Rosalind Franklin"})
    lease = await lease_of(work)
    (job,) = await claim(work, lease)
    assert job["payload"] == {"name": "Rosalind Franklin"}, "the worker gets the payload"
    error = {"type": "ValueError", "message": "no bed for Rosalind Franklin", "traceback": "name = 'Rosalind Franklin'"}
    assert (await settle(work, lease, job, outcome="reject", error=error)).status_code == 200
    assert "Rosalind" not in repr(await attempts_of(app, handle.id))
    assert "Rosalind" not in repr(await app.jobs.aget(handle.id))


async def test_error_code_is_sanitized(app: App, work: httpx2.AsyncClient) -> None:
    """It appears in lists, groups and logs, and must reveal nothing of a restricted job."""
    await app.payload_rules.aset("heal", restricted=True)
    lease, codes = await lease_of(work), []
    for kind, error in (
        ("mail", {"code": "a\r\nb\x1b[31m\u202ec"}),
        ("mail", {"code": " \n", "type": "\x00"}),
        ("mail", {"type": "std::io::Error"}),
        ("mail", {"code": "password=hunter2-hunter2"}),
        ("heal", {"type": "Error: no bed for Rosalind"}),
        ("heal", {"type": "java.lang.Error$Bed"}),
    ):
        handle = await app.aenqueue(kind, {})
        (job,) = await claim(work, lease)
        assert (await settle(work, lease, job, outcome="reject", error=error)).status_code == 200
        codes.append((await app.jobs.aget(handle.id)).error_code)
    assert codes == ["a b[31mc", "rejected", "std::io::Error", "password=[redacted]", "rejected", "java.lang.Error$Bed"]


@pytest.mark.slow
async def test_result_cannot_forge_a_stored_reference(app: App, work: httpx2.AsyncClient) -> None:
    """For example by a reference to an artifact of a restricted job."""
    handle = await app.aenqueue("mail", {})
    lease = await lease_of(work)
    (job,) = await claim(work, lease)
    forged = {"$holdfast": {"stored": "artifact://default/0198/secret"}}
    assert (await settle(work, lease, job, outcome="succeeded", result=forged)).json()["ending"] == "dead_letter"
    job_after = await app.jobs.aget(handle.id)
    assert (job_after.state, job_after.error_code) == (State.DEAD_LETTER, "payload_reserved")


@pytest.mark.slow
async def test_executor_labels_and_request_bodies_are_checked(app: App, work: httpx2.AsyncClient) -> None:
    await asyncio.to_thread(app.executors.set, "blessed")
    refused = await work.post(LEASES, json={"name": "node"})
    assert (refused.status_code, refused.json()["code"]) == (403, "executor_refused")
    lease = await lease_of(work, name="blessed")
    for path, body in (
        ("claim", {"want": 0}),
        ("claim", {"want": 101}),
        ("claim", {"queues": []}),
        ("claim", {"wait": 31}),
        ("claim", {"unknown": 1}),
        ("settle", {}),
        ("settle", {"job": "x", "attempt": 1, "outcome": "succeeded"}),
        ("settle", {"job": "x", "attempt": 1, "outcome": "won"}),
        ("settle", {"job": lease[-36:], "attempt": 1, "outcome": "retry", "after": -1}),
        ("settle", {"settlements": []}),
        ("checkpoint", {"job": lease[-36:], "attempt": 1}),
        ("checkpoint", {"job": lease[-36:], "attempt": 1, "name": "holdfast:progress", "value": 1}),
        ("renew", {"ttl": 1e9}),
        ("release", {"jobs": []}),
    ):
        answer = await work.post(f"{lease}/{path}", json=body)
        assert answer.status_code == 422, (path, body, answer.text)
    assert (await work.post(f"{LEASES}/none/claim", json={})).status_code == 422
    async with client_of(app, role="viewer") as viewer:
        assert (await viewer.post(LEASES, json={})).status_code == 403


@pytest.mark.slow
@pytest.mark.req("HK-1")
async def test_tick_runs_a_few_jobs_in_the_service(app: App, work: httpx2.AsyncClient) -> None:
    ran: list[int] = []

    @app.job("add")
    async def add(n: int) -> int:
        ran.append(n)
        await app.aenqueue("child", {})
        return n

    for n in range(5):
        await add.aenqueue(n)
    first, second = await asyncio.gather(
        work.post("/api/v1/jobs/tick", json={"limit": 3, "timeout": 20}), work.post("/api/jobs/tick", json={"limit": 2})
    )
    assert (first.json()["succeeded"], second.json()["succeeded"]) == (3, 2)
    assert sorted(ran) == [0, 1, 2, 3, 4], "no job ran twice"
    assert (await work.post("/api/jobs/tick")).json()["taken"] == 0
    children = await app.jobs.alist(kind="child")
    assert len(children) == 5
    assert all(job.enqueued_by.startswith("job ") for job in children), (
        "children are enqueued by the job, not by the caller of the tick"
    )
    wrong: list[dict[str, object]] = [{"limit": 0}, {"limit": 101}, {"timeout": 301}, {"queues": []}, {"all": True}]
    for body in wrong:
        assert (await work.post("/api/jobs/tick", json=body)).status_code == 422, body
    async with client_of(app, role="operator") as operator:
        assert (await operator.post("/api/jobs/tick")).status_code == 403
