"""What a handler can know and do while it runs: ``async def handler(ctx: holdfast.Context, …)``.

``Context`` is for async handlers, ``SyncContext`` for the others. Both are views of a ``HandlerRun``.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.engine.job import Claim, References
from holdfast.engine.names import check_name
from holdfast.engine.outcome import Snooze, Stopped
from holdfast.engine.payload import encode
from holdfast.engine.steps import RESERVED, Progress
from holdfast.engine.units import Duration
from holdfast.errors import InvalidSetting, StaleLease
from holdfast.features.jobs.facts import Facts
from holdfast.features.jobs.handle import Handle
from holdfast.features.retention.model import check_cost
from holdfast.features.workflows.model import ParentResult
from holdfast.features.workflows.run import Extension, Results, aextend_workflow, extend_workflow
from holdfast.steps.calls import AwaitedCalls, BlockingCalls, Checkpoints, SyncCheckpoints
from holdfast.steps.handler_run import HandlerRun
from holdfast.steps.transaction import AsyncTransaction, Transaction
from holdfast.stores.flow import Flow
from holdfast.stores.session import Session
from holdfast.telemetry import tracing
from holdfast.telemetry.job_log import JobLog
from holdfast.worker.shutdown import Stop

if TYPE_CHECKING:
    from holdfast.kind import Prepared

_current: ContextVar[LazyContext | None] = ContextVar("holdfast_context", default=None)
_making = threading.Lock()


class BaseContext(Facts):
    """What both contexts share. An operation that writes needs the lease that the job was claimed under, and raises
    ``StaleLease`` when that is lost."""

    __slots__ = ()

    @property
    def result_ref(self) -> str | None:
        """URI of the result, kept beside the value that the handler returns. The handler sets it."""
        return self._run.completion.ref

    @result_ref.setter
    def result_ref(self, ref: str | None) -> None:
        self._run.completion.ref = None if ref is None else check_name(ref, "result_ref", limit=4_000)

    @property
    def log(self) -> JobLog:
        """A logger whose records name this job, contain none of its secrets and are one line each."""
        return self._run.log

    # --- being told to stop ---

    @property
    def cancelled(self) -> bool:
        """Whether this attempt was told to stop. A sync handler has to check; an async handler is interrupted."""
        return self._run.stop.is_set

    @property
    def stop_reason(self) -> str | None:
        """``timeout``, ``cancelled``, ``lease_lost``, ``worker_stopped`` or ``ended``; None while it may continue."""
        return self._run.stop.reason

    def raise_if_cancelled(self) -> None:
        """Raise ``Stopped`` if this attempt was told to stop. Call it between the parts of long work."""
        if self._run.stop.is_set:
            raise Stopped(self._run.stop.reason or "stopped")

    def time_left(self) -> float | None:
        """Seconds until the timeout or the job's deadline, whichever comes first; None without either."""
        return self._run.stop.time_left()

    def snooze(self, delay: Duration, reason: str | None = None) -> NoReturn:
        """End this attempt and run the job again later. It is not a failure and costs no retry. Raises ``Snooze``."""
        raise Snooze(delay, reason)

    def cost(self, units: float) -> None:
        """Add to the cost of this attempt, in the unit that the app counts in (``app.usage``).

        The cost is stored when the attempt ends, however it ends. The cost of a lost worker's attempt is not known.
        """
        self._run.stop.spend(check_cost(units))

    # --- shared by the sync and the async forms ---

    def _progress(self, fraction: float | None, message: str | None) -> Flow[bool] | None:
        """Hand the report to the worker's writer; outside a worker, return the flow that writes it."""
        run = self._run
        text = Progress.of(fraction, message, run.claim.attempt, run.redact).to_json()
        if run.report is not None:
            run.report(text)
            return None
        claim = run.claim
        # Under the lease the job was claimed with, whose scope may be every tenant.
        return run.session.store.steps.save_checkpoint(
            claim.id, claim.lease, claim.attempt, RESERVED, text, run.session.scope
        )

    def _put(self, ref: str | None, data: bytes | None) -> str:
        if (ref is None) == (data is None):
            raise InvalidSetting("pass either a reference or data for an artifact", code="conflicting_options")
        if data is None:
            assert ref is not None
            return ref
        return self._run.session.vault.keep(data, tenant=self.tenant, job_id=self.job_id)

    def _artifact(self, name: str, ref: str, meta: dict[str, Any] | None) -> Flow[bool]:
        claim, session = self._run.claim, self._run.session
        label, place = check_name(name, "artifact", limit=255), check_name(ref, "ref", limit=4_000)
        if meta is not None:
            encode(meta, what="artifact")  # refuses what is not JSON, or too large
        return session.store.steps.add_artifact(claim.id, claim.lease, claim.attempt, label, place, session.scope, meta)

    def _check_applied(self, applied: bool) -> None:
        if not applied:
            raise StaleLease(f"job {self.job_id} is no longer claimed by this worker")

    def _references(self) -> Flow[References]:
        return self._run.session.store.jobs.references(self.job_id, self.tenant)

    def _child(self, kind: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Prepared[Any]:
        if self._run.prepare is None:
            raise InvalidSetting("ctx.spawn works only in a worker", code="no_worker")
        own = {"tenant": self.tenant, "enqueued_by": f"job {self.job_id}"} | options
        if own["tenant"] == self.tenant:
            own.setdefault("parent", self.job_id)
        if own.get("key") is not None:
            own["key"] = f"{self.job_id}:{check_name(own['key'], 'key', limit=200)}"
        return self._run.prepare(kind, args, own)

    def _scheduled_at(self) -> Flow[datetime | None]:
        return self._run.session.store.templates.scheduled_at(self.job_id, self.tenant)

    def _parent_results(self) -> Flow[list[ParentResult]]:
        return self._run.session.store.workflows.parent_results(self.job_id, self.tenant)

    def _opened(self, found: list[ParentResult]) -> Results:
        """The results as they were returned: unsealed, and read from the artifact store where they are there."""
        vault, tenant = self._run.session.vault, self.tenant
        return Results(
            [
                replace(each, value=vault.open_value(each.value, each.ref, tenant=tenant, job_id=each.job_id))
                for each in found
            ]
        )

    def _own_workflow(self) -> str:
        if self.workflow_id is None:
            raise InvalidSetting("this job does not belong to a workflow", code="no_workflow")
        return self.workflow_id


class Context(AwaitedCalls, BaseContext):
    """The context of an async handler. Operations that reach the database are coroutines: ``await ctx.progress(0.5)``.
    Python warns about one that is not awaited."""

    __slots__ = ()

    @property
    def checkpoint(self) -> Checkpoints:
        """Named values that survive the attempt: ``await ctx.checkpoint.save(…)``, ``.load(…)``."""
        return Checkpoints(self._run)

    async def progress(self, fraction: float | None = None, message: str | None = None) -> None:
        """Report progress for people to see. Call it as often as you like: about one report per second is written,
        and the last one."""
        flow = self._progress(fraction, message)
        if flow is None:
            await asyncio.sleep(0)
        else:
            self._check_applied(await self._run.session.arun(flow))

    async def artifact(
        self, name: str, ref: str | None = None, meta: dict[str, Any] | None = None, *, data: bytes | None = None
    ) -> str:
        """Record a file that this attempt made: by its ``ref``, or with its ``data``, which goes to the artifact store.

        Returns the reference. Each name can be used once per attempt.
        """
        place = self._put(ref, data) if data is None else await asyncio.to_thread(self._put, ref, data)
        self._check_applied(await self._run.session.arun(self._artifact(name, place, meta)))
        return place

    async def references(self) -> References:
        """URIs that the job was enqueued with: ``source_ref``, ``target_ref``, ``payload_ref``."""
        return await self._run.session.arun(self._references())

    async def spawn(self, kind: Any, *args: Any, **options: Any) -> Handle[Any]:
        """Enqueue a child: ``await ctx.spawn(resize, image, key="page-1")``. Options are those of ``using``.

        A ``key`` is private to the parent: with it, a later attempt finds the same child instead of making another.
        """
        call = self._child(kind, args, options)
        return await self._run.session.aenqueue(call.spec, call.tenant, call.decode, call.connection)

    async def scheduled_at(self) -> datetime | None:
        """The time of the schedule that this job, or its workflow, was made for, or None. It may have been enqueued
        later than that."""
        return await self._run.session.arun(self._scheduled_at())

    async def results(self) -> Results:
        """Results of the jobs that this one waited for in its workflow: by name, ``(await ctx.results())["fetch"]``,
        or by kind and typed, ``(await ctx.results()).of(fetch)``."""
        found = await self._run.session.arun(self._parent_results())
        return await asyncio.to_thread(self._opened, found)

    async def workflow(self) -> Extension:
        """Add jobs to the workflow of this job: ``more = await ctx.workflow(); more.add(…); await more.astart()``.

        A later attempt runs this again. Name the jobs: a name is accepted once.
        """
        return await aextend_workflow(self._run.session, self._child, self._own_workflow(), self.tenant)

    def transaction(self, result: Any = None) -> AsyncTransaction:
        """``async with ctx.transaction() as connection:`` commits what is written on the connection together with the
        job's success, or neither. Raises ``StaleLease`` when the job is no longer claimed by this worker."""
        self._run.check_not_waiting()
        return AsyncTransaction(self._run.ending, result)

    async def complete(self, *, connection: object, result: Any = None) -> None:
        """Let the job succeed when the transaction that is open on your own connection commits. The transaction must
        have ended when the handler returns."""
        self._run.check_not_waiting()
        await self._run.ending.aon(connection, result)


class SyncContext(BlockingCalls, BaseContext):
    """The context of a sync handler. Operations block until they are done."""

    __slots__ = ()

    @property
    def checkpoint(self) -> SyncCheckpoints:
        """Named values that survive the attempt: ``ctx.checkpoint.save(…)``, ``.load(…)``."""
        return SyncCheckpoints(self._run)

    def progress(self, fraction: float | None = None, message: str | None = None) -> None:
        """Report progress for people to see. Call it as often as you like: about one report per second is written,
        and the last one."""
        flow = self._progress(fraction, message)
        if flow is not None:
            self._check_applied(self._run.session.run(flow))

    def artifact(
        self, name: str, ref: str | None = None, meta: dict[str, Any] | None = None, *, data: bytes | None = None
    ) -> str:
        """Record a file that this attempt made: by its ``ref``, or with its ``data``, which goes to the artifact store.

        Returns the reference. Each name can be used once per attempt.
        """
        place = self._put(ref, data)
        self._check_applied(self._run.session.run(self._artifact(name, place, meta)))
        return place

    def references(self) -> References:
        """URIs that the job was enqueued with: ``source_ref``, ``target_ref``, ``payload_ref``."""
        return self._run.session.run(self._references())

    def spawn(self, kind: Any, *args: Any, **options: Any) -> Handle[Any]:
        """Enqueue a child: ``ctx.spawn(resize, image, key="page-1")``. Options are those of ``using``.

        A ``key`` is private to the parent: with it, a later attempt finds the same child instead of making another.
        """
        call = self._child(kind, args, options)
        return self._run.session.enqueue(call.spec, call.tenant, call.decode, call.connection)

    def scheduled_at(self) -> datetime | None:
        """The time of the schedule that this job, or its workflow, was made for, or None. It may have been enqueued
        later than that."""
        return self._run.session.run(self._scheduled_at())

    def results(self) -> Results:
        """Results of the jobs that this one waited for in its workflow: by name, ``ctx.results()["fetch"]``, or by
        kind and typed, ``ctx.results().of(fetch)``."""
        return self._opened(self._run.session.run(self._parent_results()))

    def workflow(self) -> Extension:
        """Add jobs to the workflow of this job: ``more = ctx.workflow(); more.add(…); more.start()``.

        A later attempt runs this again. Name the jobs: a name is accepted once.
        """
        return extend_workflow(self._run.session, self._child, self._own_workflow(), self.tenant)

    def transaction(self, result: Any = None) -> Transaction:
        """``with ctx.transaction() as connection:`` commits what is written on the connection together with the job's
        success, or neither. Raises ``StaleLease`` when the job is no longer claimed by this worker."""
        self._run.check_not_waiting()
        return Transaction(self._run.ending, result)

    def complete(self, *, connection: object, result: Any = None) -> None:
        """Let the job succeed when the transaction that is open on your own connection commits. The transaction must
        have ended when the handler returns."""
        self._run.check_not_waiting()
        self._run.ending.on(connection, result)


AnyContext = Context | SyncContext
MakeContext = Callable[[Claim, Stop, asyncio.AbstractEventLoop], AnyContext]


class LazyContext:
    """The context of a handler, made on first use: a handler that takes none rarely needs it. ``seen`` is the context
    if it was made."""

    __slots__ = ("_claim", "_loop", "_make", "_stop", "seen")

    def __init__(self, make: MakeContext, claim: Claim, stop: Stop) -> None:
        """Call it on the worker's loop. The context itself may be made in a thread."""
        self._make = make
        self._claim = claim
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self.seen: AnyContext | None = None

    def made(self) -> AnyContext:
        with _making:  # threads that the handler has started share it
            if self.seen is None:
                self.seen = self._make(self._claim, self._stop, self._loop)
            return self.seen


def current() -> AnyContext | None:
    """The context of the running handler, or None.

    An async handler has a ``Context``. In a thread that works for it (a sync function of a step, ``to_thread``) nothing
    can be awaited: there it is a ``SyncContext`` of the same job.
    """
    lazy = _current.get()
    if lazy is None:
        return None
    found = lazy.made()
    return SyncContext(found._run) if isinstance(found, Context) and not _on_a_loop() else found


def current_run() -> HandlerRun | None:
    """What is behind ``current()``, for Holdfast's own modules."""
    lazy = _current.get()
    return None if lazy is None else lazy.made()._run


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def enter(context: LazyContext, claim: Claim, client: Session) -> None:
    """Bind the context and the tenant of its job to this task or thread; they end with it."""
    _current.set(context)
    client.belong_to(claim.tenant)
    tracing.bind(claim.id, claim.tags)
