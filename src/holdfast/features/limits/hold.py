"""``reservations.hold(…)``: a context manager that holds a reservation, for an ``App`` and a remote ``Client``.

The block starts when earlier reservations have ended and the running jobs have finished. A thread or a task renews the
reservation every third of its ``ttl``; if the process dies, it expires.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from holdfast.engine.payload import safe_text
from holdfast.engine.settlement import MESSAGE_LIMIT
from holdfast.engine.units import Duration, seconds
from holdfast.errors import Conflict, HoldfastError, NotFound, StoreError
from holdfast.features.limits.model import (
    FIRST_PAUSES,
    LATER_PAUSE,
    ReservationOptions,
    ReservationRequest,
    Reserved,
)

if TYPE_CHECKING:
    from holdfast.features.limits.operations import Reservations

log = logging.getLogger("holdfast.reservation")


class HeldReservation:
    """A context manager, sync and async, that holds a reservation for its block. ``lost`` is true if the reservation
    has expired or was released by an operator: jobs may run there again. ``job_id`` is the job that records the
    block."""

    def __init__(
        self,
        reservations: Reservations,
        request: ReservationRequest,
        what: ReservationOptions,
        wait: Duration | None,
        at_once: bool,
        record: str | None,
    ) -> None:
        self.id = request.id
        self.job_id: str | None = None
        self._reservations, self._what = reservations, what
        self._ttl = request.ttl
        self._wait = None if wait is None else seconds(wait, "wait")
        self._at_once, self._record = at_once, record
        self._end: float | None = None
        self._until = 0.0
        self._lost = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def lost(self) -> bool:
        return self._lost or time.monotonic() >= self._until

    # --- with ---

    def __enter__(self) -> Self:
        self._begin()
        try:
            while not self._may_begin(*self._request()):
                time.sleep(self._pause())
            if self._record is not None:
                self.job_id = self._reservations.record(self.id, self._record)
        except BaseException as error:
            with contextlib.suppress(HoldfastError):  # not requested yet, or the store is unreachable and it expires
                self._reservations.release(self.id, reason=_reason(error))
            raise
        self._renew_in_thread()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stop_thread()
        released = True
        try:
            self._reservations.release(self.id, reason=_reason(error), **self._outcome(error))
        except NotFound:
            released = False
        self._check_end(released, error)

    def _request(self) -> tuple[Reserved, float]:
        now = time.monotonic()
        return self._reservations.set(self.id, **self._what), now

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
                held = self._renewed(*self._request())
            except (HoldfastError, OSError) as error:
                held = self._not_renewed(error)
            if not held:
                return

    # --- async with ---

    async def __aenter__(self) -> Self:
        self._begin()
        try:
            while not self._may_begin(*(await self._arequest())):  # noqa: ASYNC110 - polls the store: there is no event
                await asyncio.sleep(self._pause())
            if self._record is not None:
                self.job_id = await self._reservations.arecord(self.id, self._record)
        except BaseException as error:
            with contextlib.suppress(HoldfastError):
                await self._reservations.arelease(self.id, reason=_reason(error))
            raise
        if self._reservations._sync_in_threads:  # a blocked event loop must not lose the reservation
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
            await self._reservations.arelease(self.id, reason=_reason(error), **self._outcome(error))
        except NotFound:
            released = False
        self._check_end(released, error)

    async def _arequest(self) -> tuple[Reserved, float]:
        now = time.monotonic()
        return await self._reservations.aset(self.id, **self._what), now

    async def _arenew(self) -> None:
        while True:
            await asyncio.sleep(self._ttl / 3)
            try:
                held = self._renewed(*(await self._arequest()))
            except (HoldfastError, OSError) as error:
                held = self._not_renewed(error)
            if not held:
                return

    # --- both ---

    def _begin(self) -> None:
        self._end = None if self._wait is None else time.monotonic() + self._wait
        self._pauses = iter(FIRST_PAUSES)

    def _may_begin(self, reserved: Reserved, requested_at: float) -> bool:
        if reserved.state in ("released", "expired", "withdrawn"):
            raise Conflict("the reservation was released by another caller", code="reservation_lost")
        if reserved.state == "active" and (self._at_once or not reserved.running):
            self._until = requested_at + self._ttl
            if not self.lost:  # otherwise the response took so long that it may have expired: request it again
                return True
        if self._end is not None and time.monotonic() >= self._end:
            jobs, others = f"{reserved.running} jobs are still running there", f"{reserved.ahead} others are before it"
            raise Conflict(
                f"{reserved.what} could not be reserved: {jobs if reserved.state == 'active' else others}",
                code="reservation_busy",
                fix="Wait longer, or try again later.",
            )
        return False

    def _outcome(self, error: BaseException | None) -> dict[str, Any]:
        """The outcome of the recorded run, if there is one."""
        if self.job_id is None:
            return {}
        if error is None:
            return {"outcome": "succeeded"}
        if isinstance(error, HoldfastError):
            code, message = error.code, error.message
        else:
            code, message = type(error).__name__, str(error)
        return {
            "outcome": "failed",
            "error_code": safe_text(code, 100),
            "error_message": safe_text(message or code, MESSAGE_LIMIT),
        }

    def _pause(self) -> float:
        return min(next(self._pauses, LATER_PAUSE), self._ttl / 3)

    def _renewed(self, reserved: Reserved, requested_at: float) -> bool:
        """Whether the reservation is still held after this response."""
        if reserved.state == "active":
            self._until = requested_at + self._ttl
            return True
        return self._give_up()

    def _not_renewed(self, error: Exception) -> bool:
        """Whether it is still held after this error: if the store is unreachable, until the ``ttl`` has passed."""
        log.warning("Reservation %s could not be renewed: %s", self.id, error)
        return (isinstance(error, StoreError | OSError) and not self.lost) or self._give_up()

    def _give_up(self) -> bool:
        self._lost = True
        log.error("Reservation %s was lost; jobs may start there again", self.id)
        return False

    def _check_end(self, released: bool, error: BaseException | None) -> None:
        if (self.lost or not released) and error is None:
            raise Conflict(
                "the reservation ended before its block: jobs may have run meanwhile", code="reservation_lost"
            )


def _reason(error: BaseException | None) -> str:
    return "released" if error is None else f"left with {type(error).__name__}"
