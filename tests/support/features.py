"""Builders for tests of features, through the store's port; one section per feature.

Jobs and leases are in `stores.py`, steps and approvals in `steps.py`, schedules and workflows in modules of their name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from holdfast.engine.job import EVERY_TENANT, Job, Verdict
from holdfast.engine.order import Move
from holdfast.engine.units import Duration
from holdfast.features.agents.model import Agent, Definition
from holdfast.features.assembly import Store
from holdfast.features.audit.model import Anchor, Report, Seal
from holdfast.features.audit.verification import Check
from holdfast.features.connectors.model import Connector, ConnectorDraft
from holdfast.features.events.model import Delivery, FeedResult, NewSubscription, Subscription
from holdfast.features.limits.model import Pause, PauseDraft, pause_target
from holdfast.features.retention.model import Retention, RetentionRule
from holdfast.features.tenants.model import Tenant, checked_settings
from holdfast.features.tokens.model import SESSION_PREFIX, ApiToken, Issuing, hash_of, new_token, shown_of
from holdfast.features.webhooks.model import Webhook, WebhookDelivery, WebhookDraft
from holdfast.stores.requests import JobFilter, SendEvent
from tests.support.direct_sql import ByHand, unguarded
from tests.support.ledger import all_jobs
from tests.support.stores import TENANT, claim, new_id, open_lease, put, settle, spec

VERSION = "tests"
"""The program version that seals record."""

# --- agents ---


def set_agent(store: Store, id: str = "planner", *, tenant: str = TENANT, **definition: Any) -> Agent:
    return store.run(store.agents.set(Definition.of(id, **definition), tenant))


def disable(store: Store, id: str = "planner", reason: str = "it loops", *, tenant: str = TENANT) -> Agent | None:
    """Disable an agent and wait, as `app.agents.disable` does, until no transaction still sees it enabled."""
    agent = store.run(store.agents.disable(id, reason, "ada", tenant))
    assert store.run(store.agents.drain(id, tenant))
    return agent


def enable(store: Store, id: str = "planner", *, tenant: str = TENANT) -> int:
    """Enable an agent; return the number of resumed jobs."""
    store.run(store.agents.enable(id, tenant))
    total = 0
    while some := store.run(store.agents.resume(id, 1000, tenant)):
        total += some
    return total


# --- audit ---


def seal(store: Store, want: int = 2000) -> int:
    """Seal every unsealed row, in blocks of ``want``; return their number."""
    total = 0
    while done := store.run(store.audit.seal(VERSION, want)):
        total += done
    return total


def newest(store: Store) -> Seal:
    newest_seal = store.run(store.audit.get_seal())
    assert newest_seal is not None
    return newest_seal


def anchor(store: Store) -> Anchor:
    last = newest(store)
    return Anchor(last.number, last.digest)


def verify(store: Store, anchors: Sequence[Anchor] = (), start: Seal | None = None) -> Report:
    check = Check(start, anchors)
    while (block := store.run(store.audit.block(check.last))) is not None:
        check.add(block)
    return check.end(store.run(store.audit.unsealed(check.last)))


def flaws(store: Store, *anchors: Anchor) -> list[tuple[str, str, int]]:
    """The flaws of rows, without the flaws of job histories that follow from them."""
    return [(flaw.kind, flaw.what, flaw.number) for flaw in verify(store, anchors).flaws if flaw.what != "job"]


# --- connectors ---


def drafted(name: str = "http.request", **settings: Any) -> ConnectorDraft:
    return ConnectorDraft.of(name, None, {"hosts": ["api.example.com"], "secrets": ["RATES_TOKEN"]} | settings)


def connect(
    store: Store, name: str = "http.request", *, actor: str = "ada", tenant: str = "default", **settings: Any
) -> Connector:
    return store.run(store.connectors.set(drafted(name, **settings), actor, tenant))


# --- order of a queue ---


def move(store: Store, job_id: str, *, tenant: str = EVERY_TENANT, reason: str | None = None, **target: Any) -> Verdict:
    return store.run(store.jobs.move(job_id, Move.of(**target), reason, "ada", tenant))


def moved(store: Store, job_id: str, **target: Any) -> None:
    """Move a job and check that the store accepts it."""
    verdict = move(store, job_id, **target)
    assert not verdict.refused, verdict


def order_of(store: Store, queue: str = "default") -> list[str]:
    """The ids of the waiting jobs in claim order, computed from stored fields alone."""
    waiting = [job for job in all_jobs(store) if job.queue == queue and job.state in ("queued", "retry_waiting")]
    return [job.id for job in sorted(waiting, key=lambda job: (-job.priority, job.position, job.id))]


def crowd(by_hand: ByHand, ids: list[str], start: int = 1000) -> None:
    """Give these jobs consecutive positions, so that no position is free between two of them."""
    with unguarded(by_hand, "job_state"):
        for position, job_id in enumerate(ids, start):
            params = {"position": position, "id": job_id}
            by_hand.execute("update job_state set position = :position where id = :id", params)


# --- pauses ---


def pause(
    store: Store, reason: str = "by hand", *, until: Any = None, refuse: bool | None = None, **scope: Any
) -> Pause:
    return store.run(store.pauses.set(PauseDraft.of(reason, until, refuse, **scope), "ada"))


def resume(store: Store, **what: Any) -> bool:
    tenant, scope, name = pause_target(**what)
    return store.run(store.pauses.remove(scope, name, "bob", tenant))


def paused(store: Store, tenant: str = "*") -> list[str]:
    return [pause.what for pause in store.run(store.pauses.list(tenant))]


# --- retention ---


def keep(
    store: Store,
    clean: Duration | None = None,
    purge: Duration | None = None,
    *,
    kind: str | None = None,
    state: str | None = None,
    tenant: str = EVERY_TENANT,
) -> Retention:
    """Set a retention policy."""
    return store.run(store.retention.set(RetentionRule.of(kind, state, clean, purge), "ada", tenant))


def sweep(store: Store, *, want: int = 200, look: int = 2000, tenant: str = EVERY_TENANT) -> dict[str, int]:
    """Sweep until no pass is due; return the number of rows per action, and of those held back."""
    done = {"clean": 0, "purge": 0, "prune": 0, "held": 0}
    for _ in range(1000):
        while store.run(store.usage.count(500)):
            pass
        swept = store.run(store.retention.sweep(want, look, tenant))
        if swept.action == "idle":
            return done
        done[swept.action] += swept.done
        done["held"] += swept.held
    raise AssertionError("the sweep does not end")


def naming(by_hand: ByHand, text: str) -> set[str]:
    """The tables in which a row contains this text, as a value or inside one."""
    return {
        table for table, rows in by_hand.contents().items() if any(text in str(value) for row in rows for value in row)
    }


# --- subscriptions ---


def subscribe(
    store: Store, name: str, pattern: str, job_kind: str = "follow.up", *, tenant: str = TENANT, **fields: Any
) -> Subscription:
    new = NewSubscription.of(name, pattern, job_kind, **fields)
    store.run(store.subscriptions.set(new, new_id(), "ada", tenant))
    return get_subscription(store, name, tenant)


def get_subscription(store: Store, name: str, tenant: str = TENANT) -> Subscription:
    subscription = store.run(store.subscriptions.get(name, tenant))
    assert subscription is not None, f"no subscription {name}"
    return subscription


def feed(store: Store, name: str, want: int = 1000, tenant: str = TENANT) -> FeedResult:
    return store.run(store.subscriptions.feed(name, want, tenant))


def feed_all(store: Store, name: str, want: int = 1000, tenant: str = TENANT) -> int:
    """Feed until no event is left; return the number of jobs made."""
    made = 0
    while (fed := feed(store, name, want, tenant)).seen:
        made += fed.made
    return made


def made_of(store: Store, kind: str = "follow.up", tenant: str = TENANT) -> list[Job]:
    """The jobs of a kind, oldest first."""
    jobs = store.run(store.jobs.list(JobFilter(tenant=tenant, kind=kind, limit=1000)))
    return sorted(jobs, key=lambda job: job.id)


def refusals(store: Store, subscription: Subscription) -> list[Delivery]:
    return store.run(store.subscriptions.deliveries(subscription.id, subscription.tenant, True, 100))


def tell(store: Store, name: str, data: str = "{}", *, cause: str | None = None, tenant: str = TENANT) -> str:
    """Send an event; return its id."""
    return store.run(store.ledger.send(SendEvent(new_id(), name, data, cause_id=cause), "ada", tenant)).id


# --- tenants ---


def register_tenant(store: Store, name: str, **settings: Any) -> None:
    store.run(store.tenants.set(name, checked_settings(settings), "ada"))  # type: ignore[arg-type]


def share(store: Store, *queues: str) -> None:
    """Divide these queues fairly between tenants."""
    store.run(store.tenants.set_fair(queues, "ada"))


def tenants(store: Store, tenant: str = EVERY_TENANT) -> dict[str, Tenant]:
    return {row.name: row for row in store.run(store.tenants.list(tenant))}


def fill(store: Store, count: int, *names: str, **fields: Any) -> None:
    """Enqueue ``count`` jobs for each tenant, one tenant after the other."""
    for name in names:
        put(store, *(spec(**fields) for _ in range(count)), tenant=name)


def served(store: Store, rounds: int, want: int, **options: Any) -> Counter[str]:
    """Claim and settle ``rounds`` times; return the number of claimed jobs per tenant."""
    lease, counts = open_lease(store), Counter[str]()
    for _ in range(rounds):
        claims = claim(store, lease, want, **options)
        counts.update(job.tenant for job in claims)
        if claims:
            settle(store, claims)
    return counts


# --- API tokens ---


def issuing(text: str | None = None, roles: Sequence[str] = ("viewer",), expires: Duration | None = None) -> Issuing:
    return Issuing.of(new_id(), text or new_token(), "ada", roles, (), expires)


def open_session(store: Store, text: str, ttl: float = 60.0) -> tuple[str, ApiToken | None]:
    session = new_token(SESSION_PREFIX)
    opening = store.tokens.open_session(hash_of(text), new_id(), hash_of(session), shown_of(session), ttl)
    return session, store.run(opening)


# --- webhooks ---


def draft(
    name: str = "ops", url: str = "https://ops.example.com/hooks?key=7", secrets: Any = "OPS_HOOK", **fields: Any
) -> WebhookDraft:
    return WebhookDraft.of(name, url, secrets, **fields)


def webhook(store: Store, name: str = "ops", *, tenant: str = TENANT, actor: str = "ada", **fields: Any) -> Webhook:
    """Add a webhook with its subscriptions, as `app.webhooks.add` does."""
    wanted = draft(name, **fields)
    assert store.run(store.webhooks.add(wanted, new_id(), actor, tenant))
    for subscription in wanted.subscriptions().values():
        if subscription is not None:
            store.run(store.subscriptions.set(subscription, new_id(), actor, tenant))
    return get_webhook(store, name, tenant)


def get_webhook(store: Store, name: str = "ops", tenant: str = TENANT) -> Webhook:
    stored = store.run(store.webhooks.get(name, tenant))
    assert stored is not None, f"no webhook {name}"
    return stored


def sent(webhook_id: str, job_id: str, **fields: Any) -> WebhookDelivery:
    facts: dict[str, Any] = {"message": "msg_1", "type": "ping", "attempt": 1, "status": 200, "error_code": None}
    facts |= {"duration_ms": 5, "excerpt": "ok"}
    return WebhookDelivery(new_id(), TENANT, webhook_id, job_id=job_id, **(facts | fields))
