"""``reservations.hold(…)``: a reservation for the length of a block, of an ``App`` and of a remote ``Client``.

The block starts when earlier reservations are over and the running jobs have ended. A thread or a task renews the
reservation every third of its ``ttl``; if the process dies, it expires.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from holdfast.engine.payload import safe_text
from holdfast.engine.settlement import MESSAGE_LIMIT
from holdfast.engine.units import Duration, seconds
from holdfast.errors import HoldfastError, NotFound, StoreError
from holdfast.features.limits.model import LOOK_EVERY, LOOK_LATER, Reserved, busy, is_begun, outlived, why_left

log = logging.getLogger("holdfast.reservation")


@dataclass(frozen=True, slots=True)
class Reserver:
    """The operations on one reservation. ``set`` queues it first and renews it afterwards; ``release`` takes the
    reason. ``in_thread``: the sync form may be used in a thread beside async code."""

    set: Callable[[], Reserved]
    aset: Callable[[], Awaitable[Reserved]]
    release: Callable[..., None]
    arelease: Callable[..., Awaitable[None]]
    in_thread: bool
    record: Callable[[], str] | None = None
    """Records the block as a job, and answers its id."""
    arecord: Callable[[], Awaitable[str]] | None = None


class HeldReservation:
    """A context manager, sync and async, that holds a reservation for its block. ``lost`` is true when the reservation
    has expired or was released by an operator: jobs may run there again. ``job_id`` is the job that records the
    block."""

    def __init__(self, id: str, ttl: float, wait: Duration | None, at_once: bool, reserver: Reserver) -> None:
        self.id = id
        self.job_id: str | None = None
        self._ttl = ttl
        self._wait = None if wait is None else seconds(wait, "wait")
        self._at_once = at_once
        self._reserver = reserver
        self._end: float | None = None
        self._until = 0.0
        self._over = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def lost(self) -> bool:
        return self._over or time.monotonic() >= self._until

    # --- with ---

    def __enter__(self) -> Self:
        self._begin()
        try:
            while not self._is_begun(*self._ask()):
                time.sleep(self._pause())
            if self._reserver.record is not None:
                self.job_id = self._reserver.record()
        except BaseException as error:
            with contextlib.suppress(HoldfastError):  # if nothing is there or the store is unreachable, it expires
                self._reserver.release(why_left(error))
            raise
        self._renew_in_thread()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stop_thread()
        released = True
        try:
            self._reserver.release(why_left(error), **self._ending(error))
        except NotFound:
            released = False
        self._left(released, error)

    def _ask(self) -> tuple[Reserved, float]:
        now = time.monotonic()
        return self._reserver.set(), now

    def _renew_in_thread(self) -> None:
        self._thread = threading.Thread(target=self._renew, name="holdfast-reservation", daemon=True)
        self._thread.start()

    def _stop_thread(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(self._ttl)

    def _renew(self) -> None:
        while not self._ended.wait(self._ttl / 3):
            try:
                goes_on = self._kept(*self._ask())
            except (HoldfastError, OSError) as error:
                goes_on = self._missed(error)
            if not goes_on:
                return

    # --- async with ---

    async def __aenter__(self) -> Self:
        self._begin()
        try:
            while not self._is_begun(*(await self._aask())):  # noqa: ASYNC110 - the store is asked, there is no event
                await asyncio.sleep(self._pause())
            if self._reserver.arecord is not None:
                self.job_id = await self._reserver.arecord()
        except BaseException as error:
            with contextlib.suppress(HoldfastError):
                await self._reserver.arelease(why_left(error))
            raise
        if self._reserver.in_thread:  # an event loop that is blocked does not lose the reservation
            self._renew_in_thread()
        else:
            self._task = asyncio.create_task(self._arenew())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._stop_thread()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        released = True
        try:
            await self._reserver.arelease(why_left(error), **self._ending(error))
        except NotFound:
            released = False
        self._left(released, error)

    async def _aask(self) -> tuple[Reserved, float]:
        now = time.monotonic()
        return await self._reserver.aset(), now

    async def _arenew(self) -> None:
        while True:
            await asyncio.sleep(self._ttl / 3)
            try:
                goes_on = self._kept(*(await self._aask()))
            except (HoldfastError, OSError) as error:
                goes_on = self._missed(error)
            if not goes_on:
                return

    # --- both ---

    def _begin(self) -> None:
        self._end = None if self._wait is None else time.monotonic() + self._wait
        self._pauses = iter(LOOK_EVERY)

    def _is_begun(self, standing: Reserved, asked_at: float) -> bool:
        if is_begun(standing, at_once=self._at_once):
            self._until = asked_at + self._ttl
            if not self.lost:  # otherwise the answer took so long that it may have expired: ask again
                return True
        if self._end is not None and time.monotonic() >= self._end:
            raise busy(standing.what, standing)
        return False

    def _ending(self, error: BaseException | None) -> dict[str, str | None]:
        """What is said of the recorded run, if there is one."""
        if self.job_id is None:
            return {}
        if error is None:
            return {"outcome": "succeeded"}
        own = isinstance(error, HoldfastError)
        code, message = (error.code, error.message) if own else (type(error).__name__, str(error))  # type: ignore[attr-defined]
        said = {"error_code": safe_text(code, 100), "error_message": safe_text(message or code, MESSAGE_LIMIT)}
        return {"outcome": "failed", **said}

    def _pause(self) -> float:
        return min(next(self._pauses, LOOK_LATER), self._ttl / 3)

    def _kept(self, standing: Reserved, asked_at: float) -> bool:
        """Whether renewing goes on after this answer."""
        if standing.state == "active":
            self._until = asked_at + self._ttl
            return True
        return self._is_lost()

    def _missed(self, error: Exception) -> bool:
        """Whether renewing goes on after this error: while the store is unreachable, until the ``ttl`` has passed."""
        log.warning("Reservation %s could not be renewed: %s", self.id, error)
        return (isinstance(error, StoreError | OSError) and not self.lost) or self._is_lost()

    def _is_lost(self) -> bool:
        self._over = True
        log.error("Reservation %s was lost; jobs may start there again", self.id)
        return False

    def _left(self, released: bool, error: BaseException | None) -> None:
        if (self.lost or not released) and error is None:
            raise outlived()
