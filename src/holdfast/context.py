"""What a handler can know and do while it runs: ``def handler(ctx: holdfast.Context, …)``."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from holdfast.engine.job import Claim, References, log_fields
from holdfast.engine.names import check_name
from holdfast.engine.outcome import Snooze, Stopped
from holdfast.engine.payload import encode
from holdfast.engine.redaction import Redact, Redactor
from holdfast.engine.steps import RESERVED, Progress
from holdfast.engine.units import Duration
from holdfast.errors import InvalidSetting, StaleLease
from holdfast.features.jobs.facts import Facts
from holdfast.features.jobs.handle import Handle
from holdfast.features.retention.model import check_cost
from holdfast.features.workflows.model import ParentResult
from holdfast.features.workflows.run import Extension, Results, extend_workflow
from holdfast.steps.calls import CHECKPOINT_LIMIT, AwaitedCalls, BlockingCalls, Checkpoints, Here, SyncCheckpoints
from holdfast.steps.driver import Durable, Plan, StepTools
from holdfast.steps.transaction import Completion, Ending, Transaction
from holdfast.stores.flow import Flow
from holdfast.stores.session import Session
from holdfast.telemetry import tracing
from holdfast.telemetry.job_log import JobLog
from holdfast.worker.shutdown import Stop

if TYPE_CHECKING:
    from holdfast.kind import Prepared

_current: ContextVar[LazyContext | None] = ContextVar("holdfast_context", default=None)
_making = threading.Lock()


@dataclass(slots=True, eq=False)
class BaseContext(Facts):
    """The job in hand. Whatever writes needs the lease the job was claimed under, and raises ``StaleLease`` if that
    is lost. ``report``, ``prepare`` and ``lent`` come from the runtime: how progress is written, how a child is made,
    what durable calls are carried out with."""

    client: Session = field(repr=False)
    logger: logging.Logger = field(repr=False)
    stop: Stop = field(default_factory=Stop, repr=False)
    redact: Redact = field(default_factory=Redactor, repr=False)
    report: Callable[[str], None] | None = field(default=None, repr=False)
    prepare: Callable[..., Prepared[Any]] | None = field(default=None, repr=False)
    completion: Completion = field(default_factory=Completion, repr=False)
    lent: StepTools | None = field(default=None, repr=False)
    halt: ClassVar[type[BaseException]] = Stopped
    _plan: Plan | None = field(default=None, init=False, repr=False)

    @property
    def result_ref(self) -> str | None:
        """Where the result lies: set by the handler, kept beside what it returns (DP-21)."""
        return self.completion.ref

    @result_ref.setter
    def result_ref(self, ref: str | None) -> None:
        self.completion.ref = None if ref is None else check_name(ref, "result_ref", limit=4_000)

    @property
    def plan(self) -> Plan:
        """The durable calls of this attempt; most have none."""
        if self._plan is None:
            if self.lent is None:
                raise InvalidSetting("durable calls are made in a worker", code="no_worker")
            durable = Durable(self.claim, self.client, self.lent, self.redact, self.stop, self.halt)
            self._plan = Plan(durable)
        return self._plan

    async def let_through(self) -> None:
        """The handler has ended, one way or another; what it has begun and not waited for may yet."""
        if self._plan is not None and not self.stop.is_set:
            await self._plan.durable.let_through()

    def conclude(self) -> None:
        """The handler has returned. If it has caught what makes it wait, it waits all the same. Say so when it ended
        without calls that it made in an earlier attempt."""
        self._still_waits()
        for step in () if self._plan is None else self._plan.durable.script.left:
            self.log.warning(
                "%s %r (call %s) was done before, and is not in the handler now", step.kind, step.name, step.n
            )

    @property
    def log(self) -> JobLog:
        """A logger whose records name this job, hold none of its secrets and are one line each."""
        return JobLog(self.logger, log_fields(self.claim), self.redact)

    # --- being told to stop ---

    @property
    def cancelled(self) -> bool:
        """This attempt is not wanted any more. A function in a thread must look; async code is interrupted."""
        return self.stop.is_set

    @property
    def stop_reason(self) -> str | None:
        """``timeout``, ``cancelled``, ``lease_lost``, ``worker_stopped``, ``ended``; None while it may go on."""
        return self.stop.reason

    def check(self) -> None:
        """Raise ``Stopped`` if this attempt is not wanted any more; to be called between the parts of long work."""
        if self.stop.is_set:
            raise Stopped(self.stop.reason or "stopped")

    def time_left(self) -> float | None:
        """Seconds until the timeout or the job's deadline, whichever comes first; None without either."""
        return self.stop.time_left()

    def snooze(self, delay: Duration, reason: str | None = None) -> NoReturn:
        """End this attempt and be run again later. It is no failure, costs no retry, and raises ``Snooze``."""
        raise Snooze(delay, reason)

    def cost(self, units: float) -> None:
        """This attempt has cost so much more, in whatever unit the app counts in (``app.usage``). It is kept with the
        attempt's end, however it ends; a worker that is lost tells nothing."""
        self.stop.spend(check_cost(units))

    # --- leaving something behind ---

    def progress(self, fraction: float | None = None, message: str | None = None) -> None:
        """How far it is, for people to see. Say it as often as you like: one a second is written, and the last one."""
        text = Progress.of(fraction, message, self.claim.attempt, self.redact).to_json()
        if self.report is not None:
            self.report(text)
        else:
            self._kept(self.client.run(self._save(text, RESERVED)))

    async def aprogress(self, fraction: float | None = None, message: str | None = None) -> None:
        self.progress(fraction, message)
        await asyncio.sleep(0)

    def artifact(
        self, name: str, ref: str | None = None, meta: dict[str, Any] | None = None, *, data: bytes | None = None
    ) -> str:
        """Note something this attempt has made, and where it is; or hand over the ``data`` itself, which then lies in
        the artifact store. Answers where. A name is given once an attempt."""
        place = self._put(ref, data)
        self._kept(self.client.run(self._artifact(name, place, meta)))
        return place

    async def aartifact(
        self, name: str, ref: str | None = None, meta: dict[str, Any] | None = None, *, data: bytes | None = None
    ) -> str:
        place = self._put(ref, data) if data is None else await asyncio.to_thread(self._put, ref, data)
        self._kept(await self.client.arun(self._artifact(name, place, meta)))
        return place

    def _put(self, ref: str | None, data: bytes | None) -> str:
        if (ref is None) == (data is None):
            raise InvalidSetting("an artifact is a reference or data, one of them", code="conflicting_options")
        if data is None:
            assert ref is not None
            return ref
        return self.client.vault.keep(data, tenant=self.tenant, job_id=self.job_id)

    # --- what it is about ---

    def references(self) -> References:
        """Where what the job is about lies, as it was enqueued: ``source_ref``, ``target_ref``, ``payload_ref``."""
        return self.client.run(self.client.store.jobs.references(self.job_id, self.tenant))

    async def areferences(self) -> References:
        return await self.client.arun(self.client.store.jobs.references(self.job_id, self.tenant))

    # --- children ---

    def spawn(self, kind: Any, *args: Any, **options: Any) -> Handle[Any]:
        """Enqueue a child: ``ctx.spawn(resize, image, key="page-1")``; options are those of ``using``.

        A ``key`` is the parent's own: with it a later attempt finds the child again instead of making another.
        """
        call = self._child(kind, args, options)
        return self.client.enqueue(call.spec, call.tenant, call.decode, call.connection)

    async def aspawn(self, kind: Any, *args: Any, **options: Any) -> Handle[Any]:
        call = self._child(kind, args, options)
        return await self.client.aenqueue(call.spec, call.tenant, call.decode, call.connection)

    def _child(self, kind: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Prepared[Any]:
        if self.prepare is None:
            raise InvalidSetting("children are spawned in a worker", code="no_worker")
        own = {"tenant": self.tenant, "enqueued_by": f"job {self.job_id}"} | options
        if own["tenant"] == self.tenant:
            own.setdefault("parent", self.job_id)
        if own.get("key") is not None:
            own["key"] = f"{self.job_id}:{check_name(own['key'], 'key', limit=200)}"
        return self.prepare(kind, args, own)

    # --- the workflow it is in ---

    def results(self) -> Results:
        """What the jobs returned that this one was after, by name: ``ctx.results()["fetch"]``; or by kind, with its
        type: ``ctx.results().of(fetch)``."""
        return Results(
            self._opened(self.client.run(self.client.store.workflows.parent_results(self.job_id, self.tenant)))
        )

    async def aresults(self) -> Results:
        found = await self.client.arun(self.client.store.workflows.parent_results(self.job_id, self.tenant))
        return Results(await asyncio.to_thread(self._opened, found))

    def _opened(self, found: list[ParentResult]) -> list[ParentResult]:
        """As they were returned, wherever they lie."""
        vault, tenant = self.client.vault, self.tenant
        return [
            replace(each, value=vault.open_value(each.value, each.ref, tenant=tenant, job_id=each.job_id))
            for each in found
        ]

    def workflow(self) -> Extension:
        """More jobs for the workflow that this job is in: ``more = ctx.workflow(); more.add(…); more.start()``.

        A later attempt comes by here again: give the jobs names, which are taken once.
        """
        if self.claim.workflow_id is None:
            raise InvalidSetting("this job is in no workflow", code="no_workflow")
        return extend_workflow(self.client, self._by_name, self.claim.workflow_id, self.tenant)

    def _by_name(self, kind: str, args: tuple[Any, ...], options: dict[str, Any]) -> Prepared[Any]:
        return self._child(kind, args, options)

    # --- ending in a transaction ---

    def _still_waits(self) -> None:
        if self._plan is not None:
            self._plan.durable.still_waits()

    @property
    def ending(self) -> Ending:
        return Ending(self.claim, self.client, self.completion, self.stop)

    def transaction(self, result: Any = None) -> Transaction:
        """``with ctx.transaction() as conn:`` (or ``async with``): what is written on ``conn`` and the job's success
        are committed together at the end of the block, or neither. ``StaleLease`` when the job is no longer ours."""
        self._still_waits()
        return Transaction(self.ending, result)

    def complete(self, *, connection: object, result: Any = None) -> None:
        """The same on a connection of your own: the job succeeds when the transaction open there commits. It must
        have ended when the handler returns."""
        self._still_waits()
        self.ending.on(connection, result)

    async def acomplete(self, *, connection: object, result: Any = None) -> None:
        self._still_waits()
        await self.ending.aon(connection, result)

    # --- the flows ---

    def _save(self, text: str, name: str) -> Flow[bool]:
        # Under the lease the job was claimed with, whose scope may be every tenant.
        claim = self.claim
        return self.client.store.steps.save_checkpoint(
            claim.id, claim.lease, claim.attempt, name, text, self.client.scope
        )

    def _artifact(self, name: str, ref: str, meta: dict[str, Any] | None) -> Flow[bool]:
        claim, scope = self.claim, self.client.scope
        label, place = check_name(name, "artifact", limit=255), check_name(ref, "ref", limit=4_000)
        if meta is not None:
            encode(meta, limit=CHECKPOINT_LIMIT, what="artifact")  # refuses what is not JSON, or too much
        return self.client.store.steps.add_artifact(claim.id, claim.lease, claim.attempt, label, place, scope, meta)

    def _kept(self, kept: bool) -> None:
        if not kept:
            raise StaleLease(f"job {self.claim.id} is no longer in this worker's hands")


class Context(AwaitedCalls, BaseContext):
    """What an async handler is given."""

    __slots__ = ()
    halt = asyncio.CancelledError

    @property
    def checkpoint(self) -> Checkpoints:
        return Checkpoints(self.claim, self.client)


@dataclass(slots=True, eq=False)
class SyncContext(BlockingCalls, BaseContext):
    """What a handler that is no coroutine is given: durable calls return when they are done."""

    loop: asyncio.AbstractEventLoop | None = field(default=None, repr=False)
    _here: Here | None = field(default=None, init=False, repr=False)

    @property
    def here(self) -> Here:
        if self._here is None:
            plan = self.plan
            assert self.loop is not None  # whoever lends the rest lends it
            self._here = Here(plan, self.loop)
        return self._here

    @property
    def checkpoint(self) -> SyncCheckpoints:
        return SyncCheckpoints(self.claim, self.client)


MakeContext = Callable[[Claim, Stop, asyncio.AbstractEventLoop], BaseContext]


class LazyContext:
    """The context of a handler, made when something asks for it: where the handler takes none, hardly anything does.
    ``seen`` is what it was asked for, if it was."""

    __slots__ = ("_claim", "_loop", "_make", "_stop", "seen")

    def __init__(self, make: MakeContext, claim: Claim, stop: Stop) -> None:
        """On the worker's loop; it may be made in a thread."""
        self._make = make
        self._claim = claim
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self.seen: BaseContext | None = None

    def made(self) -> BaseContext:
        with _making:  # threads that the handler has started share it
            if self.seen is None:
                self.seen = self._make(self._claim, self._stop, self._loop)
            return self.seen


def current() -> BaseContext | None:
    """The context of the handler that is running here, if one is."""
    found = _current.get()
    return None if found is None else found.made()


def enter(context: LazyContext, claim: Claim, client: Session) -> None:
    """Bind the context, and the tenant of its job, to this task or thread; they end with it."""
    _current.set(context)
    client.belong_to(claim.tenant)
    tracing.bind(claim.trace if claim.tags else None)
