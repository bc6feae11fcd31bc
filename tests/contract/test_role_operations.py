"""The roles through the port: every operation, called by each role and by logins that were granted one (DP-17)."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.engine.order import Move
from holdfast.engine.states import State
from holdfast.errors import InvalidInput, NotFound, Refused
from holdfast.features.agents.model import Definition
from holdfast.features.approvals.model import ApprovalFilter
from holdfast.features.archives.model import Finished
from holdfast.features.assembly import Store, open_store
from holdfast.features.attempts.model import LogPart
from holdfast.features.audit.store import ActionFilter, EventFilter
from holdfast.features.dead_letters.model import GroupFilter, NewOperation
from holdfast.features.events.model import NewSubscription
from holdfast.features.limits.model import PauseDraft, ReservationRequest, Rule
from holdfast.features.payloads.model import RuleDraft
from holdfast.features.payloads.store import SealedPart
from holdfast.features.registry.model import EventTypeDraft
from holdfast.features.retention.model import RetentionRule
from holdfast.features.schedules.model import Schedule
from holdfast.features.workflows.model import Addition, EdgeSpec, NodeSpec
from holdfast.server.app import BackgroundMaintenance
from holdfast.stores.flow import Flow
from holdfast.stores.requests import ClaimRequest, JobFilter, Reschedule, SendEvent
from tests.api.serving import auntil
from tests.support.direct_sql import ByHand, PostgresByHand
from tests.support.features import draft, drafted, issuing, sent, webhook
from tests.support.job_states import bring
from tests.support.ledger import check_ledger
from tests.support.operations import operations
from tests.support.postgres_roles import ROLES, OwnedDatabases, as_role
from tests.support.schedules import add, decided, firing, placed, template
from tests.support.steps import asking, ballot, entry
from tests.support.stores import FINAL, claim, new_id, open_lease, put_one, settle, spec, state_of
from tests.support.workflows import Flow as Drawn

pytestmark = pytest.mark.req("DP-17", "DP-2", "JF-2")

VIEWER, PRODUCER, EXECUTOR, APPROVER, ADMIN = ROLES

ALL = JobFilter(tenant="default")
AFTER = NewSubscription.of("after", "job.enqueue", "follow.up", declared=True, start="beginning")

READS = {
    "attempts.log",
    *(
        "jobs.get",
        "jobs.list",
        "jobs.with_keys",
        "jobs.history",
        "jobs.attempts",
        "jobs.artifacts",
        "jobs.checkpoints",
        "jobs.result",
    ),
    *(
        "health.get",
        "health.activity",
        "health.latest",
        "health.queues",
        "health.recent",
        "jobs.counts",
        "jobs.capped_counts",
        "ledger.end",
        "ledger.read",
        "ledger.gone",
        "ledger.cursor",
        "clock.now",
        "jobs.watch",
        "agents.get",
        "agents.list",
        "steps.requires_approval",
    ),
    *(
        "steps.list",
        "steps.unfinished",
        "approvals.get",
        "approvals.list",
        "approvals.votes",
        "jobs.notes",
        "ledger.read_sent",
        "jobs.chain",
        "jobs.beginning_with",
        "jobs.circumstances",
        "jobs.liveness",
        "executors.list",
    ),
    *("kinds.get", "kinds.list", "kinds.unregistered", "event_types.get", "event_types.list", "policies.get"),
    "audit.recent_events",
    *(
        "consumers.list",
        "subscriptions.get",
        "subscriptions.list",
        "subscriptions.active",
        "subscriptions.deliveries",
        "subscriptions.behind",
    ),
    *(
        "templates.get",
        "templates.list",
        "templates.versions",
        "templates.made_from",
        "templates.scheduled_at",
        "schedules.get",
        "schedules.list",
        "schedules.declared",
    ),
    *("schedules.due", "schedules.fires"),
    *("workflows.get", "workflows.list", "workflows.graph", "workflows.named", "workflows.parent_results"),
    *("workflows.failure", "workflows.members", "workflows.name_of"),
    *(
        "limits.list",
        "reservations.get",
        "reservations.list",
        "queues.list",
        "payload_rules.list",
        "jobs.references",
        "pauses.list",
    ),
    *("jobs.by_payload", "jobs.payload_indexes"),
    *("tenants.list", "tenants.fair_queues", "tenants.next_share", "tenants.registered_only", "tenants.pinned"),
    *("retention.list", "retention.preview", "usage.list"),
    *("archives.list", "archives.get", "archives.with_job", "archives.seal_digest"),
    *(
        "dead_letters.groups",
        "dead_letters.group",
        "dead_letters.group_of",
        "dead_letters.remade",
        "operations.get",
        "operations.list",
    ),
    *("audit.sealed", "audit.fingerprints", "audit.actions", "health.statistics", "health.workers"),
    *("versions.list", "versions.live", "versions.held", "versions.patches", "versions.unserved"),
    *("versions.mismatch", "versions.requirement"),
    *("webhooks.get", "webhooks.list", "webhooks.deliveries"),
    *("connectors.get", "connectors.list"),
    *("tokens.find", "tokens.used", "tokens.open_session", "tokens.end_session"),
}
EXECUTES = {
    *(
        "jobs.enqueue",
        "leases.open",
        "leases.renew",
        "leases.end",
        "leases.claim",
        "leases.start",
        "leases.release",
        "leases.settle",
    ),
    *("leases.exchange", "leases.cancellations", "leases.holdings"),
    *(
        "steps.save_checkpoint",
        "steps.note_upload",
        "steps.add_artifact",
        "attempts.append_log",
        "leases.promote",
        "leases.expire",
        "leases.recover",
        "leases.quarantine",
        "ledger.save_cursor",
    ),
    *("steps.save", "ledger.send", "approvals.attend", "approvals.save_token"),
    *("templates.enqueue", "schedules.fire", "schedules.declare", "schedules.add", "schedules.change"),
    *(
        "workflows.start",
        "workflows.extend",
        "workflows.fire_callbacks",
        "limits.attend",
        "limits.wake",
        "queues.age",
        "reservations.set",
        "reservations.release",
        "reservations.record",
    ),
    *("subscriptions.set", "subscriptions.feed", "subscriptions.failed", "payload_rules.declare"),
    *("archives.walk", "archives.rows", "archives.record"),
    *("retention.sweep", "declare_retention", "usage.count", "retention.orphans", "retention.forget_orphans"),
    *("operations.next", "operations.work"),
    *("audit.seal", "audit.get_seal", "audit.block", "audit.unsealed"),
    *("webhooks.note_delivery", "webhooks.disable"),
    "versions.offer",
}
LATER = datetime(2027, 1, 1, tzinfo=UTC)
DECIDES = {"approvals.decide", "approvals.token_hashes", "approvals.token", "approvals.save_token"}
GOVERNS = {
    *("subscriptions.pause", "subscriptions.resume", "subscriptions.remove", "consumers.reset", "consumers.remove"),
    *("kinds.register", "kinds.remove", "event_types.set", "event_types.remove", "policies.set"),
    *("executors.set", "leases.request_stop", "executors.remove", "pauses.set", "pauses.remove"),
    *(
        "payload_rules.set",
        "payload_rules.remove",
        "payload_rules.sealed_payloads",
        "payload_rules.reseal",
        "payload_rules.sealed_parts",
        "payload_rules.reseal_part",
    ),
    *("dead_letters.note", "operations.start", "operations.cancel", "dead_letters.redrive_as"),
    *("webhooks.add", "webhooks.change", "webhooks.enable", "webhooks.remove"),
    *("connectors.set", "connectors.remove"),
    *("versions.move", "restores.report", "restores.adopt"),
    *("tokens.issue", "tokens.revoke", "tokens.list"),
}
REGISTERS = {"agents.set", "agents.disable", "agents.drain", "agents.enable", "agents.resume"}
REGISTERS |= {"limits.set", "limits.remove", "queues.set_aging", "retention.set", "retention.remove"}
REGISTERS |= {
    "tenants.set",
    "tenants.remove",
    "tenants.set_fair",
    *("tenants.pin", "tenants.unpin", "tenants.pins"),
    "tenants.set_registered_only",
    "retention.find_orphans",
}
PLANS = {"templates.set", "templates.remove", "schedules.run"}
ALLOWED = {
    VIEWER: READS,
    PRODUCER: READS
    | {
        "jobs.enqueue",
        "templates.enqueue",
        "cancel",
        "ledger.send",
        "workflows.start",
        "workflows.extend",
        "workflows.cancel",
    },
    EXECUTOR: READS | EXECUTES,
    APPROVER: READS | DECIDES,
    ADMIN: READS
    | EXECUTES
    | DECIDES
    | REGISTERS
    | PLANS
    | {"workflows.cancel", "workflows.resume"}
    | GOVERNS
    | {"cancel", "redrive", "discard", "jobs.reschedule", "jobs.move", "jobs.replace_payload", "steps.rewind"}
    | {"steps.fork"}
    | {"jobs.set_external_ref"},
}


@dataclass
class Database:
    """A database with some rows, the owner's store, and the ids of the rows."""

    url: str
    owner: Store
    ids: dict[str, str]


def furnish(owner: Store, by_hand: ByHand) -> dict[str, str]:
    """Create some rows of everything in the tenant `default`; returns their ids."""
    ids = {state.value: bring(owner, by_hand, state).id for state in (State.QUEUED, State.DEAD_LETTER)}
    ids["bulk"] = new_id()
    ids["lease"], ids["other"] = open_lease(owner, ttl=1000), open_lease(owner, ttl=1000)
    ids["in_progress"], ids["leased"] = put_one(owner), put_one(owner)
    claim(owner, ids["lease"])
    claim(owner, ids["lease"], begin=False)
    ids["approval"] = asking(owner, quorum=100).id
    ids["token"] = owner.run(owner.tokens.issue(issuing(), "ada", "default")).id
    ids["schedule"] = add(owner, name="hourly", timing="@hourly").id
    owner.run(owner.templates.set(template(), "ada", "default"))
    failing = Drawn(owner, {"a": "", "b": "a"}, fields={"a": {"queue": "elsewhere"}})
    failing.start()
    ids["workflow"], ids["its job"] = failing.id, failing.ids["a"]
    ids["webhook"], ids["reservation"] = webhook(owner).id, new_id()
    owner.run(owner.reservations.set(ReservationRequest(ids["reservation"], "queue", "q", 1000), "ada", "default"))
    return ids


@pytest.fixture
def database(owned_databases: OwnedDatabases) -> Iterator[Database]:
    with owned_databases.fresh() as url, closing(open_store(as_role(url, owned_databases.owner))) as owner:
        with closing(PostgresByHand(owner.url)) as by_hand:
            ids = furnish(owner, by_hand)
        yield Database(url, owner, ids)
        check_ledger(owner)


def search_without_index(store: Store, tenant: str) -> None:
    with suppress(InvalidInput):
        store.run(store.jobs.by_payload(["a"], "1", tenant, None, 1))


def pin_unknown_login(store: Store) -> None:
    with suppress(NotFound):
        store.run(store.tenants.pin("unknown login", "a", "ada"))


def fork(store: Store, job_id: str, tenant: str) -> object:
    """Enqueue a fork as the owner of the role may, and copy the steps of the job."""
    job = store.run(store.jobs.get(job_id, tenant))
    if job is None:
        return None
    new = put_one(store, kind=job.kind, tags=(f"fork:{job_id}",), tenant=tenant)
    return store.run(store.steps.fork(job_id, new, 1, "charge", {}, None, "ada", tenant))


def calls(
    store: Store, ids: dict[str, str], tenant: str = "default", scope: str = "*"
) -> dict[str, Callable[[], object]]:
    """Every operation of the port, with valid arguments. `scope` is the tenant of leases and maintenance tasks."""
    run = store.run
    job, lease = ids["in_progress"], ids["lease"]
    return {
        "jobs.get": lambda: run(store.jobs.get(job, tenant)),
        "jobs.list": lambda: run(store.jobs.list(JobFilter(tenant=tenant))),
        "jobs.with_keys": lambda: run(store.jobs.with_keys(JobFilter(tenant=tenant), [["a"]])),
        "jobs.notes": lambda: run(store.jobs.notes(JobFilter(tenant=tenant))),
        "jobs.history": lambda: run(store.jobs.history(job, tenant)),
        "jobs.attempts": lambda: run(store.jobs.attempts(job, tenant)),
        "jobs.artifacts": lambda: run(store.jobs.artifacts(job, tenant)),
        "jobs.checkpoints": lambda: run(store.jobs.checkpoints(job, tenant)),
        "jobs.result": lambda: run(store.jobs.result(job, tenant)),
        "health.get": lambda: run(store.health.get(tenant)),
        "health.statistics": lambda: run(store.health.statistics(tenant)),
        "health.workers": lambda: run(store.health.workers(tenant)),
        "restores.report": lambda: run(store.restores.report()),
        "restores.adopt": lambda: run(store.restores.adopt("ada")),
        "versions.list": lambda: run(store.versions.list(tenant)),
        "versions.live": lambda: run(store.versions.live(tenant)),
        "versions.held": lambda: run(store.versions.held(tenant)),
        "versions.patches": lambda: run(store.versions.patches(tenant)),
        "versions.unserved": lambda: run(store.versions.unserved(tenant)),
        "versions.mismatch": lambda: run(store.versions.mismatch(job, tenant)),
        "versions.requirement": lambda: run(store.versions.requirement(job, tenant)),
        "versions.offer": lambda: run(store.versions.offer(10, tenant)),
        "versions.move": lambda: run(store.versions.move("1", "2", None, None, tenant, "ada")),
        "health.activity": lambda: run(store.health.activity(tenant, "1h", "queue")),
        "health.latest": lambda: run(store.health.latest(tenant)),
        "health.queues": lambda: run(store.health.queues(tenant)),
        "health.recent": lambda: run(store.health.recent(tenant, "kind", "echo")),
        "leases.request_stop": lambda: run(store.leases.request_stop("nobody", "drain", "ada", tenant)),
        "jobs.counts": lambda: run(store.jobs.counts(tenant)),
        "ledger.read": lambda: run(store.ledger.read(None, 5, tenant)),
        "ledger.gone": lambda: run(store.ledger.gone("0", tenant)),
        "ledger.end": lambda: run(store.ledger.end(tenant)),
        "jobs.capped_counts": lambda: run(store.jobs.capped_counts(JobFilter(tenant=tenant), 10)),
        "ledger.cursor": lambda: run(store.ledger.cursor("c", tenant)),
        "clock.now": lambda: run(store.clock.now()),
        "jobs.enqueue": lambda: run(
            store.jobs.enqueue([spec(), spec(key=new_id()), spec(parent_id=job), spec(agent="planner")], tenant)
        ),
        "cancel": lambda: run(store.jobs.operate("cancel", [ids["queued"]], None, "ada", tenant)),
        "leases.open": lambda: run(store.leases.open("w", 30, scope)),
        "leases.renew": lambda: run(store.leases.renew(lease, 30, scope)),
        "leases.claim": lambda: run(
            store.leases.claim(ClaimRequest(lease=lease, queues=("default",), want=1, tenant=scope))
        ),
        "leases.exchange": lambda: run(
            store.leases.exchange([], ClaimRequest(lease=lease, queues=("default",), want=1, tenant=scope))
        ),
        "leases.cancellations": lambda: run(store.leases.cancellations(lease, scope)),
        "leases.holdings": lambda: run(store.leases.holdings(lease, scope)),
        "jobs.watch": lambda: run(store.jobs.watch(job, tenant, 1)),
        "leases.start": lambda: run(store.leases.start(lease, [ids["leased"]], scope)),
        "leases.release": lambda: run(store.leases.release(lease, [ids["leased"]], scope)),
        "steps.save_checkpoint": lambda: run(store.steps.save_checkpoint(job, lease, 1, "p", "1", scope)),
        "attempts.append_log": lambda: run(store.attempts.append_log(lease, [LogPart(job, 1, 1, "a\n")], scope)),
        "attempts.log": lambda: run(store.attempts.log(job, 1, tenant)),
        "steps.note_upload": lambda: run(
            store.steps.note_upload(job, lease, 1, f"artifact://default/{job}/{'0' * 64}", scope)
        ),
        "steps.add_artifact": lambda: run(store.steps.add_artifact(job, lease, 1, "a", "file:a", scope)),
        "leases.settle": lambda: run(store.leases.settle(lease, [], scope)),
        "leases.promote": lambda: run(store.leases.promote(tenant=scope)),
        "leases.expire": lambda: run(store.leases.expire(tenant=scope)),
        "leases.recover": lambda: run(store.leases.recover(tenant=scope)),
        "leases.quarantine": lambda: run(store.leases.quarantine(lease, ("default",), tenant=scope)),
        "ledger.save_cursor": lambda: run(store.ledger.save_cursor("c", "0", None, scope)),
        "leases.end": lambda: run(store.leases.end(ids["other"], "closed", scope)),
        "redrive": lambda: run(store.jobs.operate("redrive", [ids["dead_letter"]], None, "ada", tenant)),
        "discard": lambda: run(store.jobs.operate("discard", [ids["dead_letter"]], "because", "ada", tenant)),
        "jobs.replace_payload": lambda: run(store.jobs.replace_payload(ids["queued"], "{}", "typo", "ada", tenant)),
        "jobs.set_external_ref": lambda: run(store.jobs.set_external_ref(ids["queued"], "crm-1", "ada", tenant)),
        "jobs.reschedule": lambda: run(
            store.jobs.reschedule([ids["queued"]], Reschedule(delay=5), None, "ada", tenant)
        ),
        "jobs.move": lambda: run(store.jobs.move(ids["queued"], Move(where="first"), None, "ada", tenant)),
        "steps.save": lambda: run(store.steps.save(lease, [(job, 1, entry())], scope)),
        "steps.list": lambda: run(store.steps.list(job, tenant)),
        "steps.unfinished": lambda: run(store.steps.unfinished(job, tenant)),
        "steps.rewind": lambda: run(store.steps.rewind(ids["dead_letter"], 1, "ada", tenant)),
        "steps.fork": lambda: fork(store, ids["dead_letter"], tenant),
        "ledger.send": lambda: run(store.ledger.send(SendEvent(new_id(), "paid", "{}"), "ada", tenant)),
        "approvals.decide": lambda: run(store.approvals.decide(ids["approval"], ballot(new_id()), tenant)),
        "approvals.save_token": lambda: run(
            store.approvals.save_token(ids["approval"], new_id(), None, None, "ada", tenant)
        ),
        "approvals.token_hashes": lambda: run(store.approvals.token_hashes(ids["approval"], tenant)),
        "approvals.attend": lambda: run(store.approvals.attend(tenant=scope)),
        "approvals.get": lambda: run(store.approvals.get(ids["approval"], tenant)),
        "approvals.list": lambda: run(store.approvals.list(ApprovalFilter(tenant=tenant))),
        "approvals.votes": lambda: run(store.approvals.votes(ids["approval"], tenant)),
        "agents.get": lambda: run(store.agents.get("planner", tenant)),
        "steps.requires_approval": lambda: run(store.steps.requires_approval("planner", tenant)),
        "agents.list": lambda: run(store.agents.list(tenant)),
        "agents.set": lambda: run(store.agents.set(Definition(id="planner", name="Planner"), tenant)),
        "agents.disable": lambda: run(store.agents.disable("planner", "because", "ada", tenant)),
        "agents.drain": lambda: run(store.agents.drain("planner", tenant)),
        "agents.enable": lambda: run(store.agents.enable("planner", tenant)),
        "agents.resume": lambda: run(store.agents.resume("planner", 10, tenant)),
        "templates.get": lambda: run(store.templates.get("monthly", tenant)),
        "templates.list": lambda: run(store.templates.list(tenant)),
        "templates.versions": lambda: run(store.templates.versions("monthly", tenant)),
        "templates.made_from": lambda: run(store.templates.made_from(job, tenant)),
        "templates.scheduled_at": lambda: run(store.templates.scheduled_at(job, tenant)),
        "templates.enqueue": lambda: run(store.templates.enqueue([spec("report")], "monthly", 1, tenant)),
        "templates.set": lambda: run(store.templates.set(template(day=new_id()), "ada", tenant)),
        "templates.remove": lambda: run(store.templates.remove("monthly", "ada", tenant)),
        "schedules.get": lambda: run(store.schedules.get("hourly", tenant)),
        "schedules.list": lambda: run(store.schedules.list(tenant)),
        "schedules.declared": lambda: run(store.schedules.declared("shop", tenant)),
        "schedules.due": lambda: run(store.schedules.due(["report"], 10, tenant)),
        "schedules.fires": lambda: run(store.schedules.fires(ids["schedule"], tenant)),
        "schedules.add": lambda: run(store.schedules.add(placed(new_id()), "ada", tenant)),
        "schedules.change": lambda: run(
            store.schedules.change(_hourly(store), placed("hourly"), "paused", "ada", tenant)
        ),
        "schedules.declare": lambda: run(store.schedules.declare("shop", [], tenant)),
        "schedules.fire": lambda: run(store.schedules.fire([decided(_hourly(store), firing())], scope)),
        "schedules.run": lambda: run(store.schedules.run(ids["schedule"], firing(), True, "ada", tenant)),
        "workflows.start": lambda: Drawn(store, {"a": "", "b": "a"}).start(tenant),
        "workflows.extend": lambda: run(
            store.workflows.extend(ids["workflow"], Addition(*more(ids["workflow"])), "ada", tenant)
        ),
        "workflows.resume": lambda: run(store.workflows.resume(ids["workflow"], None, "ada", tenant)),
        "workflows.cancel": lambda: run(store.workflows.cancel(ids["workflow"], None, "ada", tenant)),
        "workflows.fire_callbacks": lambda: run(store.workflows.fire_callbacks(10, scope)),
        "workflows.failure": lambda: run(store.workflows.failure(ids["its job"], tenant)),
        "workflows.name_of": lambda: run(store.workflows.name_of(ids["its job"], tenant)),
        "workflows.members": lambda: run(store.workflows.members(ids["workflow"], "pages", tenant)),
        "workflows.get": lambda: run(store.workflows.get(ids["workflow"], tenant)),
        "workflows.list": lambda: run(store.workflows.list(tenant)),
        "workflows.graph": lambda: run(store.workflows.graph(ids["workflow"], tenant)),
        "workflows.named": lambda: run(store.workflows.named(ids["workflow"], ["a"], tenant)),
        "workflows.parent_results": lambda: run(store.workflows.parent_results(ids["its job"], tenant)),
        "limits.set": lambda: run(store.limits.set(Rule.of("kind", "slow", 5), "ada", tenant)),
        "limits.remove": lambda: run(store.limits.remove("kind", "slow", "ada", tenant)),
        "limits.list": lambda: run(store.limits.list(tenant)),
        "limits.wake": lambda: run(store.limits.wake(tenant=scope)),
        "limits.attend": lambda: run(store.limits.attend(tenant=scope)),
        "reservations.set": lambda: run(
            store.reservations.set(ReservationRequest(ids["reservation"], "queue", "q", 30), "ada", tenant)
        ),
        "reservations.record": lambda: run(store.reservations.record(ids["reservation"], "calibrate", "ada", tenant)),
        "reservations.release": lambda: run(store.reservations.release(ids["reservation"], "done", "ada", tenant)),
        "reservations.get": lambda: run(store.reservations.get(ids["reservation"], tenant)),
        "reservations.list": lambda: run(store.reservations.list(tenant)),
        "queues.set_aging": lambda: run(store.queues.set_aging("slow", 60.0, 1, 9, "ada", tenant)),
        "pauses.set": lambda: run(store.pauses.set(PauseDraft(tenant, "kind", "slow", "by hand"), "ada")),
        "pauses.remove": lambda: run(store.pauses.remove("kind", "slow", "ada", tenant)),
        "pauses.list": lambda: run(store.pauses.list(tenant)),
        "queues.list": lambda: run(store.queues.list(tenant)),
        "queues.age": lambda: run(store.queues.age(tenant=scope)),
        "ledger.read_sent": lambda: run(store.ledger.read_sent(None, 5, tenant)),
        "jobs.chain": lambda: run(store.jobs.chain(job, tenant)),
        "audit.recent_events": lambda: run(store.audit.recent_events(EventFilter(tenant=tenant))),
        "jobs.beginning_with": lambda: run(store.jobs.beginning_with(job, job, tenant)),
        "jobs.liveness": lambda: run(store.jobs.liveness(job, tenant)),
        "jobs.circumstances": lambda: run(store.jobs.circumstances(job, tenant)),
        "kinds.get": lambda: run(store.kinds.get("mail.send", tenant)),
        "kinds.list": lambda: run(store.kinds.list(tenant)),
        "kinds.unregistered": lambda: run(store.kinds.unregistered(tenant)),
        "kinds.register": lambda: run(store.kinds.register({"mail.send": None}, "ada")),
        "kinds.remove": lambda: run(store.kinds.remove("mail.send", "ada")),
        "event_types.get": lambda: run(store.event_types.get("paid", tenant)),
        "event_types.list": lambda: run(store.event_types.list(None, tenant)),
        "event_types.set": lambda: run(store.event_types.set(EventTypeDraft("paid"), "ada")),
        "event_types.remove": lambda: run(store.event_types.remove("paid", "ada")),
        "policies.get": lambda: run(store.policies.get()),
        "policies.set": lambda: run(store.policies.set({"unknown_kinds": "accept"}, "ada")),
        "executors.list": lambda: run(store.executors.list()),
        "executors.set": lambda: run(store.executors.set("worker", "executor", "ada")),
        "executors.remove": lambda: run(store.executors.remove("worker")),
        "consumers.list": lambda: run(store.consumers.list(tenant)),
        "consumers.reset": lambda: run(store.consumers.reset("c", True, tenant)),
        "consumers.remove": lambda: run(store.consumers.remove("c", tenant)),
        "subscriptions.set": lambda: run(store.subscriptions.set(AFTER, new_id(), "ada", tenant)),
        "subscriptions.feed": lambda: run(store.subscriptions.feed("after", 5, tenant)),
        "subscriptions.failed": lambda: run(store.subscriptions.failed(new_id(), "why", tenant)),
        "subscriptions.get": lambda: run(store.subscriptions.get("after", tenant)),
        "subscriptions.list": lambda: run(store.subscriptions.list(tenant)),
        "subscriptions.active": lambda: run(store.subscriptions.active(tenant)),
        "subscriptions.deliveries": lambda: run(store.subscriptions.deliveries(new_id(), tenant, True, 5)),
        "subscriptions.behind": lambda: run(store.subscriptions.behind(None, True, tenant)),
        "subscriptions.pause": lambda: run(store.subscriptions.pause("after", None, "ada", tenant)),
        "subscriptions.resume": lambda: run(store.subscriptions.resume("after", False, tenant)),
        "subscriptions.remove": lambda: run(store.subscriptions.remove("after", tenant)),
        "payload_rules.list": lambda: run(store.payload_rules.list(tenant)),
        "jobs.references": lambda: run(store.jobs.references(job, tenant)),
        "payload_rules.set": lambda: run(store.payload_rules.set(RuleDraft.of("heal", restricted=True), "ada", tenant)),
        "payload_rules.remove": lambda: run(store.payload_rules.remove("heal", "", "ada", tenant)),
        "payload_rules.declare": lambda: run(
            store.payload_rules.declare("shop", [RuleDraft.of("heal", restricted=True)], "ada", tenant)
        ),
        "payload_rules.sealed_payloads": lambda: run(store.payload_rules.sealed_payloads("k1", None, 5, tenant)),
        "payload_rules.reseal": lambda: run(store.payload_rules.reseal(job, "[]", "{}", "ada", tenant)),
        "payload_rules.sealed_parts": lambda: run(store.payload_rules.sealed_parts("k1", None, 5, tenant)),
        "payload_rules.reseal_part": lambda: run(
            store.payload_rules.reseal_part(SealedPart(job, tenant, "step", "1", "[]"), "{}", "ada", tenant)
        ),
        "tenants.set": lambda: run(store.tenants.set(tenant, {"title": "T"}, "ada")),
        "tenants.remove": lambda: run(store.tenants.remove(tenant, "ada")),
        "tenants.list": lambda: run(store.tenants.list(tenant)),
        "tenants.set_registered_only": lambda: run(store.tenants.set_registered_only(False, "ada")),
        "tenants.registered_only": lambda: run(store.tenants.registered_only()),
        "retention.orphans": lambda: run(store.retention.orphans(1, tenant)),
        "retention.forget_orphans": lambda: run(store.retention.forget_orphans(["artifact://none"], tenant)),
        "retention.find_orphans": lambda: run(store.retention.find_orphans([], tenant)),
        "approvals.token": lambda: run(store.approvals.token("h", tenant)),
        "tenants.set_fair": lambda: run(store.tenants.set_fair(["elsewhere"], "ada")),
        "jobs.by_payload": lambda: search_without_index(store, tenant),
        "jobs.payload_indexes": lambda: run(store.jobs.payload_indexes()),
        "jobs.fill_payload_index": lambda: run(store.jobs.fill_payload_index(["a"], None)),
        "jobs.remove_payload_index": lambda: run(store.jobs.remove_payload_index(["a"])),
        "tenants.pin": lambda: pin_unknown_login(store),
        "tenants.unpin": lambda: run(store.tenants.unpin("unknown login", "ada")),
        "tenants.pins": lambda: run(store.tenants.pins()),
        "tenants.pinned": lambda: run(store.tenants.pinned()),
        "tenants.fair_queues": lambda: run(store.tenants.fair_queues()),
        "tenants.next_share": lambda: run(store.tenants.next_share(ids["queued"], tenant)),
        "archives.walk": lambda: run(store.archives.walk(str(UUID(int=0)), 10, tenant)),
        "archives.rows": lambda: run(store.archives.rows([job], tenant)),
        "archives.record": lambda: run(
            store.archives.record(new_id(), "artifact://none", 1, [Finished(job, tenant, LATER)], "ada", tenant)
        ),
        "archives.list": lambda: run(store.archives.list(tenant)),
        "archives.get": lambda: run(store.archives.get(job, tenant)),
        "archives.with_job": lambda: run(store.archives.with_job(job, tenant)),
        "archives.seal_digest": lambda: run(store.archives.seal_digest(1, tenant)),
        "retention.set": lambda: run(store.retention.set(RetentionRule.of("slow", purge_after="9d"), "ada", tenant)),
        "declare_retention": lambda: run(store.retention.set(RetentionRule.of("slow", declared=True), "ada", tenant)),
        "retention.remove": lambda: run(store.retention.remove("slow", "*", "ada", tenant)),
        "retention.list": lambda: run(store.retention.list(tenant)),
        "retention.preview": lambda: run(store.retention.preview(tenant)),
        "retention.sweep": lambda: run(store.retention.sweep()),
        "usage.count": lambda: run(store.usage.count(begin=True)),
        "usage.list": lambda: run(store.usage.list(("kind", "day"), tenant)),
        "dead_letters.groups": lambda: run(store.dead_letters.groups(GroupFilter(tenant=tenant))),
        "dead_letters.group": lambda: run(store.dead_letters.group("x", tenant)),
        "dead_letters.group_of": lambda: run(store.dead_letters.group_of(job, tenant)),
        "dead_letters.note": lambda: run(store.dead_letters.note("x", "y", "ada", tenant)),
        "dead_letters.redrive_as": lambda: run(
            store.dead_letters.redrive_as(ids["dead_letter"], new_id(), "{}", None, "ada", tenant)
        ),
        "dead_letters.remade": lambda: run(store.dead_letters.remade(job, tenant)),
        "operations.start": lambda: run(
            store.operations.start(NewOperation(ids["bulk"], "redrive"), ALL, "ada", tenant)
        ),
        "operations.next": lambda: run(store.operations.next()),
        "operations.work": lambda: run(store.operations.work()),
        "operations.cancel": lambda: run(store.operations.cancel(ids["bulk"], None, "ada", tenant)),
        "operations.get": lambda: run(store.operations.get(job, tenant)),
        "operations.list": lambda: run(store.operations.list(tenant)),
        "audit.seal": lambda: run(store.audit.seal("tests")),
        "audit.get_seal": lambda: run(store.audit.get_seal()),
        "audit.block": lambda: run(store.audit.block(None)),
        "audit.unsealed": lambda: run(store.audit.unsealed(None)),
        "audit.sealed": lambda: run(store.audit.sealed(job, tenant)),
        "audit.fingerprints": lambda: run(store.audit.fingerprints(job, tenant)),
        "audit.actions": lambda: run(store.audit.actions(ActionFilter(tenant=tenant))),
        "connectors.get": lambda: run(store.connectors.get("http.request", tenant)),
        "connectors.list": lambda: run(store.connectors.list(tenant)),
        "connectors.set": lambda: run(store.connectors.set(drafted(), "ada", tenant)),
        "connectors.remove": lambda: run(store.connectors.remove("none", "ada", tenant)),
        "webhooks.get": lambda: run(store.webhooks.get("ops", tenant)),
        "webhooks.list": lambda: run(store.webhooks.list(tenant)),
        "webhooks.deliveries": lambda: run(store.webhooks.deliveries(ids["webhook"], tenant, 5)),
        "webhooks.add": lambda: run(store.webhooks.add(draft(f"e{new_id()}"), new_id(), "ada", tenant)),
        "webhooks.change": lambda: run(store.webhooks.change(draft(), "ada", tenant)),
        "webhooks.disable": lambda: run(store.webhooks.disable("ops", "because", "ada", tenant)),
        "webhooks.enable": lambda: run(store.webhooks.enable("ops", False, "ada", tenant)),
        "webhooks.note_delivery": lambda: run(store.webhooks.note_delivery(sent(ids["webhook"], job), tenant)),
        "webhooks.remove": lambda: run(store.webhooks.remove("none", "ada", tenant)),
        "tokens.issue": lambda: run(store.tokens.issue(issuing(), "ada", tenant)),
        "tokens.revoke": lambda: run(store.tokens.revoke(ids["token"], "ada", tenant)),
        "tokens.list": lambda: run(store.tokens.list(tenant)),
        "tokens.find": lambda: run(store.tokens.find("0" * 64)),
        "tokens.used": lambda: run(store.tokens.used("0" * 64)),
        "tokens.open_session": lambda: run(store.tokens.open_session("0" * 64, new_id(), "1" * 64, "hfs_x", 60)),
        "tokens.end_session": lambda: run(store.tokens.end_session("1" * 64)),
        "clock.set": lambda: run(store.clock.set(timedelta(0), None)),
    }


def _hourly(store: Store) -> Schedule:
    stored = store.run(store.schedules.get("hourly", "default"))
    assert stored is not None
    return stored


def more(workflow: str) -> tuple[list[NodeSpec], list[EdgeSpec]]:
    return [NodeSpec(spec(workflow_id=workflow), new_id())], []


def outcome(call: Callable[[], object]) -> str:
    try:
        call()
    except Refused as refusal:
        return refusal.code
    return "done"


def test_list_of_operations_is_complete(database: Database) -> None:
    public = operations() - {"jobs.operate"}
    assert {*calls(database.owner, database.ids), "leases.settle"} - {
        "cancel",
        "redrive",
        "discard",
        "declare_retention",
    } == public


@pytest.mark.parametrize("role", ROLES)
def test_every_role_can_run_exactly_its_operations(database: Database, role: str) -> None:
    with closing(open_store(as_role(database.url, role))) as store:
        answers = {name: outcome(call) for name, call in calls(store, database.ids).items()}
    assert {name for name, answer in answers.items() if answer == "done"} == ALLOWED[role]
    assert set(answers.values()) == {"done", "not_allowed"}


@pytest.mark.req("JF-1")
@pytest.mark.parametrize("role", [VIEWER, PRODUCER, APPROVER])
def test_roles_without_access_to_every_tenant(database: Database, role: str) -> None:
    job = database.ids["queued"]
    with closing(open_store(as_role(database.url, role))) as store:
        run = store.run
        assert run(store.jobs.get(job, "default")) is not None
        calls: list[Flow[Any]] = [
            *(
                store.jobs.get(job, "*"),
                store.jobs.list(JobFilter(tenant="*")),
                store.jobs.history(job, "*"),
                store.jobs.attempts(job, "*"),
            ),
            *(
                store.jobs.counts("*"),
                store.health.statistics("*"),
                store.health.workers("*"),
                store.health.activity("*"),
                store.health.get("*"),
                store.ledger.cursor("c", "*"),
                store.ledger.read(None, 5, "*"),
            ),
            *(store.jobs.enqueue([spec()], "*"), store.jobs.operate("cancel", [job], None, "ada", "*")),
            *(
                store.steps.list(job, "*"),
                store.approvals.list(ApprovalFilter(tenant="*")),
                store.approvals.get(database.ids["approval"], "*"),
            ),
            *(
                store.approvals.votes(database.ids["approval"], "*"),
                store.approvals.decide(database.ids["approval"], ballot(), "*"),
            ),
            *(
                store.ledger.send(SendEvent(new_id(), "paid", "{}"), "ada", "*"),
                store.approvals.token_hashes(database.ids["approval"], "*"),
            ),
        ]
        assert [outcome(partial(run, call)) for call in calls] == ["not_allowed"] * len(calls)
    with closing(PostgresByHand(as_role(database.url, role), tenant="*")) as by_hand:
        assert by_hand.execute("select scope()") == [(None,)]
        assert by_hand.execute("select count(*) from job") == [(0,)]
        assert "may not act for every tenant" in (by_hand.refusal("select health('*')") or "")


@pytest.mark.parametrize("role", [EXECUTOR, ADMIN])
def test_roles_with_access_to_every_tenant(database: Database, role: str) -> None:
    put_one(database.owner, tenant="acme")
    with closing(open_store(as_role(database.url, role))) as store:
        assert sum(store.run(store.jobs.counts("*")).values()) == 8
        assert sum(store.run(store.jobs.counts("default")).values()) == 7


@pytest.mark.req("DP-15")
def test_executor_runs_started_bulk_operations_on_their_jobs_only(database: Database) -> None:
    """A worker may not redrive, but runs a bulk operation that an administrator has started, on its jobs only."""
    wanted, other = database.ids["dead_letter"], bring_dead(database.owner, "other")
    new = NewOperation(database.ids["bulk"], "redrive")
    database.owner.run(
        database.owner.operations.start(new, JobFilter(tenant="default", kind=job_kind(database)), "ada", "default")
    )
    call = "select holdfast.do_operation(:op, :jobs, null, false, 'default')"
    with closing(PostgresByHand(as_role(database.url, EXECUTOR), tenant="default")) as by_hand:
        by_hand.execute(call, {"op": new.id, "jobs": [other]})
    assert state_of(database.owner, other) is State.DEAD_LETTER
    with closing(open_store(as_role(database.url, EXECUTOR))) as store:
        assert store.run(store.operations.work()) == 1
    assert (state_of(database.owner, wanted), state_of(database.owner, other)) == (State.QUEUED, State.DEAD_LETTER)
    result = database.owner.run(database.owner.operations.get(new.id, "default"))
    assert result is not None
    assert (result.state, result.done, result.refusals) == ("done", 1, {"not_wanted": 1})
    with closing(PostgresByHand(as_role(database.url, EXECUTOR), tenant="default")) as by_hand:
        assert "no batch is due yet" in (by_hand.refusal(call, {"op": new.id, "jobs": [other]}) or "")


def job_kind(database: Database) -> str:
    result = database.owner.run(database.owner.jobs.get(database.ids["dead_letter"], "default"))
    assert result is not None
    return result.kind


def bring_dead(store: Store, kind: str) -> str:
    job_id = put_one(store, kind, queue="dying")
    (claimed,) = claim(store, open_lease(store), queues=("dying",))
    settle(store, claimed, FINAL)
    return job_id


@pytest.mark.req("DP-20")
def test_login_granted_a_role_has_just_its_rights(database: Database) -> None:
    """The intended setup: a login for the program, as a member of one of the roles."""
    name = f"holdfast_app_{os.getpid()}"
    with psycopg.connect(database.url, autocommit=True) as admin:
        admin.execute(sql.SQL("create role {} nologin").format(sql.Identifier(name)))
        try:
            admin.execute(sql.SQL("grant holdfast_producer to {}").format(sql.Identifier(name)))
            with closing(open_store(as_role(database.url, name))) as store:
                assert store.run(store.jobs.enqueue([spec()], "default"))[0].created
                assert outcome(lambda: store.run(store.leases.open("w", 30, "default"))) == "not_allowed"
                assert outcome(lambda: store.run(store.jobs.enqueue([spec()], "*"))) == "not_allowed"
            admin.execute(sql.SQL("grant holdfast_executor to {}").format(sql.Identifier(name)))
            with closing(open_store(as_role(database.url, name))) as store:
                assert outcome(lambda: store.run(store.leases.open("w", 30, "*"))) == "done"
        finally:
            admin.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


@pytest.mark.req("DP-11")
def test_actor_of_sql_calls_is_the_caller(database: Database) -> None:
    with closing(PostgresByHand(as_role(database.url, ADMIN), tenant="default")) as by_hand:
        by_hand.execute("select * from cancel(:job)", {"job": database.ids["queued"]})
        rows = by_hand.execute("select actor from history(:job) where type = 'cancel'", {"job": database.ids["queued"]})
    assert rows == [(ADMIN,)]


@pytest.mark.req("JF-14")
async def test_service_without_rights_logs_once_and_skips_maintenance(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(App(as_role(database.url, VIEWER))) as app:
        maintenance = BackgroundMaintenance(app, "*")
        with caplog.at_level(logging.WARNING, "holdfast"):
            maintenance.begin()
            await auntil(lambda: "left to workers" in caplog.text, "it is logged")
            await maintenance.aclose()
        await session_of(app).store.leave_loop()
    messages = [record.message for record in caplog.records if record.name.startswith("holdfast")]
    assert ["left to workers" in each for each in messages] == [True]
