"""A job's success as part of a transaction: the handler's writes and the end of its job commit together.

Two ways lead there. ``ctx.transaction()`` lends the handler a connection, and settles the job on it at the end of the
block, under the same fence (lease, attempt) as any settlement. ``ctx.complete(connection=…)`` settles on the handler's
own connection; whether that was committed the worker asks the store afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import Enum
from types import TracebackType
from typing import Any

from holdfast.engine.job import Claim, Job
from holdfast.engine.outcome import Succeeded
from holdfast.engine.payload import encode
from holdfast.engine.settlement import decide
from holdfast.engine.states import State
from holdfast.errors import Conflict, InvalidSetting, StaleLease
from holdfast.features.attempts.model import LogPart
from holdfast.stores.flow import Flow
from holdfast.stores.session import Session
from holdfast.worker.shutdown import Stop

log = logging.getLogger("holdfast.worker")

RESULT_LIMIT = 1_048_576


class Stage(Enum):
    """How far the completion of an attempt has come."""

    NONE = "none"
    OPEN = "open"
    IN_DOUBT = "in doubt"
    """A commit that would end the job may have happened, or may yet."""
    DONE = "done"


def plainly(value: Any) -> str | None:
    return None if value is None else encode(value, limit=RESULT_LIMIT, what="result")


@dataclass(slots=True)
class Completion:
    """What an attempt's context remembers of its end. ``pack`` is how this kind of job writes its result."""

    pack: Callable[[Any], str | None] = plainly
    end: Callable[[Succeeded], Succeeded] = lambda success: success
    """What the result becomes when it is kept: sealed or stored, or nothing else."""
    stage: Stage = Stage.NONE
    ref: str | None = None
    """Where the result lies, if the handler said so."""
    connection: Any = None
    """The handler's own, on which it was completed."""

    def check_free(self, *, again: bool = False) -> None:
        """One completion an attempt. ``again``: one whose transaction may have been rolled back can be repeated."""
        if self.stage is Stage.OPEN:
            raise Conflict("this attempt already has an open transaction", code="transaction_open")
        if self.stage is Stage.DONE or (self.stage is Stage.IN_DOUBT and not again):
            raise Conflict("this attempt is already complete", code="already_completed")

    def check_no_block(self, embedded: bool) -> None:
        """An embedded database has one writer at a time, which is the open block: anybody else would wait for it."""
        if embedded and self.stage is Stage.OPEN:
            raise InvalidSetting(
                "inside a transaction block, jobs must be enqueued on its connection",
                code="connection_required",
                fix="Make it part of the transaction: using(connection=…) with the block's connection.",
            )


@dataclass(frozen=True, slots=True)
class Ending:
    """The settlement of one claim as succeeded, on a connection that is not the worker's."""

    claim: Claim
    client: Session
    completion: Completion = field(repr=False)
    stop: Stop = field(default_factory=Stop, repr=False)
    lines: Callable[[], list[LogPart]] = field(default=list, repr=False)
    """The parts of the attempt's log that are not written yet. They go into the transaction: after it the log is
    closed."""

    def on(self, connection: object, value: Any) -> None:
        """Complete on the handler's own connection; what becomes of the transaction there is seen later."""
        self.completion.check_free(again=True)
        self.complete(connection, value)
        self.completion.stage, self.completion.connection = Stage.IN_DOUBT, connection

    async def aon(self, connection: object, value: Any) -> None:
        self.completion.check_free(again=True)
        await self.acomplete(connection, value)
        self.completion.stage, self.completion.connection = Stage.IN_DOUBT, connection

    def complete(self, connection: object, value: Any, *, within: bool = False) -> None:
        if (flow := self._append_log()) is not None:
            self.client.store.run_borrowed(connection, flow, within=within)
        self._check(self.client.store.run_borrowed(connection, self._settle(value), within=within))

    async def acomplete(self, connection: object, value: Any, *, within: bool = False) -> None:
        if (flow := self._append_log()) is not None:
            await self.client.store.arun_borrowed(connection, flow, within=within)
        self._check(await self.client.store.arun_borrowed(connection, self._settle(value), within=within))

    def _append_log(self) -> Flow[None] | None:
        parts = self.lines()
        return self.client.store.borrowed.append_log(self.claim.lease, parts, self.client.scope) if parts else None

    def _settle(self, value: Any) -> Flow[bool]:
        completion = self.completion
        end = replace(completion.end(Succeeded(completion.pack(value), ref=completion.ref)), cost=self.stop.cost)
        settlement = decide(self.claim, end, 0.0)
        # Under the lease the job was claimed with, whose scope may be every tenant.
        return self.client.store.borrowed.settle(self.claim.lease, settlement, self.client.scope)

    def _check(self, applied: bool) -> None:
        if applied:
            return
        if self.completion.stage is Stage.IN_DOUBT:
            raise Conflict("this attempt is already complete", code="already_completed")
        raise StaleLease(f"job {self.claim.id} is no longer claimed by this worker")

    async def concluded(self) -> bool:
        """Whether the job has ended by a transaction of its handler, as far as can be known."""
        match self.completion.stage:
            case Stage.DONE:
                return True
            case Stage.IN_DOUBT:
                return await self.acommitted()
            case _:
                return False

    async def roll_back(self) -> None:
        """The handler has ended, and what it completed is not committed. A transaction that it has left open holds its
        job, and whoever settles that would wait for it, with all that is settled in the same turn."""
        connection, self.completion.connection = self.completion.connection, None
        with contextlib.suppress(Exception):  # it has ended, is closed, or belongs to a thread that is gone
            if hasattr(connection, "is_in_transaction"):  # asyncpg's, which has no rollback
                await connection.execute("ROLLBACK")
                return
            ended = await asyncio.to_thread(connection.rollback)
            if inspect.isawaitable(ended):
                await ended

    def committed(self) -> bool:
        """Ask the store. Nobody but the holder of this attempt can have made it succeed."""
        return self._succeeded(self.client.run(self._job()))

    async def acommitted(self) -> bool:
        return self._succeeded(await self.client.arun(self._job()))

    def _job(self) -> Flow[Job | None]:
        return self.client.store.jobs.get(self.claim.id, self.claim.tenant)

    def _succeeded(self, job: Job | None) -> bool:
        return job is not None and job.state is State.SUCCEEDED and job.attempt == self.claim.attempt


class _Block:
    """A transaction whose commit ends the job. ``result`` is the job's result, given at once or inside the block."""

    def __init__(self, ending: Ending, result: Any) -> None:
        self._ending = ending
        self._completion = ending.completion
        self._store = ending.client.store
        self._result = result
        self._connection: Any = None

    def result(self, value: Any) -> None:
        """Set the job's result, where it is known inside the block only."""
        self._completion.pack(value)  # refuse a value that cannot be stored here rather than at the end
        self._result = value


class Transaction(_Block):
    """What ``ctx.transaction()`` returns in a sync handler: ``with ctx.transaction() as connection:``."""

    _block: AbstractContextManager[Any] | None = None

    def __enter__(self) -> Any:
        self._completion.check_free()
        self._block = self._store.transaction()
        self._connection = self._block.__enter__()
        self._completion.stage = Stage.OPEN
        return self._connection

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._block is not None
        self._completion.stage = Stage.NONE
        try:
            if error is None:
                self._ending.complete(self._connection, self._result, within=True)
        except BaseException as refused:
            self._block.__exit__(type(refused), refused, refused.__traceback__)
            raise
        if error is not None:
            self._block.__exit__(kind, error, trace)
            return
        self._completion.stage = Stage.IN_DOUBT
        try:
            self._block.__exit__(None, None, None)
        except Exception as lost:
            if not self._ending.committed():
                self._completion.stage = Stage.NONE
                raise
            log.warning("Job %s was committed although the response was lost: %s", self._ending.claim.id, lost)
        self._completion.stage = Stage.DONE


class AsyncTransaction(_Block):
    """What ``ctx.transaction()`` returns in an async handler: ``async with ctx.transaction() as connection:``."""

    _block: AbstractAsyncContextManager[Any] | None = None

    async def __aenter__(self) -> Any:
        self._completion.check_free()
        self._block = self._store.atransaction()
        self._connection = await self._block.__aenter__()
        self._completion.stage = Stage.OPEN
        return self._connection

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._block is not None
        self._completion.stage = Stage.NONE
        try:
            if error is None:
                await self._acomplete()
        except BaseException as refused:
            await self._block.__aexit__(type(refused), refused, refused.__traceback__)
            raise
        if error is not None:
            await self._block.__aexit__(kind, error, trace)
            return
        self._completion.stage = Stage.IN_DOUBT
        try:
            await self._block.__aexit__(None, None, None)
        except Exception as lost:
            if not await self._ending.acommitted():
                self._completion.stage = Stage.NONE
                raise
            log.warning("Job %s was committed although the response was lost: %s", self._ending.claim.id, lost)
        self._completion.stage = Stage.DONE

    async def _acomplete(self) -> None:
        if self._store.embedded:  # its connections are sync only
            await asyncio.to_thread(self._ending.complete, self._connection, self._result, within=True)
        else:
            await self._ending.acomplete(self._connection, self._result, within=True)
