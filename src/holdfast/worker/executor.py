"""Run one handler and return its outcome as data; payload rule cache.

The rules for payloads as a worker knows them: read when it starts and every few seconds, asked for every job.

What the database judges it judges itself; this is for what only the runtime can keep: that nothing of a restricted
payload is said, and where a large result goes. As long as they could not be read, everything counts as restricted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.engine.bound_results import CALLBACK_TAG, RESULT_MARK
from holdfast.engine.hooks import EndHooks
from holdfast.engine.job import DEFAULT_RETRY, Claim, log_fields
from holdfast.engine.outcome import (
    WELL,
    Cancel,
    Cancelled,
    Crashed,
    Failed,
    Outcome,
    Paused,
    Reject,
    RetryLater,
    Settled,
    Snooze,
    Snoozed,
    Stopped,
    Succeeded,
    outcome_word,
)
from holdfast.engine.payload import own
from holdfast.engine.redaction import JobRedactor, Redact, Redactor, one_line
from holdfast.engine.retry import Retry
from holdfast.engine.settlement import MESSAGE_LIMIT, TRACEBACK_LIMIT
from holdfast.engine.states import State
from holdfast.errors import HoldfastError, InvalidArguments, InvalidPayload, Refused, StepsChanged, StoreUnavailable
from holdfast.features.payloads.model import NO_RULE, WITHHELD, Effective, PayloadRule, effective, together
from holdfast.stores.flow import in_thread
from holdfast.stores.vault import EMPTY, Vault, is_packed, reference_in
from holdfast.telemetry import observers
from holdfast.telemetry.tracebacks import failure, frame_of, message_of, places_of, traceback_of
from holdfast.worker.maintenance import MaintenanceTask
from holdfast.worker.shutdown import Ended, Stop, Suspended

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

EVERY = 5.0


class PayloadRuleCache:
    def __init__(self) -> None:
        self.any = False
        """Whether there is anything to ask at all."""
        self._rules: list[PayloadRule] | None = None
        self._memo: dict[tuple[str, str, Effective], Effective] = {}
        self._until = 0.0

    def load(self, rules: Iterable[PayloadRule] | None) -> None:
        """None: they could not be read, and the worst is to be assumed."""
        if rules is None and self._rules is not None:
            return  # what was read before is better than nothing
        self._rules = None if rules is None else list(rules)
        self._memo = {}
        self.any = rules is None or bool(self._rules)
        self._until = 0.0 if rules is None else time.monotonic() + EVERY

    def of(self, tenant: str, kind: str, declared: Effective = NO_RULE) -> Effective:
        """All that holds for a job, with what the code itself declares."""
        if not self.any:
            return declared
        known = (tenant, kind, declared)
        if known not in self._memo:
            if self._rules is None:
                return replace(declared, restricted=True)
            self._memo[known] = together(declared, effective(self._rules, tenant, kind))
        return self._memo[known]

    def duty(self, tenant: str, every: float) -> MaintenanceTask:
        async def read(store: Store) -> int:
            if time.monotonic() >= self._until:
                self.load(await store.arun(store.payload_rules.list(tenant)))
            return 0

        return MaintenanceTask("rules", every, run=read)


log = logging.getLogger("holdfast.worker")
# One line a job that ended well, for those who want them (``configure_logging``): there may be thousands a second.
ends = logging.getLogger("holdfast.jobs")
if ends.level == logging.NOTSET:
    ends.setLevel(logging.WARNING)

End = TypeVar("End", bound=Outcome | Settled)

_BADLY = (Failed, Crashed)

AFTER_OUTAGE = (1.0, 5.0)
DATABASE_LOST = "the connection to Holdfast's database was lost while it ran"


@dataclass(frozen=True, slots=True)
class Handler:
    """``call`` answers the result as JSON text, or that the job is settled already. The timeout is cooperative: a
    thread cannot be stopped.

    ``retry`` is the kind's own policy; of it only the types of errors are asked here, the rest is stored with the job.
    """

    kind: str
    call: Callable[[Claim, Stop], Awaitable[str | Succeeded | Settled | None]]
    timeout: float | None = None
    retry: Retry = DEFAULT_RETRY
    at_most_once: bool = False
    redact: Redactor = field(default_factory=Redactor)
    cost: float | None = None
    vault: Vault = EMPTY
    rules: PayloadRuleCache = field(default_factory=PayloadRuleCache)
    chain: Callable[[Claim], Awaitable[list[str]]] | None = None
    """The jobs that this one is a retry of."""
    rule: Effective = NO_RULE
    """What the code declares for payloads of this kind; ``rules`` has what the database says."""
    end_hooks: EndHooks | None = None
    """To be called when the end of an attempt is recorded."""
    bind: Callable[[Claim], Awaitable[Claim]] | None = None
    """Puts the results of other jobs into the payload of a workflow's job, where its plan says so."""

    async def limited(self, claim: Claim, stop: Stop) -> str | Succeeded | Settled | None:
        """The call, within its timeout."""
        stop.limit = asyncio.timeout(self.timeout)
        async with stop.limit:
            try:
                return await self.call(claim, stop)
            except asyncio.CancelledError as error:
                stop.cancelled(error)
                raise

    def rule_for(self, claim: Claim) -> Effective:
        return self.rules.of(claim.tenant, claim.kind, self.rule)

    def redactor(self, claim: Claim) -> JobRedactor:
        return JobRedactor(self.redact, claim.payload, self.rule_for(claim).restricted)


def execute(handler: Handler, claim: Claim, stop: Stop | None = None) -> Coroutine[Any, Any, Outcome | Settled]:
    """Raises ``CancelledError`` when the worker cancels it, and nothing else: the worker decides about the job then.

    Who means to cancel it gives it a ``stop``, and sets that first: the handler knows then why it is interrupted.
    """
    return _execute(handler, claim, stop) if observers.unwatched() else _watched(handler, claim, stop)


async def _watched(handler: Handler, claim: Claim, stop: Stop | None) -> Outcome | Settled:
    watch = observers.Watch(claim)
    outcome: Outcome | Settled | None = None
    try:
        outcome = await _execute(handler, watch.claim, stop)
        return outcome
    finally:
        watch.over(outcome)


async def _execute(handler: Handler, claim: Claim, stop: Stop | None) -> Outcome | Settled:
    begun = time.perf_counter()
    outcome: Outcome | Settled
    if handler.at_most_once and (claim.retries or claim.crashes):
        # Its policy is stored with the job, by a program that may not have known what kind it is.
        outcome = Failed("interrupted", "it was begun before, and is of a kind that is begun once", final=True)
    else:
        stop = stop or Stop(handler.timeout, claim.deadline_at)
        if handler.cost:
            stop.spend(handler.cost)
        try:
            if is_packed(claim.payload):
                claim = await unpacked(handler, claim)
            bound = claim.workflow_id is not None or (claim.tags and CALLBACK_TAG in claim.tags)
            if bound and handler.bind is not None and RESULT_MARK in claim.payload:
                claim = await handler.bind(claim)
        except Exception as error:  # a key or a blob that is not here: tried again, and told
            outcome = failure(error, handler.redact)
        else:
            try:
                # Nearly always there is no limit, and one is not for nothing.
                answer = await (handler.call if handler.timeout is None else handler.limited)(claim, stop)
                outcome = WELL if answer is None else Succeeded(answer) if isinstance(answer, str) else answer
            except BaseException as error:
                outcome = _interrupted(handler, claim, stop, error)
            if outcome is not WELL or stop.cost:
                outcome = charged(outcome, stop)
                if isinstance(outcome, Succeeded) and outcome.result is not None:
                    outcome = await packed(handler, claim, outcome)
    if handler.at_most_once and isinstance(outcome, Failed):
        outcome = replace(outcome, final=True)
    if outcome is not WELL or ends.isEnabledFor(logging.INFO):
        with contextlib.suppress(Exception):  # a log of somebody's own that fails: the job has ended as it has
            _report(claim, outcome, time.perf_counter() - begun)
    return outcome


def charged(outcome: End, stop: Stop) -> End:
    """The outcome, with what the attempt has cost besides."""
    if not stop.cost or isinstance(outcome, Settled):
        return outcome
    return replace(outcome, cost=round((outcome.cost or 0.0) + stop.cost, 6))


async def ended_by_itself(store: Store, job_id: str, tenant: str) -> bool:
    """Whether a job that runs and is no longer held has succeeded by a transaction of its handler, which goes on."""
    found = await store.arun(store.jobs.get(job_id, tenant))
    return found is not None and found.state is State.SUCCEEDED


def _interrupted(handler: Handler, claim: Claim, stop: Stop, error: BaseException) -> Outcome | Settled:
    """How an attempt ended that raised. Raised again is only what the worker itself has interrupted."""
    match error:
        case Suspended():
            return _untold(handler, claim, error.outcome)
        case Ended():
            return _without_secrets(handler, claim, error.outcome)
        case TimeoutError() if stop.limit is not None and stop.limit.expired():
            late = f"the handler was not done after {handler.timeout} s"
            return Failed("timeout", late, final=handler.retry.is_final(error))
        case asyncio.CancelledError():
            told = stop.told
            stop.cancelled(error)
            task = asyncio.current_task()
            if told and task is not None and task.cancelling():
                raise error  # the worker is being stopped: it decides what becomes of the job
            return _raised(handler, claim, error)  # its own doing: it, or something it awaited, was cancelled
        case _:
            # SystemExit, KeyboardInterrupt and the like end a handler, not the worker.
            return _suspended(error) or _raised(handler, claim, error)


def _suspended(error: BaseException) -> Outcome | None:
    """A task group wraps what its tasks raise: if that is nothing but waiting, the handler waits."""
    if not isinstance(error, BaseExceptionGroup):
        return None
    waits, others = error.split(Suspended)
    first: BaseException | None = waits
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first.outcome if others is None and isinstance(first, Suspended) else None


async def unpacked(handler: Handler, claim: Claim) -> Claim:
    """The claim with its payload as it was before it was sealed or stored. A retry that is a job of its own has the
    payload of the first one, sealed for that."""

    async def opened(job_id: str) -> Claim:
        text = await in_thread(handler.vault.open, claim.payload, what="payload", tenant=claim.tenant, job_id=job_id)
        return replace(claim, payload=text)

    try:
        return await opened(claim.id)
    except Refused as refused:
        if refused.code != "seal_broken" or handler.chain is None:
            raise
        for job_id in await handler.chain(claim):
            with suppress(Refused):
                return await opened(job_id)
        raise


async def packed(handler: Handler, claim: Claim, outcome: Succeeded) -> Outcome:
    """The result sealed, or stored elsewhere if it is too large to lie with the job; nearly always as it is."""
    assert outcome.result is not None
    rule = handler.rule_for(claim)
    try:
        own(outcome.result, "result")
        if handler.vault.keys is None and rule.max_result_bytes is None and not rule.store:
            return outcome
        return await in_thread(pack_result, handler.vault, rule, claim, outcome)
    except HoldfastError as error:
        over = error.code in ("result_over_limit", "payload_reserved")  # it will be so next time, too
        return Failed(error.code, handler.redactor(claim)(error.message, MESSAGE_LIMIT), final=over)


def pack_result(vault: Vault, rule: Effective, claim: Claim, outcome: Succeeded) -> Succeeded:
    assert outcome.result is not None
    text = vault.pack(outcome.result, rule, what="result", kind=claim.kind, tenant=claim.tenant, job_id=claim.id)
    ref = reference_in(text)
    if ref is None or outcome.ref is not None:  # a reference of the handler's own stays
        return replace(outcome, result=text)
    # Of one that is sealed, the key is to be seen without fetching it.
    return replace(outcome, result=None if vault.keys is None else text, ref=ref)


def _raised(handler: Handler, claim: Claim, error: BaseException) -> Outcome:
    redact = handler.redactor(claim)
    try:
        outcome = _said(handler, error, redact)
    except BaseException as trouble:  # one of ours that was not made as it should be: its job must end all the same
        outcome = failure(trouble, redact)
    return withheld(outcome, error) if redact.restricted else outcome


def withheld(outcome: Outcome, error: BaseException | None = None) -> Outcome:
    """Of a restricted job's failure only what sort it was and where: what it says may be made of anything the handler
    has read, and the ledger that it would go into is sealed."""
    match outcome:
        case Failed(note=note):
            places = None if error is None else places_of(error)
            return replace(outcome, message=WITHHELD, traceback=places, note=_without_log(note))
        case Crashed(note=note):
            return replace(outcome, note=_without_log(note))
        case Paused(pause=pause) if pause.get("error"):
            return replace(outcome, pause=pause | {"error": pause["error"] | {"message": WITHHELD}})
        case _:
            return outcome


def _without_log(note: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if note is None else {name: value for name, value in note.items() if name != "log"}


def _untold(handler: Handler, claim: Claim, outcome: Outcome) -> Outcome:
    if isinstance(outcome, Paused) and outcome.pause.get("error") and handler.rule_for(claim).restricted:
        return withheld(outcome)
    return outcome


def _said(handler: Handler, error: BaseException, redact: Redact) -> Outcome:
    """What the handler said by raising."""
    match error:
        case Snooze(reason=reason):
            return Snoozed(error.delay, None if reason is None else redact(str(reason), MESSAGE_LIMIT))
        case Cancel(reason=reason):
            return Cancelled(None if reason is None else redact(str(reason), MESSAGE_LIMIT))
        case Reject():
            message, trace = redact(str(error), MESSAGE_LIMIT), traceback_of(error, redact)
            return Failed(error.code, message, trace, final=True, frame=frame_of(error))
        case RetryLater():
            return _asked_again(error, redact)
        case InvalidArguments() | InvalidPayload() | StepsChanged():
            # The same payload will not fit next time either.
            return Failed(error.code, redact(error.message, MESSAGE_LIMIT), final=True)
        case StoreUnavailable() if not handler.at_most_once:
            # Losing Holdfast's own database is no fault of the job, so it costs no attempt. The settlement has to wait
            # for the database anyway; the delay spreads the jobs that come back with it.
            return Snoozed(random.uniform(*AFTER_OUTAGE), DATABASE_LOST)
        case Stopped():
            return Failed("stopped", f"the handler was told to stop: {error.reason}")
        case _:
            return failure(error, redact, final=handler.retry.is_final(error))


def _without_secrets(handler: Handler, claim: Claim, outcome: Outcome) -> Outcome:
    """What another process said of its end is looked through here: it may not know what is secret."""
    redact = handler.redactor(claim)
    if redact.restricted:
        return withheld(outcome)
    match outcome:
        case Failed(message=message, traceback=trace):
            trace = None if trace is None else redact(trace, TRACEBACK_LIMIT)
            return replace(outcome, message=redact(message, MESSAGE_LIMIT), traceback=trace)
        case Crashed(message=message):
            return replace(outcome, message=redact(message, MESSAGE_LIMIT))
        case _:
            return outcome


def _asked_again(asked: RetryLater, redact: Redact) -> Failed:
    cause = asked.__cause__
    message = asked.message or (message_of(cause) if cause is not None else "") or str(asked)
    return Failed(
        "retry_asked",
        redact(message, MESSAGE_LIMIT),
        traceback_of(asked, redact),
        after=asked.after,
        backoff=asked.backoff,
        frame=frame_of(asked if cause is None else cause),
    )


def _report(claim: Claim, outcome: Outcome | Settled, seconds: float) -> None:
    if isinstance(outcome, _BADLY):
        code, message = one_line(outcome.code), one_line(outcome.message)
        said = log_fields(claim) | {"duration": round(seconds, 6), "outcome": outcome_word(outcome), "error": code}
        log.warning("Job %s (%s) failed: %s: %s", claim.id, one_line(claim.kind), code, message, extra=said)
    elif isinstance(outcome, Snoozed) and str(claim.attempt).strip("0") == "1" and claim.attempt > 1:
        # At the tenth, hundredth, … attempt: one that is put off for ever is legal, and should not go unseen.
        kind, reason = one_line(claim.kind), one_line(outcome.reason or "")
        log.warning("Job %s (%s) was snoozed again after attempt %s: %s", claim.id, kind, claim.attempt, reason)
    elif ends.isEnabledFor(logging.INFO):
        word = outcome_word(outcome)
        said = log_fields(claim) | {"duration": round(seconds, 6), "outcome": word}
        ends.info("job %s (%s) %s", claim.id, one_line(claim.kind), word, extra=said)
