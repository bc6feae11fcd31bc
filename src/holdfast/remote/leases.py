"""Working for a service over HTTP: open a lease, claim under it, say how each attempt ended.

A lease is a worker's word that it is alive; whoever does not renew it in time loses what it holds to others. The fence
of every write is (lease, attempt), and what comes too late is ``StaleLease``. For Python the worker beside the database
is the better one: this is for where no database can be reached.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from holdfast.engine.operation import awaited, operation
from holdfast.engine.units import Duration, seconds
from holdfast.features.jobs.lease_answers import ClaimedJob, HeldJob, OpenedLease, RenewedLease, SettleResult
from holdfast.remote.http_requests import Request, Steps, delete, given, post, segment
from holdfast.remote.responses import read
from holdfast.remote.runners import RemoteNamespace

TTL = 30.0


Word = Literal["succeeded", "failed", "retry", "reject", "snooze", "cancel"]


class ErrorSaid(TypedDict, total=False):
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
        """``kinds`` are those the holder has handlers for, ``queues`` and ``slots`` where it takes jobs from and how
        many at a time: so that it can be said why a job waits."""
        body = given(name=name, ttl=seconds(ttl, "ttl"), kinds=_list(kinds), queues=_list(queues), slots=slots)
        return (yield from self._read(OpenedLease, post("/leases", body)))

    aopen = awaited(open)

    @operation
    def renew(self, lease: str, *, ttl: Duration = TTL) -> Steps[RenewedLease]:
        """Say that the worker is alive. ``StaleLease`` when it was taken for dead meanwhile."""
        request = _again(post(_at(lease, "renew"), given(ttl=seconds(ttl, "ttl"))))
        return (yield from self._read(RenewedLease, request))

    arenew = awaited(renew)

    @operation
    def end(self, lease: str) -> Steps[None]:
        """What it still holds is free at once."""
        yield from self._ask(delete(f"/leases/{segment(lease)}"))

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
        """Take up to ``want`` jobs, and wait so long for a first one. It is not sent again by itself: when the answer
        is lost, ``renew`` says what the lease holds."""
        patience = seconds(wait, "wait")
        body = given(queues=list(queues), kinds=_list(kinds), want=want, ttl=seconds(ttl, "ttl"), wait=patience)
        request = dataclasses.replace(post(_at(lease, "claim"), body), patience=patience)
        answer = yield from self._ask(request)
        return read(list[ClaimedJob], _inside(answer, "jobs"))

    aclaim = awaited(claim)

    @operation
    def checkpoint(self, lease: str, job: ClaimedJob, name: str, value: Any) -> Steps[None]:
        """Save something that the next attempt finds."""
        body = {"job": job.id, "attempt": job.attempt, "name": name, "value": value}
        yield from self._ask(_again(post(_at(lease, "checkpoint"), body)))

    acheckpoint = awaited(checkpoint)

    @operation
    def progress(
        self, lease: str, job: ClaimedJob, fraction: float | None = None, message: str | None = None
    ) -> Steps[None]:
        """Say how far this attempt is."""
        body = given(job=job.id, attempt=job.attempt, progress=fraction, message=message)
        yield from self._ask(_again(post(_at(lease, "checkpoint"), body)))

    aprogress = awaited(progress)

    @operation
    def settle(
        self,
        lease: str,
        job: ClaimedJob,
        outcome: Word = "succeeded",
        *,
        result: Any = None,
        error: ErrorSaid | None = None,
        after: Duration | None = None,
        cost: float | None = None,
    ) -> Steps[SettleResult]:
        """Say how an attempt ended. ``failed`` is tried again by the job's policy, ``retry`` likewise but ``after`` so
        long, ``reject`` never; ``snooze`` costs no try. Said again, it is answered as the first time."""
        body = given(
            job=job.id,
            attempt=job.attempt,
            outcome=outcome,
            result=result,
            error=None if error is None else dict(error),
            after=None if after is None else seconds(after, "delay"),
            cost=cost,
        )
        return (yield from self._read(SettleResult, _again(post(_at(lease, "settle"), body))))

    asettle = awaited(settle)

    @operation
    def release(self, lease: str, *jobs: ClaimedJob | HeldJob) -> Steps[list[SettleResult]]:
        """Hand jobs back unfinished: others run them, and it costs no try."""
        body = {"jobs": [{"id": job.id, "attempt": job.attempt} for job in jobs]}
        answer = yield from self._ask(_again(post(_at(lease, "release"), body)))
        return read(list[SettleResult], _inside(answer, "settlements"))

    arelease = awaited(release)


def _at(lease: str, word: str) -> str:
    return f"/leases/{segment(lease)}/{word}"


def _again(request: Request) -> Request:
    """The fence makes the second of two the same as the first."""
    return dataclasses.replace(request, repeatable=True)


def _list(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)


def _inside(answer: Any, name: str) -> Any:
    return answer.get(name) if isinstance(answer, dict) else None
