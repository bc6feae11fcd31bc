"""``Handle``: the operations of one job, for sync and async code."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.engine.job import Artifact, Attempt, Event, Job, Liveness, References, Result, Verdict
from holdfast.engine.operation import Namespace, Program, awaited, operation
from holdfast.engine.order import Move
from holdfast.engine.payload import Unreadable
from holdfast.engine.retry import attempt_limit
from holdfast.engine.settlement import storable
from holdfast.engine.states import State
from holdfast.engine.steps import Progress, Step
from holdfast.engine.units import Duration, seconds
from holdfast.errors import Conflict, InvalidPayload, InvalidSetting, JobFailed, NotFound, StoreUnavailable, WaitTimeout
from holdfast.features.attempts.model import AttemptLog
from holdfast.features.jobs.attempt_files import reading_artifact, reading_log
from holdfast.features.jobs.views import (
    Why,
    artifacts_of,
    attempts_of,
    ledger_of,
    liveness_of,
    opened_checkpoints,
    opened_steps,
    references_of,
    why,
)
from holdfast.stores.flow import Flow, Steps, flow, run
from holdfast.stores.namespace import StoreNamespace
from holdfast.stores.requests import Reschedule

if TYPE_CHECKING:
    from holdfast.features.assembly import Store
    from holdfast.features.jobs.operations import FromStep
    from holdfast.stores.session import Session

R = TypeVar("R")

# A waiting caller is notified of the end. In case the notification is lost it also polls, with growing pauses.
FIRST_LOOK, LONGEST_PAUSE = 0.05, 1.0
WATCH = 60.0


@dataclass(frozen=True, slots=True)
class Handle(Namespace, Generic[R]):
    """One job, by its id. Every method has a sync and an async form (``get()``, ``await aget()``); ``await handle`` is
    ``await handle.aresult()``.

    ``created`` is False when an earlier job takes the place of this one, or when one of many was refused. ``reason`` is
    then the code, and ``detail`` explains it where there is more to say.
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

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            meant = {"status": "state()", "job_id": "id", "wait": "result(timeout=…)", "ready": "state().finished"}
            hint = f"; use handle.{meant[name]}" if name in meant else ""
            raise AttributeError(f"a handle has no {name!r}{hint}")

    # --- reading ---

    @operation
    def get(self) -> Program[Job]:
        """The job as it is now; ``NotFound`` if it does not exist in this tenant."""
        return self._found((yield from run(self._get())))

    aget = awaited(get)

    @operation
    def state(self) -> Program[State]:
        """The state that the job is in."""
        return self._found((yield from run(self._get()))).state

    astate = awaited(state)

    @operation
    def history(self) -> Program[list[Event]]:
        """The events of the job, oldest first."""
        return (yield from run(ledger_of(self._store, self.id, self.tenant)))

    ahistory = awaited(history)

    @operation
    def why(self) -> Program[Why]:
        """Why the job is in its state and does not run: every reason that applies, and what would change it."""
        return (yield from run(why(self._store, self.id, self.tenant)))

    awhy = awaited(why)

    @operation
    def attempts(self) -> Program[list[Attempt]]:
        """The attempts of the job, oldest first."""
        return (yield from run(attempts_of(self._store, self.id, self.tenant)))

    aattempts = awaited(attempts)

    @operation
    def artifacts(self) -> Program[list[Artifact]]:
        """The files that attempts have recorded with ``ctx.artifact``, by name and reference."""
        return (yield from run(artifacts_of(self._store, self.id, self.tenant)))

    aartifacts = awaited(artifacts)

    @operation
    def artifact(self, name: str, attempt: int | None = None) -> Program[bytes]:
        """The contents of an artifact; without an attempt, of the last that has one of this name."""
        return (yield from reading_artifact(self._session, self._session.vault, self.id, name, attempt, self.tenant))

    aartifact = awaited(artifact)

    @operation
    def log(
        self, attempt: int | None = None, *, offset: int | None = None, tail: int | None = None
    ) -> Program[AttemptLog]:
        """What an attempt has logged, the last one by default: see ``app.jobs.log``."""
        whose = self._session.vault, self.id
        return (yield from reading_log(self._session, *whose, attempt, offset, tail, self.tenant))

    alog = awaited(log)

    @operation
    def liveness(self) -> Program[Liveness]:
        """How often and when last the lease was renewed and progress reported, in the newest attempt."""
        return (yield from run(liveness_of(self._store, self.id, self.tenant)))

    aliveness = awaited(liveness)

    @operation
    def references(self) -> Program[References]:
        """URIs that the job was enqueued with: ``source_ref``, ``target_ref``, ``payload_ref``."""
        return (yield from run(references_of(self._store, self.id, self.tenant)))

    areferences = awaited(references)

    @operation
    def steps(self) -> Program[list[Step]]:
        """The durable calls of the job that are recorded, in the order of the handler."""
        return (yield from opened_steps(self._store, self._session.vault, self.id, self.tenant))

    asteps = awaited(steps)

    @operation
    def checkpoints(self) -> Program[dict[str, Any]]:
        """The values that the handler has saved with ``ctx.checkpoint``, by name."""
        return (yield from opened_checkpoints(self._store, self._session.vault, self.id, self.tenant))

    acheckpoints = awaited(checkpoints)

    @operation
    def progress(self) -> Program[Progress | None]:
        """The latest progress that the handler has reported, or None."""
        return Progress.saved((yield from run(self._store.jobs.checkpoints(self.id, self.tenant))))

    aprogress = awaited(progress)

    # --- changing ---

    @operation
    def cancel(self, reason: str | None = None) -> Program[Verdict]:
        """Cancel the job; ``Conflict`` if it has ended."""
        flow = self._store.jobs.operate("cancel", [self.id], storable(reason), self._session.actor, self.tenant)
        return accepted((yield from run(flow)))

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
        not a dead letter. It starts at once, or not before ``at`` or a ``delay`` from now. Steps that are done are not
        repeated, unless ``from_step`` names one to start again from."""
        from holdfast.features.jobs.operations import (  # its namespace makes handles
            check_from_step,
            redrive_time,
            redriving,
        )

        limit, whom = attempt_limit(max_attempts), (self._session.actor, self.tenant)
        when = redrive_time(at, delay)
        if from_step is None and when is None:
            flow = self._store.jobs.operate("redrive", [self.id], storable(reason), *whom, limit)
        else:
            step = None if from_step is None else check_from_step(from_step)
            flow = redriving(self._store, [self.id], step, reason, *whom, limit, when)
        return accepted((yield from run(flow)))

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
        """Run a waiting job at another time; with neither a time nor a delay, now. ``Conflict`` if it does not wait."""
        when = Reschedule.of(at, delay, max_attempts)
        flow = self._store.jobs.reschedule([self.id], when, storable(reason), self._session.actor, self.tenant)
        return accepted((yield from run(flow)))

    areschedule = awaited(reschedule)

    @operation
    def move(
        self,
        *,
        first: bool = False,
        last: bool = False,
        before: str | None = None,
        after: str | None = None,
        priority: int | None = None,
        reason: str | None = None,
    ) -> Program[Verdict]:
        """Give a waiting job another position in its queue. ``Conflict`` if it does not wait."""
        move = Move.of(first, last, before, after, priority)
        flow = self._store.jobs.move(self.id, move, storable(reason), self._session.actor, self.tenant)
        return accepted([(yield from run(flow))])

    amove = awaited(move)

    # --- waiting ---

    def wait(self, timeout: Duration | None = None) -> Job:
        """Block until the job has ended, also as a dead letter; ``WaitTimeout`` leaves the job running.

        Where each retry is a job of its own, this waits for the last one and returns it.
        """
        tried, left = self, _Left(timeout)
        while True:
            job = tried._wait(left(), timeout)
            successor = self._session.run(tried._successor()) if job.retried else None
            if successor is None:
                return job
            tried = replace(tried, id=successor)

    async def await_end(self, timeout: Duration | None = None) -> Job:
        """The async form of ``wait``."""
        tried, left = self, _Left(timeout)
        while True:
            job = await tried._await_end(left(), timeout)
            successor = await self._session.arun(tried._successor()) if job.retried else None
            if successor is None:
                return job
            tried = replace(tried, id=successor)

    def _wait(self, timeout: float | None, said: Duration | None) -> Job:
        job = self.get()
        if job.state.finished:
            return job
        self._may_block()
        told = threading.Event()
        with self._listening(told.set):
            for pause, watch in self._rounds(timeout):
                told.clear()
                if watch:
                    with contextlib.suppress(StoreUnavailable):  # then it polls
                        self._session.run(self._watch(watch))
                job = self.get()
                if job.state.finished:
                    return job
                told.wait(pause)
        raise self._too_late(said)

    async def _await_end(self, timeout: float | None, said: Duration | None) -> Job:
        job = await self.aget()
        if job.state.finished:
            return job
        told, loop = asyncio.Event(), asyncio.get_running_loop()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
                loop.call_soon_threadsafe(told.set)

        with self._listening(tell):
            for pause, watch in self._rounds(timeout):
                told.clear()
                if watch:
                    with contextlib.suppress(StoreUnavailable):
                        await self._session.arun(self._watch(watch))
                job = await self.aget()
                if job.state.finished:
                    return job
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await told.wait()
        raise self._too_late(said)

    def _may_block(self) -> None:
        """Refuse to block the event loop of a worker: the awaited job may have to run on it."""
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
    def _listening(self, tell: Callable[[], None]) -> Iterator[None]:
        def heard(what: str) -> None:
            if what == self.id or what == "":
                tell()

        stop = self._store.listen(heard, lambda: (self.id,))
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
        found = await self._session.arun(self._store.jobs.result(job.id, self.tenant))
        if found is not None and (found.ref is not None or isinstance(found.value, dict)):
            found = await asyncio.to_thread(self._opened, job, found)
        return self._returned(job, found)

    def __await__(self) -> Generator[Any, None, R]:
        return self.aresult().__await__()

    @property
    def _store(self) -> Store:
        return self._session.store

    def _get(self) -> Flow[Job | None]:
        return self._store.jobs.get(self.id, self.tenant)

    def _watch(self, seconds: float) -> Flow[None]:
        return self._store.jobs.watch(self.id, self.tenant, seconds)

    @flow(writes=False)
    def _successor(self) -> Steps[str | None]:
        """The job that was made to retry this one."""
        tries = yield from self._store.jobs.chain(self.id, self.tenant).start()
        return next((job.id for job in tries if job.retry_of == self.id), None)

    def _opened(self, job: Job, found: Result | None) -> Result | None:
        """The result as it was returned: unsealed, and read from the artifact store if it is there."""
        if found is None or job.state is not State.SUCCEEDED:
            return found
        value = self._session.vault.open_value(found.value, found.ref, tenant=job.tenant, job_id=job.id)
        return found if value is found.value else Result(value, found.ref)

    def _returned(self, job: Job, result: Result | None) -> R:
        if job.state is not State.SUCCEEDED:
            error = f": {job.error_message} ({job.error_code})" if job.error_code else ""
            raise JobFailed(f"job {job.id} is {job.state}{error}")
        value = None if result is None else result.value
        if isinstance(value, Unreadable):
            raise InvalidPayload(f"the result of job {job.id} cannot be read: {value.why}", code="unreadable_value")
        return self._decode(value)

    def _found(self, job: Job | None) -> Job:
        if job is None:
            raise NotFound(f"no job {self.id} in tenant {self.tenant}")
        return job

    def _rounds(self, timeout: Duration | None) -> Generator[tuple[float, float | None], None, None]:
        """Growing pauses until the time is up, and from time to time for how long to ask for a notification."""
        now = time.monotonic()
        end = None if timeout is None else now + seconds(timeout, "timeout")
        pause, watched = FIRST_LOOK, now
        while True:
            now = time.monotonic()
            left = LONGEST_PAUSE if end is None else end - now
            watch = None
            if watched - now < WATCH / 2 and left > 0:
                watch, watched = WATCH, now + WATCH
            yield max(0.0, min(pause, left)), watch
            if left <= 0:
                return
            pause = min(LONGEST_PAUSE, pause * 2)

    def _too_late(self, timeout: Duration | None) -> WaitTimeout:
        return WaitTimeout(f"job {self.id} had not finished after {timeout}")


class _Left:
    """What is left of a time limit, from when it is made on."""

    def __init__(self, limit: Duration | None) -> None:
        self._end = None if limit is None else time.monotonic() + seconds(limit, "timeout")

    def __call__(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())


# Where it is not the job's own state that is in the way.
_AGAINST = {
    "not_replaceable": "the payload rules of this kind do not allow replacing a payload",
    "content_key": "the job is deduplicated by its content",
    "steps_recorded": "the job has recorded steps, which were made with the old payload",
    "job_held": "the job waits for something else than a time",
    "target_not_found": "the job to stand next to is not in this tenant",
    "target_not_waiting": "the job to stand next to does not wait",
    "other_queue": "the job to stand next to is in another queue",
}


_FIXES = {
    "not_replaceable": "Declare PayloadPolicy(replaceable=True), or run: holdfast rules set KIND --replaceable",
    "content_key": "Cancel the job and enqueue another one.",
    "steps_recorded": "Cancel the job and enqueue another one.",
}


def accepted(verdicts: list[Verdict]) -> Verdict:
    verdict = verdicts[0]
    if verdict.refused:
        if verdict.reason == "not_found":
            raise NotFound(f"no job {verdict.id} in this tenant")
        says = _AGAINST.get(verdict.reason or "", f"job {verdict.id} is {verdict.state}")
        raise Conflict(says, code=verdict.reason, fix=_FIXES.get(verdict.reason or ""))
    return verdict
