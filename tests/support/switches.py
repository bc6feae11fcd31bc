"""Pausing in tests, through the port."""

from __future__ import annotations

from typing import Any

from holdfast.features.limits.model import Pausing, Switch, named
from holdfast.stores.port import Store


def pause(
    store: Store, reason: str = "by hand", *, until: Any = None, refuse: bool | None = None, **what: Any
) -> Switch:
    return store.run(store.verbs.pause(Pausing.of(named(**what), reason, until, refuse), "ada"))


def resume(store: Store, **what: Any) -> bool:
    tenant, scope, name = named(**what)
    return store.run(store.verbs.resume(scope, name, "bob", tenant))


def paused(store: Store, tenant: str = "*") -> list[str]:
    return [switch.what for switch in store.run(store.verbs.switches(tenant))]
