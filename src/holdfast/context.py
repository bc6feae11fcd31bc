"""The context of a running handler: ``async def handler(ctx: holdfast.Context, …)``.

``Context`` is for async handlers, ``SyncContext`` for sync handlers. Both are views of a ``HandlerRun``.
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
from holdfast.features.jobs.handle import Handle
from holdfast.features.retention.model import check_cost
from holdfast.features.workflows.model import ParentResult
from holdfast.features.workflows.run import Extension, Results, aextend_workflow, extend_workflow
from holdfast.steps.calls import AwaitedCalls, BlockingCalls, Checkpoints, SyncCheckpoints
from holdfast.steps.handler_run import Facts, HandlerRun
from holdfast.steps.transaction import AsyncTransaction, Transaction
from holdfast.stores.flow import Flow
from holdfast.stores.session import Session
from holdfast.telemetry import observers
from holdfast.telemetry.job_log import JobLog
from holdfast.worker.shutdown import Stop

if TYPE_CHECKING:
    from holdfast.kind import Prepared

_current: ContextVar[LazyContext | None] = ContextVar("holdfast_context", default=None)
_make_lock = threading.Lock()


class BaseContext(Facts):
    """The parts that both contexts share.

    Operations that write check the lease under which the job was claimed. They raise ``StaleLease`` when it is lost.
    """

    __slots__ = ()

    @property
    def result_ref(self) -> str | None:
        """URI of the result, stored beside the value that the handler returns. Assign it before the handler returns."""
        return self._run.completion.ref

    @result_ref.setter
    def result_ref(self, ref: str | None) -> None:
        self._run.completion.ref = None if ref is None else check_name(ref, "result_ref", limit=4_000)

    @property
    def log(self) -> JobLog:
        """A logger for this job. Each record is one line that names the job and contains no secrets. The records are
        stored with the attempt."""
        return self._run.log

    # --- stop requests ---

    @property
    def cancelled(self) -> bool:
        """Whether this attempt has to stop. A sync handler must check this; an async handler is interrupted."""
        return self._run.stop.is_set

    @property
    def stop_reason(self) -> str | None:
        """Why this attempt has to stop: ``timeout``, ``cancelled``, ``lease_lost``, ``worker_stopped`` or ``ended``.
        None while it may continue."""
        return self._run.stop.reason

    def raise_if_cancelled(self) -> None:
        """Raise ``Stopped`` if this attempt has to stop. Call it between the parts of long work in a sync handler."""
        if self._run.stop.is_set:
            raise Stopped(self._run.stop.reason or "stopped")

    def time_left(self) -> float | None:
        """Return the seconds until the timeout or the job's deadline, whichever is first; None without either."""
        return self._run.stop.time_left()

    def snooze(self, delay: Duration, reason: str | None = None) -> NoReturn:
        """End this attempt and run the job again after ``delay``. A snooze is not a failure and uses no retry.

        It raises ``Snooze``, so the code after it does not run: ``ctx.snooze("10m", "the bank is closed")``.
        """
        raise Snooze(delay, reason)

    def cost(self, units: float) -> None:
        """Add ``units`` to the cost of this attempt. The app chooses the unit: tokens, cents, seconds (``app.usage``).

        The cost is stored when the attempt ends, also when it fails. If the worker is lost, the cost is lost too.
        """
        self._run.stop.spend(check_cost(units))

    # --- parts of the sync and the async forms ---

    def _progress(self, fraction: float | None, message: str | None) -> Flow[bool] | None:
        """Hand the report to the worker's writer; outside a worker, return the flow that writes it."""
        run = self._run
        text = Progress.of(fraction, message, run.claim.attempt, run.redact).to_json()
        if run.report is not None:
            run.report(text)
            return None
        claim = run.claim
        # The lease may be one for all tenants, so the scope is the session's and not the job's tenant.
        return run.session.store.steps.save_checkpoint(
            claim.id, claim.lease, claim.attempt, RESERVED, text, run.session.scope
        )

    def _artifact_uri(self, ref: str | None, data: bytes | None) -> str:
        """Return ``ref``, or store ``data`` and return its URI."""
        if (ref is None) == (data is None):
            raise InvalidSetting("pass either a reference or data for an artifact", code="conflicting_options")
        if data is None:
            assert ref is not None
            return ref
        return self._run.session.vault.keep(data, tenant=self.tenant, job_id=self.job_id)

    def _artifact(self, name: str, ref: str, meta: dict[str, Any] | None) -> Flow[bool]:
        claim, session = self._run.claim, self._run.session
        label, uri = check_name(name, "artifact", limit=255), check_name(ref, "ref", limit=4_000)
        if meta is not None:
            encode(meta, what="artifact")  # raises InvalidPayload if it is not JSON, or too large
        return session.store.steps.add_artifact(claim.id, claim.lease, claim.attempt, label, uri, session.scope, meta)

    def _check_applied(self, applied: bool) -> None:
        if not applied:
            raise StaleLease(f"job {self.job_id} is no longer claimed by this worker")

    def _references(self) -> Flow[References]:
        return self._run.session.store.jobs.references(self.job_id, self.tenant)

    def _child(self, kind: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Prepared[Any]:
        if self._run.prepare is None:
            raise InvalidSetting("ctx.spawn works only in a worker", code="no_worker")
        complete = {"tenant": self.tenant, "enqueued_by": f"job {self.job_id}"} | options
        if complete["tenant"] == self.tenant:
            complete.setdefault("parent", self.job_id)
        if complete.get("key") is not None:
            complete["key"] = f"{self.job_id}:{check_name(complete['key'], 'key', limit=200)}"
        return self._run.prepare(kind, args, complete)

    def _scheduled_at(self) -> Flow[datetime | None]:
        return self._run.session.store.templates.scheduled_at(self.job_id, self.tenant)

    def _parent_results(self) -> Flow[list[ParentResult]]:
        return self._run.session.store.workflows.parent_results(self.job_id, self.tenant)

    def _open_results(self, stored: list[ParentResult]) -> Results:
        """Return the results as the parents returned them: decrypted, and read from the artifact store if needed."""
        vault, tenant = self._run.session.vault, self.tenant
        return Results(
            [
                replace(parent, value=vault.open_value(parent.value, parent.ref, tenant=tenant, job_id=parent.job_id))
                for parent in stored
            ]
        )

    def _own_workflow(self) -> str:
        if self.workflow_id is None:
            raise InvalidSetting("this job does not belong to a workflow", code="no_workflow")
        return self.workflow_id


class Context(AwaitedCalls, BaseContext):
    """The context of an async handler: what it can know about its job, and do while it runs.

    Operations that use the database are coroutines::

        @app.job
        async def import_file(ctx: holdfast.Context, path: str) -> int:
            rows = await ctx.step("read", read_rows, path)
            await ctx.progress(0.5, f"{len(rows)} rows read")
            ctx.log.info("Importing %s", path)
            return await ctx.step("store", store_rows, rows)
    """

    __slots__ = ()

    @property
    def checkpoint(self) -> Checkpoints:
        """Named values that survive the attempt: ``await ctx.checkpoint.save(…)``, ``.load(…)``."""
        return Checkpoints(self._run)

    async def progress(self, fraction: float | None = None, message: str | None = None) -> None:
        """Report progress: a fraction from 0 to 1, a message, or both. The dashboard and the command line show it.

        Call it as often as you like: the worker writes about one report per second, and always the last one.
        """
        flow = self._progress(fraction, message)
        if flow is None:
            await asyncio.sleep(0)
        else:
            self._check_applied(await self._run.session.arun(flow))

    async def artifact(
        self, name: str, ref: str | None = None, meta: dict[str, Any] | None = None, *, data: bytes | None = None
    ) -> str:
        """Record a file that this attempt made: pass its URI as ``ref``, or its content as ``data``.

        ``data`` is written to the artifact store. Returns the URI. A name can be used once per attempt.
        """
        uri = self._artifact_uri(ref, data) if data is None else await asyncio.to_thread(self._artifact_uri, ref, data)
        self._check_applied(await self._run.session.arun(self._artifact(name, uri, meta)))
        return uri

    async def references(self) -> References:
        """Return the URIs that the job was enqueued with: ``source_ref``, ``target_ref``, ``payload_ref``."""
        return await self._run.session.arun(self._references())

    async def spawn(self, kind: Any, *args: Any, **options: Any) -> Handle[Any]:
        """Enqueue a child: ``await ctx.spawn(resize, image, key="page-1")``. Options are those of ``using``.

        Pass a ``key`` so that a retry of this job finds the child of the first attempt instead of making another. The
        key is private to this job.
        """
        call = self._child(kind, args, options)
        return await call.aenqueue(self._run.session)

    async def scheduled_at(self) -> datetime | None:
        """Return the scheduled time for which this job, or its workflow, was created; None without a schedule.

        The job may have been enqueued later than that, for example after a downtime.
        """
        return await self._run.session.arun(self._scheduled_at())

    async def results(self) -> Results:
        """Return the results of the jobs that this one depends on in its workflow.

        Read them by name, ``(await ctx.results())["fetch"]``, or typed by kind, ``(await ctx.results()).of(fetch)``.
        """
        stored = await self._run.session.arun(self._parent_results())
        return await asyncio.to_thread(self._open_results, stored)

    async def workflow(self) -> Extension:
        """Add jobs to the workflow of this job: ``more = await ctx.workflow(); more.add(…); await more.astart()``.

        A retry runs this code again. Give each job a ``name``: a name is accepted once per workflow.
        """
        return await aextend_workflow(self._run.session, self._child, self._own_workflow(), self.tenant)

    def transaction(self, result: Any = None) -> AsyncTransaction:
        """Commit your writes and the job's success in one transaction, or neither::

            async with ctx.transaction(result=total) as connection:
                await connection.execute("insert into invoices …")

        The connection is one of the job database. Raises ``StaleLease`` if this worker no longer claims the job.
        """
        self._run.check_may_end()
        return AsyncTransaction(self._run.ending, result)

    async def complete(self, *, connection: object, result: Any = None) -> None:
        """Make the job succeed when the open transaction of your own ``connection`` commits.

        Commit before the handler returns; otherwise the attempt fails with the code ``not_committed``.
        """
        self._run.check_may_end()
        await self._run.ending.aon(connection, result)


class SyncContext(BlockingCalls, BaseContext):
    """The context of a sync handler. It has the operations of ``Context``; each blocks until it is done::

    @app.job
    def import_file(ctx: holdfast.SyncContext, path: str) -> int:
        rows = ctx.step("read", read_rows, path)
        ctx.raise_if_cancelled()
        return ctx.step("store", store_rows, rows)
    """

    __slots__ = ()

    @property
    def checkpoint(self) -> SyncCheckpoints:
        """Named values that survive the attempt: ``ctx.checkpoint.save(…)``, ``.load(…)``."""
        return SyncCheckpoints(self._run)

    def progress(self, fraction: float | None = None, message: str | None = None) -> None:
        """Report progress: a fraction from 0 to 1, a message, or both. The dashboard and the command line show it.

        Call it as often as you like: the worker writes about one report per second, and always the last one.
        """
        flow = self._progress(fraction, message)
        if flow is not None:
            self._check_applied(self._run.session.run(flow))

    def artifact(
        self, name: str, ref: str | None = None, meta: dict[str, Any] | None = None, *, data: bytes | None = None
    ) -> str:
        """Record a file that this attempt made: pass its URI as ``ref``, or its content as ``data``.

        ``data`` is written to the artifact store. Returns the URI. A name can be used once per attempt.
        """
        uri = self._artifact_uri(ref, data)
        self._check_applied(self._run.session.run(self._artifact(name, uri, meta)))
        return uri

    def references(self) -> References:
        """Return the URIs that the job was enqueued with: ``source_ref``, ``target_ref``, ``payload_ref``."""
        return self._run.session.run(self._references())

    def spawn(self, kind: Any, *args: Any, **options: Any) -> Handle[Any]:
        """Enqueue a child: ``ctx.spawn(resize, image, key="page-1")``. Options are those of ``using``.

        Pass a ``key`` so that a retry of this job finds the child of the first attempt instead of making another. The
        key is private to this job.
        """
        call = self._child(kind, args, options)
        return call.enqueue(self._run.session)

    def scheduled_at(self) -> datetime | None:
        """Return the scheduled time for which this job, or its workflow, was created; None without a schedule.

        The job may have been enqueued later than that, for example after a downtime.
        """
        return self._run.session.run(self._scheduled_at())

    def results(self) -> Results:
        """Return the results of the jobs that this one depends on in its workflow.

        Read them by name, ``ctx.results()["fetch"]``, or typed by kind, ``ctx.results().of(fetch)``.
        """
        return self._open_results(self._run.session.run(self._parent_results()))

    def workflow(self) -> Extension:
        """Add jobs to the workflow of this job: ``more = ctx.workflow(); more.add(…); more.start()``.

        A retry runs this code again. Give each job a ``name``: a name is accepted once per workflow.
        """
        return extend_workflow(self._run.session, self._child, self._own_workflow(), self.tenant)

    def transaction(self, result: Any = None) -> Transaction:
        """Commit your writes and the job's success in one transaction, or neither::

            with ctx.transaction(result=total) as connection:
                connection.execute("insert into invoices …")

        The connection is one of the job database. Raises ``StaleLease`` if this worker no longer claims the job.
        """
        self._run.check_may_end()
        return Transaction(self._run.ending, result)

    def complete(self, *, connection: object, result: Any = None) -> None:
        """Make the job succeed when the open transaction of your own ``connection`` commits.

        Commit before the handler returns; otherwise the attempt fails with the code ``not_committed``.
        """
        self._run.check_may_end()
        self._run.ending.on(connection, result)


AnyContext = Context | SyncContext
MakeContext = Callable[[Claim, Stop, asyncio.AbstractEventLoop], AnyContext]


class LazyContext:
    """Makes the context of a handler on first use: a handler without a context parameter rarely needs one. ``context``
    is None until then."""

    __slots__ = ("_claim", "_loop", "_make", "_stop", "context")

    def __init__(self, make: MakeContext, claim: Claim, stop: Stop) -> None:
        """Must be called on the worker's event loop. ``get`` may be called in a thread."""
        self._make = make
        self._claim = claim
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self.context: AnyContext | None = None

    def get(self) -> AnyContext:
        with _make_lock:  # threads that the handler starts share the context
            if self.context is None:
                self.context = self._make(self._claim, self._stop, self._loop)
            return self.context


def current() -> AnyContext | None:
    """Return the context of the running handler, for code that does not receive it as a parameter; None outside one.

    In an async handler it is a ``Context``. In a thread that the handler started (a sync function of a step,
    ``asyncio.to_thread``), where nothing can be awaited, it is a ``SyncContext`` of the same job.
    """
    lazy = _current.get()
    if lazy is None:
        return None
    context = lazy.get()
    return SyncContext(context._run) if isinstance(context, Context) and not on_a_loop() else context


def current_run() -> HandlerRun | None:
    """Return the ``HandlerRun`` of the current context; internal."""
    lazy = _current.get()
    return None if lazy is None else lazy.get()._run


def on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def enter(context: LazyContext, claim: Claim, client: Session) -> None:
    """Bind the context, and the tenant of its job, to this task or thread. The binding ends with it."""
    _current.set(context)
    client.belong_to(claim.tenant)
    observers.bind(claim.id, claim.tags)
