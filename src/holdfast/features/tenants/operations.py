"""``app.tenants``: limits of each tenant, fair shares of queues, registration."""

from __future__ import annotations

import dataclasses
from typing import Annotated, TypeVar, Unpack

from holdfast.engine.declared import Help, http
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
_Pins = list[Pin]

TenantName = Annotated[str, Help("The tenant's name.", "TENANT")]
Login = Annotated[str, Help("A login of the database.", "LOGIN")]
On = Annotated[bool, Help("Whether it is on.")]


class Tenants(StoreNamespace):
    """Limits and fair shares of tenants, for the operator of the database. The operations take the name of a tenant;
    the session's tenant does not matter."""

    @operation
    @http("PUT /tenants/{name}", "admin", tenant="all", example={"title": "Acme", "max_pending": 100_000, "weight": 2})
    def set(self, name: TenantName, **options: Unpack[TenantOptions]) -> Program[Tenant]:
        """Register a tenant, or change the given settings. Other settings stay.

        None removes a setting. ``max_pending`` jobs may wait: more are refused (``tenant_full``). ``max_running`` jobs
        may run at the same time, and ``rate`` (``"10/s"``) may start per period: more wait. ``weight`` is its share in
        fairly shared queues; setting the first weight shares all queues.
        """
        return (yield from run(_with_index_timeout(self._set(name, options))))

    aset = awaited(set)

    @operation
    @http("GET /tenants/{name}", "read", name="show_tenant")
    def get(self, name: TenantName) -> Program[Tenant]:
        """Show a tenant with its limits and its usage. It must be registered or have jobs."""
        return (yield from run(self._get(name)))

    aget = awaited(get)

    @operation
    @http("GET /tenants", "read", by_hand=True)
    def list(self) -> Program[_Tenants]:
        """List tenants that are registered or have jobs, by name, with their usage and limits."""
        return (yield from run(self._store.tenants.list(EVERY_TENANT)))

    alist = awaited(list)

    @operation
    @http("DELETE /tenants/{name}", "admin", tenant="all")
    def remove(self, name: TenantName) -> Program[None]:
        """Remove the registration and the settings of a tenant. Its jobs stay, and no limit of it applies to them any
        more."""
        if not (yield from run(self._store.tenants.remove(_named(name), self._actor))):
            raise NotFound(f"tenant {name} is not registered", code="tenant_not_found")

    aremove = awaited(remove)

    @operation
    @http(
        "PUT /tenants/fair-queues",
        "admin",
        tenant="all",
        name="set_fair_queues",
        result="fair_queues",
        example={"on": True, "queue": "mail"},
    )
    def set_fair_queues(
        self,
        on: On = True,
        *,
        queue: Annotated[str | None, Help("Only this queue; default: all queues.", "NAME")] = None,
    ) -> Program[_Names]:
        """Turn fair sharing between tenants on or off, for one queue or for all. By default every queue is shared as
        soon as a second tenant has jobs.

        Returns the shared queues: ``*`` means all, ``*`` with ``-mail`` all but mail.
        """
        return (yield from run(_with_index_timeout(self._fair(on, queue))))

    aset_fair_queues = awaited(set_fair_queues)

    @operation
    @http("GET /tenants/fair-queues", "read", tenant="all", name="fair_queues", result="fair_queues")
    def fair_queues(self) -> Program[_Names]:
        """List the queues that are shared fairly: ``*`` means all, ``*`` with ``-mail`` all but mail."""
        return (yield from run(self._store.tenants.fair_queues()))

    afair_queues = awaited(fair_queues)

    @operation
    @http("PUT /tenants/registered-only", "admin", tenant="all", name="set_registered_only", example={"on": True})
    def set_registered_only(self, on: On = True) -> Program[None]:
        """Turn on or off that only registered tenants may have jobs. Jobs that are already waiting still run, with
        their retries.

        Jobs of other tenants are then refused (``tenant_unregistered``).
        """
        yield from run(self._store.tenants.set_registered_only(bool(on), self._actor))

    aset_registered_only = awaited(set_registered_only)

    @operation
    @http("GET /tenants/registered-only", "read", tenant="all", name="registered_only", result="registered_only")
    def registered_only(self) -> Program[bool]:
        """Whether a tenant must be registered before it can have jobs."""
        return (yield from run(self._store.tenants.registered_only()))

    aregistered_only = awaited(registered_only)

    @operation
    @http("PUT /tenants/pins/{login}", "admin", tenant="all", name="pin_login", example={"tenant": "acme"})
    def pin(self, login: Login, tenant: TenantName) -> Program[Pin]:
        """Pin a database login to one tenant: it cannot act for another, whatever its roles are. Refused where the
        database has no logins.

        It counts from its next statement on, in every function and table. Raises ``Refused`` if the database has no
        logins (``no_logins``), or if a pin cannot restrict this login (``login_exempt``).
        """
        return (yield from run(self._store.tenants.pin(_login(login), _named(tenant), self._actor)))

    apin = awaited(pin)

    @operation
    @http("DELETE /tenants/pins/{login}", "admin", tenant="all", name="unpin_login")
    def unpin(self, login: Login) -> Program[None]:
        """Remove the pin of a database login. Its roles decide again what it may do."""
        if not (yield from run(self._store.tenants.unpin(_login(login), self._actor))):
            raise NotFound(f"login {login} is not pinned", code="pin_not_found", fix="List pins: holdfast tenants pins")

    aunpin = awaited(unpin)

    @operation
    @http("GET /tenants/pins", "admin", tenant="all", name="list_pins")
    def pins(self) -> Program[_Pins]:
        """List database logins that are pinned to one tenant, by name."""
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
    return dataclasses.replace(flow, response_timeout=INDEX_TIMEOUT)


def _named(name: str) -> str:
    if check_name(name, "tenant") == EVERY_TENANT:
        raise InvalidSetting('expected one tenant, got "*"', code="invalid_name")
    return name
