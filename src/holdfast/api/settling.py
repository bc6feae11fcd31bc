"""How an attempt that ran elsewhere has ended: from what its worker says to a settlement, by the same rules as ours.

The policy is ``domain/settlement.decide``, the fence is the store's, and what is said of a failure is cut to length and
redacted as if it had happened here.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from holdfast.api.handing_out import HandingOut
from holdfast.engine.job import Claim, Job
from holdfast.engine.outcome import Cancelled, Failed, Outcome, Snoozed, Succeeded
from holdfast.engine.payload import encode
from holdfast.engine.redaction import JobRedactor, Redact, one_line
from holdfast.engine.settlement import MESSAGE_LIMIT, TRACEBACK_LIMIT, Settlement, decide, hand_back
from holdfast.errors import HoldfastError
from holdfast.features.payloads.model import HIDDEN, WITHHELD
from holdfast.features.retention.model import check_cost
from holdfast.steps.transaction import RESULT_LIMIT
from holdfast.worker.executor import Handler, packed

Word = Literal["succeeded", "failed", "retry", "reject", "snooze", "cancel"]
CODE_LIMIT: Final = 100
_NAME: Final = re.compile(r"[\w.:$*-]+")
AFTER_A_FAILURE = frozenset({"retry", "bury"})
VERBS = {"succeeded": "succeed", "snooze": "snooze", "cancel": "cancel"}


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


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of it: ``ending`` is what was decided, ``reason`` why nothing was written."""

    job: str
    attempt: int
    settled: bool
    ending: str | None = None
    reason: str | None = None


async def settle_all(out: HandingOut, lease: str, said: Sequence[Said], tenant: str) -> list[Verdict]:
    """In one transaction, whatever comes of each; said twice, it is answered as the first time."""
    client = out.client
    decided: list[tuple[Settlement | None, str | None]] = []
    wanted: dict[str, Settlement] = {}
    for each in said:
        job = await client.arun(client.verbs.get(each.job, tenant))
        if job is None:
            decided.append((None, "not_found"))
            continue
        settlement = await _settlement(out, lease, each, job)
        reason: str | None = "said_twice" if job.id in wanted else "stale_lease"
        if each.attempt == job.attempt and job.id not in wanted:
            wanted[job.id], reason = settlement, None
        decided.append((settlement, reason))
    stale = await client.arun(client.verbs.settle(lease, list(wanted.values()), tenant)) if wanted else []
    return [
        await _verdict(out, each, settlement, reason or ("stale_lease" if settlement.id in stale else None), tenant)
        if settlement is not None
        else Verdict(each.job, each.attempt, False, reason=reason)
        for each, (settlement, reason) in zip(said, decided, strict=True)
    ]


async def _verdict(out: HandingOut, said: Said, found: Settlement, reason: str | None, tenant: str) -> Verdict:
    ending: str | None = found.ending if reason is None else None
    if reason == "stale_lease":
        ending = await _ended_before(out, found, tenant)
    return Verdict(found.id, said.attempt, ending is not None, ending, None if ending is not None else reason)


async def _ended_before(out: HandingOut, found: Settlement, tenant: str) -> str | None:
    """How this very attempt has ended already, by the ledger, if it was so: the answer was lost, and it is said again.
    What would be decided now may differ, since the job has a try less than it had then."""
    events = await out.client.arun(out.client.verbs.history(found.id, tenant))
    verb = VERBS.get(found.ending, "fail")
    ours = [event for event in events if event.attempt == found.attempt]
    if not any((event.from_state, event.verb) == ("in_progress", verb) for event in ours):
        return None
    decided = (event.verb for event in ours if event.verb in AFTER_A_FAILURE)
    return found.ending if verb != "fail" else next(decided, found.ending)


async def _settlement(out: HandingOut, lease: str, said: Said, job: Job) -> Settlement:
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
        *(job.max_retries, job.max_crashes, job.backoff, job.priority, job.position, job.deadline_at, job.created_at),
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
