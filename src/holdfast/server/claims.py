"""``ClaimBroker``: hands out jobs to remote workers and settles what they report.

Jobs for workers of other languages: handed out as our own worker would take them up.

Before a job leaves: people are asked where its kind or its agent wants that, and its payload is opened where it is
sealed or lies elsewhere. A job that comes no further is settled here, and the caller never hears of it. Somebody has
to promote, reap and fire schedules where no worker of ours runs: the service itself (maintenance.py), or else whoever
claims sees to it, now and then.

How an attempt that ran elsewhere has ended: from what its worker says to a settlement, by the same rules as ours.

The policy is ``engine/settlement.decide``, the fence is the store's, and what is said of a failure is cut to length and
redacted as if it had happened here.
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
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from holdfast.app import App
from holdfast.app.handlers import ask_first, chain_of
from holdfast.engine.job import Claim, Job
from holdfast.engine.outcome import Cancelled, Failed, Outcome, Reject, Snoozed, Succeeded
from holdfast.engine.payload import decode, encode
from holdfast.engine.redaction import JobRedactor, Redact, Redactor, one_line
from holdfast.engine.retry import as_policy
from holdfast.engine.settlement import MESSAGE_LIMIT, TRACEBACK_LIMIT, Settlement, decide, hand_back, unreadable
from holdfast.engine.steps import RESERVED, RUNNING
from holdfast.errors import HoldfastError, InvalidPayload
from holdfast.features.jobs.lease_answers import SettleResult
from holdfast.features.payloads.model import HIDDEN, NO_RULE, WITHHELD
from holdfast.features.retention.model import check_cost
from holdfast.kind import Kind
from holdfast.steps.approvals import Asking
from holdfast.steps.transaction import RESULT_LIMIT
from holdfast.stores.flow import NO_LIMIT, WaitLimit, patience_of
from holdfast.stores.requests import ClaimRequest
from holdfast.stores.session import Session
from holdfast.stores.vault import is_packed, is_stored
from holdfast.telemetry.tracebacks import failure
from holdfast.worker.executor import Handler, PayloadRuleCache, packed, unpacked
from holdfast.worker.maintenance import MaintenanceTask, run_once, standard_tasks
from holdfast.worker.refusals import set_aside
from holdfast.worker.shutdown import Stop, Suspended

LOOK_EVERY = 1.0
ATTEND_EVERY = 0.5
SWEEP_EVERY = 5.0
RULES_EVERY = 5.0
MOST_TENANTS = 1_000


class ClaimBroker:
    """One a service. ``attends``: the duties are done by those who claim, since nobody else is known to."""

    def __init__(self, app: App, *, attends: bool = True, patience: WaitLimit = NO_LIMIT) -> None:
        self._app, self._attends, self._patience = app, attends, patience
        self._attended: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._books: OrderedDict[str, tuple[float, PayloadRuleCache]] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def client(self) -> Session:
        return self._app._session

    async def claim(self, request: ClaimRequest) -> list[dict[str, Any]]:
        """Up to so many jobs, as they are handed out."""
        if self._attends:
            await self._attend(request.tenant)
        claims = await self._claimed(request)
        ready = [await self._prepared(claim, request.tenant) for claim in claims]
        return [job for job in ready if job is not None]

    async def _claimed(self, request: ClaimRequest) -> list[Claim]:
        try:
            return await self.client.arun(self.client.store.leases.claim(request))
        except Exception as error:
            where = (request.lease, request.queues, request.kinds)
            if not await set_aside(self.client.store, error, request.tenant, *where):
                raise
        return await self.client.arun(self.client.store.leases.claim(request))

    @contextlib.contextmanager
    def listening(self, queues: Sequence[str]) -> Iterator[asyncio.Event]:
        """Set when there may be something to take."""
        told, loop = asyncio.Event(), asyncio.get_running_loop()

        def heard(what: str) -> None:
            if what == "" or what.lstrip(" ") in queues:
                with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                    loop.call_soon_threadsafe(told.set)

        names = [*queues, *(f" {queue}" for queue in queues)]
        hush = self.client.store.listen(heard, lambda: names)
        try:
            yield told
        finally:
            hush()

    async def handler_for(self, claim: Claim) -> Handler:
        """What our own worker would know of this kind; most that others run are declared nowhere here."""
        declared = self._app._kinds.get(claim.kind)
        kind: Kind[..., Any] | None = None if declared is None else declared.kind
        vault, book = self.client.vault, await self.book(claim.tenant)
        common = {"redact": self.redactor(), "vault": vault, "rules": book, "chain": chain_of(self.client)}
        if kind is None:
            return Handler(claim.kind, _nobody, **common)  # type: ignore[arg-type]
        retry = as_policy(kind.defaults["retry"]) if "retry" in kind.defaults else None
        known = {"at_most_once": kind._at_most_once, "rule": kind._rule} | ({} if retry is None else {"retry": retry})
        return Handler(claim.kind, _nobody, **common, **known)  # type: ignore[arg-type]

    def redactor(self) -> Redactor:
        return self._app._ready_redactor()

    async def book(self, tenant: str) -> PayloadRuleCache:
        """The rules for this tenant's payloads, at most a few seconds old."""
        until, book = self._books.get(tenant, (0.0, PayloadRuleCache()))
        if until <= time.monotonic():
            book.load(await self.client.arun(self.client.store.payload_rules.list(tenant)))
            self._books[tenant] = (time.monotonic() + RULES_EVERY, book)
            if len(self._books) > MOST_TENANTS:
                self._books.popitem(last=False)
        return book

    async def _prepared(self, claim: Claim, scope: str) -> dict[str, Any] | None:
        handler = await self.handler_for(claim)
        outcome: Outcome | None = None
        handed_out: dict[str, Any] | None = None
        try:
            if claim.unreadable is not None:
                outcome = unreadable(claim)
            elif handler.at_most_once and (claim.retries or claim.crashes):
                outcome = Failed("interrupted", "it was begun before, and is of a kind that is begun once", final=True)
            else:
                if is_packed(claim.payload):
                    claim = await unpacked(handler, claim)
                await self._asked(claim, scope)
                handed_out = _handed_out(claim, await self._kept(claim))
        except Suspended as wait:
            outcome = wait.outcome
        except InvalidPayload as error:  # it will not be JSON next time either
            outcome = Failed(error.code, error.message, final=True)
        except Reject as error:
            outcome = Failed(error.code, handler.redactor(claim)(str(error), MESSAGE_LIMIT), final=True)
        except Exception as error:  # a key or a blob that is not here: tried again, and told
            outcome = failure(error, handler.redact)
        if outcome is not None:
            settlement = decide(claim, outcome, random.random())
            await self.client.arun(self.client.store.leases.settle(claim.lease, [settlement], scope))
            return None
        return handed_out

    async def _asked(self, claim: Claim, scope: str) -> None:
        declared = self._app._kinds.get(claim.kind)
        asking: Asking | None = None if declared is None else declared.kind._approval
        if asking is None and claim.agent is None:
            return
        means = self._app._handler_tools(scope, 1)
        try:
            rule = NO_RULE if declared is None else declared.kind._rule
            await ask_first(means, claim, asking, rule, Stop())
        finally:
            await means.aclose()

    async def _kept(self, claim: Claim) -> dict[str, Any]:
        """What earlier attempts have saved, opened: who works over HTTP has no keys."""
        if claim.attempt == 1:
            return {}
        found = await self.client.arun(self.client.store.jobs.checkpoints(claim.id, claim.tenant))
        bound = {"what": "checkpoint", "tenant": claim.tenant, "job_id": claim.id}
        kept = {name: value for name, value in found.items() if name not in (RESERVED, RUNNING)}

        def opened() -> dict[str, Any]:
            open_kept = self.client.vault.open_kept
            return {name: open_kept(value, place=name, **bound) for name, value in kept.items()}  # type: ignore[arg-type]

        return await asyncio.to_thread(opened) if any(map(is_stored, kept.values())) else opened()

    async def _attend(self, tenant: str) -> None:
        """What every worker does on the side: what may bring a job to this very caller at once, the rest beside it."""
        now = time.monotonic()
        attended, swept = self._attended.get(tenant, (0.0, 0.0))
        if now - attended < ATTEND_EVERY:
            return
        sweeps = now - swept >= SWEEP_EVERY
        self._attended[tenant] = (now, now if sweeps else swept)
        self._attended.move_to_end(tenant)
        if len(self._attended) > MOST_TENANTS:
            self._attended.popitem(last=False)
        store = self.client.store
        await self.client.arun(store.leases.promote(tenant=tenant))
        await self.client.arun(store.leases.reap(tenant=tenant))
        if sweeps:
            task = asyncio.get_running_loop().create_task(self._sweep(tenant), context=contextvars.Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _sweep(self, tenant: str) -> None:
        patience_of.set(self._patience)  # when the service leaves, a database that does not answer is not waited for
        duties = standard_tasks(tenant, promote_every=ATTEND_EVERY, sweep_every=SWEEP_EVERY)
        for duty in (*duties, self._app._scheduler.duty(tenant, SWEEP_EVERY)):
            each: MaintenanceTask | None = duty
            while each is not None:
                await run_once(each, self.client.store)
                each = each.then

    async def aclose(self) -> None:
        await self._patience.outlast(*self._tasks)


def _handed_out(claim: Claim, kept: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": claim.id,
        "attempt": claim.attempt,
        "tenant": claim.tenant,
        "kind": claim.kind,
        "queue": claim.queue,
        "payload": decode(claim.payload),
        "retries": claim.retries,
        "max_attempts": claim.max_attempts,
        "crashes": claim.crashes,
        "max_crashes": claim.max_crashes,
        "priority": claim.priority,
        "created_at": claim.created_at,
        "deadline_at": claim.deadline_at,
        "correlation_id": claim.correlation_id,
        "parent_id": claim.parent_id,
        "workflow_id": claim.workflow_id,
        "agent": claim.agent,
        "tags": list(claim.tags),
        "checkpoints": kept,
    }


async def _nobody(claim: Claim, stop: Stop) -> None:
    raise AssertionError("it is run elsewhere")


Word = Literal["succeeded", "failed", "retry", "reject", "snooze", "cancel"]
CODE_LIMIT: Final = 100
_NAME: Final = re.compile(r"[\w.:$*-]+")
AFTER_A_FAILURE = frozenset({"retry", "bury"})
TYPES = {"succeeded": "succeed", "snooze": "snooze", "cancel": "cancel"}


@dataclass(frozen=True, slots=True)
class Said:
    """What a worker says of one attempt."""

    job: str
    attempt: int
    outcome: Word
    result: Any = None
    type: str | None = None
    message: str | None = None
    traceback: str | None = None
    code: str | None = None
    after: float | None = None
    cost: float | None = None
    unfinished: bool = False
    """Handed back: what is begun at most once has ended then, since nobody knows how far it had come."""


async def settle_all(out: ClaimBroker, lease: str, said: Sequence[Said], tenant: str) -> list[SettleResult]:
    """In one transaction, whatever comes of each; said twice, it is answered as the first time."""
    client = out.client
    decided: list[tuple[Settlement | None, str | None]] = []
    wanted: dict[str, Settlement] = {}
    for each in said:
        job = await client.arun(client.store.jobs.get(each.job, tenant))
        if job is None:
            decided.append((None, "not_found"))
            continue
        settlement = await _settlement(out, lease, each, job)
        reason: str | None = "said_twice" if job.id in wanted else "stale_lease"
        if each.attempt == job.attempt and job.id not in wanted:
            wanted[job.id], reason = settlement, None
        decided.append((settlement, reason))
    stale = await client.arun(client.store.leases.settle(lease, list(wanted.values()), tenant)) if wanted else []
    return [
        await _verdict(out, each, settlement, reason or ("stale_lease" if settlement.id in stale else None), tenant)
        if settlement is not None
        else SettleResult(each.job, each.attempt, False, reason=reason)
        for each, (settlement, reason) in zip(said, decided, strict=True)
    ]


async def _verdict(out: ClaimBroker, said: Said, found: Settlement, reason: str | None, tenant: str) -> SettleResult:
    ending: str | None = found.ending if reason is None else None
    if reason == "stale_lease":
        ending = await _ended_before(out, found, tenant)
    return SettleResult(found.id, said.attempt, ending is not None, ending, None if ending is not None else reason)


async def _ended_before(out: ClaimBroker, found: Settlement, tenant: str) -> str | None:
    """How this very attempt has ended already, by the ledger, if it was so: the answer was lost, and it is said again.
    What would be decided now may differ, since the job has a try less than it had then."""
    events = await out.client.arun(out.client.store.jobs.history(found.id, tenant))
    event_type = TYPES.get(found.ending, "fail")
    ours = [event for event in events if event.attempt == found.attempt]
    if not any((event.from_state, event.type) == ("in_progress", event_type) for event in ours):
        return None
    decided = (event.type for event in ours if event.type in AFTER_A_FAILURE)
    return found.ending if event_type != "fail" else next(decided, found.ending)


async def _settlement(out: ClaimBroker, lease: str, said: Said, job: Job) -> Settlement:
    claim = _claim(job, lease, said.attempt)
    handler = await out.handler_for(claim)
    if said.unfinished:
        return decide(claim, hand_back(claim, at_most_once=handler.at_most_once), random.random())
    outcome = _outcome(said, handler, claim, hidden=job.payload == HIDDEN)
    if isinstance(outcome, Succeeded) and outcome.result is not None:
        outcome = await packed(handler, claim, outcome)
    if handler.at_most_once and isinstance(outcome, Failed):
        outcome = replace(outcome, final=True)
    return decide(claim, outcome, random.random())


def _claim(job: Job, lease: str, attempt: int) -> Claim:
    """As far as deciding needs it: if it is not this attempt any more, nothing will be written."""
    return Claim(
        *(job.id, lease, attempt, job.tenant, job.kind, job.queue, json.dumps(job.payload), job.retries, job.crashes),
        *(job.max_attempts, job.max_crashes, job.backoff, job.priority, job.position, job.deadline_at, job.created_at),
        *(job.correlation_id, job.parent_id, job.workflow_id, job.agent, job.tags),
    )


def _outcome(said: Said, handler: Handler, claim: Claim, *, hidden: bool) -> Outcome:
    cost = None if said.cost is None else check_cost(said.cost)
    redact: Redact = JobRedactor(handler.redact, claim.payload, handler.rule_for(claim).restricted)
    # Of a restricted payload every value is a secret, and it is not to be had here to compare with.
    message = WITHHELD if hidden and said.message else redact(said.message or "", MESSAGE_LIMIT)
    trace = None if said.traceback is None or hidden else redact(said.traceback, TRACEBACK_LIMIT)
    code = _code_of(said, redact, hidden=hidden)
    match said.outcome:
        case "succeeded":
            try:
                text = None if said.result is None else encode(said.result, limit=RESULT_LIMIT, what="result")
            except HoldfastError as error:  # it will be so next time, too
                return Failed(error.code, error.message, final=True, cost=cost)
            return Succeeded(text, cost=cost)
        case "failed":
            return Failed(code or "failed", message or code or "failed", trace, cost=cost)
        case "retry":
            return Failed(code or "retry_asked", message or "asked for", trace, after=said.after, cost=cost)
        case "reject":
            return Failed(code or "rejected", message or code or "rejected", trace, final=True, cost=cost)
        case "snooze":
            return Snoozed(said.after or 0.0, message or None, cost=cost)
        case "cancel":
            return Cancelled(message or None, cost=cost)


def _code_of(said: Said, redact: Redact, *, hidden: bool) -> str | None:
    """A word of the worker's, which goes into lists, groups and logs as it is: one line, without secrets. Of a
    restricted job only what can be a name: anything else may be made of what the worker has read."""
    text = one_line(redact(said.code or said.type or "", CODE_LIMIT), CODE_LIMIT).strip()
    return None if not text or (hidden and not _NAME.fullmatch(text)) else text
