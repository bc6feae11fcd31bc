"""``ClaimBroker`` claims jobs for workers that use HTTP, and ``settle_all`` settles the attempts they report.

A job is prepared as a local worker would: an approval is requested where its kind or agent needs one, and its payload
is opened if it is sealed or in the artifact store. A job that cannot be prepared is settled here and not returned.
Where no local worker runs, promoting, reaping and firing schedules is done by the service (``app.py``) or,
without that, by claim requests, at intervals.

A reported attempt becomes a settlement by the same rules as a local one: ``engine/settlement.decide`` is the policy,
the store checks the fence, and error texts are cut to length and redacted.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import random
import re
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal

from holdfast.app import App
from holdfast.app.approval_gate import check_decisions, require_approval
from holdfast.app.handlers import chain_of
from holdfast.app.internals import handler_tools, kinds_of, ready_redactor, scheduler_of, session_of
from holdfast.engine.job import Claim, Job
from holdfast.engine.outcome import Cancelled, Failed, Outcome, Reject, Snoozed, Succeeded
from holdfast.engine.payload import decode, encode
from holdfast.engine.redaction import JobRedactor, Redact, Redactor, one_line
from holdfast.engine.retry import as_policy
from holdfast.engine.settlement import MESSAGE_LIMIT, TRACEBACK_LIMIT, Settlement, decide, hand_back, unreadable
from holdfast.engine.steps import RESERVED, RUNNING
from holdfast.errors import HoldfastError, InvalidPayload, StepsChanged
from holdfast.features.jobs.model import ClaimedJob, SettleResult
from holdfast.features.payloads.model import HIDDEN, NO_RULE, WITHHELD
from holdfast.features.retention.model import check_cost
from holdfast.kind import Kind
from holdfast.steps.approvals import ApprovalOptions
from holdfast.steps.transaction import RESULT_LIMIT
from holdfast.stores.flow import NO_LIMIT, WaitLimit, wait_limit_of
from holdfast.stores.requests import ClaimRequest
from holdfast.stores.session import Session
from holdfast.stores.vault import is_packed, is_stored
from holdfast.telemetry.tracebacks import failure
from holdfast.worker.executor import Handler, PayloadRuleCache, packed, unpacked
from holdfast.worker.maintenance import MaintenanceTask, run_once, standard_tasks
from holdfast.worker.recovery import claim_jobs
from holdfast.worker.shutdown import Stop, Suspended

POLL_EVERY = 1.0
MAINTAIN_EVERY = 0.5
SWEEP_EVERY = 5.0
RULES_EVERY = 5.0
MAX_TENANTS = 1_000


class ClaimBroker:
    """One per service. ``maintains``: claim requests run the maintenance tasks, because nothing else does."""

    def __init__(self, app: App, *, maintains: bool = True, wait_limit: WaitLimit = NO_LIMIT) -> None:
        self._app, self._maintains, self._wait_limit = app, maintains, wait_limit
        self._maintained: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._rules: OrderedDict[str, tuple[float, PayloadRuleCache]] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def client(self) -> Session:
        return session_of(self._app)

    async def claim(self, request: ClaimRequest) -> list[ClaimedJob]:
        """Claim up to ``request.want`` jobs."""
        if self._maintains:
            await self._maintain(request.tenant)
        claims = await claim_jobs(self.client.store, request, self.client.arun)
        ready = [await self._prepare(claim, request.tenant) for claim in claims]
        return [job for job in ready if job is not None]

    @contextlib.contextmanager
    def listening(self, queues: Sequence[str]) -> Iterator[asyncio.Event]:
        """An event that is set when one of the queues may have a job to claim."""
        notified, loop = asyncio.Event(), asyncio.get_running_loop()

        def notify(queue: str) -> None:
            if queue == "" or queue.lstrip(" ") in queues:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(notified.set)

        names = [*queues, *(f" {queue}" for queue in queues)]
        stop = self.client.store.listen(notify, lambda: names, lambda: queues)
        try:
            yield notified
        finally:
            stop()

    async def handler_for(self, claim: Claim) -> Handler:
        """The handler that a local worker would have for this kind. Most kinds of remote workers are not declared in
        this app and get the defaults."""
        declared = kinds_of(self._app).get(claim.kind)
        kind: Kind[..., Any] | None = None if declared is None else declared.kind
        vault, rules = self.client.vault, await self.rules(claim.tenant)
        common = {"redact": self.redactor(), "vault": vault, "rules": rules, "chain": chain_of(self.client)}
        if kind is None:
            once = rules.of(claim.tenant, claim.kind).at_most_once
            return Handler(claim.kind, _runs_elsewhere, at_most_once=once, **common)  # type: ignore[arg-type]
        retry = as_policy(kind.defaults["retry"]) if "retry" in kind.defaults else None
        own = {"at_most_once": kind._at_most_once, "rule": kind._rule} | ({} if retry is None else {"retry": retry})
        return Handler(claim.kind, _runs_elsewhere, **common, **own)  # type: ignore[arg-type]

    def redactor(self) -> Redactor:
        return ready_redactor(self._app)

    async def rules(self, tenant: str) -> PayloadRuleCache:
        """The payload rules of the tenant, at most ``RULES_EVERY`` seconds old."""
        until, rules = self._rules.get(tenant, (0.0, PayloadRuleCache()))
        if until <= time.monotonic():
            rules.load(await self.client.arun(self.client.store.payload_rules.list(tenant)))
            self._rules[tenant] = (time.monotonic() + RULES_EVERY, rules)
            if len(self._rules) > MAX_TENANTS:
                self._rules.popitem(last=False)
        return rules

    async def _prepare(self, claim: Claim, scope: str) -> ClaimedJob | None:
        handler = await self.handler_for(claim)
        outcome: Outcome | None = None
        job: ClaimedJob | None = None
        try:
            if claim.unreadable is not None:
                outcome = unreadable(claim)
            elif handler.at_most_once and (claim.retries or claim.crashes):
                outcome = Failed("interrupted", "it was started before, and its kind runs at most once", final=True)
            else:
                if is_packed(claim.payload):
                    claim = await unpacked(handler, claim)
                await self._request_approval(claim, scope)
                job = _claimed(claim, await self._checkpoints(claim))
        except Suspended as wait:
            outcome = wait.outcome
        except (InvalidPayload, StepsChanged) as error:  # a retry cannot help
            outcome = Failed(error.code, error.message, final=True)
        except Reject as error:
            outcome = Failed(error.code, handler.redactor(claim)(str(error), MESSAGE_LIMIT), final=True)
        except Exception as error:  # such as a missing key or blob: recorded and retried
            outcome = failure(error, handler.redact)
        if outcome is not None:
            settlement = decide(claim, outcome, random.random())
            await self.client.arun(self.client.store.leases.settle(claim.lease, [settlement], scope))
            return None
        return job

    async def _request_approval(self, claim: Claim, scope: str) -> None:
        declared = kinds_of(self._app).get(claim.kind)
        approval: ApprovalOptions | None = None if declared is None else declared.kind._approval
        declared_rule = NO_RULE if declared is None else declared.kind._rule
        rule = (await self.rules(claim.tenant)).of(claim.tenant, claim.kind, declared_rule)
        required = approval is not None or claim.agent is not None or rule.requires_approval is not None
        if not required and not claim.resumed:
            return
        tools = handler_tools(self._app, scope, 1)
        try:
            if required:
                await require_approval(tools, claim, approval, rule, Stop())
            await check_decisions(tools, claim)
        finally:
            await tools.aclose()

    async def _checkpoints(self, claim: Claim) -> dict[str, Any]:
        """The checkpoints of earlier attempts, decrypted: remote workers have no keys."""
        if claim.attempt == 1:
            return {}
        saved = await self.client.arun(self.client.store.jobs.checkpoints(claim.id, claim.tenant))
        bound = {"what": "checkpoint", "tenant": claim.tenant, "job_id": claim.id}
        values = {name: value for name, value in saved.items() if name not in (RESERVED, RUNNING)}

        def unpack() -> dict[str, Any]:
            open_kept = self.client.vault.open_part
            return {name: open_kept(value, place=name, **bound) for name, value in values.items()}  # type: ignore[arg-type]

        return await asyncio.to_thread(unpack) if any(map(is_stored, values.values())) else unpack()

    async def _maintain(self, tenant: str) -> None:
        """Run the maintenance tasks: promote and recover, which may make a job claimable, before the claim; the others
        in the background."""
        now = time.monotonic()
        maintained, swept = self._maintained.get(tenant, (0.0, 0.0))
        if now - maintained < MAINTAIN_EVERY:
            return
        sweeps = now - swept >= SWEEP_EVERY
        self._maintained[tenant] = (now, now if sweeps else swept)
        self._maintained.move_to_end(tenant)
        if len(self._maintained) > MAX_TENANTS:
            self._maintained.popitem(last=False)
        store = self.client.store
        await self.client.arun(store.leases.promote(tenant=tenant))
        await self.client.arun(store.leases.recover(tenant=tenant))
        if sweeps:
            task = asyncio.get_running_loop().create_task(self._sweep(tenant), context=contextvars.Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _sweep(self, tenant: str) -> None:
        wait_limit_of.set(self._wait_limit)  # a service that stops does not wait for an unresponsive database
        tasks = standard_tasks(tenant, promote_every=MAINTAIN_EVERY, sweep_every=SWEEP_EVERY)
        for first in (*tasks, scheduler_of(self._app).maintenance_task(tenant, SWEEP_EVERY)):
            task: MaintenanceTask | None = first
            while task is not None:
                await run_once(task, self.client.store)
                task = task.then

    async def aclose(self) -> None:
        await self._wait_limit.wait_for(*self._tasks)


COPIED = [each.name for each in fields(ClaimedJob) if each.name not in ("payload", "tags", "checkpoints")]


def _claimed(claim: Claim, checkpoints: dict[str, Any]) -> ClaimedJob:
    facts = {name: getattr(claim, name) for name in COPIED}
    return ClaimedJob(**facts, payload=decode(claim.payload), tags=list(claim.tags), checkpoints=checkpoints)


async def _runs_elsewhere(claim: Claim, stop: Stop) -> None:
    raise AssertionError("a remote worker runs this job")


OutcomeName = Literal["succeeded", "failed", "retry", "reject", "snooze", "cancel"]
CODE_LIMIT: Final = 100
_NAME: Final = re.compile(r"[\w.:$*-]+")
AFTER_A_FAILURE = frozenset({"retry", "dead_letter"})
TYPES = {"succeeded": "succeed", "snooze": "snooze", "cancel": "cancel"}


@dataclass(frozen=True, slots=True)
class Report:
    """A remote worker's report of how one attempt ended."""

    job: str
    attempt: int
    outcome: OutcomeName
    result: Any = None
    type: str | None = None
    message: str | None = None
    traceback: str | None = None
    code: str | None = None
    after: float | None = None
    cost: float | None = None
    unfinished: bool = False
    """Released before it ended. A job that runs at most once ends then, since its progress is unknown."""


async def settle_all(broker: ClaimBroker, lease: str, reports: Sequence[Report], tenant: str) -> list[SettleResult]:
    """Settle all reports in one transaction, each with its own result. A repeated report gets the first result."""
    client = broker.client
    decided: list[tuple[Settlement | None, str | None]] = []
    settlements: dict[str, Settlement] = {}
    for report in reports:
        job = await client.arun(client.store.jobs.get(report.job, tenant))
        if job is None:
            decided.append((None, "not_found"))
            continue
        settlement = await _settlement(broker, lease, report, job)
        reason: str | None = "said_twice" if job.id in settlements else "stale_lease"
        if report.attempt == job.attempt and job.id not in settlements:
            settlements[job.id], reason = settlement, None
        decided.append((settlement, reason))
    rows = list(settlements.values())
    stale = await client.arun(client.store.leases.settle(lease, rows, tenant)) if rows else []
    return [
        await _result(broker, settlement, reason or ("stale_lease" if settlement.id in stale else None), tenant)
        if settlement is not None
        else SettleResult(report.job, report.attempt, False, reason=reason)
        for report, (settlement, reason) in zip(reports, decided, strict=True)
    ]


async def _result(broker: ClaimBroker, settlement: Settlement, reason: str | None, tenant: str) -> SettleResult:
    ending: str | None = settlement.ending if reason is None else None
    if reason == "stale_lease":
        ending = await _recorded_ending(broker, settlement, tenant)
    settled = ending is not None
    return SettleResult(settlement.id, settlement.attempt, settled, ending, None if settled else reason)


async def _recorded_ending(broker: ClaimBroker, settlement: Settlement, tenant: str) -> str | None:
    """How the ledger says this attempt ended, if it did: the response to the first report was lost and the worker
    repeats it. Deciding again may give another ending, since the job has one attempt less now."""
    events = await broker.client.arun(broker.client.store.jobs.history(settlement.id, tenant))
    event_type = TYPES.get(settlement.ending, "fail")
    events = [event for event in events if event.attempt == settlement.attempt]
    if not any((event.from_state, event.type) == ("in_progress", event_type) for event in events):
        return None
    decided = (event.type for event in events if event.type in AFTER_A_FAILURE)
    return settlement.ending if event_type != "fail" else next(decided, settlement.ending)


async def _settlement(broker: ClaimBroker, lease: str, report: Report, job: Job) -> Settlement:
    claim = _claim(job, lease, report.attempt)
    handler = await broker.handler_for(claim)
    if report.unfinished:
        return decide(claim, hand_back(claim, at_most_once=handler.at_most_once), random.random())
    outcome = _outcome(report, handler, claim, hidden=job.payload == HIDDEN)
    if isinstance(outcome, Succeeded) and outcome.result is not None:
        outcome = await packed(handler, claim, outcome)
    if handler.at_most_once and isinstance(outcome, Failed):
        outcome = replace(outcome, final=True)
    return decide(claim, outcome, random.random())


def _claim(job: Job, lease: str, attempt: int) -> Claim:
    """A claim with what ``decide`` needs. If the attempt is no longer current, the fence prevents the write."""
    return Claim(
        *(job.id, lease, attempt, job.tenant, job.kind, job.queue, json.dumps(job.payload), job.retries, job.crashes),
        *(job.max_attempts, job.max_crashes, job.backoff, job.priority, job.position, job.deadline_at, job.created_at),
        *(job.correlation_id, job.parent_id, job.workflow_id, job.agent, job.tags),
    )


def _outcome(report: Report, handler: Handler, claim: Claim, *, hidden: bool) -> Outcome:
    cost = None if report.cost is None else check_cost(report.cost)
    redact: Redact = JobRedactor(handler.redact, claim.payload, handler.rule_for(claim).restricted)
    # Every value of a restricted payload is a secret, and it is not available here to redact by comparison.
    message = WITHHELD if hidden and report.message else redact(report.message or "", MESSAGE_LIMIT)
    trace = None if report.traceback is None or hidden else redact(report.traceback, TRACEBACK_LIMIT)
    code = _code_of(report, redact, hidden=hidden)
    match report.outcome:
        case "succeeded":
            try:
                text = None if report.result is None else encode(report.result, limit=RESULT_LIMIT, what="result")
            except HoldfastError as error:  # a retry cannot help
                return Failed(error.code, error.message, final=True, cost=cost)
            return Succeeded(text, cost=cost)
        case "failed":
            return Failed(code or "failed", message or code or "failed", trace, cost=cost)
        case "retry":
            return Failed(code or "retry_asked", message or "requested", trace, after=report.after, cost=cost)
        case "reject":
            return Failed(code or "rejected", message or code or "rejected", trace, final=True, cost=cost)
        case "snooze":
            return Snoozed(report.after or 0.0, message or None, cost=cost)
        case "cancel":
            return Cancelled(message or None, cost=cost)


def _code_of(report: Report, redact: Redact, *, hidden: bool) -> str | None:
    """The error code. It appears in lists, groups and logs, so it is one line and redacted. For a restricted job only a
    name is accepted, since other text may contain parts of the payload."""
    text = one_line(redact(report.code or report.type or "", CODE_LIMIT), CODE_LIMIT).strip()
    return None if not text or (hidden and not _NAME.fullmatch(text)) else text
