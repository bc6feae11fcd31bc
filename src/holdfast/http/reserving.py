"""A reservation for a block, over HTTP: ``with client.reserve("gpu-0", wait="30s"):``, and ``async with`` (SC-10).

As ``app.reserve`` is: whoever reserves stands in line, the block begins when its turn has come and the jobs under way
there have ended, and the reservation is kept alive meanwhile, by a thread or by a task of the loop. If the program dies
or is cut off, it runs out by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from types import TracebackType
from typing import Generic, TypeVar

from holdfast.engine.units import Duration, seconds
from holdfast.errors import HoldfastError, NotFound, StoreError
from holdfast.features.limits.model import LOOK_EVERY, LOOK_LATER, Reserved, busy, is_begun, outlived, why_left
from holdfast.http.runners import Awaiting, Blocking, Runner
from holdfast.http.standing import Asked, Reservations

log = logging.getLogger("holdfast.reservation")

C = TypeVar("C", bound=Runner)


class _Block(Generic[C]):
    """What both colours share. ``lost`` says that it ran out or was released by somebody else: jobs may run there."""

    def __init__(self, runner: C, asked: Asked, wait: Duration | None, at_once: bool) -> None:
        self._noun = Reservations(runner)
        self._asked = asked
        self._wait = None if wait is None else seconds(wait, "wait")
        self._at_once = at_once
        self._end: float | None = None
        self._until = 0.0
        self._over = False

    @property
    def id(self) -> str:
        return self._asked.id

    @property
    def lost(self) -> bool:
        return self._over or time.monotonic() >= self._until

    def _begin(self) -> None:
        self._end = None if self._wait is None else time.monotonic() + self._wait
        self._pauses = iter(LOOK_EVERY)

    def _is_begun(self, standing: Reserved, asked_at: float) -> bool:
        if is_begun(standing, at_once=self._at_once):
            self._until = asked_at + self._asked.ttl
            if not self.lost:  # else the answer took so long that it may have run out: it is asked for again
                return True
        if self._end is not None and time.monotonic() >= self._end:
            raise busy(standing.what, standing)
        return False

    def _pause(self) -> float:
        return min(next(self._pauses, LOOK_LATER), self._asked.ttl / 3)

    def _kept(self, standing: Reserved, asked_at: float) -> bool:
        """Whether it goes on, after it was asked for again."""
        if standing.state == "active":
            self._until = asked_at + self._asked.ttl
            return True
        return self._is_lost()

    def _missed(self, error: HoldfastError) -> bool:
        """The same after an error: a service that is away for a moment is asked again."""
        log.warning("reservation %s could not be kept alive: %s", self.id, error)
        return (isinstance(error, StoreError) and not self.lost) or self._is_lost()

    def _is_lost(self) -> bool:
        self._over = True
        log.error("reservation %s was lost: jobs may run there again", self.id)
        return False

    def _left(self, released: bool, error: BaseException | None) -> None:
        if (self.lost or not released) and error is None:
            raise outlived()


class Reserving(_Block[Blocking]):
    """``with client.reserve("gpu-0") as mine:``"""

    def __init__(self, runner: Blocking, asked: Asked, wait: Duration | None, at_once: bool) -> None:
        super().__init__(runner, asked, wait, at_once)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Reserving:
        self._begin()
        try:
            while not self._is_begun(*self._ask()):
                time.sleep(self._pause())
        except BaseException as error:
            with contextlib.suppress(HoldfastError):  # nothing is there, or nobody answers: then it runs out
                self._noun.release(self.id, reason=why_left(error))
            raise
        self._thread = threading.Thread(target=self._renew, name="holdfast-reservation", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(self._asked.ttl)
        released = True
        try:
            self._noun.release(self.id, reason=why_left(error))
        except NotFound:
            released = False
        self._left(released, error)

    def _ask(self) -> tuple[Reserved, float]:
        now = time.monotonic()
        return self._noun.ask(**self._asked.options), now

    def _renew(self) -> None:
        while not self._ended.wait(self._asked.ttl / 3):
            try:
                if not self._kept(*self._ask()):
                    return
            except HoldfastError as error:
                if not self._missed(error):
                    return


class AsyncReserving(_Block[Awaiting]):
    """``async with client.reserve("gpu-0") as mine:``. A loop that is blocked for longer than ``ttl`` loses it."""

    _task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> AsyncReserving:
        self._begin()
        try:
            while not self._is_begun(*(await self._ask())):  # noqa: ASYNC110 - the service is asked, there is no event
                await asyncio.sleep(self._pause())
        except BaseException as error:
            with contextlib.suppress(HoldfastError):
                await self._noun.release(self.id, reason=why_left(error))
            raise
        self._task = asyncio.create_task(self._renew())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        released = True
        try:
            await self._noun.release(self.id, reason=why_left(error))
        except NotFound:
            released = False
        self._left(released, error)

    async def _ask(self) -> tuple[Reserved, float]:
        now = time.monotonic()
        return await self._noun.ask(**self._asked.options), now

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._asked.ttl / 3)
            try:
                if not self._kept(*(await self._ask())):
                    return
            except HoldfastError as error:
                if not self._missed(error):
                    return
