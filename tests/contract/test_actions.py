"""What is done to anything but a job is recorded by the database itself, whoever does it and by whatever way (CX-4)."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.agents.model import Definition
from holdfast.features.audit.store import ActionFilter
from holdfast.features.events.model import Subscribing
from holdfast.features.limits.model import Ask, Rule
from holdfast.stores.action_triggers import RECORDED
from holdfast.stores.port import Store
from tests.support.audit import flaws, seal, verify
from tests.support.by_hand import ByHand
from tests.support.endpoints import draft, endpoint
from tests.support.people import approve, asking, keep_token
from tests.support.schedules import add, decided, firing, placed, template
from tests.support.stores import new_id, put_one, work
from tests.support.switches import pause, resume

pytestmark = pytest.mark.req("CX-4", "HF-4")

# Jobs and what belongs to them, whose record is the ledger; what is counted, held or told; and the database's own. A
# table that people set something in belongs into stores/action_triggers.py instead.
NOT_RECORDED = {
    *("reference", "resealed"),  # facts of jobs, and a history that never changes
    *("tenant_load", "pending_change", "fair_place"),
    *("job", "job_state", "job_tag", "event", "result", "checkpoint", "artifact", "step", "app_event", "gate"),
    *("workflow", "node", "dependency", "fire", "made_from", "delivery", "idempotency", "content"),
    *("lease", "recall", "watch", "place", "meter", "dispatch", "clock", "migration"),
    *("ready", "round", "moved"),  # what SQLite keeps of a claim or a move while it lasts
    *("action", "seal"),
    *("retention_pass", "usage", "usage_place", "upkeep", "leftover"),
    *("dead_letter", "redriven_as"),
    *("endpoint_delivery", "quarantine"),
    *("unsure_wait", "owed", "mutex", "lock_dispatch", "lock_seal", *(f"lock_subscription_{n}" for n in range(8))),
}


def did(store: Store, **wanted: Any) -> list[tuple[str, str, str, str]]:
    found = store.run(store.verbs.actions(ActionFilter(tenant=EVERY_TENANT, **wanted)))
    return [(each.actor, each.verb, each.subject, each.name) for each in reversed(found)]


def test_every_table_that_people_set_something_in_is_recorded(store: Store, by_hand: ByHand) -> None:
    """Name a new one in stores/action_triggers.py, one line, or say here why it is none."""
    tables = {table for table in by_hand.tables() if not table.startswith("sqlite_")}
    assert tables - {each.table for each in RECORDED} - NOT_RECORDED == set()
    assert {each.table for each in RECORDED} <= tables
    if by_hand.name == "sqlite":
        asked = "select tbl_name from sqlite_master where type = 'trigger' and name like 'record_added_%'"
    else:
        asked = "select tgrelid::regclass::text from pg_trigger where tgname = 'record_action'"
    assert {str(row[0]).split(".")[-1] for row in by_hand.execute(asked)} == {
        each.table for each in RECORDED if each.by_hand
    }


def test_every_act_of_a_person_is_recorded_with_their_name(store: Store) -> None:
    v, run, tenant = store.verbs, store.run, "default"
    run(v.set_limit(Rule.of("queue", "mail", 5), "ada", tenant))
    run(v.set_limit(Rule.of("queue", "mail", 6), "bob", tenant))
    run(v.set_limit(Rule.of("queue", "mail", 6), "eve", tenant))  # changes nothing
    run(v.remove_limit("queue", "mail", "ada", tenant))
    run(v.set_aging("slow", 60.0, 1, 9, "ada", tenant))
    run(v.register_agent(Definition(id="planner", name="Planner"), tenant, "ada"))
    run(v.disable_agent("planner", "it loops", "bob", tenant))
    run(v.enable_agent("planner", tenant, "carol"))
    run(v.put_template(template(day=1), "ada", tenant))
    run(v.remove_template("monthly", "bob", tenant))
    hourly = add(store, name="hourly", timing="@hourly")
    run(v.change_schedule(hourly, placed("hourly"), "paused", "bob", tenant))
    run(v.add_executor("gpu", "executor", "ada"))
    run(v.remove_executor("gpu", "bob"))
    after = Subscribing.of("after", "job.enqueue", "follow.up", declared=False, start="beginning")
    run(v.save_subscription(after, new_id(), "ada", tenant))
    run(v.pause_subscription("after", "too many", "bob", tenant))
    run(v.resume_subscription("after", False, tenant, "carol"))
    run(v.delete_subscription("after", tenant, "dan"))
    run(v.save_cursor("billing", "0", None, tenant))
    run(v.reset_consumer("billing", True, tenant, "ada"))
    run(v.remove_consumer("billing", tenant, "bob"))
    ask = Ask(new_id(), "resource", "gpu", 30)
    run(v.reserve(ask, "ada", tenant))
    run(v.release_reservation(ask.id, "done", "bob", tenant))
    question = asking(store)
    keep_token(store, question.id, "hash", person="eve")
    approve(store, question.id, "ada")
    endpoint(store, actor="ada")
    run(v.change_endpoint(draft(secrets=("NEW", "OLD")), "bob", tenant))
    run(v.disable_endpoint("ops", "gone", "carol", tenant))
    run(v.enable_endpoint("ops", False, "dan", tenant))
    run(v.remove_endpoint("ops", "eve", tenant))
    run(v.set_fair(["mail"], "eve"))
    run(v.set_fair(["mail"], "ada"))  # changes nothing
    run(v.set_fair([], "dan"))
    pause(store, queue="mail", tenant=tenant)
    resume(store, queue="mail", tenant=tenant)

    by = [each for each in did(store, limit=1000) if each[0] in {"ada", "bob", "carol", "dan", "eve"}]
    assert by[:20] == [
        ("ada", "add", "limit", "queue mail"),
        ("bob", "change", "limit", "queue mail"),
        ("ada", "remove", "limit", "queue mail"),
        ("ada", "add", "queue", "slow"),
        ("ada", "add", "agent", "planner"),
        ("bob", "disable", "agent", "planner"),
        ("carol", "enable", "agent", "planner"),
        ("ada", "add", "template", "monthly"),
        ("bob", "add", "template", "monthly"),
        ("ada", "add", "schedule", "hourly"),
        ("bob", "pause", "schedule", "hourly"),
        ("ada", "add", "executor", "gpu"),
        ("bob", "remove", "executor", "gpu"),
        ("ada", "add", "subscription", "after"),
        ("bob", "pause", "subscription", "after"),
        ("carol", "resume", "subscription", "after"),
        ("dan", "remove", "subscription", "after"),
        ("ada", "reset", "consumer", "billing"),
        ("bob", "remove", "consumer", "billing"),
        ("ada", "add", "reservation", "resource gpu"),
    ]
    assert ("bob", "change", "reservation", "resource gpu") in by
    assert ("ada", "add", "vote", question.id) in by
    shared = ("change", "tenants", "shared queues")
    assert [each for each in by if each[1:] == shared] == [("eve", *shared), ("dan", *shared)]
    assert by[-2:] == [("ada", "add", "switch", "queue mail"), ("bob", "remove", "switch", "queue mail")]
    assert [each for each in by if each[2] == "endpoint"] == [
        ("ada", "add", "endpoint", "ops"),
        ("bob", "change", "endpoint", "ops"),
        ("carol", "disable", "endpoint", "ops"),
        ("dan", "enable", "endpoint", "ops"),
        ("eve", "remove", "endpoint", "ops"),
    ]
    assert [each[1:] for each in did(store, subject="gate_token")] == [("add", "gate_token", question.id)]
    seal(store)
    assert (verify(store).actions, flaws(store)) == (len(did(store, limit=1000)), [])


def test_what_changed_is_told_and_secrets_are_not(store: Store) -> None:
    v, run = store.verbs, store.run
    run(v.set_limit(Rule.of("queue", "mail", 5), "ada", "default"))
    run(v.set_limit(Rule.of("queue", "mail", None, "10/s"), "ada", "default"))
    options: Any = {"payload": {"password": "hunter2"}}
    new = Subscribing.of("after", "paid", "ship", declared=True, start="beginning", options=options)
    run(v.save_subscription(new, new_id(), "ada", "default"))
    other: Any = {"payload": {"password": "hunter3"}}
    run(
        v.save_subscription(
            Subscribing.of("after", "paid", "ship", declared=True, options=other), new_id(), "bob", "default"
        )
    )
    found = run(v.actions(ActionFilter(tenant="default")))
    assert [each.changed for each in found if each.subject == "limit"] == [
        {"concurrency": [5, None], "rate": [None, 10], "per": [None, 1], "burst": [None, 10]},
        {"concurrency": 5},
    ]
    told = [each.changed for each in found if each.subject == "subscription"]
    assert (told[0], len(told)) == ({"job_options": "changed"}, 2)
    assert "hunter" not in repr(found)
    assert run(v.actions(ActionFilter(tenant="other"))) == []


def test_what_is_done_by_hand_is_recorded_and_what_the_machine_does_is_not(store: Store, by_hand: ByHand) -> None:
    hourly = add(store, name="hourly", timing="@hourly")
    before = did(store)
    store.run(store.verbs.fire_schedules([decided(hourly, firing())], "*"))
    put_one(store)
    work(store)
    assert did(store) == before
    by_hand.execute("update schedule set timing = '@daily' where name = 'hourly'")
    who = "sql" if by_hand.name == "sqlite" else by_hand.execute("select caller()::text")[0][0]
    assert did(store) == [*before, (who, "change", "schedule", "hourly")]
    by_hand.begin()
    by_hand.execute("update schedule set timing = '@weekly' where name = 'hourly'")
    by_hand.rollback()
    assert len(did(store)) == len(before) + 1  # recorded with the change, or not at all
