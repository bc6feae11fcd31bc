"""Pausing (DP-18), as ``app.pause``, ``app.resume`` and ``app.switches``."""

from __future__ import annotations

from datetime import datetime
from typing import Unpack

from holdfast.domain.agents import Agent
from holdfast.domain.switches import Named, Pausing, Switch, in_words, named
from holdfast.engine.units import Duration
from holdfast.errors import NotFound
from holdfast.stores.base import Caller
from holdfast.stores.beside import side_by_side
from holdfast.stores.flow import Flow, Steps, flow

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
        return self._caller.verbs.pause(Pausing.of(named(**what), reason, until, refuse_enqueue), self._caller.actor)

    def _resume(self, what: Named) -> Flow[bool]:
        return _go_on(self._caller, named(**what))


@flow()
def _go_on(caller: Caller, what: tuple[str, str, str]) -> Steps[bool]:
    tenant, scope, name = what
    verbs = caller.verbs
    was = yield from verbs.resume(scope, name, caller.actor, tenant).start()
    whose = caller.tenant if tenant == "*" else tenant
    agent = (yield from verbs.agent(name, whose).start()) if scope == "agent" else None
    if agent is None or not agent.disabled:
        return was
    yield from verbs.enable_agent(name, whose, caller.actor).start()
    yield from verbs.resume_agent(name, BATCH, whose).start()
    return True


@flow(writes=False)
def listed(caller: Caller, tenant: str) -> Steps[_Switches]:
    found, disabled = yield from side_by_side(
        caller.verbs.switches(tenant).start(), caller.verbs.agents(tenant, disabled=True).start()
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
