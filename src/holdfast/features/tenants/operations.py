"""``app.tenants``: limits of each tenant, fair shares of queues, registration."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeVar, Unpack

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import check_name
from holdfast.engine.operation import Program, awaited, operation
from holdfast.errors import InvalidSetting, NotFound
from holdfast.features.tenants.model import EVERY_QUEUE, Pin, Tenant, TenantOptions, checked_settings
from holdfast.stores.flow import Flow, Steps, flow, run
from holdfast.stores.namespace import StoreNamespace

T = TypeVar("T")

INDEX_TIMEOUT = 600.0
"""Seconds. Sharing the first queue creates an index."""

_Tenants = list[Tenant]  # inside the class, `list` is an operation
_Names = list[str]


class Tenants(StoreNamespace):
    """Limits and fair shares of tenants, for the operator of the database. The operations take the name of a tenant;
    the session's tenant does not matter."""

    @operation
    def set(self, name: str, **options: Unpack[TenantOptions]) -> Program[Tenant]:
        """Register a tenant, or change the given options; None removes one.

        ``max_pending`` jobs may wait: more are refused (``tenant_full``). ``max_running`` jobs may run at the same
        time, and ``rate`` (``"10/s"``) may start per period: more wait. ``weight`` is its share in fairly shared
        queues; setting the first weight shares all queues.
        """
        return (yield from run(_with_index_timeout(self._set(name, options))))

    aset = awaited(set)

    @operation
    def get(self, name: str) -> Program[Tenant]:
        """A tenant with its usage. It must be registered or have jobs; otherwise ``NotFound``."""
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
        """Turn fair sharing between tenants on or off, for one queue or for all. By default every queue is shared as
        soon as a second tenant has jobs. Returns the shared queues: ``*`` means all, ``*`` with ``-mail`` all but
        mail."""
        return (yield from run(_with_index_timeout(self._fair(on, queue))))

    aset_fair_queues = awaited(set_fair_queues)

    @operation
    def fair_queues(self) -> Program[_Names]:
        """The queues that are shared fairly."""
        return (yield from run(self._store.tenants.fair_queues()))

    afair_queues = awaited(fair_queues)

    @operation
    def set_registration_required(self, on: bool = True) -> Program[None]:
        """Set whether a tenant must be registered before it can have jobs. Jobs of other tenants are then refused
        (``tenant_unregistered``). Jobs that are already waiting still run, with their retries."""
        yield from run(self._store.tenants.set_registered_only(bool(on), self._actor))

    aset_registration_required = awaited(set_registration_required)

    @operation
    def registration_required(self) -> Program[bool]:
        """Whether a tenant must be registered before it can have jobs."""
        return (yield from run(self._store.tenants.registered_only()))

    aregistration_required = awaited(registration_required)

    @operation
    def pin(self, login: str, tenant: str) -> Program[Pin]:
        """Pin a database login to a tenant: from its next statement on, no function and no table lets it act for
        another tenant, whatever its roles are. Raises ``Refused`` if the database has no logins (``no_logins``), or if
        a pin cannot restrict this login (``login_exempt``)."""
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
        """The pinned logins, by name. Empty if the database has no logins."""
        return (yield from run(self._store.tenants.pins()))

    apins = awaited(pins)

    @flow()
    def _set(self, name: str, options: TenantOptions) -> Steps[Tenant]:
        yield from self._store.tenants.set(_named(name), checked_settings(options), self._actor).start()
        return (yield from self._one(name))

    @flow(writes=False)
    def _get(self, name: str) -> Steps[Tenant]:
        return (yield from self._one(name))

    def _one(self, name: str) -> Steps[Tenant]:
        # All tenants are read, because the share of one depends on the others.
        for tenant in (yield from self._store.tenants.list(EVERY_TENANT).start()):
            if tenant.name == name:
                return tenant
        raise NotFound(
            f"no tenant {name} is registered or has jobs",
            code="tenant_not_found",
            fix=f"Register it with app.tenants.set({name!r}) or holdfast tenants set {name}.",
        )

    @flow()
    def _fair(self, on: bool, queue: str | None) -> Steps[_Names]:
        store = self._store
        current = yield from store.tenants.fair_queues().start()
        wanted = _changed_queues(current, on, EVERY_QUEUE if queue is None else check_name(queue, "queue"))
        if wanted != current or wanted == [EVERY_QUEUE]:  # [EVERY_QUEUE] may be the default, which is not stored yet
            yield from store.tenants.set_fair(wanted, self._actor).start()
        return wanted


def _changed_queues(current: _Names, on: bool, queue: str) -> _Names:
    """The shared queues after sharing of one queue, or of every queue, is turned on or off."""
    if queue == EVERY_QUEUE:
        return [EVERY_QUEUE] if on else []
    if EVERY_QUEUE in current:
        exceptions = {name for name in current if name not in (EVERY_QUEUE, f"-{queue}")}
        return [EVERY_QUEUE, *sorted(exceptions if on else {*exceptions, f"-{queue}"})]
    return sorted({*current, queue}) if on else [name for name in current if name != queue]


def _login(name: str) -> str:
    return check_name(name, "login", limit=63)


def _with_index_timeout(flow: Flow[T]) -> Flow[T]:
    return dataclasses.replace(flow, patience=INDEX_TIMEOUT)


def _named(name: str) -> str:
    if check_name(name, "tenant") == EVERY_TENANT:
        raise InvalidSetting('expected one tenant, got "*"', code="invalid_name")
    return name
