"""``JobRepository``: enqueue, claim and settle jobs in a loop of your own, without a worker.

It uses the operations of a worker, so leases, fences and the ledger apply. All claimed jobs are held under one lease,
which every call renews. A loop that makes no calls for longer than the lease lasts loses its jobs to other workers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from holdfast.engine.job import DEFAULT_QUEUE, Claim, JobSpec
from holdfast.engine.names import check_name
from holdfast.engine.outcome import Failed, Outcome, Succeeded
from holdfast.engine.payload import decode, encode, refuse_reserved
from holdfast.engine.redaction import Redactor
from holdfast.engine.settlement import MESSAGE_LIMIT, decide
from holdfast.engine.times import instant_or_none
from holdfast.errors import Conflict, NotFound, StaleLease, StoreUnavailable
from holdfast.features.assembly import Store
from holdfast.stores.requests import ClaimRequest
from holdfast.stores.vault import EMPTY, Vault


@dataclass(frozen=True, slots=True)
class Work:
    """A job that is claimed by this loop."""

    id: str
    kind: str
    payload: Any
    attempt: int


class JobRepository:
    """Claims and settles jobs for a loop of your own; ``app.repository()`` makes it::

    jobs = app.repository(ttl="1m")
    for job in jobs.claim(10):
        try:
            jobs.mark_success(job.id, process(job.payload))
        except Exception as error:
            jobs.mark_failure(job.id, str(error))
    """

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
        gate: Callable[[Sequence[Claim]], Iterable[tuple[Claim, Outcome | None]]] | None = None,
    ) -> None:
        """``gate`` returns the outcome of each claim that may not run, such as the request for its approval."""
        self._gate = gate
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
        """Enqueue a job and return its id. With a ``key`` that was used before, return the id of the earlier job.

        Raises ``Conflict`` if that job has another payload.
        """
        spec = JobSpec(
            id=self._new_id(),
            kind=check_name(kind, "kind"),
            payload=refuse_reserved(encode({} if payload is None else payload)),
            enqueued_by=self._owner,
            source_system="repository",
            run_at=instant_or_none(run_at, "run_at"),
            key=None if key is None else check_name(key, "key", limit=255),
        )
        result = self._store.run(self._store.jobs.enqueue([spec], self._tenant))[0]
        if result.id is None or result.reason == "idempotency_conflict":
            raise Conflict("this idempotency key belongs to a job with another payload", code=result.reason)
        return result.id

    def claim(self, want: int = 1, *, queue: str = DEFAULT_QUEUE) -> list[Work]:
        """Claim up to ``want`` jobs that are due; a job that needs an approval asks for it and is not returned. It also
        releases the jobs of lost workers."""
        store = self._store
        self._store.run(store.leases.promote(tenant=self._tenant))
        self._store.run(store.leases.recover(tenant=self._tenant))
        request = ClaimRequest(lease=self._renewed_lease(), queues=(queue,), want=want, tenant=self._tenant)
        claims = self._allowed(self._store.run(store.leases.claim(request)))
        self._claims |= {claim.id: claim for claim in claims}
        return [Work(claim.id, claim.kind, decode(self._payload(claim)), claim.attempt) for claim in claims]

    def _allowed(self, claims: Sequence[Claim]) -> list[Claim]:
        if self._gate is None:
            return list(claims)
        allowed: list[Claim] = []
        for claim, outcome in self._gate([replace(claim, payload=self._payload(claim)) for claim in claims]):
            if outcome is None:
                allowed.append(claim)
            else:
                settlement = decide(claim, outcome, random.random())
                self._store.run(self._store.leases.settle(claim.lease, [settlement], self._tenant))
        return allowed

    def _payload(self, claim: Claim) -> str:
        return self._vault.open(claim.payload, what="payload", tenant=claim.tenant, job_id=claim.id)

    def mark_success(self, job_id: str, result: Any = None) -> None:
        """End the job as succeeded. Raises ``StaleLease`` if it is no longer claimed by this loop."""
        self._settle(
            job_id, Succeeded(None if result is None else refuse_reserved(encode(result, what="result"), "result"))
        )

    def mark_failure(self, job_id: str, error: str, *, code: str = "failed", permanent: bool = False) -> None:
        """Record a failure. The job is retried by its policy; it becomes a dead letter if no attempt is left, or if the
        failure is ``permanent``. Raises ``StaleLease`` if the job is no longer claimed by this loop."""
        self._settle(job_id, Failed(code, self._redact(error, MESSAGE_LIMIT), final=permanent))

    def close(self) -> None:
        """End the lease. Jobs that are claimed and not settled are recovered as those of a lost worker."""
        if self._lease is not None:
            self._store.run(self._store.leases.end(self._lease, "closed", self._tenant))
            self._lease = None

    def _settle(self, job_id: str, outcome: Outcome) -> None:
        claim = self._claims.get(job_id)
        if claim is None:
            raise NotFound(f"job {job_id} was not claimed here", code="not_claimed")
        settlement = decide(claim, outcome, random.random())
        stale = self._store.run(self._store.leases.settle(claim.lease, [settlement], self._tenant))
        del self._claims[job_id]  # after the call: if the database was unreachable, the caller can try again
        if stale:
            raise StaleLease(f"job {job_id} is no longer claimed by this loop")
        with suppress(StoreUnavailable):  # the job is settled; the next call renews the lease
            self._renewed_lease()

    def _renewed_lease(self) -> str:
        store = self._store
        if self._lease is None or not self._store.run(store.leases.renew(self._lease, self._ttl, self._tenant)):
            self._lease = self._store.run(store.leases.open(self._owner, self._ttl, self._tenant)).id
        return self._lease
