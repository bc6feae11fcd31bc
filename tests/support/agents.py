"""Small builders for tests of agents, through the port."""

from __future__ import annotations

from typing import Any

from holdfast.features.agents.model import Agent, Definition
from holdfast.features.assembly import Store
from tests.support.stores import TENANT


def register(store: Store, id: str = "planner", *, tenant: str = TENANT, **definition: Any) -> Agent:
    return store.run(store.agents.set(Definition.of(id, **definition), tenant))


def disable(store: Store, id: str = "planner", reason: str = "it loops", *, tenant: str = TENANT) -> Agent | None:
    """As `app.agents.disable` does it: at once, and back when nobody is left who found it enabled."""
    agent = store.run(store.agents.disable(id, reason, "ada", tenant))
    assert store.run(store.agents.drain(id, tenant))
    return agent


def enable(store: Store, id: str = "planner", *, tenant: str = TENANT) -> int:
    """Answers how many jobs came back."""
    store.run(store.agents.enable(id, tenant))
    total = 0
    while some := store.run(store.agents.resume(id, 1000, tenant)):
        total += some
    return total
