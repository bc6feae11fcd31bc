"""The calls of a context that wait for jobs, race waits and branch, and its recorded clock and random numbers, in their
sync and async form."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from holdfast.engine.job import Enqueued, Job, Result
from holdfast.engine.outcome import Reject
from holdfast.engine.steps import SPAWN
from holdfast.engine.units import Duration
from holdfast.errors import InvalidSetting
from holdfast.steps.branches import AwaitedBranch, BlockingBranch, check_branch, current_branch
from holdfast.steps.handler_run import HandlerRun, ThreadDriver
from holdfast.steps.plan import Plan, running
from holdfast.steps.program import DurableCall
from holdfast.steps.values import AppEvent, Value
from holdfast.steps.waits import First, Later, Open, Race, Wait, attempt, place_of, result_of, spawn

if TYPE_CHECKING:
    from holdfast.features.jobs.handle import Handle
    from holdfast.kind import Prepared

T = TypeVar("T")

OnCancel = Literal["leave", "cancel"]


# --- children ---


def recorded_spawn(run: HandlerRun, kind: Any, options: Mapping[str, Any]) -> int | None:
    """The position of a call of ``ctx.spawn``; None if it is not recorded: in a step, in a transaction of the caller,
    and in a job of a release that recorded no children, where it already has passed."""
    if run.tools is None or running.get() is not None or options.get("connection") is not None:
        return None
    plan, script = run.plan, run.plan.durable.script
    plan.durable.check_running()
    if current_branch() is None and script.holds_other(spawn_name(kind)):
        return None
    return plan._next_position()


def spawn_name(kind: Any) -> str:
    return f"{SPAWN}{getattr(kind, 'name', kind)}"


def spawning(run: HandlerRun, n: int, kind: Any) -> DurableCall:
    durable = run.plan.durable
    return spawn(durable.script, n, spawn_name(kind), durable.redact)


def spawn_key(run: HandlerRun, n: int) -> str:
    """The idempotency key of a child without one: private to this call of this job."""
    return f"{run.claim.id} {run.plan.durable.script.place_of(n) or n}"


def check_on_cancel(on_cancel: object) -> None:
    if on_cancel not in ("leave", "cancel"):
        raise InvalidSetting('on_cancel is "leave" or "cancel"', code="invalid_setting")


class Spawned(Generic[T]):
    """A child: the handle of the enqueue of this attempt, or the one that an earlier attempt has recorded."""

    def __init__(self, prepared: Prepared[T], run: HandlerRun, on_cancel: OnCancel) -> None:
        self._prepared, self._run, self._on_cancel = prepared, run, on_cancel
        self._made: Handle[T] | None = None

    def accept(self, results: Sequence[Enqueued]) -> dict[str, Any]:
        """The record of the child. One that was made before the worker was killed is found by its key, also if it has
        got other arguments since."""
        prepared, (result,) = self._prepared, results
        own = prepared.spec.key is not None and prepared.spec.key.startswith(f"{self._run.claim.id} ")
        found = own and result.reason == "idempotency_conflict"
        session = self._run.session
        self._made = prepared.handle(result, session) if found else prepared.accepted(results, session)
        return {"job": self._made.id, **({"cancel": True} if self._on_cancel == "cancel" else {})}

    def handle(self, child: Mapping[str, Any]) -> Handle[T]:
        if self._made is not None:
            return self._made
        return self._prepared.handle(Enqueued(child["job"], False, "duplicate_key"), self._run.session)


# --- the end of a job ---


class _Awaited:
    """One call of ``result_of``."""

    def __init__(self, plan: Plan, handle: Handle[Any]) -> None:
        if not hasattr(handle, "_ended"):
            raise InvalidSetting(
                "result_of expects the handle of a job",
                code="not_a_handle",
                fix="Write child = await ctx.spawn(kind, …), then await ctx.result_of(child).",
            )
        durable = plan.durable
        if handle.tenant != durable.claim.tenant:
            raise InvalidSetting("a job waits only for jobs of its own tenant", code="other_tenant")
        self.handle, self._durable = handle, durable
        self.n, self.name = plan._next_position(), f"result of {handle.id}"
        vault = durable.client.vault
        self.call = result_of(durable.script, self.n, self.name, Value(self.name, None, vault), durable.redact)

    def read(self) -> Any:
        return self._result(*self._durable.client.run(self.handle._ended(self._durable.claim.id)))

    async def aread(self) -> Any:
        job, result, circular = await self._durable.client.arun(self.handle._ended(self._durable.claim.id))
        if result is not None and (result.ref is not None or isinstance(result.value, dict)):
            return await asyncio.to_thread(self._result, job, result, circular)
        return self._result(job, result, circular)

    def _result(self, job: Job, result: Result | None, circular: bool) -> Any:
        if job.state.finished:
            self._durable.script.note_end(self.n, job.finished_at)
            return self.handle._value(job, self.handle._opened(job, result))
        if circular:
            raise Reject(
                "circular_wait",
                f"job {self._durable.claim.id} would wait for itself: job {job.id} waits for it, or is its ancestor",
            )
        return Open(job.id)


async def _decoded(handle: Handle[T], work: Any) -> T:
    return handle._decode(await work)


# --- recorded values ---


def _random() -> float:
    return random.random()


def _uuid() -> str:
    return str(uuid.uuid4())


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


class AwaitedWaits:
    """Calls of a ``Context``: waits for jobs, races, branches, and recorded values."""

    __slots__ = ()

    if TYPE_CHECKING:
        _run: HandlerRun

    def result_of(self, job: Handle[T]) -> Wait[T]:
        """Suspend the job until another one has ended, and return its result: ``await ctx.result_of(child)``.

        Raises ``JobFailed`` if it did not succeed. Waiting for a job that waits for this one, or for an ancestor, is
        refused (``circular_wait``).
        """
        awaited = _Awaited(self._run.plan, job)
        work = self._run.plan.durable.drive(awaited.call, awaited.aread)
        return Wait(_decoded(job, work), awaited.n, awaited.name, "step")

    async def _settle(self, race: Race) -> list[Any]:
        return race.settled(await self._run.plan.durable.suspensions.gather(race.waits))

    def first(self, *waits: Wait[Any], **named: Wait[Any]) -> Wait[First]:
        """Wait for the first of several waits, and return which came and its value::

            which, value = await ctx.first(paid=ctx.wait_for_event("paid"), late=ctx.sleep("2d"))

        ``which`` is the name, or the number of a wait without a name. The others are withdrawn. Raises what the first
        one raises.
        """
        race = Race.of(self._run.plan, Wait, waits, named)

        async def run() -> First:
            durable = self._run.plan.durable
            return race.answer(await durable.drive(race.call, partial(self._settle, race), active=False))

        return Wait(run(), race.n, "first", "step")

    def branch(self, name: str) -> AwaitedBranch:
        """A part of the handler that runs at once with others, with several durable calls::

            async def visit(ctx, place):
                async with ctx.branch(place):
                    offer = await ctx.step("ask", ask, place)
                    return await ctx.step("book", book, offer)

            await ctx.gather(visit(ctx, "north"), visit(ctx, "south"))

        A branch that waits does not stop the others.
        """
        return AwaitedBranch(self._run.plan, check_branch(name))

    async def now(self) -> datetime:
        """The time of the database, the same in every attempt."""
        session, tenant = self._run.session, self._run.claim.tenant

        async def read() -> str:
            return (await session.arun(session.store.steps.now(tenant))).isoformat()

        return _moment(await self._recorded("now", read))

    async def random(self) -> float:
        """A random number from 0 to 1, the same in every attempt."""
        return float(await self._recorded("random", _random))

    async def uuid(self) -> uuid.UUID:
        """A random UUID, the same in every attempt."""
        return uuid.UUID(await self._recorded("uuid", _uuid))

    async def _recorded(self, name: str, function: Any) -> Any:
        call, _ = self._run.plan.step(name, function, None)

        async def run() -> Any:
            value = function()
            return await value if asyncio.iscoroutine(value) else value

        return await self._run.plan.durable.drive(call, run)


class LaterCalls:
    """Waits of a ``SyncContext`` that have not begun, for ``ctx.first`` and ``ctx.gather``."""

    __slots__ = ("_driver",)

    def __init__(self, driver: ThreadDriver) -> None:
        self._driver = driver

    def sleep(self, delay: Duration, name: str = "sleep") -> Later[None]:
        """As ``ctx.sleep``."""
        return self._later(self._driver.plan.sleep(delay, None, name))

    def sleep_until(self, moment: datetime, name: str = "sleep") -> Later[None]:
        """As ``ctx.sleep_until``."""
        return self._later(self._driver.plan.sleep(None, moment, name))

    def wait_for_event(
        self,
        name: str,
        *,
        match: Mapping[str, Any] | None = None,
        timeout: Duration | None = None,
        since: Duration | None = None,
    ) -> Later[AppEvent]:
        """As ``ctx.wait_for_event``."""
        return self._later(self._driver.plan.event(name, match, timeout, since))

    def result_of(self, job: Handle[T]) -> Later[T]:
        """As ``ctx.result_of``."""
        awaited = _Awaited(self._driver.plan, job)

        def work() -> T:
            return job._decode(self._driver.drive(awaited.call, awaited.read))

        return Later(work, awaited.n, awaited.name, "step")

    def _later(self, call: DurableCall) -> Later[Any]:
        return Later(partial(self._driver.drive, call), *place_of(call))


class BlockingWaits:
    """The same of a ``SyncContext``. ``AwaitedWaits`` explains them."""

    __slots__ = ()

    if TYPE_CHECKING:
        _run: HandlerRun

    @property
    def later(self) -> LaterCalls:
        """Waits that have not begun, for ``ctx.first`` and ``ctx.gather``."""
        return LaterCalls(self._run.thread_driver)

    def result_of(self, job: Handle[T]) -> T:
        """Suspend the job until another one has ended, and return its result: ``ctx.result_of(child)``."""
        return self.later.result_of(job)()

    def first(self, *waits: Later[Any], **named: Later[Any]) -> First:
        """Wait for the first of several waits, and return which came and its value::

        which, value = ctx.first(paid=ctx.later.wait_for_event("paid"), late=ctx.later.sleep("2d"))
        """
        driver = self._run.thread_driver
        race = Race.of(driver.plan, Later, waits, named)
        return race.answer(driver.drive(race.call, lambda: race.settled([attempt(wait) for wait in race.waits])))

    def branch(self, name: str) -> BlockingBranch:
        """A part of the handler that runs at once with others: ``with ctx.branch("north"): …``."""
        return BlockingBranch(self._run.thread_driver, check_branch(name))

    def now(self) -> datetime:
        """The time of the database, the same in every attempt."""
        session, tenant = self._run.session, self._run.claim.tenant
        return _moment(self._recorded("now", lambda: session.run(session.store.steps.now(tenant)).isoformat()))

    def random(self) -> float:
        """A random number from 0 to 1, the same in every attempt."""
        return float(self._recorded("random", _random))

    def uuid(self) -> uuid.UUID:
        """A random UUID, the same in every attempt."""
        return uuid.UUID(self._recorded("uuid", _uuid))

    def _recorded(self, name: str, function: Any) -> Any:
        driver = self._run.thread_driver
        call, _ = driver.plan.step(name, function, None)
        return driver.drive(call, function)
