"""Bulk operations (DP-15), as ``app.operations``: have something done to many jobs, look how far it is, cancel it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime
from typing import TypedDict, Unpack

from holdfast.domain.operations import BulkVerb, Operation, Starting, check_rate, check_verb
from holdfast.engine.retry import retry_limit
from holdfast.engine.settlement import storable
from holdfast.engine.states import State
from holdfast.engine.units import Duration, seconds
from holdfast.errors import Conflict, InvalidInput, InvalidSetting, NotFound, WaitTimeout
from holdfast.stores.base import Caller
from holdfast.stores.choosing import all_of
from holdfast.stores.flow import Flow

LOOK = 0.2
"""How often somebody who waits looks."""

_Operations = list[Operation]  # inside the class the word is a method


class Wanted(TypedDict, total=False):
    """Which jobs: those for which all of it holds."""

    state: State | str
    kind: str
    queue: str
    agent: str
    tag: str
    correlation_id: str
    parent_id: str
    fingerprint: str
    since: datetime
    until: datetime


class Operations:
    """Each call has two colours: the one that begins with ``a`` is awaited."""

    def __init__(self, caller: Caller, new_id: Callable[[], str]) -> None:
        self._caller = caller
        self._new_id = new_id

    def start(
        self,
        verb: BulkVerb,
        *,
        reason: str | None = None,
        rate: float | None = None,
        max_attempts: int | None = None,
        **wanted: Unpack[Wanted],
    ) -> Operation:
        """``app.operations.start("cancel", kind="import", tag="spring")``: cancel, redrive or discard all jobs that
        match, without waiting for it. Workers do it, in small batches, at most ``rate`` jobs a second together."""
        return self._caller.run(self.starting(verb, reason, rate, max_attempts, wanted))

    async def astart(
        self,
        verb: BulkVerb,
        *,
        reason: str | None = None,
        rate: float | None = None,
        max_attempts: int | None = None,
        **wanted: Unpack[Wanted],
    ) -> Operation:
        return await self._caller.arun(self.starting(verb, reason, rate, max_attempts, wanted))

    def get(self, id: str) -> Operation | None:
        return self._caller.run(self._caller.verbs.operation(id, self._caller.tenant))

    async def aget(self, id: str) -> Operation | None:
        return await self._caller.arun(self._caller.verbs.operation(id, self._caller.tenant))

    def list(self, *, running: bool = False, limit: int = 50, before: str | None = None) -> _Operations:
        """Newest first; ``before`` is the id of the last one of the page before."""
        return self._caller.run(self._caller.verbs.operations(self._caller.tenant, running, before, limit))

    async def alist(self, *, running: bool = False, limit: int = 50, before: str | None = None) -> _Operations:
        return await self._caller.arun(self._caller.verbs.operations(self._caller.tenant, running, before, limit))

    def cancel(self, id: str, *, reason: str | None = None) -> Operation:
        """No further job is touched; what was done stays done."""
        cancelled = self._caller.run(self._cancel(id, reason))
        return _ended(cancelled, _found(id, self.get(id)))

    async def acancel(self, id: str, *, reason: str | None = None) -> Operation:
        cancelled = await self._caller.arun(self._cancel(id, reason))
        return _ended(cancelled, _found(id, await self.aget(id)))

    def wait(
        self, id: str, *, timeout: Duration | None = None, watch: Callable[[Operation], None] | None = None
    ) -> Operation:
        """Until it is over; ``watch`` is told how far it is, each time somebody has looked."""
        until = None if timeout is None else time.monotonic() + seconds(timeout, "timeout")
        while not (operation := _found(id, self.get(id))).over:
            if watch is not None:
                watch(operation)
            if until is not None and time.monotonic() >= until:
                raise WaitTimeout(f"operation {id} is not over: {operation.done} of {operation.total} are done")
            time.sleep(LOOK)
        return operation

    def run(self, id: str, *, watch: Callable[[Operation], None] | None = None) -> Operation:
        """Work on it here until it is over, beside whoever else does; nobody does a batch twice, and the rate holds."""
        while not (operation := _found(id, self.get(id))).over:
            if watch is not None:
                watch(operation)
            if self._caller.run(self._work(id)) is None:
                time.sleep(LOOK / 4)
        return operation

    async def arun(self, id: str) -> Operation:
        while not (operation := _found(id, await self.aget(id))).over:
            if await self._caller.arun(self._work(id)) is None:
                await asyncio.sleep(LOOK / 4)
        return operation

    def starting(
        self, verb: str, reason: str | None, rate: float | None, max_attempts: int | None, wanted: Wanted
    ) -> Flow[Operation]:
        """The flow that starts one, for those who start it as part of something else."""
        which, why = check_verb(verb), storable(reason)
        if which == "discard" and not (why or "").strip():
            raise InvalidInput("dead letters are not discarded without a reason", code="reason_required")
        if max_attempts is not None and which != "redrive":
            raise InvalidSetting("only a redrive gives jobs another number of tries", code="conflicting_options")
        new = Starting(self._new_id(), which, why, retry_limit(max_attempts), check_rate(rate))
        caller = self._caller
        return caller.verbs.start_operation(new, all_of(caller.tenant, wanted), caller.actor, caller.tenant)

    def _work(self, id: str) -> Flow[int | None]:
        return self._caller.verbs.work_operation(self._caller.tenant, id)

    def _cancel(self, id: str, reason: str | None) -> Flow[bool]:
        return self._caller.verbs.cancel_operation(id, storable(reason), self._caller.actor, self._caller.tenant)


def _found(id: str, operation: Operation | None) -> Operation:
    if operation is None:
        raise NotFound(f"there is no operation {id} in this tenant", code="operation_not_found")
    return operation


def _ended(cancelled: bool, operation: Operation) -> Operation:
    if not cancelled:
        raise Conflict(f"operation {operation.id} is {operation.state} already", code="operation_over")
    return operation
