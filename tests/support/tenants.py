"""What tests of tenants set, and how they look at who was served."""

from __future__ import annotations

from collections import Counter
from typing import Any

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.assembly import Store
from holdfast.features.tenants.model import Tenant, checked_settings
from tests.support.stores import claim, open_lease, put, settle, spec


def register(store: Store, name: str, **what: Any) -> None:
    store.run(store.tenants.set(name, checked_settings(what), "ada"))  # type: ignore[arg-type]


def share(store: Store, *queues: str) -> None:
    store.run(store.tenants.set_fair(queues, "ada"))


def tenants(store: Store, tenant: str = EVERY_TENANT) -> dict[str, Tenant]:
    return {each.name: each for each in store.run(store.tenants.list(tenant))}


def fill(store: Store, count: int, *names: str, **fields: Any) -> None:
    """So many jobs for each, one tenant after the other."""
    for name in names:
        put(store, *(spec(**fields) for _ in range(count)), tenant=name)


def served(store: Store, turns: int, want: int, **how: Any) -> Counter[str]:
    """Whose jobs so many claims take, each job being done before the next claim."""
    lease, counts = open_lease(store), Counter[str]()
    for _ in range(turns):
        claims = claim(store, lease, want, **how)
        counts.update(each.tenant for each in claims)
        if claims:
            settle(store, claims)
    return counts
