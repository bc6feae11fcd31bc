"""Dead letters of a service, in groups, and the bulk operations that resolve many at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, Generic, TypedDict, TypeVar, Unpack

from holdfast.engine.job import Job
from holdfast.engine.units import Duration, seconds
from holdfast.errors import NotFound, WaitTimeout
from holdfast.features.dead_letters.model import BulkVerb, DeadLetterGroup, Operation, Order
from holdfast.http.calls import aware
from holdfast.http.colours import Noun, many, verb
from holdfast.http.jobs import JobsWanted
from holdfast.http.runners import Items, Runner
from holdfast.http.wire import Pause, Steps, get, given, post, segment

C = TypeVar("C", bound=Runner)

LOOK = 0.5
_Operations = list[Operation]  # inside the class the word is a method


class GroupsWanted(TypedDict, total=False):
    kind: str
    queue: str
    text: str
    since: datetime
    order: Order
    resolved: bool


class DeadLetters(Noun[C], Generic[C]):
    """What failed for good, in groups that failed for one reason."""

    @verb
    def groups(
        self, *, limit: int = 50, after: str | None = None, **wanted: Unpack[GroupsWanted]
    ) -> Steps[list[DeadLetterGroup]]:
        """Those seen last first, or the largest with ``order="count"``; with ``resolved=True`` also those in which
        nothing is open."""
        aware(wanted.get("since"), "since")
        return (yield from self._some(DeadLetterGroup, "/dead-letters", limit, after, **wanted))

    @verb
    def group(self, fingerprint: str) -> Steps[DeadLetterGroup | None]:
        try:
            return (yield from self._read(DeadLetterGroup, get(_group(fingerprint))))
        except NotFound:
            return None

    @many
    def jobs(self, fingerprint: str) -> Items[Job]:
        """The open dead letters of a group, newest first."""
        yield from self._every(Job, f"{_group(fingerprint)}/jobs")

    @verb
    def note(self, fingerprint: str, note: str | None) -> Steps[DeadLetterGroup]:
        """Write down what is known about a group; None takes it away."""
        return (yield from self._read(DeadLetterGroup, post(f"{_group(fingerprint)}/note", {"note": note})))

    @verb
    def redrive(
        self,
        group: str,
        *,
        reason: str | None = None,
        rate: float | None = None,
        max_attempts: int | None = None,
    ) -> Steps[Operation]:
        """Put the dead letters of a group back into their queues: a bulk operation, which workers do."""
        body = given(reason=reason, rate=rate, max_attempts=max_attempts)
        return (yield from self._read(Operation, post(f"{_group(group)}/redrive", body)))

    @verb
    def discard(self, group: str, *, reason: str, rate: float | None = None) -> Steps[Operation]:
        """Give the dead letters of a group up for good."""
        return (yield from self._read(Operation, post(f"{_group(group)}/discard", given(reason=reason, rate=rate))))

    @verb
    def redrive_as(self, job_id: str, payload: Any, *, reason: str | None = None) -> Steps[str]:
        """Redrive one with another payload: a new job, whose id is answered; the old one is discarded."""
        body = {"payload": payload, **given(reason=reason)}
        answer = yield from self._ask(post(f"/jobs/{segment(job_id)}/redrive-as", body))
        return str(answer["redriven_as"])


class Operations(Noun[C], Generic[C]):
    """Something done to all jobs that match, by the workers, in small batches."""

    @verb
    def start(
        self,
        verb: BulkVerb,
        *,
        reason: str | None = None,
        rate: float | None = None,
        max_attempts: int | None = None,
        everything: bool = False,
        **wanted: Unpack[JobsWanted],
    ) -> Steps[Operation]:
        """``client.operations.start("cancel", kind="import", tag="spring")``: cancel, redrive or discard all jobs that
        match, without waiting for it."""
        chosen: dict[str, Any] = dict(wanted)
        for name in ("since", "until"):
            aware(chosen.get(name), name)
        if "fingerprint" in chosen:
            chosen["group"] = chosen.pop("fingerprint")
        chosen |= {"verb": verb, "reason": reason, "rate": rate, "max_attempts": max_attempts, "everything": everything}
        return (yield from self._read(Operation, post("/operations", given(**chosen))))

    @verb
    def get(self, id: str) -> Steps[Operation | None]:
        try:
            return (yield from self._shown(id))
        except NotFound:
            return None

    def _shown(self, id: str) -> Steps[Operation]:
        return (yield from self._read(Operation, get(f"/operations/{segment(id)}")))

    @verb
    def list(self, *, running: bool = False, limit: int = 50, before: str | None = None) -> Steps[_Operations]:
        """Newest first; ``before`` is the id of the last one of the page before."""
        return (yield from self._some(Operation, "/operations", limit, before, running=running))

    @verb
    def cancel(self, id: str, *, reason: str | None = None) -> Steps[Operation]:
        """No further job is touched; what was done stays done."""
        return (yield from self._read(Operation, post(f"/operations/{segment(id)}/cancel", given(reason=reason))))

    @verb
    def wait(
        self, id: str, *, timeout: Duration | None = None, watch: Callable[[Operation], None] | None = None
    ) -> Steps[Operation]:
        """Until it is over; ``watch`` is told how far it is, each time it was looked at."""
        until = None if timeout is None else time.monotonic() + seconds(timeout, "timeout")
        while not (operation := (yield from self._shown(id))).over:
            if watch is not None:
                watch(operation)
            if until is not None and time.monotonic() >= until:
                raise WaitTimeout(f"operation {id} is not over: {operation.done} of {operation.total} are done")
            yield Pause(LOOK)
        return operation


def _group(fingerprint: str) -> str:
    return f"/dead-letters/{segment(fingerprint)}"
