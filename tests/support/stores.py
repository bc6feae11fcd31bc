"""Builders for tests of the stores: enqueue, claim and settle jobs, read them, and move the store's clock.

Every helper uses operations that both stores have.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from holdfast.engine.ids import IdMaker
from holdfast.engine.job import EVERY_TENANT, Claim, Enqueued, Event, Job, JobSpec
from holdfast.engine.outcome import Failed, Outcome, Snoozed, Succeeded
from holdfast.engine.payload import encode
from holdfast.engine.retry import Retry
from holdfast.engine.settlement import Settlement, decide
from holdfast.engine.states import State
from holdfast.features.assembly import Store
from holdfast.stores.requests import ClaimRequest

new_id = IdMaker(time.time_ns, os.urandom)

TENANT = "default"
BROKEN = Failed("broken", "it broke")
FINAL = Failed("broken", "it broke for good", final=True)
LATER = Snoozed(60.0)
DONE = Succeeded()


def spec(kind: str = "mail.send", *, payload: object = None, **fields: Any) -> JobSpec:
    """A job to enqueue; `fields` are those of `JobSpec`."""
    facts: dict[str, Any] = {
        "id": new_id(),
        "payload": encode({} if payload is None else payload),
        "enqueued_by": "tester",
        "source_system": "tests",
    }
    return JobSpec(kind=kind, **(facts | fields))


def tries(attempts: int, crashes: int = 3) -> Retry:
    return Retry(max_attempts=attempts, max_crashes=crashes)


def enqueue(store: Store, *specs: JobSpec, tenant: str = TENANT) -> list[Enqueued]:
    return store.run(store.jobs.enqueue(specs, tenant))


def put(store: Store, *specs: JobSpec, tenant: str = TENANT) -> list[str]:
    """Enqueue jobs, check that all are new, and return their ids."""
    answers = enqueue(store, *specs, tenant=tenant)
    assert all(answer.created for answer in answers), answers
    return [spec.id for spec in specs]


def put_one(store: Store, kind: str = "mail.send", *, tenant: str = TENANT, **fields: Any) -> str:
    return put(store, spec(kind, **fields), tenant=tenant)[0]


def open_lease(store: Store, holder: str = "worker-1", *, ttl: float = 30.0, tenant: str = EVERY_TENANT) -> str:
    return store.run(store.leases.open(holder, ttl, tenant)).id


def claim(
    store: Store,
    lease: str,
    want: int = 1,
    *,
    queues: Sequence[str] = ("default",),
    begin: bool = True,
    kinds: tuple[str, ...] | None = None,
    tenant: str = EVERY_TENANT,
) -> list[Claim]:
    request = ClaimRequest(lease=lease, queues=tuple(queues), want=want, begin=begin, kinds=kinds, tenant=tenant)
    return store.run(store.leases.claim(request))


def take(store: Store, *, tenant: str = EVERY_TENANT, **fields: Any) -> Claim:
    """Claim and begin one job under a new lease."""
    (claimed,) = claim(store, open_lease(store, tenant=tenant), tenant=tenant, **fields)
    return claimed


def settle(
    store: Store,
    claims: Claim | Iterable[Claim],
    outcome: Outcome = DONE,
    *,
    jitter: float = 1.0,
    tenant: str = EVERY_TENANT,
) -> list[str]:
    """Settle attempts of one lease with `outcome`; return the ids of stale ones."""
    held = [claims] if isinstance(claims, Claim) else list(claims)
    return apply(store, held[0].lease, *(decide(attempt, outcome, jitter) for attempt in held), tenant=tenant)


def apply(store: Store, lease: str, *settlements: Settlement, tenant: str = EVERY_TENANT) -> list[str]:
    return store.run(store.leases.settle(lease, settlements, tenant))


def work(store: Store, outcome: Outcome = DONE, *, want: int = 1, tenant: str = EVERY_TENANT) -> list[Claim]:
    """Claim up to `want` jobs and settle them all with `outcome`."""
    claims = claim(store, open_lease(store, tenant=tenant), want, tenant=tenant)
    if claims:
        assert settle(store, claims, outcome, tenant=tenant) == []
    return claims


def job(store: Store, job_id: str, *, tenant: str = EVERY_TENANT) -> Job:
    stored = store.run(store.jobs.get(job_id, tenant))
    assert stored is not None, f"no job {job_id}"
    return stored


def state_of(store: Store, job_id: str) -> State:
    return job(store, job_id).state


def history(store: Store, job_id: str, *, tenant: str = EVERY_TENANT) -> list[Event]:
    return store.run(store.jobs.history(job_id, tenant))


def types_of(store: Store, job_id: str) -> list[str]:
    return [event.type for event in history(store, job_id)]


def forward(store: Store, seconds: float = 0.0) -> datetime:
    """Stop the store's clock `seconds` after its current time (0 only stops it); return the new time."""
    moment = store.run(store.clock.now()) + timedelta(seconds=seconds)
    store.run(store.clock.set(timedelta(0), moment))
    return moment


def decide_on(claimed: Claim, outcome: Outcome = DONE) -> Settlement:
    return decide(claimed, outcome, 1.0)
