"""``client.approvals``, ``dead_letters``, ``operations``."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal, TypedDict, Unpack

from holdfast.engine.job import Job
from holdfast.engine.operation import Items, awaited, awaited_stream, operation, stream
from holdfast.engine.units import Duration, seconds
from holdfast.errors import WaitTimeout
from holdfast.features.approvals.model import Approval, ApprovalState, VoteVerdict, approval_of_token
from holdfast.features.approvals.operations import ApprovalRequest
from holdfast.features.dead_letters.model import BulkAction, DeadLetterGroup, Operation, Order
from holdfast.remote.handle import check_aware, timing_options
from holdfast.remote.http_requests import Pause, Steps, get, post, segment, without_none
from holdfast.remote.jobs import JobFilter, query_of
from holdfast.remote.responses import read
from holdfast.remote.runners import RemoteNamespace

POLL_EVERY = 0.5
_Operations = list[Operation]  # inside the class, ``list`` is a method


class GroupFilter(TypedDict, total=False):
    kind: str
    queue: str
    text: str
    since: datetime
    order: Order
    resolved: bool


class DeadLetters(RemoteNamespace):
    """Jobs that failed permanently, grouped by error."""

    @operation
    def groups(
        self, *, limit: int = 50, after: str | None = None, **wanted: Unpack[GroupFilter]
    ) -> Steps[list[DeadLetterGroup]]:
        """Groups, last seen first, or the largest first with ``order="count"``; with ``resolved=True`` also groups
        without open dead letters."""
        check_aware(wanted.get("since"), "since")
        return (yield from self._limited(DeadLetterGroup, "/dead-letters", limit, after, **wanted))

    agroups = awaited(groups)

    @operation
    def group(self, fingerprint: str) -> Steps[DeadLetterGroup]:
        return (yield from self._read(DeadLetterGroup, get(_group(fingerprint))))

    agroup = awaited(group)

    @stream
    def jobs(self, fingerprint: str) -> Items[Job]:
        """The open dead letters of a group, newest first."""
        yield from self._stream(Job, f"{_group(fingerprint)}/jobs")

    ajobs = awaited_stream(jobs)

    @operation
    def note(self, fingerprint: str, note: str | None) -> Steps[DeadLetterGroup]:
        """Set the note of a group; None removes it."""
        return (yield from self._read(DeadLetterGroup, post(f"{_group(fingerprint)}/note", {"note": note})))

    anote = awaited(note)

    @operation
    def redrive(
        self,
        group: str,
        *,
        reason: str | None = None,
        rate: float | None = None,
        max_attempts: int | None = None,
        at: datetime | None = None,
        delay: Duration | None = None,
    ) -> Steps[Operation]:
        """Return the dead letters of a group to their queues. Workers run this bulk operation. The jobs may start
        immediately, or not before ``at`` or after a ``delay``."""
        body = timing_options(at, delay, max_attempts, reason) | without_none(rate=rate)
        return (yield from self._read(Operation, post(f"{_group(group)}/redrive", body)))

    aredrive = awaited(redrive)

    @operation
    def discard(self, group: str, *, reason: str, rate: float | None = None) -> Steps[Operation]:
        """Discard the dead letters of a group permanently."""
        body = without_none(reason=reason, rate=rate)
        return (yield from self._read(Operation, post(f"{_group(group)}/discard", body)))

    adiscard = awaited(discard)

    @operation
    def redrive_as(self, job_id: str, payload: Any, *, reason: str | None = None) -> Steps[str]:
        """Redrive a dead letter with another payload. Returns the id of the new job; the old one is discarded."""
        body = {"payload": payload, **without_none(reason=reason)}
        response = yield from self._request(post(f"/jobs/{segment(job_id)}/redrive-as", body))
        return str(response["redriven_as"])

    aredrive_as = awaited(redrive_as)


class Operations(RemoteNamespace):
    """Bulk operations on all matching jobs, which workers run in small batches."""

    @operation
    def start(
        self,
        action: BulkAction,
        *,
        reason: str | None = None,
        rate: float | None = None,
        max_attempts: int | None = None,
        at: datetime | None = None,
        delay: Duration | None = None,
        everything: bool = False,
        **wanted: Unpack[JobFilter],
    ) -> Steps[Operation]:
        """Cancel, redrive or discard all jobs that match, without waiting for it:
        ``client.operations.start("cancel", kind="import", tag="spring")``."""
        body = query_of(wanted) | timing_options(at, delay, max_attempts, reason)
        body |= {"action": action, "rate": rate, "everything": everything}
        return (yield from self._read(Operation, post("/operations", without_none(**body))))

    astart = awaited(start)

    @operation
    def get(self, id: str) -> Steps[Operation]:
        return (yield from self._get(id))

    aget = awaited(get)

    def _get(self, id: str) -> Steps[Operation]:
        return (yield from self._read(Operation, get(f"/operations/{segment(id)}")))

    @operation
    def list(self, *, running: bool = False, limit: int = 50, before: str | None = None) -> Steps[_Operations]:
        """Operations, newest first; ``before`` is the last id of the previous page."""
        return (yield from self._limited(Operation, "/operations", limit, before, running=running))

    alist = awaited(list)

    @operation
    def cancel(self, id: str, *, reason: str | None = None) -> Steps[Operation]:
        """Cancel an operation. Jobs it has already changed stay changed."""
        return (
            yield from self._read(Operation, post(f"/operations/{segment(id)}/cancel", without_none(reason=reason)))
        )

    acancel = awaited(cancel)

    @operation
    def wait(
        self, id: str, *, timeout: Duration | None = None, watch: Callable[[Operation], None] | None = None
    ) -> Steps[Operation]:
        """Wait until the operation has ended; ``watch`` is called with it at each poll."""
        until = None if timeout is None else time.monotonic() + seconds(timeout, "timeout")
        while not (operation := (yield from self._get(id))).over:
            if watch is not None:
                watch(operation)
            if until is not None and time.monotonic() >= until:
                raise WaitTimeout(
                    f"operation {id} has not finished: {operation.done} of {operation.total} jobs are done"
                )
            yield Pause(POLL_EVERY)
        return operation

    await_end = awaited(wait)


def _group(fingerprint: str) -> str:
    return f"/dead-letters/{segment(fingerprint)}"


class ApprovalFilter(TypedDict, total=False):
    """``approver`` selects the approvals that this person can decide."""

    state: ApprovalState | Literal["all"]
    approver: str
    name: str
    job: str


class Approvals(RemoteNamespace):
    @operation
    def list(
        self, *, limit: int = 50, after: str | None = None, **wanted: Unpack[ApprovalFilter]
    ) -> Steps[list[Approval]]:
        """Open approvals, oldest first: ``client.approvals.list(approver="ada@example.com")``."""
        return (yield from self._limited(Approval, "/approvals", limit, after, **wanted))

    alist = awaited(list)

    @stream
    def every(self, **wanted: Unpack[ApprovalFilter]) -> Items[Approval]:
        """All matching approvals, read page by page."""
        yield from self._stream(Approval, "/approvals", **wanted)

    aevery = awaited_stream(every)

    @operation
    def get(self, approval: str) -> Steps[ApprovalRequest]:
        """An approval, its votes and its job."""
        return (yield from self._read(ApprovalRequest, get(f"/approvals/{segment(approval)}")))

    aget = awaited(get)

    @operation
    def approve(self, approval: str, *, comment: str | None = None, data: Any = None) -> Steps[Approval]:
        """Approve in the name of the client's API token; or with a token of the approval, in place of its id. Returns
        the approval, which is still open if the quorum needs more."""
        return (yield from self._decide("approve", approval, comment, data))

    aapprove = awaited(approve)

    @operation
    def deny(self, approval: str, *, comment: str | None = None, data: Any = None) -> Steps[Approval]:
        return (yield from self._decide("deny", approval, comment, data))

    adeny = awaited(deny)

    def _decide(self, verdict: VoteVerdict, approval: str, comment: str | None, data: Any) -> Steps[Approval]:
        body = without_none(comment=comment, data=data)
        if approval_of_token(approval) is not None:
            decide = post(f"/approvals/by-token/{segment(approval)}", {"verdict": verdict, **body})
            return read(Approval, (yield from self._request(decide))["approval"])
        return (yield from self._read(Approval, post(f"/approvals/{segment(approval)}/{verdict}", body)))

    @operation
    def issue_token(
        self, approval: str, *, person: str | None = None, expires_in: Duration | None = None
    ) -> Steps[str]:
        """Issue a token that decides this approval once. It is not shown again."""
        span = None if expires_in is None else seconds(expires_in, "expires_in")
        body = without_none(person=person, expires_in=span)
        response = yield from self._request(post(f"/approvals/{segment(approval)}/token", body))
        return read(dict[str, str], response)["token"]

    aissue_token = awaited(issue_token)
