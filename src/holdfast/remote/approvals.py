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
from holdfast.features.approvals.model import Approval, ApprovalState, VerdictWord
from holdfast.features.approvals.operations import ApprovalRequest
from holdfast.features.dead_letters.model import BulkAction, DeadLetterGroup, Operation, Order
from holdfast.remote.handle import aware
from holdfast.remote.http_requests import Pause, Steps, get, given, post, segment
from holdfast.remote.jobs import JobsWanted
from holdfast.remote.responses import read
from holdfast.remote.runners import RemoteNamespace

LOOK = 0.5
_Operations = list[Operation]  # inside the class the word is a method


class GroupsWanted(TypedDict, total=False):
    kind: str
    queue: str
    text: str
    since: datetime
    order: Order
    resolved: bool


class DeadLetters(RemoteNamespace):
    """What failed for good, in groups that failed for one reason."""

    @operation
    def groups(
        self, *, limit: int = 50, after: str | None = None, **wanted: Unpack[GroupsWanted]
    ) -> Steps[list[DeadLetterGroup]]:
        """Those seen last first, or the largest with ``order="count"``; with ``resolved=True`` also those in which
        nothing is open."""
        aware(wanted.get("since"), "since")
        return (yield from self._some(DeadLetterGroup, "/dead-letters", limit, after, **wanted))

    agroups = awaited(groups)

    @operation
    def group(self, fingerprint: str) -> Steps[DeadLetterGroup]:
        return (yield from self._read(DeadLetterGroup, get(_group(fingerprint))))

    agroup = awaited(group)

    @stream
    def jobs(self, fingerprint: str) -> Items[Job]:
        """The open dead letters of a group, newest first."""
        yield from self._every(Job, f"{_group(fingerprint)}/jobs")

    ajobs = awaited_stream(jobs)

    @operation
    def note(self, fingerprint: str, note: str | None) -> Steps[DeadLetterGroup]:
        """Write down what is known about a group; None takes it away."""
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
    ) -> Steps[Operation]:
        """Put the dead letters of a group back into their queues: a bulk operation, which workers do."""
        body = given(reason=reason, rate=rate, max_attempts=max_attempts)
        return (yield from self._read(Operation, post(f"{_group(group)}/redrive", body)))

    aredrive = awaited(redrive)

    @operation
    def discard(self, group: str, *, reason: str, rate: float | None = None) -> Steps[Operation]:
        """Give the dead letters of a group up for good."""
        return (yield from self._read(Operation, post(f"{_group(group)}/discard", given(reason=reason, rate=rate))))

    adiscard = awaited(discard)

    @operation
    def redrive_as(self, job_id: str, payload: Any, *, reason: str | None = None) -> Steps[str]:
        """Redrive one with another payload: a new job, whose id is answered; the old one is discarded."""
        body = {"payload": payload, **given(reason=reason)}
        answer = yield from self._ask(post(f"/jobs/{segment(job_id)}/redrive-as", body))
        return str(answer["redriven_as"])

    aredrive_as = awaited(redrive_as)


class Operations(RemoteNamespace):
    """Something done to all jobs that match, by the workers, in small batches."""

    @operation
    def start(
        self,
        action: BulkAction,
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
        chosen |= {
            "action": action,
            "reason": reason,
            "rate": rate,
            "max_attempts": max_attempts,
            "everything": everything,
        }
        return (yield from self._read(Operation, post("/operations", given(**chosen))))

    astart = awaited(start)

    @operation
    def get(self, id: str) -> Steps[Operation]:
        return (yield from self._shown(id))

    aget = awaited(get)

    def _shown(self, id: str) -> Steps[Operation]:
        return (yield from self._read(Operation, get(f"/operations/{segment(id)}")))

    @operation
    def list(self, *, running: bool = False, limit: int = 50, before: str | None = None) -> Steps[_Operations]:
        """Newest first; ``before`` is the id of the last one of the page before."""
        return (yield from self._some(Operation, "/operations", limit, before, running=running))

    alist = awaited(list)

    @operation
    def cancel(self, id: str, *, reason: str | None = None) -> Steps[Operation]:
        """Cancel an operation. Jobs it has already changed stay changed."""
        return (yield from self._read(Operation, post(f"/operations/{segment(id)}/cancel", given(reason=reason))))

    acancel = awaited(cancel)

    @operation
    def wait(
        self, id: str, *, timeout: Duration | None = None, watch: Callable[[Operation], None] | None = None
    ) -> Steps[Operation]:
        """Until it is over; ``watch`` is told how far it is, each time it was looked at."""
        until = None if timeout is None else time.monotonic() + seconds(timeout, "timeout")
        while not (operation := (yield from self._shown(id))).over:
            if watch is not None:
                watch(operation)
            if until is not None and time.monotonic() >= until:
                raise WaitTimeout(
                    f"operation {id} has not finished: {operation.done} of {operation.total} jobs are done"
                )
            yield Pause(LOOK)
        return operation

    await_end = awaited(wait)


def _group(fingerprint: str) -> str:
    return f"/dead-letters/{segment(fingerprint)}"


class ApprovalsWanted(TypedDict, total=False):
    """``approver`` leaves out what this person may not decide."""

    state: ApprovalState | Literal["all"]
    approver: str
    name: str
    job: str


class Approvals(RemoteNamespace):
    @operation
    def list(
        self, *, limit: int = 50, after: str | None = None, **wanted: Unpack[ApprovalsWanted]
    ) -> Steps[list[Approval]]:
        """Open approvals, the oldest first: ``client.approvals.list(approver="ada@example.com")``."""
        return (yield from self._some(Approval, "/approvals", limit, after, **wanted))

    alist = awaited(list)

    @stream
    def every(self, **wanted: Unpack[ApprovalsWanted]) -> Items[Approval]:
        """All of them, read page by page as you go."""
        yield from self._every(Approval, "/approvals", **wanted)

    aevery = awaited_stream(every)

    @operation
    def get(self, approval: str) -> Steps[ApprovalRequest]:
        """An approval, what was said of it and the job that asked."""
        return (yield from self._read(ApprovalRequest, get(f"/approvals/{segment(approval)}")))

    aget = awaited(get)

    @operation
    def approve(self, approval: str, *, comment: str | None = None, data: Any = None) -> Steps[Approval]:
        """Say yes, as whom the token names. Answers the approval as it is now: still open when more have to agree."""
        return (yield from decided(self, "approve", approval, comment, data))

    aapprove = awaited(approve)

    @operation
    def deny(self, approval: str, *, comment: str | None = None, data: Any = None) -> Steps[Approval]:
        return (yield from decided(self, "deny", approval, comment, data))

    adeny = awaited(deny)

    @operation
    def issue_token(
        self, approval: str, *, person: str | None = None, expires_in: Duration | None = None
    ) -> Steps[str]:
        """A token that decides this approval once. It is shown here and nowhere else."""
        span = None if expires_in is None else seconds(expires_in, "expires_in")
        answer = yield from self._ask(
            post(f"/approvals/{segment(approval)}/token", given(person=person, expires_in=span))
        )
        return read(dict[str, str], answer)["token"]

    aissue_token = awaited(issue_token)


def decided(noun: RemoteNamespace, word: VerdictWord, approval: str, comment: str | None, data: Any) -> Steps[Approval]:
    return (
        yield from noun._read(
            Approval, post(f"/approvals/{segment(approval)}/{word}", given(comment=comment, data=data))
        )
    )
