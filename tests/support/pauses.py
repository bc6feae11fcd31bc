"""Pausing in tests, through the port."""

from __future__ import annotations

from typing import Any

from holdfast.features.assembly import Store
from holdfast.features.limits.model import Pause, Pausing, named


def pause(
    store: Store, reason: str = "by hand", *, until: Any = None, refuse: bool | None = None, **what: Any
) -> Pause:
    return store.run(store.pauses.set(Pausing.of(named(**what), reason, until, refuse), "ada"))


def resume(store: Store, **what: Any) -> bool:
    tenant, scope, name = named(**what)
    return store.run(store.pauses.remove(scope, name, "bob", tenant))


def paused(store: Store, tenant: str = "*") -> list[str]:
    return [pause.what for pause in store.run(store.pauses.list(tenant))]
