"""``client.limits``, ``pauses``, ``queues``, ``reservations``.

``client.reservations.hold("gpu-0", wait="30s")`` reserves for the length of a block, as ``app.reservations.hold`` does.
A thread or a task renews the reservation. If the program dies or loses its connection, the reservation runs out.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from holdfast.engine.operation import awaited, operation
from holdfast.engine.units import Duration, seconds
from holdfast.errors import HoldfastError, NotFound, StoreError
from holdfast.features.limits.model import (
    LOOK_EVERY,
    LOOK_LATER,
    TTL,
    Pause,
    QueueSetting,
    Reservation,
    Reserved,
    busy,
    is_begun,
    outlived,
    why_left,
)
from holdfast.remote.handle import aware
from holdfast.remote.requests import Steps, delete, get, given, post, put, segment
from holdfast.remote.responses import read
from holdfast.remote.runners import RemoteNamespace

_Switches = list[Pause]  # inside the classes the word is a method
_Settings = list[QueueSetting]


class Pauses(RemoteNamespace):
    """What is paused. A tenant's token pauses what is the tenant's; ``every_tenant`` is for those who run the whole."""

    @operation
    def set(
        self,
        *,
        reason: str,
        until: datetime | Duration | None = None,
        refuse_enqueue: bool | None = None,
        queue: str | None = None,
        kind: str | None = None,
        agent: str | None = None,
        everything: bool = False,
        every_tenant: bool = False,
    ) -> Steps[Pause]:
        """Begin nothing more of a ``queue``, a ``kind``, an ``agent``, or of ``everything``, until it is resumed. What
        runs may end."""
        if isinstance(until, datetime):
            aware(until, "until")
        end = until if until is None or isinstance(until, datetime) else seconds(until, "until")
        named = given(queue=queue, kind=kind, agent=agent, everything=everything, every_tenant=every_tenant)
        body = named | given(reason=reason, until=end, refuse_enqueue=refuse_enqueue)
        return (yield from self._read(Pause, post("/switches/pause", body)))

    aset = awaited(set)

    @operation
    def remove(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        agent: str | None = None,
        everything: bool = False,
        every_tenant: bool = False,
    ) -> Steps[None]:
        """Go on with what was paused; named as it was then."""
        named = given(queue=queue, kind=kind, agent=agent, everything=everything, every_tenant=every_tenant)
        yield from self._ask(post("/switches/resume", named))

    aremove = awaited(remove)

    @operation
    def list(self) -> Steps[_Switches]:
        return (yield from self._pages(Pause, "/switches"))

    alist = awaited(list)


class Queues(RemoteNamespace):
    @operation
    def list(self) -> Steps[_Settings]:
        """The queues in which waiting counts."""
        return (yield from self._pages(QueueSetting, "/queues"))

    alist = awaited(list)

    @operation
    def set_aging(
        self, queue: str, *, every: Duration | None, step: int = 1, most: int = 100
    ) -> Steps[QueueSetting | None]:
        """Raise the priority of jobs in a queue by ``step`` for each ``every`` that they wait; None ends that."""
        span = None if every is None else seconds(every, "span of aging")
        request = put(f"/queues/{segment(queue)}/aging", {"every": span, "step": step, "most": most})
        answer = yield from self._ask(request)
        return None if answer is None else read(QueueSetting, answer)

    aset_aging = awaited(set_aging)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked for, again and again under one id."""

    resource: str | None
    queue: str | None
    ttl: float
    reason: str | None
    id: str

    @property
    def options(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class Reservations(RemoteNamespace):
    @operation
    def list(self, *, ended: bool = False, limit: int = 50) -> Steps[list[Reservation]]:
        return (yield from self._items(Reservation, get("/reservations", ended=ended, limit=limit)))

    alist = awaited(list)

    @operation
    def get(self, id: str) -> Steps[Reservation | None]:
        try:
            return (yield from self._read(Reservation, get(f"/reservations/{segment(id)}")))
        except NotFound:
            return None

    aget = awaited(get)

    @operation
    def set(
        self,
        resource: str | None = None,
        *,
        queue: str | None = None,
        ttl: Duration = 30.0,
        reason: str | None = None,
        id: str | None = None,
    ) -> Steps[Reserved]:
        """Stand in line for a resource, a queue, or (with neither) everything:
        ``mine = client.reservations.set("gpu-0")``. Ask again with its ``id`` every third of ``ttl``, or it runs out.
        It is yours while its state is ``active``."""
        known = str(uuid4()) if id is None else id
        body = given(resource=resource, queue=queue, ttl=seconds(ttl, "ttl"), reason=reason)
        request = dataclasses.replace(put(f"/reservations/{segment(known)}", body), repeatable=True)
        return (yield from self._read(Reserved, request))

    aset = awaited(set)

    @operation
    def release(self, id: str, *, reason: str | None = None) -> Steps[None]:
        yield from self._ask(delete(f"/reservations/{segment(id)}", reason=reason))

    arelease = awaited(release)

    def hold(
        self,
        resource: str | None = None,
        *,
        queue: str | None = None,
        wait: Duration | None = None,
        ttl: Duration = TTL,
        at_once: bool = False,
        reason: str | None = None,
    ) -> HeldReservation:
        """Use a resource, a queue, or (with neither) everything directly while no job is started there:
        ``with client.reservations.hold("gpu-0", wait="30s"):``, or ``async with``. The block starts when it is this
        reservation's turn and the jobs running there have ended, or ``at_once`` while they run; after ``wait`` it is
        refused as busy."""
        asked = Asked(resource, queue, seconds(ttl, "ttl"), reason, str(uuid4()))
        return HeldReservation(self, asked, wait, at_once)


log = logging.getLogger("holdfast.reservation")


class HeldReservation:
    """``with client.reservations.hold("gpu-0") as mine:``, or ``async with``. ``lost`` says that it ran out or that
    another client released it: jobs may run there. An event loop that is blocked for longer than ``ttl`` loses it."""

    def __init__(self, namespace: Reservations, asked: Asked, wait: Duration | None, at_once: bool) -> None:
        self._reservations = namespace
        self._asked = asked
        self._wait = None if wait is None else seconds(wait, "wait")
        self._at_once = at_once
        self._end: float | None = None
        self._until = 0.0
        self._over = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None

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

    # --- with ---

    def __enter__(self) -> Self:
        self._begin()
        try:
            while not self._is_begun(*self._ask()):
                time.sleep(self._pause())
        except BaseException as error:
            with contextlib.suppress(HoldfastError):  # nothing is there, or nobody answers: then it runs out
                self._reservations.release(self.id, reason=why_left(error))
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
            self._reservations.release(self.id, reason=why_left(error))
        except NotFound:
            released = False
        self._left(released, error)

    def _ask(self) -> tuple[Reserved, float]:
        now = time.monotonic()
        return self._reservations.set(**self._asked.options), now

    def _renew(self) -> None:
        while not self._ended.wait(self._asked.ttl / 3):
            try:
                if not self._kept(*self._ask()):
                    return
            except HoldfastError as error:
                if not self._missed(error):
                    return

    # --- async with ---

    async def __aenter__(self) -> Self:
        self._begin()
        try:
            while not self._is_begun(*(await self._aask())):  # noqa: ASYNC110 - the service is asked, there is no event
                await asyncio.sleep(self._pause())
        except BaseException as error:
            with contextlib.suppress(HoldfastError):
                await self._reservations.arelease(self.id, reason=why_left(error))
            raise
        self._task = asyncio.create_task(self._arenew())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        released = True
        try:
            await self._reservations.arelease(self.id, reason=why_left(error))
        except NotFound:
            released = False
        self._left(released, error)

    async def _aask(self) -> tuple[Reserved, float]:
        now = time.monotonic()
        return await self._reservations.aset(**self._asked.options), now

    async def _arenew(self) -> None:
        while True:
            await asyncio.sleep(self._asked.ttl / 3)
            try:
                if not self._kept(*(await self._aask())):
                    return
            except HoldfastError as error:
                if not self._missed(error):
                    return
