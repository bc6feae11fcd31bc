"""``app.tenants``: limits of each tenant, fair shares of queues, registration."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeVar, Unpack

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import check_name
from holdfast.engine.operation import Program, awaited, operation
from holdfast.errors import InvalidSetting, NotFound
from holdfast.features.tenants.model import EVERY_QUEUE, Pin, Tenant, TenantOptions, terms
from holdfast.stores.flow import Flow, Steps, flow, run
from holdfast.stores.namespace import StoreNamespace

T = TypeVar("T")

INDEX_WITHIN = 600.0
"""Seconds: the first queue that is shared has an index made."""

_Tenants = list[Tenant]  # inside the class the word is an operation
_Names = list[str]


class Tenants(StoreNamespace):
    """Limits and fair shares of tenants, for the operator of the database: they name a tenant, whichever the session
    works for."""

    @operation
    def set(self, name: str, **what: Unpack[TenantOptions]) -> Program[Tenant]:
        """Register a tenant, or change the given options; None removes one.

        ``max_pending`` jobs may wait: more are refused (``tenant_full``). ``max_running`` jobs run at once and ``rate``
        (``"10/s"``) start per period: more wait. ``weight`` is its share in fairly shared queues; the first weight that
        is set shares all queues.
        """
        return (yield from run(_patient(self._set(name, what))))

    aset = awaited(set)

    @operation
    def get(self, name: str) -> Program[Tenant]:
        """One tenant with what its jobs use, also an unregistered one that has jobs; ``NotFound`` otherwise."""
        return (yield from run(self._get(name)))

    aget = awaited(get)

    @operation
    def list(self) -> Program[_Tenants]:
        """Registered tenants and those that have jobs, by name."""
        return (yield from run(self._store.tenants.list(EVERY_TENANT)))

    alist = awaited(list)

    @operation
    def remove(self, name: str) -> Program[None]:
        """Remove the settings of a tenant. Its jobs stay, and no limit of it applies to them any more."""
        if not (yield from run(self._store.tenants.remove(_named(name), self._actor))):
            raise NotFound(f"tenant {name} is not registered", code="tenant_not_found")

    aremove = awaited(remove)

    @operation
    def set_fair_queues(self, on: bool = True, *, queue: str | None = None) -> Program[_Names]:
        """Share a queue, or without one all queues, fairly between tenants, or stop it. Without a choice every queue is
        shared as soon as a second tenant has jobs. Returns the queues that are shared: ``*`` is all, and beside it
        ``-mail`` all but mail."""
        return (yield from run(_patient(self._fair(on, queue))))

    aset_fair_queues = awaited(set_fair_queues)

    @operation
    def fair_queues(self) -> Program[_Names]:
        """The queues that are shared fairly."""
        return (yield from run(self._store.tenants.fair_queues()))

    afair_queues = awaited(fair_queues)

    @operation
    def set_registration_required(self, on: bool = True) -> Program[None]:
        """Whether a tenant has to be registered before it can have jobs: jobs of others are then refused
        (``tenant_unregistered``). Jobs that wait already run to their end, with retries."""
        yield from run(self._store.tenants.set_registered_only(bool(on), self._actor))

    aset_registration_required = awaited(set_registration_required)

    @operation
    def registration_required(self) -> Program[bool]:
        """Whether a tenant has to be registered before it can have jobs."""
        return (yield from run(self._store.tenants.registered_only()))

    aregistration_required = awaited(registration_required)

    @operation
    def pin(self, login: str, tenant: str) -> Program[Pin]:
        """Pin a database login to a tenant: from its next statement on, no function and no table lets it act for
        another one, whatever its roles are. ``Refused`` where the database has no logins (``no_logins``), and for a
        login that a pin cannot hold (``login_exempt``)."""
        return (yield from run(self._store.tenants.pin(_login(login), _named(tenant), self._actor)))

    apin = awaited(pin)

    @operation
    def unpin(self, login: str) -> Program[None]:
        """Remove the pin of a login; ``NotFound`` if it has none."""
        if not (yield from run(self._store.tenants.unpin(_login(login), self._actor))):
            raise NotFound(f"login {login} is not pinned", code="pin_not_found", fix="List pins: holdfast tenants pins")

    aunpin = awaited(unpin)

    @operation
    def pins(self) -> Program[Sequence[Pin]]:
        """The pinned logins, by name. Empty where the database has no logins."""
        return (yield from run(self._store.tenants.pins()))

    apins = awaited(pins)

    @flow()
    def _set(self, name: str, what: TenantOptions) -> Steps[Tenant]:
        store = self._store
        yield from store.tenants.set(_named(name), terms(what), self._actor).start()
        return (yield from self._one(name))

    @flow(writes=False)
    def _get(self, name: str) -> Steps[Tenant]:
        return (yield from self._one(name))

    def _one(self, name: str) -> Steps[Tenant]:
        every = yield from self._store.tenants.list(EVERY_TENANT).start()  # its share is one of all
        found = [each for each in every if each.name == name]
        if not found:
            raise NotFound(
                f"no tenant {name} is registered or has jobs",
                code="tenant_not_found",
                fix=f"Register it with app.tenants.set({name!r}) or holdfast tenants set {name}.",
            )
        return found[0]

    @flow()
    def _fair(self, on: bool, queue: str | None) -> Steps[_Names]:
        store = self._store
        now = yield from store.tenants.fair_queues().start()
        wanted = _wanted(now, on, EVERY_QUEUE if queue is None else check_name(queue, "queue"))
        if wanted != now or wanted == [EVERY_QUEUE]:  # which may be what nobody has chosen yet
            yield from store.tenants.set_fair(wanted, self._actor).start()
        return wanted


def _wanted(now: _Names, on: bool, queue: str) -> _Names:
    if queue == EVERY_QUEUE:
        return [EVERY_QUEUE] if on else []
    if EVERY_QUEUE in now:
        others = {each for each in now if each not in (EVERY_QUEUE, f"-{queue}")}
        return [EVERY_QUEUE, *sorted(others if on else {*others, f"-{queue}"})]
    return sorted({*now, queue}) if on else [each for each in now if each != queue]


def _login(name: str) -> str:
    return check_name(name, "login", limit=63)


def _patient(long: Flow[T]) -> Flow[T]:
    return dataclasses.replace(long, patience=INDEX_WITHIN)


def _named(name: str) -> str:
    if check_name(name, "tenant") == EVERY_TENANT:
        raise InvalidSetting('expected one tenant, got "*"', code="invalid_name")
    return name
