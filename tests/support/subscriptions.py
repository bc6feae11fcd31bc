"""Small builders for tests of subscriptions: make one, look, and see what came of it."""

from __future__ import annotations

from typing import Any

from holdfast.engine.job import Job
from holdfast.features.assembly import Store
from holdfast.features.events.model import Delivery, FeedResult, Subscribing, Subscription
from holdfast.stores.requests import JobFilter, SendEvent
from tests.support.stores import TENANT, new_id


def subscribe(
    store: Store, name: str, pattern: str, job_kind: str = "follow.up", *, tenant: str = TENANT, **fields: Any
) -> Subscription:
    new = Subscribing.of(name, pattern, job_kind, **fields)
    store.run(store.subscriptions.set(new, new_id(), "ada", tenant))
    return found(store, name, tenant)


def found(store: Store, name: str, tenant: str = TENANT) -> Subscription:
    one = store.run(store.subscriptions.get(name, tenant))
    assert one is not None, f"there is no subscription {name}"
    return one


def feed(store: Store, name: str, want: int = 1000, tenant: str = TENANT) -> FeedResult:
    return store.run(store.subscriptions.feed(name, want, tenant))


def feed_all(store: Store, name: str, want: int = 1000, tenant: str = TENANT) -> int:
    """Until there is nothing left to see; answers how many jobs were made."""
    made = 0
    while (fed := feed(store, name, want, tenant)).seen:
        made += fed.made
    return made


def made_of(store: Store, kind: str = "follow.up", tenant: str = TENANT) -> list[Job]:
    """The jobs there are of a kind, the oldest first."""
    jobs = store.run(store.jobs.list(JobFilter(tenant=tenant, kind=kind, limit=1000)))
    return sorted(jobs, key=lambda job: job.id)


def refusals(store: Store, one: Subscription) -> list[Delivery]:
    return store.run(store.subscriptions.deliveries(one.id, one.tenant, True, 100))


def tell(store: Store, name: str, data: str = "{}", *, cause: str | None = None, tenant: str = TENANT) -> str:
    return store.run(store.ledger.send(SendEvent(new_id(), name, data, cause_id=cause), "ada", tenant)).id
