"""``app.limits``, ``app.pauses``, ``app.reservations`` (with the reservation block), ``app.queues``.

Direct reservations (SC-10): ``with app.reserve("gpu-0", wait="30s"):`` and ``async with``, one object for both.

Whoever reserves stands in line until its turn has come. From then on no job is begun there, and the block begins when
those under way have ended. A thread keeps the reservation alive; if its process dies, it runs out by itself.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from dataclasses import fields
from datetime import datetime
from types import TracebackType
from typing import TypedDict, TypeVar, Unpack

from holdfast.engine.names import check_name
from holdfast.engine.order import check_priority
from holdfast.engine.settlement import storable
from holdfast.engine.units import Duration, seconds
from holdfast.errors import HoldfastError, InvalidSetting, NotFound, StoreError
from holdfast.features.agents.model import Agent
from holdfast.features.limits.model import (
    LOOK_EVERY,
    LOOK_LATER,
    RESERVATION_LONGEST,
    RESERVATION_SHORTEST,
    TTL,
    Ask,
    Limit,
    LimitOptions,
    Named,
    Pausing,
    QueueSetting,
    Reservation,
    Reserved,
    Rule,
    Standing,
    Switch,
    busy,
    counted,
    in_words,
    is_begun,
    named,
    outlived,
    why_left,
)
from holdfast.stores.flow import Flow, Steps, flow, read_together
from holdfast.stores.port import Caller

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
        return self._caller.run(self._caller.store.reservations.list(self._caller.tenant, ended, limit))

    async def alist(self, *, ended: bool = False, limit: int = 50) -> _Reservations:
        return await self._caller.arun(self._caller.store.reservations.list(self._caller.tenant, ended, limit))

    def get(self, reservation_id: str) -> Reservation | None:
        return self._caller.run(self._caller.store.reservations.get(reservation_id, self._caller.tenant))

    async def aget(self, reservation_id: str) -> Reservation | None:
        return await self._caller.arun(self._caller.store.reservations.get(reservation_id, self._caller.tenant))

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
        return self._caller.store.reservations.set(ask, self._caller.actor, self._caller.tenant)

    def release(self, reservation_id: str, *, reason: str = "released by an operator") -> None:
        """End somebody's reservation: whoever holds it is told when it next keeps it alive."""
        _ended(reservation_id, self._caller.run(self._release(reservation_id, reason)))

    async def arelease(self, reservation_id: str, *, reason: str = "released by an operator") -> None:
        _ended(reservation_id, await self._caller.arun(self._release(reservation_id, reason)))

    def _release(self, reservation_id: str, reason: str) -> Flow[bool]:
        why = storable(reason) or "released"
        return self._caller.store.reservations.release(reservation_id, why, self._caller.actor, self._caller.tenant)


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
        return self._caller.store.reservations.set(self._ask, self._caller.actor, self._caller.tenant)

    def _releasing(self, why: str) -> Flow[bool]:
        return self._caller.store.reservations.release(self._ask.id, why, self._caller.actor, self._caller.tenant)

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
    if not RESERVATION_SHORTEST <= kept <= RESERVATION_LONGEST:
        raise InvalidSetting(
            f"ttl is from {RESERVATION_SHORTEST} s to an hour, not {kept:g} s", code="invalid_duration"
        )
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


BATCH = 1000

_Switches = list[Switch]  # inside the class the word is a method


class Switches:
    """Each call has two colours: the one that begins with ``a`` is awaited."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def pause(
        self,
        *,
        reason: str,
        until: datetime | Duration | None = None,
        refuse_enqueue: bool | None = None,
        **what: Unpack[Named],
    ) -> Switch:
        """Begin nothing more of a ``queue``, a ``kind``, an ``agent`` (of every tenant, or of a ``tenant``), of a whole
        ``tenant``, or of ``everything``. When this has returned no claim that begins later takes such a job; what runs
        may end. ``until`` is a time or a span after which it goes on by itself.

        New jobs are taken, and wait; ``refuse_enqueue=True`` refuses them. For everything it is the other way round,
        and the duties rest too: schedules do not fire, nothing is promoted, expired or freed.
        """
        return self._caller.run(self._pause(what, reason, until, refuse_enqueue))

    async def apause(
        self,
        *,
        reason: str,
        until: datetime | Duration | None = None,
        refuse_enqueue: bool | None = None,
        **what: Unpack[Named],
    ) -> Switch:
        return await self._caller.arun(self._pause(what, reason, until, refuse_enqueue))

    def resume(self, **what: Unpack[Named]) -> None:
        """Go on with what was paused; named as it was then. An agent that was disabled is enabled by it."""
        _found(what, self._caller.run(self._resume(what)))

    async def aresume(self, **what: Unpack[Named]) -> None:
        _found(what, await self._caller.arun(self._resume(what)))

    def list(self) -> _Switches:
        """What is paused of this tenant's or of everybody's, the widest first; disabled agents are among it."""
        return self._caller.run(listed(self._caller, self._caller.tenant))

    async def alist(self) -> _Switches:
        return await self._caller.arun(listed(self._caller, self._caller.tenant))

    def _pause(
        self, what: Named, reason: str, until: datetime | Duration | None, refuse_enqueue: bool | None
    ) -> Flow[Switch]:
        return self._caller.store.pauses.set(
            Pausing.of(named(**what), reason, until, refuse_enqueue), self._caller.actor
        )

    def _resume(self, what: Named) -> Flow[bool]:
        return _go_on(self._caller, named(**what))


@flow()
def _go_on(caller: Caller, what: tuple[str, str, str]) -> Steps[bool]:
    tenant, scope, name = what
    store = caller.store
    was = yield from store.pauses.remove(scope, name, caller.actor, tenant).start()
    whose = caller.tenant if tenant == "*" else tenant
    agent = (yield from store.agents.get(name, whose).start()) if scope == "agent" else None
    if agent is None or not agent.disabled:
        return was
    yield from store.agents.enable(name, whose, caller.actor).start()
    yield from store.agents.resume(name, BATCH, whose).start()
    return True


@flow(writes=False)
def listed(caller: Caller, tenant: str) -> Steps[_Switches]:
    found, disabled = yield from read_together(
        caller.store.pauses.list(tenant).start(), caller.store.agents.list(tenant, disabled=True).start()
    )
    return [*found, *(_as_switch(agent) for agent in disabled)]


def _as_switch(agent: Agent) -> Switch:
    by, why = agent.disabled_by or "", agent.disabled_reason or ""
    since = agent.disabled_at or agent.updated_at
    return Switch(agent.tenant, "agent", agent.id, why, True, by, since, None)


def _found(what: Named, was: bool) -> None:
    if not was:
        tenant, scope, name = named(**what)
        raise NotFound(
            f"{in_words(scope, name, tenant)} is not paused", code="not_paused", fix="See what is: holdfast switches"
        )


_Limits = list[Limit]  # inside the class the word is a method


class Limits:
    """Each call has two colours: the one that begins with ``a`` is awaited."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def set(self, **options: Unpack[LimitOptions]) -> Limit:
        """Limit a queue, a kind, a key, a resource, an agent, a tenant, or (with none of these) all jobs.

        ``app.limits.set(queue="mail", concurrency=5)``, ``app.limits.set(kind="call", rate="100/m", burst=10)``. The
        name ``*`` is each by itself: ``key="*", concurrency=1`` runs one job of each key. It takes the place of what
        was set for the same before, at once; what runs above a lowered limit runs to its end.
        """
        return self._caller.run(self._set(options))

    async def aset(self, **options: Unpack[LimitOptions]) -> Limit:
        return await self._caller.arun(self._set(options))

    def remove(self, **what: str) -> None:
        """``app.limits.remove(queue="mail")``; without a name the limit on all jobs."""
        _limit_found(what, self._caller.run(self._remove(what)))

    async def aremove(self, **what: str) -> None:
        _limit_found(what, await self._caller.arun(self._remove(what)))

    def list(self) -> _Limits:
        """All of them, with how many jobs run under each and how many it holds back."""
        return self._caller.run(self._caller.store.limits.list(self._caller.tenant))

    async def alist(self) -> _Limits:
        return await self._caller.arun(self._caller.store.limits.list(self._caller.tenant))

    def get(self, **what: str) -> Limit | None:
        wanted = (self._caller.tenant, *counted(**what))
        return next((each for each in self.list() if (each.tenant, each.scope, each.name) == wanted), None)

    def _set(self, options: LimitOptions) -> Flow[Limit]:
        how = {name: options.get(name) for name in ("concurrency", "rate", "burst")}
        what = {name: str(value) for name, value in options.items() if name not in how}
        rule = Rule.of(*counted(**what), **how)  # type: ignore[arg-type]
        return self._caller.store.limits.set(rule, self._caller.actor, self._caller.tenant)

    def _remove(self, what: dict[str, str]) -> Flow[bool]:
        scope, name = counted(**what)
        return self._caller.store.limits.remove(scope, name, self._caller.actor, self._caller.tenant)


def _limit_found(what: dict[str, str], removed: bool) -> None:
    if not removed:
        scope, name = counted(**what)
        raise NotFound(f"there is no limit on {scope} {name} in this tenant", code="limit_not_found")


AGING_SHORTEST, AGING_LONGEST = 0.001, 366 * 86_400.0

_Settings = list[QueueSetting]


class Queues:
    """Each call has two colours: the one that begins with ``a`` is awaited."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def age(self, queue: str, *, every: Duration | None, step: int = 1, most: int = 100) -> QueueSetting | None:
        """Raise the priority of jobs in a queue by ``step`` for each ``every`` that they wait for their turn, up to
        ``most``; ``every=None`` ends that. What was raised stays so."""
        return self._caller.run(self._age(queue, every, step, most))

    async def aage(self, queue: str, *, every: Duration | None, step: int = 1, most: int = 100) -> QueueSetting | None:
        return await self._caller.arun(self._age(queue, every, step, most))

    def list(self) -> _Settings:
        return self._caller.run(self._caller.store.queues.list(self._caller.tenant))

    async def alist(self) -> _Settings:
        return await self._caller.arun(self._caller.store.queues.list(self._caller.tenant))

    def _age(self, queue: str, every: Duration | None, step: int, most: int) -> Flow[QueueSetting | None]:
        name = check_name(queue, "queue")
        span = None if every is None else seconds(every, "span of aging")
        if span is not None and not AGING_SHORTEST <= span <= AGING_LONGEST:
            raise InvalidSetting(f"jobs age in {AGING_SHORTEST} s to a year, not {span:g} s", code="invalid_duration")
        if not 1 <= check_priority(step) <= 32_767:
            raise InvalidSetting(f"a step of aging is from 1 to 32,767, not {step!r}", code="invalid_priority")
        caller = self._caller
        return caller.store.queues.set_aging(name, span, step, check_priority(most), caller.actor, caller.tenant)
