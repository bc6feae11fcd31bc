"""Small builders for tests of agents, through the port."""

from __future__ import annotations

from typing import Any

from holdfast.features.agents.model import Agent, Definition
from holdfast.stores.port import Store
from tests.support.stores import TENANT


def register(store: Store, id: str = "planner", *, tenant: str = TENANT, **definition: Any) -> Agent:
    return store.run(store.verbs.register_agent(Definition.of(id, **definition), tenant))


def disable(store: Store, id: str = "planner", reason: str = "it loops", *, tenant: str = TENANT) -> Agent | None:
    """As `app.agents.disable` does it: at once, and back when nobody is left who found it enabled."""
    agent = store.run(store.verbs.disable_agent(id, reason, "ada", tenant))
    assert store.run(store.verbs.drain_agent(id, tenant))
    return agent


def enable(store: Store, id: str = "planner", *, tenant: str = TENANT) -> int:
    """Answers how many jobs came back."""
    store.run(store.verbs.enable_agent(id, tenant))
    total = 0
    while some := store.run(store.verbs.resume_agent(id, 1000, tenant)):
        total += some
    return total
