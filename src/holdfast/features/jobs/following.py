"""The part of a handle that talks to a running job: ``send`` and ``ask`` it, follow its values and streams."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from holdfast.engine.messages import REFUSED, VALUE, Published, answered_as, published_as
from holdfast.engine.operation import Emit, Items, Namespace, Program, awaited, operation
from holdfast.engine.units import Duration, seconds
from holdfast.errors import JobFailed, Refused, WaitTimeout
from holdfast.features.jobs.operations import Jobs
from holdfast.features.streams.model import Chunk, StreamPage, check_stream
from holdfast.stores.requests import SentResult

FIRST_READ, SLOWEST_READ = 0.02, 0.25
"""Seconds between two reads of a caller that waits for a value or a chunk, if it is not notified."""


class Following(Namespace):
    """Operations on one job that runs."""

    __slots__ = ()

    id: str

    @abstractmethod
    def _do(self, form: operation[..., Any], *args: Any, **options: Any) -> Program[Any]:
        """An operation of ``app.jobs`` on this job."""

    @operation
    def send(
        self, name: str, data: Any = None, *, key: str | None = None, connection: object | None = None
    ) -> Program[SentResult]:
        """Send a message, which the handler receives with ``ctx.receive(name)``: see ``app.jobs.send``."""
        options: dict[str, Any] = {} if connection is None else {"connection": connection}
        result: SentResult = yield from self._do(Jobs.send, name, data, key=key, **options)
        return result

    asend = awaited(send)

    @operation
    def ask(
        self, name: str, data: Any = None, *, key: str | None = None, timeout: Duration | None = None
    ) -> Program[Any]:
        """Send a message and return what the handler answers with ``ctx.answer``.

        ``Refused`` if the handler refuses it, ``JobFailed`` if the job ends without an answer, ``WaitTimeout`` if there
        is none in time: asking again with the same ``key`` continues to wait for it.
        """
        sent = yield from self._do(Jobs.send, name, data, key=key, ask=True)
        answer = (yield from self._await_step(answered_as(sent.id), f"an answer to {name!r}", timeout)).value
        if REFUSED in answer:
            raise Refused(str(answer[REFUSED]), code="question_refused")
        return answer[VALUE]

    aask = awaited(ask)

    @operation
    def value(self, name: str, default: Any = None) -> Program[Any]:
        """The value that the handler has published last under this name with ``ctx.publish``."""
        found = yield from self._published(published_as(name))
        return default if found is None else found.value

    avalue = awaited(value)

    @operation
    def wait_for_value(self, name: str, timeout: Duration | None = None) -> Program[Any]:
        """Wait until the handler has published a value under this name, and return it. ``JobFailed`` if the job ends
        without one, ``WaitTimeout`` if there is none in time."""
        return (yield from self._await_step(published_as(name), f"a value {name!r}", timeout)).value

    await_for_value = awaited(wait_for_value)

    def stream(self, name: str, *, after: str | None = None) -> Chunks:
        """Follow an output stream of the handler, ``ctx.stream(name)``, until the job has ended: for ``for`` and for
        ``async for``. ``after`` is the id of the last chunk that you have. See ``holdfast.Chunk``."""
        return Chunks(self, check_stream(name), after)

    def _await_step(self, step: str, what: str, timeout: Duration | None) -> Program[Published]:
        remaining, delay = Remaining(timeout), FIRST_READ
        with self._waiting() as pause:
            while True:
                found = yield from self._published(step)
                if found is not None:
                    return found
                if (yield from self._do(Jobs.get)).state.finished:
                    found = yield from self._published(step)
                    if found is not None:
                        return found
                    raise JobFailed(f"job {self.id} has ended without {what}", code="not_published")
                left = remaining()
                if left is not None and left <= 0:
                    raise WaitTimeout(
                        f"job {self.id} had not given {what} after {seconds(timeout or 0, 'timeout'):g} s"
                    )
                yield from pause(delay if left is None else min(delay, left))
                delay = min(SLOWEST_READ, delay * 2)

    def _chunks(self, name: str, after: str | None) -> Items[Chunk]:
        delay = FIRST_READ
        with self._waiting() as pause:
            while True:
                page: StreamPage = yield from self._page(name, after)
                for chunk in page.chunks:
                    yield Emit(chunk)
                if page.ended:
                    return
                after = page.next
                delay = FIRST_READ if page.chunks else min(SLOWEST_READ, delay * 2)
                if not page.chunks:
                    yield from pause(delay)

    @abstractmethod
    def _published(self, step: str) -> Program[Published | None]:
        """The last value that a step of this name has recorded."""

    @abstractmethod
    def _page(self, name: str, after: str | None) -> Program[StreamPage]: ...

    @abstractmethod
    def _waiting(self) -> contextlib.AbstractContextManager[Callable[[float], Program[None]]]:
        """For the time of a wait: a function that pauses, at most this many seconds."""


class Chunks:
    """The chunks of a stream, for ``for`` and ``async for``. Each loop begins where the stream was asked for."""

    def __init__(self, handle: Following, name: str, after: str | None) -> None:
        self._handle, self._name, self._after = handle, name, after

    def __iter__(self) -> Iterator[Chunk]:
        return self._handle._iterate(self._handle._chunks(self._name, self._after))

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self._handle._aiterate(self._handle._chunks(self._name, self._after))


class Bell:
    """A notification from another thread, waited for in a thread or on an event loop."""

    def __init__(self) -> None:
        self._rung = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rung_on_loop = asyncio.Event()

    def set(self) -> None:
        self._rung.set()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(self._rung_on_loop.set)

    def wait(self, seconds: float) -> None:
        self._rung.wait(seconds)
        self._rung.clear()

    async def ring(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        if not self._rung.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._rung_on_loop.wait()
        self._rung_on_loop.clear()
        self._rung.clear()


class Remaining:
    """The seconds that remain of a timeout. The time runs from the constructor on."""

    def __init__(self, limit: Duration | None) -> None:
        self._end = None if limit is None else time.monotonic() + seconds(limit, "timeout")

    def __call__(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())
