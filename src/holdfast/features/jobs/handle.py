"""``Handle``: the operations of one job, for sync and async code."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Never, TypeVar, Unpack

from holdfast.engine.hints import no_attribute
from holdfast.engine.job import Artifact, Attempt, Event, Job, Liveness, References, Result, Verdict
from holdfast.engine.operation import Namespace, Program, awaited, operation
from holdfast.engine.payload import Unreadable
from holdfast.engine.states import State
from holdfast.engine.steps import Progress, Step
from holdfast.engine.units import Duration, seconds
from holdfast.errors import (
    InvalidArguments,
    InvalidPayload,
    InvalidSetting,
    JobFailed,
    StoreUnavailable,
    WaitTimeout,
)
from holdfast.features.attempts.model import AttemptLog
from holdfast.features.jobs.model import FromStep, MoveOptions, Why, accepted
from holdfast.features.jobs.operations import Jobs
from holdfast.stores.flow import Flow, Steps, flow
from holdfast.stores.namespace import StoreNamespace

if TYPE_CHECKING:
    from holdfast.features.assembly import Store
    from holdfast.stores.session import Session

R = TypeVar("R")
T = TypeVar("T")

# A waiting caller is notified of the end of the job. In case a notification is lost it also polls, with growing pauses.
FIRST_PAUSE, MAX_PAUSE = 0.05, 1.0
WATCH = 60.0
"""Seconds for which the store sends notifications about the job. Renewed while the caller waits."""


class HandleOperations(Namespace):
    """The operations of ``app.jobs``, or of ``client.jobs``, on one job."""

    __slots__ = ()

    id: str

    @property
    @abstractmethod
    def _jobs(self) -> Jobs: ...

    @property
    def _scope(self) -> Mapping[str, Any]:
        """Options of every operation."""
        return {}

    def _do(self, form: operation[..., T], *args: Any, **options: Any) -> Program[T]:
        """An operation of ``app.jobs`` on this job."""
        result: Program[T] = self._jobs._begin(form.program, (self.id, *args), {**options, **self._scope})
        return result

    def _change(self, form: operation[..., Any], **options: Any) -> Program[Verdict]:
        """The verdict on a change; ``Conflict`` or ``NotFound`` if it is refused."""
        verdict = yield from self._do(form, **options)
        return accepted(verdict if isinstance(verdict, list) else [verdict])

    @operation
    def get(self, /, *args: Never, **options: Never) -> Program[Job]:
        """The job as it is now; ``NotFound`` if it does not exist in this tenant."""
        if args or options:  # as Celery's get(timeout=10)
            raise InvalidArguments(
                "handle.get() takes no arguments: it returns the job's record",
                fix="Use handle.result(timeout=…) to wait for the result.",
            )
        return (yield from self._do(Jobs.get))

    aget = awaited(get)

    @operation
    def state(self) -> Program[State]:
        """The current state of the job."""
        return (yield from self._do(Jobs.get)).state

    astate = awaited(state)

    @operation
    def history(self) -> Program[list[Event]]:
        """The events of the job, oldest first."""
        return (yield from self._do(Jobs.history))

    ahistory = awaited(history)

    @operation
    def why(self) -> Program[Why]:
        """Why the job is not running: every reason that applies, and what would change it."""
        return (yield from self._do(Jobs.why))

    awhy = awaited(why)

    @operation
    def attempts(self) -> Program[list[Attempt]]:
        """The attempts of the job, oldest first."""
        return (yield from self._do(Jobs.attempts))

    aattempts = awaited(attempts)

    @operation
    def artifacts(self) -> Program[list[Artifact]]:
        """The files that attempts have recorded with ``ctx.artifact``, by name and reference."""
        return (yield from self._do(Jobs.artifacts))

    aartifacts = awaited(artifacts)

    @operation
    def artifact(self, name: str, attempt: int | None = None) -> Program[bytes]:
        """The contents of an artifact; without an attempt, from the last attempt that has one of this name."""
        return (yield from self._do(Jobs.artifact, name, attempt))

    aartifact = awaited(artifact)

    @operation
    def log(
        self, attempt: int | None = None, *, offset: int | None = None, tail: int | None = None
    ) -> Program[AttemptLog]:
        """The log of an attempt, by default of the last one: see ``app.jobs.log``."""
        return (yield from self._do(Jobs.log, attempt, offset=offset, tail=tail))

    alog = awaited(log)

    @operation
    def liveness(self) -> Program[Liveness]:
        """The number and the time of lease renewals and progress reports in the newest attempt."""
        return (yield from self._do(Jobs.liveness))

    aliveness = awaited(liveness)

    @operation
    def references(self) -> Program[References]:
        """URIs that the job was enqueued with: ``source_ref``, ``target_ref``, ``payload_ref``."""
        return (yield from self._do(Jobs.references))

    areferences = awaited(references)

    @operation
    def steps(self) -> Program[list[Step]]:
        """The recorded durable calls of the job, in the order of the handler."""
        return (yield from self._do(Jobs.steps))

    asteps = awaited(steps)

    @operation
    def checkpoints(self) -> Program[dict[str, Any]]:
        """The values that the handler saved with ``ctx.checkpoint``, by name."""
        return (yield from self._do(Jobs.checkpoints))

    acheckpoints = awaited(checkpoints)

    @operation
    def progress(self) -> Program[Progress | None]:
        """The latest progress that the handler reported, or None."""
        return (yield from self._do(Jobs.progress))

    aprogress = awaited(progress)

    @operation
    def cancel(self, reason: str | None = None) -> Program[Verdict]:
        """Cancel the job; ``Conflict`` if it has ended."""
        return (yield from self._change(Jobs.cancel, reason=reason))

    acancel = awaited(cancel)

    @operation
    def redrive(
        self,
        reason: str | None = None,
        *,
        max_attempts: int | None = None,
        from_step: FromStep | None = None,
        at: datetime | None = None,
        delay: Duration | None = None,
    ) -> Program[Verdict]:
        """Put a dead letter back into its queue, with all its attempts or with ``max_attempts``; ``Conflict`` if it is
        not a dead letter. It starts immediately, or not before ``at`` or after a ``delay``. Completed steps are not run
        again, unless ``from_step`` names the first one to repeat."""
        options = {"max_attempts": max_attempts, "from_step": from_step, "at": at, "delay": delay}
        return (yield from self._change(Jobs.redrive, reason=reason, **options))

    aredrive = awaited(redrive)

    @operation
    def reschedule(
        self,
        at: datetime | None = None,
        delay: Duration | None = None,
        *,
        max_attempts: int | None = None,
        reason: str | None = None,
    ) -> Program[Verdict]:
        """Change the start time of a waiting job; without a time or a delay, to now. ``Conflict`` if it does not
        wait."""
        options = {"at": at, "delay": delay, "max_attempts": max_attempts}
        return (yield from self._change(Jobs.reschedule, reason=reason, **options))

    areschedule = awaited(reschedule)

    @operation
    def move(self, **where: Unpack[MoveOptions]) -> Program[Verdict]:
        """Move a waiting job within its queue. ``Conflict`` if it does not wait."""
        return (yield from self._change(Jobs.move, **where))

    amove = awaited(move)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("Handle", self, name)


@dataclass(frozen=True, slots=True)
class Handle(HandleOperations, Generic[R]):
    """One job, by its id. Every method has a sync and an async form (``get()``, ``await aget()``); ``await handle`` is
    ``await handle.aresult()``.

    ``created`` is False if an existing job was returned instead of a new one, or if a job of a batch was refused.
    ``reason`` is then the code, and ``detail`` may explain it.
    """

    id: str
    tenant: str
    created: bool
    reason: str | None
    _session: Session = field(repr=False, compare=False)
    _decode: Callable[[Any], R] = field(repr=False, compare=False)
    detail: str | None = None

    def _perform(self, item: Any) -> Any:
        return StoreNamespace(self._session)._perform(item)

    async def _aperform(self, item: Any) -> Any:
        return await StoreNamespace(self._session)._aperform(item)

    @property
    def _jobs(self) -> Jobs:
        return Jobs(self._session)

    @property
    def _scope(self) -> Mapping[str, Any]:
        return {"tenant": self.tenant}

    # --- waiting ---

    def wait(self, timeout: Duration | None = None) -> Job:
        """Block until the job has ended, also as a dead letter. After a ``WaitTimeout`` the job continues.

        If retries are new jobs, this waits for the last one and returns it.
        """
        handle, remaining = self, _Remaining(timeout)
        while True:
            job = handle._wait(remaining(), timeout)
            successor = self._session.run(handle._successor()) if job.retried else None
            if successor is None:
                return job
            handle = replace(handle, id=successor)

    async def await_end(self, timeout: Duration | None = None) -> Job:
        """The async form of ``wait``."""
        handle, remaining = self, _Remaining(timeout)
        while True:
            job = await handle._await_end(remaining(), timeout)
            successor = await self._session.arun(handle._successor()) if job.retried else None
            if successor is None:
                return job
            handle = replace(handle, id=successor)

    def _wait(self, remaining: float | None, timeout: Duration | None) -> Job:
        """Wait for the end of this job alone. ``timeout`` is only for the error message."""
        job = self.get()
        if job.state.finished:
            return job
        self._may_block()
        notified = threading.Event()
        with self._listening(notified.set):
            for pause, watch in self._polls(remaining):
                notified.clear()
                if watch:
                    with contextlib.suppress(StoreUnavailable):  # polling continues
                        self._session.run(self._watch(watch))
                job = self.get()
                if job.state.finished:
                    return job
                notified.wait(pause)
        raise self._timed_out(timeout)

    async def _await_end(self, remaining: float | None, timeout: Duration | None) -> Job:
        job = await self.aget()
        if job.state.finished:
            return job
        notified, loop = asyncio.Event(), asyncio.get_running_loop()

        def notify() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(notified.set)

        with self._listening(notify):
            for pause, watch in self._polls(remaining):
                notified.clear()
                if watch:
                    with contextlib.suppress(StoreUnavailable):
                        await self._session.arun(self._watch(watch))
                job = await self.aget()
                if job.state.finished:
                    return job
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await notified.wait()
        raise self._timed_out(timeout)

    def _may_block(self) -> None:
        """Refuse to block the event loop of a worker: the awaited job may have to run on that loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        if self._session.in_a_handler:
            raise InvalidSetting(
                "waiting for a job here would block the worker's event loop",
                code="running_loop",
                fix="Use await handle.aresult() or await_end().",
            )

    @contextlib.contextmanager
    def _listening(self, notify: Callable[[], None]) -> Iterator[None]:
        def on_notification(topic: str) -> None:
            if topic == self.id or topic == "":
                notify()

        stop = self._store.listen(on_notification, lambda: (self.id,))
        try:
            yield
        finally:
            stop()

    def result(self, timeout: Duration | None = None) -> R:
        """Wait for the end and return the handler's result; ``JobFailed`` if the job did not succeed."""
        job = self.wait(timeout)
        return self._returned(job, self._opened(job, self._session.run(self._store.jobs.result(job.id, self.tenant))))

    async def aresult(self, timeout: Duration | None = None) -> R:
        job = await self.await_end(timeout)
        result = await self._session.arun(self._store.jobs.result(job.id, self.tenant))
        if result is not None and (result.ref is not None or isinstance(result.value, dict)):
            result = await asyncio.to_thread(self._opened, job, result)
        return self._returned(job, result)

    def __await__(self) -> Generator[Any, None, R]:
        return self.aresult().__await__()

    @property
    def _store(self) -> Store:
        return self._session.store

    def _watch(self, seconds: float) -> Flow[None]:
        return self._store.jobs.watch(self.id, self.tenant, seconds)

    @flow(writes=False)
    def _successor(self) -> Steps[str | None]:
        """The id of the job that retries this one."""
        tries = yield from self._store.jobs.chain(self.id, self.tenant).start()
        return next((job.id for job in tries if job.retry_of == self.id), None)

    def _opened(self, job: Job, result: Result | None) -> Result | None:
        """The result as the handler returned it: unsealed, and read from the artifact store if it is there."""
        if result is None or job.state is not State.SUCCEEDED:
            return result
        value = self._session.vault.open_value(result.value, result.ref, tenant=job.tenant, job_id=job.id)
        return result if value is result.value else Result(value, result.ref)

    def _returned(self, job: Job, result: Result | None) -> R:
        if job.state is not State.SUCCEEDED:
            error = f": {job.error_message} ({job.error_code})" if job.error_code else ""
            raise JobFailed(f"job {job.id} is {job.state}{error}", fix=f"Read the reason: holdfast jobs show {job.id}")
        value = None if result is None else result.value
        if isinstance(value, Unreadable):
            raise InvalidPayload(f"the result of job {job.id} cannot be read: {value.why}", code="unreadable_value")
        return self._decode(value)

    def _polls(self, timeout: float | None) -> Generator[tuple[float, float | None], None, None]:
        """Yield the pause before each poll until the time is up, and ``WATCH`` if the watch has to be renewed."""
        began = time.monotonic()
        end = None if timeout is None else began + timeout
        pause, watched_until = FIRST_PAUSE, began
        while True:
            now = time.monotonic()
            self._session.check_waiting(f"job {self.id}", began)
            remaining = MAX_PAUSE if end is None else end - now
            watch = None
            if watched_until - now < WATCH / 2 and remaining > 0:
                watch, watched_until = WATCH, now + WATCH
            yield max(0.0, min(pause, remaining)), watch
            if remaining <= 0:
                return
            pause = min(MAX_PAUSE, pause * 2)

    def _timed_out(self, timeout: Duration | None) -> WaitTimeout:
        return WaitTimeout(f"job {self.id} had not finished after {seconds(timeout or 0, 'timeout'):g} s")


class _Remaining:
    """The seconds that remain of a timeout. The time runs from the constructor on."""

    def __init__(self, limit: Duration | None) -> None:
        self._end = None if limit is None else time.monotonic() + seconds(limit, "timeout")

    def __call__(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())
