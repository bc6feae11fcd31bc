"""A handle on an enqueued job: look at it, wait for it, cancel it, from sync and async code."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.engine.job import Event, Job, Result, Verdict
from holdfast.engine.order import Move
from holdfast.engine.payload import Unreadable
from holdfast.engine.settlement import storable
from holdfast.engine.states import State
from holdfast.engine.steps import Progress
from holdfast.engine.units import Duration, seconds
from holdfast.errors import Conflict, InvalidPayload, InvalidSetting, JobFailed, NotFound, StoreUnavailable, WaitTimeout
from holdfast.features.jobs.views import ledger_of
from holdfast.stores.flow import Flow, Steps, flow
from holdfast.stores.requests import Reschedule

if TYPE_CHECKING:
    from holdfast.stores.session import Session

R = TypeVar("R")

# Whoever waits is told of the end; in case that gets lost it looks by itself, at first soon and then this seldom.
FIRST_LOOK, LONGEST_PAUSE = 0.05, 1.0
WATCH = 60.0


@dataclass(frozen=True, slots=True)
class Handle(Generic[R]):
    """``created`` is False when an earlier job stands for this one, or when one of many was refused; ``reason`` then
    says why, and ``detail`` in words where there is more to say."""

    id: str
    tenant: str
    created: bool
    reason: str | None
    client: Session = field(repr=False, compare=False)
    decode: Callable[[Any], R] = field(repr=False, compare=False)
    detail: str | None = None

    def job(self) -> Job:
        return self._found(self.client.run(self._get()))

    async def ajob(self) -> Job:
        return self._found(await self.client.arun(self._get()))

    def state(self) -> State:
        return self.job().state

    async def astate(self) -> State:
        return (await self.ajob()).state

    def history(self) -> list[Event]:
        return self.client.run(ledger_of(self.client.store, self.id, self.tenant))

    async def ahistory(self) -> list[Event]:
        return await self.client.arun(ledger_of(self.client.store, self.id, self.tenant))

    def wait(self, timeout: Duration | None = None) -> Job:
        """Block until the job has ended (a dead letter has), or raise ``WaitTimeout``; the job goes on then.

        Of a job whose retries are jobs of their own it is the last one that is waited for, and answered.
        """
        tried, left = self, _Left(timeout)
        while True:
            job = tried._wait(left(), timeout)
            successor = self.client.run(tried._successor()) if job.retried else None
            if successor is None:
                return job
            tried = dataclasses.replace(tried, id=successor)

    async def await_end(self, timeout: Duration | None = None) -> Job:
        """``wait`` for async code."""
        tried, left = self, _Left(timeout)
        while True:
            job = await tried._await_end(left(), timeout)
            successor = await self.client.arun(tried._successor()) if job.retried else None
            if successor is None:
                return job
            tried = dataclasses.replace(tried, id=successor)

    def _wait(self, timeout: float | None, said: Duration | None) -> Job:
        job = self.job()
        if job.state.finished:
            return job
        self._may_block()
        told = threading.Event()
        with self._listening(told.set):
            for pause, watch in self._rounds(timeout):
                told.clear()
                if watch:
                    with contextlib.suppress(StoreUnavailable):  # then it looks by itself
                        self.client.run(self._watch(watch))
                job = self.job()
                if job.state.finished:
                    return job
                told.wait(pause)
        raise self._too_late(said)

    async def _await_end(self, timeout: float | None, said: Duration | None) -> Job:
        job = await self.ajob()
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
                        await self.client.arun(self._watch(watch))
                job = await self.ajob()
                if job.state.finished:
                    return job
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await told.wait()
        raise self._too_late(said)

    def _may_block(self) -> None:
        """Refuse to wait on the event loop of a worker: the job that is waited for may be one of its own."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        if self.client.in_a_handler:
            raise InvalidSetting(
                "to wait for a job here would block the worker's event loop",
                code="running_loop",
                fix="await handle.aresult(), or await_end().",
            )

    @contextlib.contextmanager
    def _listening(self, tell: Callable[[], None]) -> Iterator[None]:
        def heard(what: str) -> None:
            if what == self.id or what == "":
                tell()

        stop = self.client.store.listen(heard, lambda: (self.id,))
        try:
            yield
        finally:
            stop()

    def result(self, timeout: Duration | None = None) -> R:
        """Wait for the end and return what the handler returned; ``JobFailed`` if it did not succeed."""
        job = self.wait(timeout)
        return self._returned(
            job, self._opened(job, self.client.run(self.client.store.jobs.result(job.id, self.tenant)))
        )

    async def aresult(self, timeout: Duration | None = None) -> R:
        job = await self.await_end(timeout)
        found = await self.client.arun(self.client.store.jobs.result(job.id, self.tenant))
        if found is not None and (found.ref is not None or isinstance(found.value, dict)):
            found = await asyncio.to_thread(self._opened, job, found)
        return self._returned(job, found)

    def __await__(self) -> Generator[Any, None, R]:
        return self.aresult().__await__()

    def cancel(self, reason: str | None = None) -> Verdict:
        return accepted(self.client.run(self._cancel(reason)))

    async def acancel(self, reason: str | None = None) -> Verdict:
        return accepted(await self.client.arun(self._cancel(reason)))

    def reschedule(
        self,
        at: datetime | None = None,
        delay: Duration | None = None,
        *,
        max_attempts: int | None = None,
        reason: str | None = None,
    ) -> Verdict:
        """Run it at another time; with neither a time nor a delay, at once. ``Conflict`` if it does not wait."""
        return accepted(self.client.run(self._reschedule(Reschedule.of(at, delay, max_attempts), reason)))

    async def areschedule(
        self,
        at: datetime | None = None,
        delay: Duration | None = None,
        *,
        max_attempts: int | None = None,
        reason: str | None = None,
    ) -> Verdict:
        return accepted(await self.client.arun(self._reschedule(Reschedule.of(at, delay, max_attempts), reason)))

    def move(
        self,
        *,
        first: bool = False,
        last: bool = False,
        before: str | None = None,
        after: str | None = None,
        priority: int | None = None,
        reason: str | None = None,
    ) -> Verdict:
        """Give it another place in its queue. ``Conflict`` if it does not wait."""
        return accepted([self.client.run(self._move(Move.of(first, last, before, after, priority), reason))])

    async def amove(
        self,
        *,
        first: bool = False,
        last: bool = False,
        before: str | None = None,
        after: str | None = None,
        priority: int | None = None,
        reason: str | None = None,
    ) -> Verdict:
        return accepted([await self.client.arun(self._move(Move.of(first, last, before, after, priority), reason))])

    def progress(self) -> Progress | None:
        """How far the handler said it is, if it said anything."""
        return Progress.saved(self.client.run(self._checkpoints()))

    async def aprogress(self) -> Progress | None:
        return Progress.saved(await self.client.arun(self._checkpoints()))

    def _checkpoints(self) -> Flow[dict[str, Any]]:
        return self.client.store.jobs.checkpoints(self.id, self.tenant)

    def _reschedule(self, when: Reschedule, reason: str | None) -> Flow[list[Verdict]]:
        return self.client.store.jobs.reschedule([self.id], when, storable(reason), self.client.actor, self.tenant)

    def _move(self, move: Move, reason: str | None) -> Flow[Verdict]:
        return self.client.store.jobs.move(self.id, move, storable(reason), self.client.actor, self.tenant)

    def _get(self) -> Flow[Job | None]:
        return self.client.store.jobs.get(self.id, self.tenant)

    def _watch(self, seconds: float) -> Flow[None]:
        return self.client.store.jobs.watch(self.id, self.tenant, seconds)

    def _cancel(self, reason: str | None) -> Flow[list[Verdict]]:
        return self.client.store.jobs.operate("cancel", [self.id], storable(reason), self.client.actor, self.tenant)

    @flow(writes=False)
    def _successor(self) -> Steps[str | None]:
        """The job that was made to retry this one."""
        tries = yield from self.client.store.jobs.chain(self.id, self.tenant).start()
        return next((job.id for job in tries if job.retry_of == self.id), None)

    def _opened(self, job: Job, found: Result | None) -> Result | None:
        """As it was returned, wherever it lies."""
        if found is None or job.state is not State.SUCCEEDED:
            return found
        value = self.client.vault.open_value(found.value, found.ref, tenant=job.tenant, job_id=job.id)
        return found if value is found.value else Result(value, found.ref)

    def _returned(self, job: Job, result: Result | None) -> R:
        if job.state is not State.SUCCEEDED:
            error = f": {job.error_message} ({job.error_code})" if job.error_code else ""
            raise JobFailed(f"job {job.id} is {job.state}{error}")
        value = None if result is None else result.value
        if isinstance(value, Unreadable):
            raise InvalidPayload(f"the result of job {job.id} cannot be read: {value.why}", code="unreadable_value")
        return self.decode(value)

    def _found(self, job: Job | None) -> Job:
        if job is None:
            raise NotFound(f"there is no job {self.id} in tenant {self.tenant}")
        return job

    def _rounds(self, timeout: Duration | None) -> Generator[tuple[float, float | None], None, None]:
        """Pauses that grow, until the time is up; and now and then for how long to have the end told."""
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
        return WaitTimeout(f"job {self.id} had not ended after {timeout}")


class _Left:
    """What is left of a time limit, from when it is made on."""

    def __init__(self, limit: Duration | None) -> None:
        self._end = None if limit is None else time.monotonic() + seconds(limit, "timeout")

    def __call__(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())


# Where it is not the job's own state that is in the way.
_AGAINST = {
    "job_held": "the job waits for something else than a time",
    "target_not_found": "the job to stand next to is not in this tenant",
    "target_not_waiting": "the job to stand next to does not wait",
    "other_queue": "the job to stand next to is in another queue",
}


def accepted(verdicts: list[Verdict]) -> Verdict:
    verdict = verdicts[0]
    if verdict.refused:
        if verdict.reason == "not_found":
            raise NotFound(f"there is no job {verdict.id} in this tenant")
        raise Conflict(_AGAINST.get(verdict.reason or "", f"job {verdict.id} is {verdict.state}"), code=verdict.reason)
    return verdict
