"""Builders for tests of steps, events and approvals, through the port like those of `stores.py`."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from holdfast.engine.job import EVERY_TENANT, Claim
from holdfast.engine.outcome import Paused
from holdfast.engine.settlement import Settlement, decide
from holdfast.engine.steps import Pause, Saved, Step, StepEntry
from holdfast.features.approvals.model import Answer, Approval, ApprovalFilter, Ballot, Question, Vote, VoteVerdict
from holdfast.features.assembly import Store
from holdfast.stores.requests import SendEvent, SentResult
from tests.support.stores import TENANT, apply, new_id, put_one, take

# -- settlements that suspend a job --------------------------------------------------------------------------------


def paused(claim: Claim, pause: Pause, *steps: StepEntry) -> Settlement:
    return decide(claim, Paused(pause.to_json(), [entry.to_json() for entry in steps]), 1.0)


def sleeps(claim: Claim, delay: float | None = None, *, until: datetime | None = None, n: int = 1) -> Settlement:
    return paused(claim, Pause(n, "nap", "sleep", delay=delay, until=until))


def waits(
    claim: Claim,
    name: str = "paid",
    match: dict[str, Any] | None = None,
    *,
    n: int = 1,
    timeout: float | None = None,
    until: datetime | None = None,
    since: float = 0.0,
) -> Settlement:
    """Wait for an event."""
    pause = Pause(n, name, "event", delay=timeout, until=until, wanted=match or {}, since=since)
    return paused(claim, pause)


def asks(
    claim: Claim,
    approval_id: str,
    *steps: StepEntry,
    n: int = 1,
    name: str = "release",
    notify: str | None = None,
    **question: Any,
) -> Settlement:
    """Wait for an approval; `question` has the fields of `Question`."""
    filled = Question(**({"summary": "May it go out?"} | question))
    return paused(claim, Pause(n, name, "approval", approval=filled.to_json(approval_id, name, notify)), *steps)


def waiting(store: Store, name: str = "paid", match: dict[str, Any] | None = None, **how: Any) -> str:
    """A new job that waits for an event."""
    tenant = how.pop("tenant", TENANT)
    job_id, held = running(store, tenant=tenant)
    assert apply(store, held.lease, waits(held, name, match, **how)) == []
    return job_id


def asking(store: Store, *, tenant: str = TENANT, job: dict[str, Any] | None = None, **question: Any) -> Approval:
    """The approval of a new job that waits for it."""
    _, held = running(store, tenant=tenant, **(job or {}))
    approval_id = new_id()
    assert apply(store, held.lease, asks(held, approval_id, **question)) == []
    return approval(store, approval_id)


def running(store: Store, *, tenant: str = TENANT, **fields: Any) -> tuple[str, Claim]:
    """A new job in a new queue, begun under a new lease."""
    queue = new_id()
    job_id = put_one(store, tenant=tenant, queue=queue, **fields)
    return job_id, take(store, queues=[queue])


# -- steps and events ----------------------------------------------------------------------------------------------


def entry(n: int = 1, value: str | None = "1", *, name: str = "charge", **fields: Any) -> StepEntry:
    return StepEntry(n, name, fields.pop("kind", "step"), value, **fields)


def save(store: Store, claim: Claim, *entries: StepEntry, tenant: str = EVERY_TENANT) -> list[Saved]:
    flow = store.steps.save(claim.lease, [(claim.id, claim.attempt, entry) for entry in entries], tenant)
    return store.run(flow)


def steps(store: Store, job_id: str, *, tenant: str = EVERY_TENANT) -> list[Step]:
    return store.run(store.steps.list(job_id, tenant))


def send(
    store: Store,
    name: str = "paid",
    data: object = None,
    *,
    key: str | None = None,
    job: str | None = None,
    tenant: str = TENANT,
) -> SentResult:
    text = data if isinstance(data, str) else json.dumps({} if data is None else data)
    return store.run(store.ledger.send(SendEvent(new_id(), name, text, key, job), "till", tenant))


# -- approvals ---------------------------------------------------------------------------------------------------------


def approval(store: Store, approval_id: str, *, tenant: str = EVERY_TENANT) -> Approval:
    stored = store.run(store.approvals.get(approval_id, tenant))
    assert stored is not None, f"no approval {approval_id}"
    return stored


def approvals(store: Store, *, tenant: str = TENANT, **wanted: Any) -> list[Approval]:
    return store.run(store.approvals.list(ApprovalFilter(tenant=tenant, **wanted)))


def votes(store: Store, approval_id: str, *, tenant: str = EVERY_TENANT) -> list[Vote]:
    return store.run(store.approvals.votes(approval_id, tenant))


def ballot(person: str | None = "ada", verdict: VoteVerdict = "approve", **fields: Any) -> Ballot:
    return Ballot(verdict, person, fields.pop("how", "test"), **fields)


def say(store: Store, approval_id: str, decision: Ballot, *, tenant: str = EVERY_TENANT) -> Answer:
    return store.run(store.approvals.decide(approval_id, decision, tenant))


def approve(store: Store, approval_id: str, person: str = "ada", **fields: Any) -> Answer:
    return say(store, approval_id, ballot(person, **fields))


def deny(store: Store, approval_id: str, person: str = "bob", **fields: Any) -> Answer:
    return say(store, approval_id, ballot(person, "deny", **fields))


def keep_token(
    store: Store, approval_id: str, token_hash: str, person: str | None = None, ttl: float | None = None
) -> str | None:
    return store.run(store.approvals.save_token(approval_id, token_hash, person, ttl, "mailer", EVERY_TENANT))


def attend(store: Store, want: int = 1000, *, tenant: str = EVERY_TENANT) -> int:
    return store.run(store.approvals.attend(want, tenant))
