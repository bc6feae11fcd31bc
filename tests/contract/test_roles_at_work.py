"""The same roles through the port: every verb tried by each, and by programs that were granted one (DP-17)."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg import sql

from holdfast import App
from holdfast.engine.order import Move
from holdfast.engine.states import State
from holdfast.errors import Refused
from holdfast.features.agents.model import Definition
from holdfast.features.approvals.model import GateFilter
from holdfast.features.assembly import open_store
from holdfast.features.audit.store import ActionFilter, EventFilter
from holdfast.features.dead_letters.model import GroupFilter, Starting
from holdfast.features.events.model import Subscribing
from holdfast.features.limits.model import Ask, Pausing, Rule
from holdfast.features.payloads.model import RuleDraft
from holdfast.features.payloads.store import SealedPart
from holdfast.features.retention.model import Keeping
from holdfast.features.schedules.model import Schedule
from holdfast.features.workflows.model import EdgeSpec, NodeSpec
from holdfast.server.maintenance import Attending
from holdfast.stores.flow import Flow
from holdfast.stores.port import Store
from holdfast.stores.requests import ClaimRequest, JobFilter, Reschedule, Telling
from tests.api.serving import auntil
from tests.support.by_hand import ByHand, PostgresByHand
from tests.support.connectors import drafted
from tests.support.endpoints import draft, endpoint, sent
from tests.support.ledger import check_ledger
from tests.support.owners import ROLES, OwnedDatabases, as_role
from tests.support.people import asking, ballot, entry
from tests.support.schedules import add, decided, firing, placed, template
from tests.support.stores import FINAL, claim, new_id, open_lease, put_one, settle, spec, state_of
from tests.support.tokens import issuing
from tests.support.ways import bring
from tests.support.workflows import Flow as Drawn

pytestmark = pytest.mark.req("DP-17", "DP-2", "JF-2")

VIEWER, PRODUCER, EXECUTOR, APPROVER, ADMIN = ROLES

ALL = JobFilter(tenant="default")
AFTER = Subscribing.of("after", "job.enqueue", "follow.up", declared=True, start="beginning")

READS = {
    *("get", "list_jobs", "history", "attempts", "artifacts", "checkpoints", "result"),
    *(
        "health",
        "hour",
        "counts",
        "capped_counts",
        "ledger_end",
        "events_after",
        "events_gone",
        "cursor_of",
        "now",
        "watch",
        "agent",
        "agents",
        "asks_first",
    ),
    *("steps", "gate", "gates", "votes", "notes", "app_events_after", "chain", "circumstances", "executors"),
    "recent_events",
    *("consumers", "subscription", "subscriptions", "active_subscriptions", "deliveries", "behind"),
    *("template", "templates", "template_versions", "made_from", "schedule", "schedules", "declared_schedules"),
    *("due_schedules", "fires"),
    *("workflow", "workflows", "graph", "named", "parent_results"),
    *("limits", "reservation", "reservations", "queue_settings", "payload_rules", "references", "switches"),
    *("tenants", "fair_queues", "turn_of", "registered_only"),
    *("retentions", "preview_retention", "usage"),
    *("dead_letter_groups", "dead_letter_group", "group_of", "remade", "operation", "operations"),
    *("sealed", "fingerprints", "actions", "pulse", "standing"),
    *("endpoint", "endpoints", "endpoint_deliveries"),
    *("connector", "connectors"),
    *("token_of", "token_used", "open_session", "end_session"),
}
EXECUTES = {
    *("enqueue", "open_lease", "renew_lease", "end_lease", "claim", "start", "release", "settle"),
    *("turn", "recalls", "holdings"),
    *("save_checkpoint", "add_artifact", "promote_due", "expire_overdue", "reap_lapsed", "set_aside", "save_cursor"),
    *("save_steps", "send_event", "attend_gates", "keep_gate_token"),
    *("enqueue_made", "fire_schedules", "declare_schedules", "add_schedule", "change_schedule"),
    *("start_workflow", "add_to_workflow", "attend_limits", "age_queues", "reserve", "release_reservation"),
    *("save_subscription", "feed_subscription", "subscription_failed", "declare_rules"),
    *("save_subscription", "feed_subscription", "subscription_failed"),
    *("sweep_retention", "declare_retention", "count_usage", "leftovers", "forget_leftovers"),
    *("next_operation", "work_operation"),
    *("seal_ledger", "seal", "block", "tail"),
    *("note_endpoint_delivery", "disable_endpoint"),
}
DECIDES = {"decide_gate", "gate_hashes", "gate_token", "keep_gate_token"}
GOVERNS = {
    *("pause_subscription", "resume_subscription", "delete_subscription", "reset_consumer", "remove_consumer"),
    *("add_executor", "remove_executor", "pause", "resume"),
    *("set_payload_rule", "delete_payload_rule", "sealed_payloads", "reseal", "sealed_parts", "reseal_part"),
    *("note_dead_letters", "start_operation", "cancel_operation", "redrive_as"),
    *("add_endpoint", "change_endpoint", "enable_endpoint", "remove_endpoint"),
    *("set_connector", "remove_connector"),
    *("issue_token", "revoke_token", "tokens"),
}
REGISTERS = {"register_agent", "disable_agent", "drain_agent", "enable_agent", "resume_agent"}
REGISTERS |= {"set_limit", "remove_limit", "set_aging", "set_retention", "delete_retention"}
REGISTERS |= {"set_tenant", "remove_tenant", "set_fair", "set_registered_only", "find_leftovers"}
PLANS = {"put_template", "remove_template", "run_schedule"}
ALLOWED = {
    VIEWER: READS,
    PRODUCER: READS
    | {"enqueue", "enqueue_made", "cancel", "send_event", "start_workflow", "add_to_workflow", "cancel_workflow"},
    EXECUTOR: READS | EXECUTES,
    APPROVER: READS | DECIDES,
    ADMIN: READS
    | EXECUTES
    | DECIDES
    | REGISTERS
    | PLANS
    | {"cancel_workflow", "resume_workflow"}
    | GOVERNS
    | {"cancel", "redrive", "discard", "reschedule", "move", "rewind"},
}


@dataclass
class Place:
    """A database with a little in it, the owner's store, and the names of what is there."""

    url: str
    owner: Store
    ids: dict[str, str]


def furnish(owner: Store, by_hand: ByHand) -> dict[str, str]:
    """A little of everything in the tenant `default`: the ids by which it is called."""
    ids = {state.value: bring(owner, by_hand, state).id for state in (State.QUEUED, State.DEAD_LETTER)}
    ids["bulk"] = new_id()
    ids["lease"], ids["other"] = open_lease(owner, ttl=1000), open_lease(owner, ttl=1000)
    ids["in_progress"], ids["leased"] = put_one(owner), put_one(owner)
    claim(owner, ids["lease"])
    claim(owner, ids["lease"], begin=False)
    ids["gate"] = asking(owner, quorum=100).id
    ids["token"] = owner.run(owner.verbs.issue_token(issuing(), "ada", "default")).id
    ids["schedule"] = add(owner, name="hourly", timing="@hourly").id
    owner.run(owner.verbs.put_template(template(), "ada", "default"))
    failing = Drawn(owner, {"a": "", "b": "a"}, fields={"a": {"queue": "elsewhere"}})
    failing.start()
    ids["workflow"], ids["its job"] = failing.id, failing.ids["a"]
    ids["endpoint"], ids["reservation"] = endpoint(owner).id, new_id()
    owner.run(owner.verbs.reserve(Ask(ids["reservation"], "queue", "q", 1000), "ada", "default"))
    return ids


@pytest.fixture
def place(owned_databases: OwnedDatabases) -> Iterator[Place]:
    with owned_databases.fresh() as url, closing(open_store(as_role(url, owned_databases.owner))) as owner:
        with closing(PostgresByHand(owner.url)) as by_hand:
            ids = furnish(owner, by_hand)
        yield Place(url, owner, ids)
        check_ledger(owner)


def verbs(
    store: Store, ids: dict[str, str], tenant: str = "default", scope: str = "*"
) -> dict[str, Callable[[], object]]:
    """Every verb of the port, with arguments that the owner could use. `scope` is that of leases and duties."""
    v, run = store.verbs, store.run
    job, lease = ids["in_progress"], ids["lease"]
    return {
        "get": lambda: run(v.get(job, tenant)),
        "list_jobs": lambda: run(v.list_jobs(JobFilter(tenant=tenant))),
        "notes": lambda: run(v.notes(JobFilter(tenant=tenant))),
        "history": lambda: run(v.history(job, tenant)),
        "attempts": lambda: run(v.attempts(job, tenant)),
        "artifacts": lambda: run(v.artifacts(job, tenant)),
        "checkpoints": lambda: run(v.checkpoints(job, tenant)),
        "result": lambda: run(v.result(job, tenant)),
        "health": lambda: run(v.health(tenant)),
        "pulse": lambda: run(v.pulse(tenant)),
        "standing": lambda: run(v.standing(tenant)),
        "hour": lambda: run(v.hour(tenant)),
        "counts": lambda: run(v.counts(tenant)),
        "events_after": lambda: run(v.events_after(None, 5, tenant)),
        "events_gone": lambda: run(v.events_gone("0", tenant)),
        "ledger_end": lambda: run(v.ledger_end(tenant)),
        "capped_counts": lambda: run(v.capped_counts(JobFilter(tenant=tenant), 10)),
        "cursor_of": lambda: run(v.cursor_of("c", tenant)),
        "now": lambda: run(v.now()),
        "enqueue": lambda: run(
            v.enqueue([spec(), spec(key=new_id()), spec(parent_id=job), spec(agent="planner")], tenant)
        ),
        "cancel": lambda: run(v.operate("cancel", [ids["queued"]], None, "ada", tenant)),
        "open_lease": lambda: run(v.open_lease("w", 30, scope)),
        "renew_lease": lambda: run(v.renew_lease(lease, 30, scope)),
        "claim": lambda: run(v.claim(ClaimRequest(lease=lease, queues=("default",), want=1, tenant=scope))),
        "turn": lambda: run(v.turn([], ClaimRequest(lease=lease, queues=("default",), want=1, tenant=scope))),
        "recalls": lambda: run(v.recalls(lease, scope)),
        "holdings": lambda: run(v.holdings(lease, scope)),
        "watch": lambda: run(v.watch(job, tenant, 1)),
        "start": lambda: run(v.start(lease, [ids["leased"]], scope)),
        "release": lambda: run(v.release(lease, [ids["leased"]], scope)),
        "save_checkpoint": lambda: run(v.save_checkpoint(job, lease, 1, "p", "1", scope)),
        "add_artifact": lambda: run(v.add_artifact(job, lease, 1, "a", "file:a", scope)),
        "settle": lambda: run(v.settle(lease, [], scope)),
        "promote_due": lambda: run(v.promote_due(tenant=scope)),
        "expire_overdue": lambda: run(v.expire_overdue(tenant=scope)),
        "reap_lapsed": lambda: run(v.reap_lapsed(tenant=scope)),
        "set_aside": lambda: run(v.set_aside(lease, ("default",), tenant=scope)),
        "save_cursor": lambda: run(v.save_cursor("c", "0", None, scope)),
        "end_lease": lambda: run(v.end_lease(ids["other"], "closed", scope)),
        "redrive": lambda: run(v.operate("redrive", [ids["dead_letter"]], None, "ada", tenant)),
        "discard": lambda: run(v.operate("discard", [ids["dead_letter"]], "because", "ada", tenant)),
        "reschedule": lambda: run(v.reschedule([ids["queued"]], Reschedule(delay=5), None, "ada", tenant)),
        "move": lambda: run(v.move(ids["queued"], Move(where="first"), None, "ada", tenant)),
        "save_steps": lambda: run(v.save_steps(lease, [(job, 1, entry())], scope)),
        "steps": lambda: run(v.steps(job, tenant)),
        "rewind": lambda: run(v.rewind(ids["dead_letter"], 1, "ada", tenant)),
        "send_event": lambda: run(v.send_event(Telling(new_id(), "paid", "{}"), "ada", tenant)),
        "decide_gate": lambda: run(v.decide_gate(ids["gate"], ballot(new_id()), tenant)),
        "keep_gate_token": lambda: run(v.keep_gate_token(ids["gate"], new_id(), None, None, "ada", tenant)),
        "gate_hashes": lambda: run(v.gate_hashes(ids["gate"], tenant)),
        "attend_gates": lambda: run(v.attend_gates(tenant=scope)),
        "gate": lambda: run(v.gate(ids["gate"], tenant)),
        "gates": lambda: run(v.gates(GateFilter(tenant=tenant))),
        "votes": lambda: run(v.votes(ids["gate"], tenant)),
        "agent": lambda: run(v.agent("planner", tenant)),
        "asks_first": lambda: run(v.asks_first("planner", tenant)),
        "agents": lambda: run(v.agents(tenant)),
        "register_agent": lambda: run(v.register_agent(Definition(id="planner", name="Planner"), tenant)),
        "disable_agent": lambda: run(v.disable_agent("planner", "because", "ada", tenant)),
        "drain_agent": lambda: run(v.drain_agent("planner", tenant)),
        "enable_agent": lambda: run(v.enable_agent("planner", tenant)),
        "resume_agent": lambda: run(v.resume_agent("planner", 10, tenant)),
        "template": lambda: run(v.template("monthly", tenant)),
        "templates": lambda: run(v.templates(tenant)),
        "template_versions": lambda: run(v.template_versions("monthly", tenant)),
        "made_from": lambda: run(v.made_from(job, tenant)),
        "enqueue_made": lambda: run(v.enqueue_made([spec("report")], "monthly", 1, tenant)),
        "put_template": lambda: run(v.put_template(template(day=new_id()), "ada", tenant)),
        "remove_template": lambda: run(v.remove_template("monthly", "ada", tenant)),
        "schedule": lambda: run(v.schedule("hourly", tenant)),
        "schedules": lambda: run(v.schedules(tenant)),
        "declared_schedules": lambda: run(v.declared_schedules("shop", tenant)),
        "due_schedules": lambda: run(v.due_schedules(["report"], 10, tenant)),
        "fires": lambda: run(v.fires(ids["schedule"], tenant)),
        "add_schedule": lambda: run(v.add_schedule(placed(new_id()), "ada", tenant)),
        "change_schedule": lambda: run(v.change_schedule(_hourly(store), placed("hourly"), "paused", "ada", tenant)),
        "declare_schedules": lambda: run(v.declare_schedules("shop", [], tenant)),
        "fire_schedules": lambda: run(v.fire_schedules([decided(_hourly(store), firing())], scope)),
        "run_schedule": lambda: run(v.run_schedule(ids["schedule"], firing(), True, "ada", tenant)),
        "start_workflow": lambda: Drawn(store, {"a": "", "b": "a"}).start(tenant),
        "add_to_workflow": lambda: run(v.add_to_workflow(ids["workflow"], *more(ids["workflow"]), "ada", tenant)),
        "resume_workflow": lambda: run(v.resume_workflow(ids["workflow"], None, "ada", tenant)),
        "cancel_workflow": lambda: run(v.cancel_workflow(ids["workflow"], None, "ada", tenant)),
        "workflow": lambda: run(v.workflow(ids["workflow"], tenant)),
        "workflows": lambda: run(v.workflows(tenant)),
        "graph": lambda: run(v.graph(ids["workflow"], tenant)),
        "named": lambda: run(v.named(ids["workflow"], ["a"], tenant)),
        "parent_results": lambda: run(v.parent_results(ids["its job"], tenant)),
        "set_limit": lambda: run(v.set_limit(Rule.of("kind", "slow", 5), "ada", tenant)),
        "remove_limit": lambda: run(v.remove_limit("kind", "slow", "ada", tenant)),
        "limits": lambda: run(v.limits(tenant)),
        "attend_limits": lambda: run(v.attend_limits(tenant=scope)),
        "reserve": lambda: run(v.reserve(Ask(ids["reservation"], "queue", "q", 30), "ada", tenant)),
        "release_reservation": lambda: run(v.release_reservation(ids["reservation"], "done", "ada", tenant)),
        "reservation": lambda: run(v.reservation(ids["reservation"], tenant)),
        "reservations": lambda: run(v.reservations(tenant)),
        "set_aging": lambda: run(v.set_aging("slow", 60.0, 1, 9, "ada", tenant)),
        "pause": lambda: run(v.pause(Pausing(tenant, "kind", "slow", "by hand"), "ada")),
        "resume": lambda: run(v.resume("kind", "slow", "ada", tenant)),
        "switches": lambda: run(v.switches(tenant)),
        "queue_settings": lambda: run(v.queue_settings(tenant)),
        "age_queues": lambda: run(v.age_queues(tenant=scope)),
        "app_events_after": lambda: run(v.app_events_after(None, 5, tenant)),
        "chain": lambda: run(v.chain(job, tenant)),
        "recent_events": lambda: run(v.recent_events(EventFilter(tenant=tenant))),
        "circumstances": lambda: run(v.circumstances(job, tenant)),
        "executors": lambda: run(v.executors()),
        "add_executor": lambda: run(v.add_executor("worker", "executor", "ada")),
        "remove_executor": lambda: run(v.remove_executor("worker")),
        "consumers": lambda: run(v.consumers(tenant)),
        "reset_consumer": lambda: run(v.reset_consumer("c", True, tenant)),
        "remove_consumer": lambda: run(v.remove_consumer("c", tenant)),
        "save_subscription": lambda: run(v.save_subscription(AFTER, new_id(), "ada", tenant)),
        "feed_subscription": lambda: run(v.feed_subscription("after", 5, tenant)),
        "subscription_failed": lambda: run(v.subscription_failed(new_id(), "why", tenant)),
        "subscription": lambda: run(v.subscription("after", tenant)),
        "subscriptions": lambda: run(v.subscriptions(tenant)),
        "active_subscriptions": lambda: run(v.active_subscriptions(tenant)),
        "deliveries": lambda: run(v.deliveries(new_id(), tenant, True, 5)),
        "behind": lambda: run(v.behind(None, True, tenant)),
        "pause_subscription": lambda: run(v.pause_subscription("after", None, "ada", tenant)),
        "resume_subscription": lambda: run(v.resume_subscription("after", False, tenant)),
        "delete_subscription": lambda: run(v.delete_subscription("after", tenant)),
        "payload_rules": lambda: run(v.payload_rules(tenant)),
        "references": lambda: run(v.references(job, tenant)),
        "set_payload_rule": lambda: run(v.set_payload_rule(RuleDraft.of("heal", restricted=True), "ada", tenant)),
        "delete_payload_rule": lambda: run(v.delete_payload_rule("heal", "", "ada", tenant)),
        "declare_rules": lambda: run(v.declare_rules("shop", [RuleDraft.of("heal", restricted=True)], "ada", tenant)),
        "sealed_payloads": lambda: run(v.sealed_payloads("k1", None, 5, tenant)),
        "reseal": lambda: run(v.reseal(job, "[]", "{}", "ada", tenant)),
        "sealed_parts": lambda: run(v.sealed_parts("k1", None, 5, tenant)),
        "reseal_part": lambda: run(v.reseal_part(SealedPart(job, tenant, "step", "1", "[]"), "{}", "ada", tenant)),
        "set_tenant": lambda: run(v.set_tenant(tenant, {"title": "T"}, "ada")),
        "remove_tenant": lambda: run(v.remove_tenant(tenant, "ada")),
        "tenants": lambda: run(v.tenants(tenant)),
        "set_registered_only": lambda: run(v.set_registered_only(False, "ada")),
        "registered_only": lambda: run(v.registered_only()),
        "leftovers": lambda: run(v.leftovers(1, tenant)),
        "forget_leftovers": lambda: run(v.forget_leftovers(["artifact://none"], tenant)),
        "find_leftovers": lambda: run(v.find_leftovers([], tenant)),
        "gate_token": lambda: run(v.gate_token("h", tenant)),
        "set_fair": lambda: run(v.set_fair(["elsewhere"], "ada")),
        "fair_queues": lambda: run(v.fair_queues()),
        "turn_of": lambda: run(v.turn_of(ids["queued"], tenant)),
        "set_retention": lambda: run(v.set_retention(Keeping.of("slow", purge_after="9d"), "ada", tenant)),
        "declare_retention": lambda: run(v.set_retention(Keeping.of("slow", declared=True), "ada", tenant)),
        "delete_retention": lambda: run(v.delete_retention("slow", "*", "ada", tenant)),
        "retentions": lambda: run(v.retentions(tenant)),
        "preview_retention": lambda: run(v.preview_retention(tenant)),
        "sweep_retention": lambda: run(v.sweep_retention()),
        "count_usage": lambda: run(v.count_usage(begin=True)),
        "usage": lambda: run(v.usage(("kind", "day"), tenant)),
        "dead_letter_groups": lambda: run(v.dead_letter_groups(GroupFilter(tenant=tenant))),
        "dead_letter_group": lambda: run(v.dead_letter_group("x", tenant)),
        "group_of": lambda: run(v.group_of(job, tenant)),
        "note_dead_letters": lambda: run(v.note_dead_letters("x", "y", "ada", tenant)),
        "redrive_as": lambda: run(v.redrive_as(ids["dead_letter"], new_id(), "{}", None, "ada", tenant)),
        "remade": lambda: run(v.remade(job, tenant)),
        "start_operation": lambda: run(v.start_operation(Starting(ids["bulk"], "redrive"), ALL, "ada", tenant)),
        "next_operation": lambda: run(v.next_operation()),
        "work_operation": lambda: run(v.work_operation()),
        "cancel_operation": lambda: run(v.cancel_operation(ids["bulk"], None, "ada", tenant)),
        "operation": lambda: run(v.operation(job, tenant)),
        "operations": lambda: run(v.operations(tenant)),
        "seal_ledger": lambda: run(v.seal_ledger("tests")),
        "seal": lambda: run(v.seal()),
        "block": lambda: run(v.block(None)),
        "tail": lambda: run(v.tail(None)),
        "sealed": lambda: run(v.sealed(job, tenant)),
        "fingerprints": lambda: run(v.fingerprints(job, tenant)),
        "actions": lambda: run(v.actions(ActionFilter(tenant=tenant))),
        "connector": lambda: run(v.connector("http.request", tenant)),
        "connectors": lambda: run(v.connectors(tenant)),
        "set_connector": lambda: run(v.set_connector(drafted(), "ada", tenant)),
        "remove_connector": lambda: run(v.remove_connector("none", "ada", tenant)),
        "endpoint": lambda: run(v.endpoint("ops", tenant)),
        "endpoints": lambda: run(v.endpoints(tenant)),
        "endpoint_deliveries": lambda: run(v.endpoint_deliveries(ids["endpoint"], tenant, 5)),
        "add_endpoint": lambda: run(v.add_endpoint(draft(f"e{new_id()}"), new_id(), "ada", tenant)),
        "change_endpoint": lambda: run(v.change_endpoint(draft(), "ada", tenant)),
        "disable_endpoint": lambda: run(v.disable_endpoint("ops", "because", "ada", tenant)),
        "enable_endpoint": lambda: run(v.enable_endpoint("ops", False, "ada", tenant)),
        "note_endpoint_delivery": lambda: run(v.note_endpoint_delivery(sent(ids["endpoint"], job), tenant)),
        "remove_endpoint": lambda: run(v.remove_endpoint("none", "ada", tenant)),
        "issue_token": lambda: run(v.issue_token(issuing(), "ada", tenant)),
        "revoke_token": lambda: run(v.revoke_token(ids["token"], "ada", tenant)),
        "tokens": lambda: run(v.tokens(tenant)),
        "token_of": lambda: run(v.token_of("0" * 64)),
        "token_used": lambda: run(v.token_used("0" * 64)),
        "open_session": lambda: run(v.open_session("0" * 64, new_id(), "1" * 64, "hfs_x", 60)),
        "end_session": lambda: run(v.end_session("1" * 64)),
        "set_clock": lambda: run(v.set_clock(timedelta(0), None)),
    }


def _hourly(store: Store) -> Schedule:
    found = store.run(store.verbs.schedule("hourly", "default"))
    assert found is not None
    return found


def more(workflow: str) -> tuple[list[NodeSpec], list[EdgeSpec]]:
    return [NodeSpec(spec(workflow_id=workflow), new_id())], []


def outcome(call: Callable[[], object]) -> str:
    try:
        call()
    except Refused as refusal:
        return refusal.code
    return "done"


def test_the_list_of_verbs_is_complete(place: Place) -> None:
    public = {name for name in dir(type(place.owner.verbs)) if not name.startswith("_")} - {"dialect", "operate"}
    assert {*verbs(place.owner, place.ids), "settle"} - {"cancel", "redrive", "discard", "declare_retention"} == public


@pytest.mark.parametrize("role", ROLES)
def test_every_verb_against_every_role(place: Place, role: str) -> None:
    with closing(open_store(as_role(place.url, role))) as store:
        answers = {name: outcome(call) for name, call in verbs(store, place.ids).items()}
    assert {name for name, answer in answers.items() if answer == "done"} == ALLOWED[role]
    assert set(answers.values()) == {"done", "not_allowed"}


@pytest.mark.req("JF-1")
@pytest.mark.parametrize("role", [VIEWER, PRODUCER, APPROVER])
def test_some_roles_cannot_ask_for_every_tenant(place: Place, role: str) -> None:
    job = place.ids["queued"]
    with closing(open_store(as_role(place.url, role))) as store:
        v, run = store.verbs, store.run
        assert run(v.get(job, "default")) is not None
        calls: list[Flow[Any]] = [
            *(v.get(job, "*"), v.list_jobs(JobFilter(tenant="*")), v.history(job, "*"), v.attempts(job, "*")),
            *(
                v.counts("*"),
                v.pulse("*"),
                v.standing("*"),
                v.hour("*"),
                v.health("*"),
                v.cursor_of("c", "*"),
                v.events_after(None, 5, "*"),
            ),
            *(v.enqueue([spec()], "*"), v.operate("cancel", [job], None, "ada", "*")),
            *(v.steps(job, "*"), v.gates(GateFilter(tenant="*")), v.gate(place.ids["gate"], "*")),
            *(v.votes(place.ids["gate"], "*"), v.decide_gate(place.ids["gate"], ballot(), "*")),
            *(v.send_event(Telling(new_id(), "paid", "{}"), "ada", "*"), v.gate_hashes(place.ids["gate"], "*")),
        ]
        assert [outcome(partial(run, call)) for call in calls] == ["not_allowed"] * len(calls)
    with closing(PostgresByHand(as_role(place.url, role), tenant="*")) as by_hand:
        assert by_hand.execute("select scope()") == [(None,)]
        assert by_hand.execute("select count(*) from job") == [(0,)]
        assert "may not act for every tenant" in (by_hand.refusal("select health('*')") or "")


@pytest.mark.parametrize("role", [EXECUTOR, ADMIN])
def test_some_roles_may_ask_for_every_tenant(place: Place, role: str) -> None:
    put_one(place.owner, tenant="acme")
    with closing(open_store(as_role(place.url, role))) as store:
        assert sum(store.run(store.verbs.counts("*")).values()) == 8
        assert sum(store.run(store.verbs.counts("default")).values()) == 7


@pytest.mark.req("DP-15")
def test_who_executes_does_in_bulk_what_was_asked_for_and_nothing_else(place: Place) -> None:
    """A worker may not redrive, but works off what an administrator has started: on the jobs that were asked for."""
    wanted, other = place.ids["dead_letter"], bring_dead(place.owner, "other")
    new = Starting(place.ids["bulk"], "redrive")
    place.owner.run(
        place.owner.verbs.start_operation(new, JobFilter(tenant="default", kind=job_kind(place)), "ada", "default")
    )
    call = "select holdfast.do_operation(:op, :jobs, null, false, 'default')"
    with closing(PostgresByHand(as_role(place.url, EXECUTOR), tenant="default")) as by_hand:
        by_hand.execute(call, {"op": new.id, "jobs": [other]})
    assert state_of(place.owner, other) is State.DEAD_LETTER
    with closing(open_store(as_role(place.url, EXECUTOR))) as store:
        assert store.run(store.verbs.work_operation()) == 1
    assert (state_of(place.owner, wanted), state_of(place.owner, other)) == (State.QUEUED, State.DEAD_LETTER)
    found = place.owner.run(place.owner.verbs.operation(new.id, "default"))
    assert found is not None
    assert (found.state, found.done, found.refusals) == ("done", 1, {"not_wanted": 1})
    with closing(PostgresByHand(as_role(place.url, EXECUTOR), tenant="default")) as by_hand:
        assert "no batch of it" in (by_hand.refusal(call, {"op": new.id, "jobs": [other]}) or "")


def job_kind(place: Place) -> str:
    found = place.owner.run(place.owner.verbs.get(place.ids["dead_letter"], "default"))
    assert found is not None
    return found.kind


def bring_dead(store: Store, kind: str) -> str:
    job_id = put_one(store, kind, queue="dying")
    (claimed,) = claim(store, open_lease(store), queues=("dying",))
    settle(store, claimed, FINAL)
    return job_id


@pytest.mark.req("DP-20")
def test_a_program_that_was_granted_a_role_has_just_that(place: Place) -> None:
    """The way it is meant to be used: a login of one's own, a member of one of the roles."""
    name = f"holdfast_app_{os.getpid()}"
    with psycopg.connect(place.url, autocommit=True) as admin:
        admin.execute(sql.SQL("create role {} nologin").format(sql.Identifier(name)))
        try:
            admin.execute(sql.SQL("grant holdfast_producer to {}").format(sql.Identifier(name)))
            with closing(open_store(as_role(place.url, name))) as store:
                assert store.run(store.verbs.enqueue([spec()], "default"))[0].created
                assert outcome(lambda: store.run(store.verbs.open_lease("w", 30, "default"))) == "not_allowed"
                assert outcome(lambda: store.run(store.verbs.enqueue([spec()], "*"))) == "not_allowed"
            admin.execute(sql.SQL("grant holdfast_executor to {}").format(sql.Identifier(name)))
            with closing(open_store(as_role(place.url, name))) as store:
                assert outcome(lambda: store.run(store.verbs.open_lease("w", 30, "*"))) == "done"
        finally:
            admin.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


@pytest.mark.req("DP-11")
def test_the_caller_signs_what_it_does_by_hand(place: Place) -> None:
    with closing(PostgresByHand(as_role(place.url, ADMIN), tenant="default")) as by_hand:
        by_hand.execute("select * from cancel(:job)", {"job": place.ids["queued"]})
        rows = by_hand.execute("select actor from history(:job) where verb = 'cancel'", {"job": place.ids["queued"]})
    assert rows == [(ADMIN,)]


@pytest.mark.req("JF-14")
async def test_a_service_whose_role_may_not_says_so_once_and_leaves_the_duties_alone(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(App(as_role(place.url, VIEWER))) as app:
        attending = Attending(app, "*")
        with caplog.at_level(logging.WARNING, "holdfast"):
            attending.begin()
            await auntil(lambda: "left to workers" in caplog.text, "it is said")
            await attending.aclose()
        await app.store.leave_loop()
    said = [record.message for record in caplog.records if record.name.startswith("holdfast")]
    assert ["left to workers" in each for each in said] == [True]
