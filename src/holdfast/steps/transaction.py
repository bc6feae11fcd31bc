"""A job's success as part of a transaction: the handler's writes and the end of its job commit together.

There are two ways. ``ctx.transaction()`` gives the handler a connection, and settles the job on it at the end of the
block, under the same fence (lease, attempt) as any settlement. ``ctx.complete(connection=…)`` settles on the handler's
own connection; the worker reads from the database afterwards whether that was committed.
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
    """The progress of the completion of an attempt."""

    NONE = "none"
    OPEN = "open"
    IN_DOUBT = "in doubt"
    """A commit that ends the job may have happened, or may still happen."""
    DONE = "done"


def pack_plain(value: Any) -> str | None:
    return None if value is None else encode(value, limit=RESULT_LIMIT, what="result")


@dataclass(slots=True)
class Completion:
    """The state of an attempt's completion by its handler. ``pack`` encodes the result of this kind of job."""

    pack: Callable[[Any], str | None] = pack_plain
    end: Callable[[Succeeded], Succeeded] = lambda success: success
    """Seals the result or stores it elsewhere, if its payload rule requires it."""
    stage: Stage = Stage.NONE
    ref: str | None = None
    """The reference to the result, if the handler has set one."""
    connection: Any = None
    """The handler's own connection, on which the job was completed."""

    def check_free(self, *, again: bool = False) -> None:
        """Allow one completion per attempt. ``again``: repeat one whose transaction may have been rolled back."""
        if self.stage is Stage.OPEN:
            raise Conflict("this attempt already has an open transaction", code="transaction_open")
        if self.stage is Stage.DONE or (self.stage is Stage.IN_DOUBT and not again):
            raise Conflict("this attempt is already complete", code="already_completed")

    def check_no_block(self, embedded: bool) -> None:
        """An embedded database has one writer at a time: while the block is open, any other writer would wait for
        it."""
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
    """Returns the parts of the attempt's log that are not written yet. They are written in the transaction, because the
    log is closed after it."""
    check: Callable[[], None] = field(default=lambda: None, repr=False)
    """Raises if the job may not succeed."""

    def on(self, connection: object, value: Any) -> None:
        """Complete on the handler's own connection. Whether that is committed is checked when the handler has ended."""
        self.completion.check_free(again=True)
        self.complete(connection, value)
        self.completion.stage, self.completion.connection = Stage.IN_DOUBT, connection

    async def aon(self, connection: object, value: Any) -> None:
        self.completion.check_free(again=True)
        await self.acomplete(connection, value)
        self.completion.stage, self.completion.connection = Stage.IN_DOUBT, connection

    def complete(self, connection: object, value: Any, *, within: bool = False) -> None:
        if (flow := self._append_log()) is not None:
            self.client.store.run_on_connection(connection, flow, within=within)
        self._check(self.client.store.run_on_connection(connection, self._settle(value), within=within))

    async def acomplete(self, connection: object, value: Any, *, within: bool = False) -> None:
        if (flow := self._append_log()) is not None:
            await self.client.store.arun_on_connection(connection, flow, within=within)
        self._check(await self.client.store.arun_on_connection(connection, self._settle(value), within=within))

    def _append_log(self) -> Flow[None] | None:
        parts = self.lines()
        return self.client.store.on_connection.append_log(self.claim.lease, parts, self.client.scope) if parts else None

    def _settle(self, value: Any) -> Flow[bool]:
        self.check()
        completion = self.completion
        end = replace(completion.end(Succeeded(completion.pack(value), ref=completion.ref)), cost=self.stop.cost)
        settlement = decide(self.claim, end, 0.0)
        # With the scope of the lease, which may be every tenant.
        return self.client.store.on_connection.settle(self.claim.lease, settlement, self.client.scope)

    def _check(self, applied: bool) -> None:
        if applied:
            return
        if self.completion.stage is Stage.IN_DOUBT:
            raise Conflict("this attempt is already complete", code="already_completed")
        raise StaleLease(f"job {self.claim.id} is no longer claimed by this worker")

    async def concluded(self) -> bool:
        """Whether the job has ended by a transaction of its handler, as far as the worker can know."""
        match self.completion.stage:
            case Stage.DONE:
                return True
            case Stage.IN_DOUBT:
                return await self.acommitted()
            case _:
                return False

    async def roll_back(self) -> None:
        """Roll back a completion that the handler has not committed. Its open transaction locks the job, and the
        exchange that settles the job would wait for it, with all its other settlements."""
        connection, self.completion.connection = self.completion.connection, None
        with contextlib.suppress(Exception):  # the transaction has ended, or the connection is closed
            if hasattr(connection, "is_in_transaction"):  # asyncpg has no rollback
                await connection.execute("ROLLBACK")
                return
            result = await asyncio.to_thread(connection.rollback)
            if inspect.isawaitable(result):
                await result

    def committed(self) -> bool:
        """Whether the success is in the database. Only the holder of this attempt can have written it."""
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
        """Set the job's result from inside the block."""
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
        if self._store.embedded:  # connections of an embedded database are sync only
            await asyncio.to_thread(self._ending.complete, self._connection, self._result, within=True)
        else:
            await self._ending.acomplete(self._connection, self._result, within=True)
