"""The small queue for people who run their own loop (HK-4): enqueue, claim, mark success, mark failure.

It is a facade over the same operations a worker uses: leases, fences and the ledger are all in force. What it
claims is held under one lease, renewed by every call; a loop that stops calling loses its jobs to others
when the lease lapses.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.engine.job import DEFAULT_QUEUE, Claim, JobSpec
from holdfast.engine.names import check_name
from holdfast.engine.outcome import Failed, Outcome, Succeeded
from holdfast.engine.payload import decode, encode, own
from holdfast.engine.redaction import Redactor
from holdfast.engine.settlement import MESSAGE_LIMIT, decide
from holdfast.engine.times import instant_or_none
from holdfast.errors import Conflict, NotFound, StaleLease, StoreUnavailable
from holdfast.features.assembly import Store
from holdfast.stores.requests import ClaimRequest
from holdfast.stores.vault import EMPTY, Vault


@dataclass(frozen=True, slots=True)
class Work:
    """A job in the loop's hands."""

    id: str
    kind: str
    payload: Any
    attempt: int


class JobRepository:
    def __init__(
        self,
        store: Store,
        *,
        tenant: str,
        owner: str,
        new_id: Callable[[], str],
        ttl: float = 60.0,
        redact: Redactor | None = None,
        vault: Vault = EMPTY,
    ) -> None:
        self._vault = vault
        self._redact = redact or Redactor()
        self._store = store
        self._tenant = tenant
        self._owner = owner
        self._new_id = new_id
        self._ttl = ttl
        self._lease: str | None = None
        self._claims: dict[str, Claim] = {}

    def enqueue(self, kind: str, payload: Any = None, *, run_at: datetime | None = None, key: str | None = None) -> str:
        """The id of the job; with a key that is known already, that of the first one."""
        spec = JobSpec(
            id=self._new_id(),
            kind=check_name(kind, "kind"),
            payload=own(encode({} if payload is None else payload)),
            enqueued_by=self._owner,
            source_system="repository",
            run_at=instant_or_none(run_at, "run_at"),
            key=None if key is None else check_name(key, "key", limit=255),
        )
        answer = self._store.run(self._store.jobs.enqueue([spec], self._tenant))[0]
        if answer.id is None or answer.reason == "idempotency_conflict":
            raise Conflict("this idempotency key belongs to a job with another payload", code=answer.reason)
        return answer.id

    def claim(self, want: int = 1, *, queue: str = DEFAULT_QUEUE) -> list[Work]:
        """Up to ``want`` jobs that are due, now in this loop's hands. Also frees what lost workers held."""
        store = self._store
        self._store.run(store.leases.promote(tenant=self._tenant))
        self._store.run(store.leases.reap(tenant=self._tenant))
        request = ClaimRequest(lease=self._held(), queues=(queue,), want=want, tenant=self._tenant)
        claims = self._store.run(store.leases.claim(request))
        self._claims |= {claim.id: claim for claim in claims}
        return [Work(claim.id, claim.kind, decode(self._opened(claim)), claim.attempt) for claim in claims]

    def _opened(self, claim: Claim) -> str:
        return self._vault.open(claim.payload, what="payload", tenant=claim.tenant, job_id=claim.id)

    def mark_success(self, job_id: str, result: Any = None) -> None:
        self._settle(job_id, Succeeded(None if result is None else own(encode(result, what="result"), "result")))

    def mark_failure(self, job_id: str, error: str, *, code: str = "failed", permanent: bool = False) -> None:
        """Tried again by the job's policy while it has tries left, then a dead letter."""
        self._settle(job_id, Failed(code, self._redact(error, MESSAGE_LIMIT), final=permanent))

    def close(self) -> None:
        if self._lease is not None:
            self._store.run(self._store.leases.end(self._lease, "closed", self._tenant))
            self._lease = None

    def _settle(self, job_id: str, outcome: Outcome) -> None:
        claim = self._claims.get(job_id)
        if claim is None:
            raise NotFound(f"job {job_id} was not claimed here", code="not_claimed")
        settlement = decide(claim, outcome, random.random())
        stale = self._store.run(self._store.leases.settle(claim.lease, [settlement], self._tenant))
        del self._claims[job_id]  # only now: a store that was away can be asked again
        if stale:
            raise StaleLease(f"job {job_id} is no longer claimed by this loop")
        with suppress(StoreUnavailable):  # it is marked, whatever becomes of this: the next call renews the lease
            self._held()

    def _held(self) -> str:
        store = self._store
        if self._lease is None or not self._store.run(store.leases.renew(self._lease, self._ttl, self._tenant)):
            self._lease = self._store.run(store.leases.open(self._owner, self._ttl, self._tenant)).id
        return self._lease
