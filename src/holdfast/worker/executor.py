"""Runs one handler and returns its outcome as data, redacted and packed as the payload rules require."""

from __future__ import annotations

import asyncio
import contextlib
import errno
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
    PLAIN_SUCCESS,
    Cancel,
    Cancelled,
    Crashed,
    Failed,
    Held,
    Outcome,
    Paused,
    Reject,
    RetryLater,
    Settled,
    Snooze,
    Snoozed,
    Stopped,
    Succeeded,
    outcome_label,
)
from holdfast.engine.payload import MARK, refuse_reserved
from holdfast.engine.redaction import JobRedactor, Redact, Redactor, one_line
from holdfast.engine.retry import Retry
from holdfast.engine.settlement import MESSAGE_LIMIT, TRACEBACK_LIMIT, decide
from holdfast.engine.units import span
from holdfast.errors import HoldfastError, InvalidArguments, InvalidPayload, Refused, StepsChanged, StoreUnavailable
from holdfast.features.payloads.model import NO_RULE, WITHHELD, Effective, PayloadRule, combined, effective
from holdfast.stores.flow import in_thread
from holdfast.stores.vault import EMPTY, Vault, reference_in
from holdfast.telemetry import observers
from holdfast.telemetry.tracebacks import failure, frame_of, locations_of, message_of, traceback_of
from holdfast.worker.maintenance import MaintenanceTask
from holdfast.worker.shutdown import Ended, Stop, Suspended

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

EVERY = 5.0


class PayloadRuleCache:
    """The payload rules as a worker knows them: read when it starts and every few seconds, used for every job.

    The database enforces its own part of the rules. The worker enforces the rest: it keeps restricted payloads out of
    messages, stores large results elsewhere, and asks for approvals. Until the rules could be read, every payload
    counts as restricted, and no job runs.
    """

    def __init__(self) -> None:
        self.any = False
        """Whether there are any rules, or they are unknown."""
        self.unknown = False
        self._rules: list[PayloadRule] | None = None
        self._memo: dict[tuple[str, str, Effective], Effective] = {}
        self._until = 0.0

    def load(self, rules: Iterable[PayloadRule] | None) -> None:
        """None: the rules could not be read. Rules that were read before stay in use."""
        if rules is None and self._rules is not None:
            return
        self._rules = None if rules is None else list(rules)
        self._memo = {}
        self.unknown = rules is None
        self.any = rules is None or bool(self._rules)
        self._until = 0.0 if rules is None else time.monotonic() + EVERY

    def of(self, tenant: str, kind: str, declared: Effective = NO_RULE) -> Effective:
        """The rule for a job, combined with the one that its code declares."""
        if not self.any:
            return declared
        key = (tenant, kind, declared)
        if key not in self._memo:
            if self._rules is None:
                return replace(declared, restricted=True)
            self._memo[key] = combined(declared, effective(self._rules, tenant, kind))
        return self._memo[key]

    def maintenance_task(self, tenant: str, every: float) -> MaintenanceTask:
        async def read(store: Store) -> int:
            if time.monotonic() >= self._until:
                self.load(await store.arun(store.payload_rules.list(tenant)))
            return 0

        return MaintenanceTask("rules", every, run=read, overdue=lambda: self.any)


log = logging.getLogger("holdfast.worker")
# One line per successful job, off by default: there may be thousands per second.
job_log = logging.getLogger("holdfast.jobs")
if job_log.level == logging.NOTSET:
    job_log.setLevel(logging.WARNING)

AnyOutcome = TypeVar("AnyOutcome", bound=Outcome | Settled)

_FAILURES = (Failed, Crashed)

AFTER_OUTAGE = (1.0, 5.0)  # seconds before a job whose handler lost the database is retried, drawn at random
RETRY_REQUESTED = "retry_asked"  # the code of a handler that raised ``RetryLater``
DATABASE_LOST = "the connection to Holdfast's database was lost while it ran"
NO_DESCRIPTORS = "its worker process could open no more files"
MOST_UNCOUNTED = 20
"""Attempts of a job that may end for want of file descriptors without being counted."""


@dataclass(frozen=True, slots=True)
class Handler:
    """``call`` returns the result as JSON text, or ``Settled`` if the job is settled already. The timeout is
    cooperative: a thread cannot be stopped.

    ``retry`` is the policy of the kind. Only its error types are used here; the rest is stored with the job.
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
    """Returns the ids of the jobs that a job is a retry of."""
    rule: Effective = NO_RULE
    """The payload rule that the code declares; ``rules`` has those of the database."""
    end_hooks: EndHooks | None = None
    """Called after the end of an attempt was recorded."""
    hold: Callable[[Claim, Held], Awaitable[Outcome]] | None = None
    """Decides how long a job is held whose steps do not fit. None in a child process, whose worker decides."""
    bind: Callable[[Claim], Awaitable[Claim]] | None = None
    """Inserts the results of other jobs into the payload of a workflow's job, as its plan specifies."""

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
    """Run the handler and return its outcome. Raises only ``CancelledError``, when the worker cancels it; the worker
    then decides about the job.

    A caller that may cancel it passes a ``stop`` and sets it first, so that the handler knows why it is interrupted.
    """
    return _execute(handler, claim, stop) if observers.unobserved() else _watched(handler, claim, stop)


async def _watched(handler: Handler, claim: Claim, stop: Stop | None) -> Outcome | Settled:
    watch = observers.Watch(claim)
    outcome: Outcome | Settled | None = None
    try:
        outcome = await _execute(handler, watch.claim, stop)
        return outcome
    finally:
        watch.over(outcome)


async def _execute(handler: Handler, claim: Claim, stop: Stop | None) -> Outcome | Settled:
    began = time.perf_counter()
    outcome: Outcome | Settled
    if handler.at_most_once and (claim.retries or claim.crashes):
        # The retry policy was stored with the job by a program that may not have known that the kind is at-most-once.
        outcome = Failed("interrupted", "it was started before, and its kind runs at most once", final=True)
    else:
        stop = stop or Stop(handler.timeout, claim.deadline_at)
        if handler.cost:
            stop.spend(handler.cost)
        try:
            if claim.payload.startswith(MARK):  # sealed, or stored elsewhere
                claim = await unpacked(handler, claim)
            bound = claim.workflow_id is not None or (claim.tags and CALLBACK_TAG in claim.tags)
            if bound and handler.bind is not None and RESULT_MARK in claim.payload:
                claim = await handler.bind(claim)
        except Exception as error:  # a missing key or blob: recorded and retried
            outcome = _exhausted(handler, claim, error) or failure(error, handler.redact)
        else:
            try:
                # Most handlers have no time limit, and a timeout context is not free.
                result = await (handler.call if handler.timeout is None else handler.limited)(claim, stop)
                outcome = PLAIN_SUCCESS if result is None else Succeeded(result) if isinstance(result, str) else result
            except BaseException as error:
                outcome = _interrupted(handler, claim, stop, error)
                if isinstance(outcome, Held) and handler.hold is not None:
                    outcome = await handler.hold(claim, outcome)
            if outcome is not PLAIN_SUCCESS or stop.cost:
                outcome = charged(outcome, stop)
                if isinstance(outcome, Succeeded) and outcome.result is not None:
                    outcome = await packed(handler, claim, outcome)
    if handler.at_most_once and isinstance(outcome, Failed):
        outcome = replace(outcome, final=True)
    if outcome is not PLAIN_SUCCESS or job_log.isEnabledFor(logging.INFO):
        with contextlib.suppress(Exception):  # a log handler of the application that fails must not change the outcome
            _log_outcome(claim, outcome, time.perf_counter() - began)
    return outcome


def charged(outcome: AnyOutcome, stop: Stop) -> AnyOutcome:
    """The outcome, with the cost of the attempt added."""
    if not stop.cost or isinstance(outcome, Settled):
        return outcome
    return replace(outcome, cost=round((outcome.cost or 0.0) + stop.cost, 6))


def _interrupted(handler: Handler, claim: Claim, stop: Stop, error: BaseException) -> Outcome | Settled:
    """The outcome of an attempt that raised. Raises the error again only if the worker has cancelled the attempt."""
    match error:
        case Suspended():
            paused = error.outcome
            return withheld(paused) if handler.rule_for(claim).restricted else paused
        case Ended():
            return _redacted(handler, claim, error.outcome)
        case TimeoutError() if stop.limit is not None and stop.limit.expired():
            message = f"the handler was not done after {handler.timeout} s"
            return Failed("timeout", message, final=handler.retry.is_final(error))
        case asyncio.CancelledError():
            by_worker = stop.set_by_worker
            stop.cancelled(error)
            task = asyncio.current_task()
            if by_worker and task is not None and task.cancelling():
                raise error
            return _raised(handler, claim, error)  # the handler, or something it awaited, has cancelled itself
        case _:
            # SystemExit, KeyboardInterrupt and the like end a handler, not the worker.
            return _suspended(error) or _raised(handler, claim, error)


def _suspended(error: BaseException) -> Outcome | None:
    """A task group wraps the errors of its tasks. If all of them are suspensions, the handler is suspended."""
    if not isinstance(error, BaseExceptionGroup):
        return None
    suspensions, others = error.split(Suspended)
    first: BaseException | None = suspensions
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first.outcome if others is None and isinstance(first, Suspended) else None


async def unpacked(handler: Handler, claim: Claim) -> Claim:
    """The claim with its payload as it was before it was sealed or stored elsewhere. A retry that is a separate job has
    the payload of the first job, sealed for that job."""

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
    """The outcome with its result sealed, or stored elsewhere if it is too large for the job; usually unchanged."""
    assert outcome.result is not None
    rule = handler.rule_for(claim)
    try:
        refuse_reserved(outcome.result, "result")
        if (rule is NO_RULE and handler.vault.keys is None) or handler.vault.keeps_results(rule):
            return outcome
        return await in_thread(pack_result, handler.vault, rule, claim, outcome)
    except HoldfastError as error:
        final = error.code in ("result_over_limit", "payload_reserved")  # a retry would fail in the same way
        return Failed(error.code, handler.redactor(claim)(error.message, MESSAGE_LIMIT), final=final)


def pack_result(vault: Vault, rule: Effective, claim: Claim, outcome: Succeeded) -> Succeeded:
    assert outcome.result is not None
    text = vault.pack(outcome.result, rule, what="result", kind=claim.kind, tenant=claim.tenant, job_id=claim.id)
    ref = reference_in(text)
    if ref is None or outcome.ref is not None:  # a reference that the handler has set stays
        return replace(outcome, result=text)
    # A sealed text is stored with the reference: it shows the key without a fetch.
    return replace(outcome, result=None if vault.keys is None else text, ref=ref)


def _raised(handler: Handler, claim: Claim, error: BaseException) -> Outcome:
    redact = handler.redactor(claim)
    try:
        outcome = _exhausted(handler, claim, error) or _outcome_of(handler, error, redact)
    except BaseException as trouble:  # an exception of Holdfast's with wrong attributes: the job must end all the same
        outcome = failure(trouble, redact)
    return withheld(outcome, error) if redact.restricted else outcome


def _exhausted(handler: Handler, claim: Claim, error: BaseException) -> Snoozed | None:
    """The outcome if the process could open no more files: that is a fault of the process, so it costs no attempt. A
    handler that opens too many files itself fails in the end."""
    if handler.at_most_once or claim.attempt - claim.retries > MOST_UNCOUNTED:
        return None
    causes: list[BaseException] = [error]
    for cause in causes:  # grows; an error may name one that names it
        if isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE):
            return Snoozed(random.uniform(*AFTER_OUTAGE), NO_DESCRIPTORS)
        causes += [each for each in (cause.__cause__, cause.__context__) if each is not None and each not in causes]
    return None


def withheld(outcome: Outcome, error: BaseException | None = None) -> Outcome:
    """The outcome of a restricted job without its message: only the type of the failure and its location remain. The
    message may contain anything the handler has read, and it would be stored in the ledger, which is sealed."""
    match outcome:
        case Failed(note=note):
            locations = None if error is None else locations_of(error)
            return replace(outcome, message=WITHHELD, traceback=locations, note=_without_log(note))
        case Crashed(note=note):
            return replace(outcome, note=_without_log(note))
        case Paused(pause=pause) if pause.get("error"):
            return replace(outcome, pause=pause | {"error": pause["error"] | {"message": WITHHELD}})
        case _:
            return outcome


def _without_log(note: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if note is None else {name: value for name, value in note.items() if name != "log"}


def _outcome_of(handler: Handler, error: BaseException, redact: Redact) -> Outcome:
    """The outcome that an exception stands for."""
    match error:
        case Snooze(reason=reason):
            return Snoozed(error.delay, None if reason is None else redact(str(reason), MESSAGE_LIMIT))
        case Cancel(reason=reason):
            return Cancelled(None if reason is None else redact(str(reason), MESSAGE_LIMIT))
        case Reject():
            message, trace = redact(str(error), MESSAGE_LIMIT), traceback_of(error, redact)
            return Failed(error.code, message, trace, final=True, frame=frame_of(error))
        case RetryLater():
            return _retry_later(error, redact)
        case StepsChanged(code="steps_changed"):
            return Held(error.code, redact(error.message, MESSAGE_LIMIT), list(error.steps))
        case InvalidArguments() | InvalidPayload() | StepsChanged():
            # A retry would fail in the same way.
            return Failed(error.code, redact(error.message, MESSAGE_LIMIT), final=True)
        case StoreUnavailable() if not handler.at_most_once:
            # Losing Holdfast's database is not a fault of the job, so it costs no attempt. The settlement has to wait
            # for the database anyway; the random delay spreads the jobs that return with it.
            return Snoozed(random.uniform(*AFTER_OUTAGE), DATABASE_LOST)
        case Stopped():
            return Failed("stopped", f"the handler was stopped: {error.reason}")
        case _:
            return failure(error, redact, final=handler.retry.is_final(error))


def _redacted(handler: Handler, claim: Claim, outcome: Outcome) -> Outcome:
    """The outcome from another process, redacted: that process may not know the secrets."""
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


def _retry_later(error: RetryLater, redact: Redact) -> Failed:
    cause = error.__cause__
    message = error.message or (message_of(cause) if cause is not None else "") or str(error)
    return Failed(
        RETRY_REQUESTED,
        redact(message, MESSAGE_LIMIT),
        traceback_of(error, redact),
        after=error.after,
        backoff=error.backoff,
        frame=frame_of(error if cause is None else cause),
    )


def _log_outcome(claim: Claim, outcome: Outcome | Settled, seconds: float) -> None:
    if isinstance(outcome, Held) and outcome.delay is not None:
        log.warning(
            "Job %s (%s) is held for %s, until a worker with other code appears: %s",
            *(claim.id, one_line(claim.kind), span(outcome.delay), one_line(outcome.message)),
            extra=log_fields(claim) | {"outcome": outcome_label(outcome), "error": one_line(outcome.code)},
        )
    elif isinstance(outcome, _FAILURES):
        if log.isEnabledFor(logging.WARNING):
            _log_failure(claim, outcome, seconds)
    elif isinstance(outcome, Snoozed) and str(claim.attempt).strip("0") == "1" and claim.attempt > 1:
        # At attempt 10, 100, …: snoozing without end is legal, but an operator should see it.
        kind, reason = one_line(claim.kind), one_line(outcome.reason or "")
        log.warning("Job %s (%s) was snoozed again after attempt %s: %s", claim.id, kind, claim.attempt, reason)
    elif job_log.isEnabledFor(logging.INFO):
        word = outcome_label(outcome)
        extra = log_fields(claim) | {"duration": round(seconds, 6), "outcome": word}
        took = f"{'in' if word == 'succeeded' else 'after'} {span(seconds)}"
        kind = one_line(claim.kind)
        job_log.info("Job %s (%s) %s %s (attempt %s)", claim.id, kind, word, took, claim.attempt, extra=extra)


def _log_failure(claim: Claim, outcome: Failed | Crashed, seconds: float) -> None:
    """Log what happened, in which attempt, and what follows. The jitter of a retry is drawn later."""
    code, message, kind = one_line(outcome.code), one_line(outcome.message), one_line(claim.kind)
    longest = decide(claim, outcome, 1.0)
    if longest.ending == "dead_letter" or (longest.ending == "crash" and claim.crashes >= claim.max_crashes):
        follows = "now a dead letter"
    else:
        exact = decide(claim, outcome, 0.0).delay == longest.delay
        follows = f"retry {'in' if exact else 'within'} {span(longest.delay)}" if longest.delay else "retry at once"
    extra = log_fields(claim) | {"duration": round(seconds, 6), "outcome": outcome_label(outcome), "error": code}
    number = _attempt(claim) if isinstance(outcome, Failed) else f"attempt {claim.attempt}"
    if code == RETRY_REQUESTED and longest.ending == "retry":
        log.info("Job %s (%s) requested a retry (%s): %s; %s", claim.id, kind, number, message, follows, extra=extra)
        return
    log.warning("Job %s (%s) failed (%s): %s: %s; %s", claim.id, kind, number, code, message, follows, extra=extra)


def _attempt(claim: Claim) -> str:
    """The number of this failure. Snoozes, waits and lost workers start attempts too, which are not counted as one."""
    failures = f"{claim.retries + 1} of {claim.max_attempts}"
    if claim.attempt == claim.retries + 1:
        return f"attempt {failures}"
    return f"attempt {claim.attempt}, failure {failures}"
