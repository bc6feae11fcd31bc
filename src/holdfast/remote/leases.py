"""``client.leases``, for workers over HTTP: open a lease, claim jobs, settle attempts.

A worker renews its lease to show that it is alive; when it does not, other workers get its jobs. Every write carries
the fence (lease, attempt); a late one raises ``StaleLease``. Use this only where the database cannot be reached:
otherwise a worker with a database connection is the better choice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from holdfast.engine.names import check_names
from holdfast.engine.operation import awaited, operation
from holdfast.engine.units import Duration, seconds
from holdfast.features.jobs.model import ClaimedJob, HeldJob, OpenedLease, RenewedLease, SettleResult
from holdfast.remote.http_requests import Request, Steps, delete, post, segment, without_none
from holdfast.remote.responses import read
from holdfast.remote.runners import RemoteNamespace

TTL = 30.0


OutcomeName = Literal["succeeded", "failed", "retry", "reject", "snooze", "cancel"]


class ErrorReport(TypedDict, total=False):
    type: str
    message: str
    traceback: str
    code: str


class Leases(RemoteNamespace):
    """``lease = client.leases.open(kinds=["resize"])``, and then ``claim``, ``checkpoint``, ``settle`` under it."""

    @operation
    def open(
        self,
        name: str = "worker",
        *,
        ttl: Duration = TTL,
        kinds: Sequence[str] | None = None,
        queues: Sequence[str] | None = None,
        slots: int | None = None,
    ) -> Steps[OpenedLease]:
        """Open a lease. ``kinds`` (those with handlers), ``queues`` and ``slots`` (concurrency) are shown to operators
        and used to explain why a job waits."""
        body = without_none(
            name=name, ttl=seconds(ttl, "ttl"), kinds=_list(kinds, "kind"), queues=_list(queues, "queue"), slots=slots
        )
        return (yield from self._read(OpenedLease, post("/leases", body)))

    aopen = awaited(open)

    @operation
    def renew(self, lease: str, *, ttl: Duration = TTL) -> Steps[RenewedLease]:
        """Renew the lease and list the jobs it holds. ``StaleLease`` if it has expired."""
        request = _repeatable(lease, "renew", without_none(ttl=seconds(ttl, "ttl")))
        return (yield from self._read(RenewedLease, request))

    arenew = awaited(renew)

    @operation
    def end(self, lease: str) -> Steps[None]:
        """End the lease. The jobs it still holds return to their queues."""
        yield from self._request(delete(f"/leases/{segment(lease)}"))

    aend = awaited(end)

    @operation
    def claim(
        self,
        lease: str,
        *,
        queues: Sequence[str] = ("default",),
        kinds: Sequence[str] | None = None,
        want: int = 1,
        ttl: Duration = TTL,
        wait: Duration = 0.0,
    ) -> Steps[list[ClaimedJob]]:
        """Claim up to ``want`` jobs, and wait up to ``wait`` for the first. The request is not repeated automatically:
        if the response is lost, ``renew`` lists the jobs that the lease holds."""
        longest = seconds(wait, "wait")
        body = without_none(
            queues=_list(queues, "queue"), kinds=_list(kinds, "kind"), want=want, ttl=seconds(ttl, "ttl"), wait=longest
        )
        request = dataclasses.replace(post(_path(lease, "claim"), body), extra_timeout=longest)
        response = yield from self._request(request)
        return read(list[ClaimedJob], _field(response, "jobs"))

    aclaim = awaited(claim)

    @operation
    def checkpoint(self, lease: str, job: ClaimedJob, name: str, value: Any) -> Steps[None]:
        """Save a value for the next attempt."""
        body = {"job": job.id, "attempt": job.attempt, "name": name, "value": value}
        yield from self._request(_repeatable(lease, "checkpoint", body))

    acheckpoint = awaited(checkpoint)

    @operation
    def progress(
        self, lease: str, job: ClaimedJob, fraction: float | None = None, message: str | None = None
    ) -> Steps[None]:
        """Report the progress of this attempt."""
        body = without_none(job=job.id, attempt=job.attempt, progress=fraction, message=message)
        yield from self._request(_repeatable(lease, "checkpoint", body))

    aprogress = awaited(progress)

    @operation
    def settle(
        self,
        lease: str,
        job: ClaimedJob,
        outcome: OutcomeName = "succeeded",
        *,
        result: Any = None,
        error: ErrorReport | None = None,
        after: Duration | None = None,
        cost: float | None = None,
    ) -> Steps[SettleResult]:
        """Report how an attempt ended. ``failed`` is retried by the job's policy, ``retry`` likewise but ``after`` a
        delay, ``reject`` never; ``snooze`` does not count as an attempt. A repeated report gets the first result."""
        body = without_none(
            job=job.id,
            attempt=job.attempt,
            outcome=outcome,
            result=result,
            error=None if error is None else dict(error),
            after=None if after is None else seconds(after, "delay"),
            cost=cost,
        )
        return (yield from self._read(SettleResult, _repeatable(lease, "settle", body)))

    asettle = awaited(settle)

    @operation
    def release(self, lease: str, *jobs: ClaimedJob | HeldJob) -> Steps[list[SettleResult]]:
        """Release jobs unfinished: other workers run them, and it does not count as an attempt."""
        body = {"jobs": [{"id": job.id, "attempt": job.attempt} for job in jobs]}
        response = yield from self._request(_repeatable(lease, "release", body))
        return read(list[SettleResult], _field(response, "settlements"))

    arelease = awaited(release)


def _path(lease: str, action: str) -> str:
    return f"/leases/{segment(lease)}/{action}"


def _repeatable(lease: str, action: str, body: Any) -> Request:
    """A request that may be sent again, because the fence makes it idempotent."""
    return post(_path(lease, action), body, repeatable=True)


def _list(names: Sequence[str] | None, what: str) -> list[str] | None:
    return None if names is None else list(check_names(names, what))


def _field(response: Any, name: str) -> Any:
    return response.get(name) if isinstance(response, dict) else None
