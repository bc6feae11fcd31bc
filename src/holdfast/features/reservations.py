"""Direct reservations (SC-10): ``with app.reserve("gpu-0", wait="30s"):`` and ``async with``, one object for both.

Whoever reserves stands in line until its turn has come. From then on no job is begun there, and the block begins when
those under way have ended. A thread keeps the reservation alive; if its process dies, it runs out by itself.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from dataclasses import fields
from types import TracebackType
from typing import TypedDict, TypeVar, Unpack

from holdfast.domain.limits import counted
from holdfast.domain.reservations import (
    LONGEST,
    LOOK_EVERY,
    LOOK_LATER,
    SHORTEST,
    TTL,
    Ask,
    Reservation,
    Reserved,
    Standing,
    busy,
    is_begun,
    outlived,
    why_left,
)
from holdfast.engine.settlement import storable
from holdfast.engine.units import Duration, seconds
from holdfast.errors import HoldfastError, InvalidSetting, NotFound, StoreError
from holdfast.stores.base import Caller
from holdfast.stores.flow import Flow

T = TypeVar("T")

log = logging.getLogger("holdfast.reservation")

_Reservations = list[Reservation]


class Asking(TypedDict, total=False):
    """A resource, a queue, or (with neither) everything; for how long it is kept without being asked for again."""

    resource: str | None
    queue: str | None
    ttl: Duration
    reason: str | None


class Reservations:
    """What is reserved, by whom, and what was: ``app.reservations``."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def list(self, *, ended: bool = False, limit: int = 50) -> _Reservations:
        """Those that wait or are active, in their order; with ``ended`` the others too, newest first."""
        return self._caller.run(self._caller.verbs.reservations(self._caller.tenant, ended, limit))

    async def alist(self, *, ended: bool = False, limit: int = 50) -> _Reservations:
        return await self._caller.arun(self._caller.verbs.reservations(self._caller.tenant, ended, limit))

    def get(self, reservation_id: str) -> Reservation | None:
        return self._caller.run(self._caller.verbs.reservation(reservation_id, self._caller.tenant))

    async def aget(self, reservation_id: str) -> Reservation | None:
        return await self._caller.arun(self._caller.verbs.reservation(reservation_id, self._caller.tenant))

    def ask(self, reservation_id: str, **what: Unpack[Asking]) -> Reserved:
        """Stand in line for it, or ask again under the same id: that keeps it alive for ``ttl`` more. It is yours while
        it is ``active``; jobs begun before are ``running`` still. ``app.reserve`` does all that in a block."""
        ask = _asked(reservation_id, **what)
        standing = self._caller.run(self._reserve(ask))
        return _reserved(reservation_id, self.get(reservation_id), standing)

    async def aask(self, reservation_id: str, **what: Unpack[Asking]) -> Reserved:
        ask = _asked(reservation_id, **what)
        standing = await self._caller.arun(self._reserve(ask))
        return _reserved(reservation_id, await self.aget(reservation_id), standing)

    def _reserve(self, ask: Ask) -> Flow[Standing]:
        return self._caller.verbs.reserve(ask, self._caller.actor, self._caller.tenant)

    def release(self, reservation_id: str, *, reason: str = "released by an operator") -> None:
        """End somebody's reservation: whoever holds it is told when it next keeps it alive."""
        _ended(reservation_id, self._caller.run(self._release(reservation_id, reason)))

    async def arelease(self, reservation_id: str, *, reason: str = "released by an operator") -> None:
        _ended(reservation_id, await self._caller.arun(self._release(reservation_id, reason)))

    def _release(self, reservation_id: str, reason: str) -> Flow[bool]:
        why = storable(reason) or "released"
        return self._caller.verbs.release_reservation(reservation_id, why, self._caller.actor, self._caller.tenant)


class Reserving:
    """A reservation about to be made, and while the block lasts the one that is held. ``lost`` says that it ran out or
    was released by somebody else: jobs may run there again."""

    def __init__(self, caller: Caller, ask: Ask, wait: float | None, at_once: bool) -> None:
        self._caller = caller
        self._ask = ask
        self._wait = wait
        self._at_once = at_once
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.lost = False

    @classmethod
    def of(
        cls,
        caller: Caller,
        new_id: str,
        resource: str | None,
        queue: str | None,
        wait: Duration | None,
        ttl: Duration,
        at_once: bool,
        reason: str | None,
    ) -> Reserving:
        ask = _asked(new_id, resource=resource, queue=queue, ttl=ttl, reason=reason)
        return cls(caller, ask, None if wait is None else seconds(wait, "wait"), at_once)

    @property
    def id(self) -> str:
        return self._ask.id

    def __enter__(self) -> Reserving:
        end = self._end()
        try:
            pauses = iter(LOOK_EVERY)
            while not self._begun(standing := self._caller.run(self._asking())):
                self._check(standing, end)
                time.sleep(min(next(pauses, LOOK_LATER), self._ask.ttl / 3))
        except BaseException as error:
            self._caller.run(self._releasing(why_left(error)))
            raise
        self._keep()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._let_go()
        self._told(self._caller.run(self._releasing(why_left(error))), error)

    async def __aenter__(self) -> Reserving:
        end = self._end()
        try:
            pauses = iter(LOOK_EVERY)
            while not self._begun(standing := await self._caller.arun(self._asking())):
                self._check(standing, end)
                await asyncio.sleep(min(next(pauses, LOOK_LATER), self._ask.ttl / 3))
        except BaseException as error:
            await self._caller.arun(self._releasing(why_left(error)))
            raise
        self._keep()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._let_go()
        self._told(await self._caller.arun(self._releasing(why_left(error))), error)

    def _end(self) -> float | None:
        return None if self._wait is None else time.monotonic() + self._wait

    def _asking(self) -> Flow[Standing]:
        return self._caller.verbs.reserve(self._ask, self._caller.actor, self._caller.tenant)

    def _releasing(self, why: str) -> Flow[bool]:
        return self._caller.verbs.release_reservation(self._ask.id, why, self._caller.actor, self._caller.tenant)

    def _begun(self, standing: Standing) -> bool:
        return is_begun(standing, at_once=self._at_once)

    def _check(self, standing: Standing, end: float | None) -> None:
        if end is not None and time.monotonic() >= end:
            raise busy("everything" if self._ask.scope == "all" else f"{self._ask.scope} {self._ask.name}", standing)

    def _keep(self) -> None:
        self._thread = threading.Thread(target=self._renew, name="holdfast-reservation", daemon=True)
        self._thread.start()

    def _renew(self) -> None:
        until = time.monotonic() + self._ask.ttl
        while not self._over.wait(self._ask.ttl / 3):
            try:
                began = time.monotonic()
                if self._caller.run(self._asking()).state != "active":
                    break
                until = began + self._ask.ttl
            except (StoreError, OSError) as error:
                log.warning("reservation %s could not be kept alive: %s", self._ask.id, error)
                if time.monotonic() >= until:
                    break
            except HoldfastError as error:
                log.warning("reservation %s could not be kept alive: %s", self._ask.id, error)
                break
        else:
            return
        self.lost = True
        log.error("reservation %s was lost: jobs may run there again", self._ask.id)

    def _let_go(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(self._ask.ttl)

    def _told(self, released: bool, error: BaseException | None) -> None:
        if (self.lost or not released) and error is None:
            raise outlived()


def _asked(
    id: str,
    *,
    resource: str | None = None,
    queue: str | None = None,
    ttl: Duration = TTL,
    reason: str | None = None,
) -> Ask:
    scope, name = counted(resource=resource, queue=queue)
    kept = seconds(ttl, "ttl")
    if not SHORTEST <= kept <= LONGEST:
        raise InvalidSetting(f"ttl is from {SHORTEST} s to an hour, not {kept:g} s", code="invalid_duration")
    if scope != "all" and name == "*":
        raise InvalidSetting("reserve a name, or everything by naming nothing", code="invalid_name")
    return Ask(id, scope, name, kept, storable(reason))


def _reserved(id: str, found: Reservation | None, standing: Standing) -> Reserved:
    if found is None:  # the id is another tenant's
        raise NotFound(f"there is no reservation {id}", code="reservation_not_found")
    known = {each.name: getattr(found, each.name) for each in fields(found)}
    return Reserved(**known | {"state": standing.state}, running=standing.running, ahead=standing.ahead)


def _ended(reservation_id: str, released: bool) -> None:
    if not released:
        raise NotFound(f"there is no open reservation {reservation_id}", code="reservation_not_found")
