"""Tenants, as ``app.tenants``: what each is held to, and whether they share queues fairly (JF-12)."""

from __future__ import annotations

import dataclasses
from typing import TypeVar, Unpack

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import check_name
from holdfast.errors import InvalidSetting, NotFound
from holdfast.features.tenants.model import EVERY_QUEUE, Tenant, TenantOptions, terms
from holdfast.stores.flow import Flow, Steps, flow
from holdfast.stores.port import Caller

T = TypeVar("T")

INDEX_WITHIN = 600.0
"""Seconds: the first queue that is shared has an index made."""

_Tenants = list[Tenant]  # inside the class the word is a method


class Tenants:
    """Each call has two colours: the one that begins with ``a`` is awaited. It is for whoever runs the database: a
    tenant is named here, whichever this program works for."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def set(self, name: str, **what: Unpack[TenantOptions]) -> Tenant:
        """Register a tenant, or change what is said; the rest stays, and None takes something away.

        ``max_pending`` jobs may wait: more are refused (``tenant_full``). ``max_running`` run at once and ``rate``
        (``"10/s"``) are begun in a time: more wait. ``weight`` is its share where queues are shared fairly; the first
        that is set has all of them shared.
        """
        return self._caller.run(_patient(self._set(name, what)))

    async def aset(self, name: str, **what: Unpack[TenantOptions]) -> Tenant:
        return await self._caller.arun(_patient(self._set(name, what)))

    def get(self, name: str) -> Tenant:
        """One tenant, with what its jobs use; also one that nobody registered, if it has jobs."""
        return self._caller.run(self._get(name))

    async def aget(self, name: str) -> Tenant:
        return await self._caller.arun(self._get(name))

    def list(self) -> _Tenants:
        """The registered ones and those that have jobs, by their names."""
        return self._caller.run(self._caller.store.tenants.list(EVERY_TENANT))

    async def alist(self) -> _Tenants:
        return await self._caller.arun(self._caller.store.tenants.list(EVERY_TENANT))

    def delete(self, name: str) -> None:
        """Forget what was set for a tenant. Its jobs stay, and are held to nothing of it any more."""
        _found(name, self._caller.run(self._caller.store.tenants.remove(_named(name), self._caller.actor)))

    async def adelete(self, name: str) -> None:
        _found(name, await self._caller.arun(self._caller.store.tenants.remove(_named(name), self._caller.actor)))

    def fair(self, on: bool = True, *, queue: str | None = None) -> _Names:
        """Have tenants share a queue fairly, or all of them, or no more; answers which are shared (``*`` is all)."""
        return self._caller.run(_patient(self._fair(on, queue)))

    async def afair(self, on: bool = True, *, queue: str | None = None) -> _Names:
        return await self._caller.arun(_patient(self._fair(on, queue)))

    def shared(self) -> _Names:
        """Which queues are shared."""
        return self._caller.run(self._caller.store.tenants.fair_queues())

    def registered_only(self, on: bool | None = None) -> bool:
        """Whether a tenant has to be registered before it can have jobs: others are refused (``tenant_unregistered``).
        What waits already runs to its end, and is retried. Without ``on``: look."""
        return self._caller.run(self._registered(on))

    async def aregistered_only(self, on: bool | None = None) -> bool:
        return await self._caller.arun(self._registered(on))

    def _registered(self, on: bool | None) -> Flow[bool]:
        store = self._caller.store
        return store.tenants.registered_only() if on is None else self._require(on)

    @flow()
    def _require(self, on: bool) -> Steps[bool]:
        yield from self._caller.store.tenants.set_registered_only(on, self._caller.actor).start()
        return on

    @flow()
    def _set(self, name: str, what: TenantOptions) -> Steps[Tenant]:
        store = self._caller.store
        yield from store.tenants.set(_named(name), terms(what), self._caller.actor).start()
        return (yield from self._one(name))

    def _get(self, name: str) -> Flow[Tenant]:
        return flow(writes=False)(self._one)(name)

    def _one(self, name: str) -> Steps[Tenant]:
        every = yield from self._caller.store.tenants.list(EVERY_TENANT).start()  # its share is one of all
        found = [each for each in every if each.name == name]
        if not found:
            raise NotFound(
                f"there is no tenant {name}, nor any job of it",
                code="tenant_not_found",
                fix=f"Register it: app.tenants.set({name!r}), or holdfast tenants set {name}",
            )
        return found[0]

    @flow()
    def _fair(self, on: bool, queue: str | None) -> Steps[_Names]:
        store = self._caller.store
        now = yield from store.tenants.fair_queues().start()
        wanted = _wanted(now, on, EVERY_QUEUE if queue is None else check_name(queue, "queue"))
        if wanted != now:
            yield from store.tenants.set_fair(wanted, self._caller.actor).start()
        return wanted


_Names = list[str]


def _wanted(now: _Names, on: bool, queue: str) -> _Names:
    if queue == EVERY_QUEUE:
        return [EVERY_QUEUE] if on else []
    if EVERY_QUEUE in now and not on:
        raise InvalidSetting(
            "every queue is shared, and this one with them",
            code="conflicting_options",
            fix="Switch sharing off, and on again for the queues that are to be shared.",
        )
    if on:
        return now if EVERY_QUEUE in now else sorted({*now, queue})
    return [each for each in now if each != queue]


def _patient(long: Flow[T]) -> Flow[T]:
    return dataclasses.replace(long, patience=INDEX_WITHIN)


def _named(name: str) -> str:
    if check_name(name, "tenant") == EVERY_TENANT:
        raise InvalidSetting("name one tenant; * is none", code="invalid_name")
    return name


def _found(name: str, removed: bool) -> None:
    if not removed:
        raise NotFound(f"tenant {name} is not registered", code="tenant_not_found")
