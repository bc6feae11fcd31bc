"""The database records every change of settings, for every actor and client (CX-4)."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.agents.model import Definition
from holdfast.features.assembly import Store
from holdfast.features.audit.store import ActionFilter
from holdfast.features.events.model import NewSubscription
from holdfast.features.limits.model import ReservationRequest, Rule
from holdfast.stores.action_triggers import RECORDED
from tests.support.direct_sql import ByHand
from tests.support.features import draft, flaws, pause, resume, seal, verify, webhook
from tests.support.schedules import add, decided, firing, placed, template
from tests.support.steps import approve, asking, keep_token
from tests.support.stores import new_id, put_one, work

pytestmark = pytest.mark.req("CX-4", "HF-4")

# Jobs and their rows are recorded in the ledger; counters, locks and internal tables are not settings. A table in which
# people set something belongs in stores/action_triggers.py instead.
NOT_RECORDED = {
    *("reference", "resealed"),  # facts of jobs, and a history that never changes
    *("tenant_load", "pending_change", "fair_place"),
    *("job", "job_state", "job_tag", "event", "result", "checkpoint", "artifact", "step", "app_event", "approval"),
    "attempt_log",
    *("workflow", "node", "dependency", "callback", "fire", "made_from", "delivery", "idempotency", "content"),
    *("lease", "recall", "watch", "occupied_slot", "rate_meter", "dispatch", "clock", "migration"),
    *("ready", "round", "moved"),  # scratch tables of SQLite, used during a claim or a move
    *("action", "seal"),
    *("retention_pass", "event_partition", "usage", "usage_place", "upkeep", "leftover"),
    *("dead_letter", "redriven_as"),
    *("webhook_delivery", "quarantine", "unregistered_name"),
    *("unsure_wait", "owed", "mutex", "lock_dispatch", "lock_seal", *(f"lock_subscription_{n}" for n in range(8))),
}


def actions_of(store: Store, **wanted: Any) -> list[tuple[str, str, str, str]]:
    actions = store.run(store.audit.actions(ActionFilter(tenant=EVERY_TENANT, **wanted)))
    return [(action.actor, action.type, action.subject, action.name) for action in reversed(actions)]


def test_every_table_of_settings_has_an_action_trigger(store: Store, by_hand: ByHand) -> None:
    """Add a new table of settings to stores/action_triggers.py, or to NOT_RECORDED with the reason."""
    tables = {table for table in by_hand.tables() if not table.startswith("sqlite_")}
    recorded = [each for each in RECORDED if by_hand.name != "sqlite" or not each.postgres_only]
    assert tables - {each.table for each in recorded} - NOT_RECORDED == set()
    assert {each.table for each in recorded} <= tables
    if by_hand.name == "sqlite":
        query = "select tbl_name from sqlite_master where type = 'trigger' and name like 'record_added_%'"
    else:
        query = "select tgrelid::regclass::text from pg_trigger where tgname = 'record_action'"
    assert {str(row[0]).split(".")[-1] for row in by_hand.execute(query)} == {
        each.table for each in recorded if each.by_hand
    }


def test_every_action_is_recorded_with_its_actor(store: Store) -> None:
    run, tenant = store.run, "default"
    run(store.limits.set(Rule.of("queue", "mail", 5), "ada", tenant))
    run(store.limits.set(Rule.of("queue", "mail", 6), "bob", tenant))
    run(store.limits.set(Rule.of("queue", "mail", 6), "eve", tenant))  # changes nothing
    run(store.limits.remove("queue", "mail", "ada", tenant))
    run(store.queues.set_aging("slow", 60.0, 1, 9, "ada", tenant))
    run(store.agents.set(Definition(id="planner", name="Planner"), tenant, "ada"))
    run(store.agents.disable("planner", "it loops", "bob", tenant))
    run(store.agents.enable("planner", tenant, "carol"))
    run(store.templates.set(template(day=1), "ada", tenant))
    run(store.templates.remove("monthly", "bob", tenant))
    hourly = add(store, name="hourly", timing="@hourly")
    run(store.schedules.change(hourly, placed("hourly"), "paused", "bob", tenant))
    run(store.executors.add("gpu", "executor", "ada"))
    run(store.executors.remove("gpu", "bob"))
    after = NewSubscription.of("after", "job.enqueue", "follow.up", declared=False, start="beginning")
    run(store.subscriptions.set(after, new_id(), "ada", tenant))
    run(store.subscriptions.pause("after", "too many", "bob", tenant))
    run(store.subscriptions.resume("after", False, tenant, "carol"))
    run(store.subscriptions.remove("after", tenant, "dan"))
    run(store.ledger.save_cursor("billing", "0", None, tenant))
    run(store.consumers.reset("billing", True, tenant, "ada"))
    run(store.consumers.remove("billing", tenant, "bob"))
    ask = ReservationRequest(new_id(), "resource", "gpu", 30)
    run(store.reservations.set(ask, "ada", tenant))
    run(store.reservations.release(ask.id, "done", "bob", tenant))
    question = asking(store)
    keep_token(store, question.id, "hash", person="eve")
    approve(store, question.id, "ada")
    webhook(store, actor="ada")
    run(store.webhooks.change(draft(secrets=("NEW", "OLD")), "bob", tenant))
    run(store.webhooks.disable("ops", "gone", "carol", tenant))
    run(store.webhooks.enable("ops", False, "dan", tenant))
    run(store.webhooks.remove("ops", "eve", tenant))
    run(store.tenants.set_fair(["mail"], "eve"))
    run(store.tenants.set_fair(["mail"], "ada"))  # changes nothing
    run(store.tenants.set_fair([], "dan"))
    pause(store, queue="mail", tenant=tenant)
    resume(store, queue="mail", tenant=tenant)

    by = [each for each in actions_of(store, limit=1000) if each[0] in {"ada", "bob", "carol", "dan", "eve"}]
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
    assert by[-2:] == [("ada", "add", "pause", "queue mail"), ("bob", "remove", "pause", "queue mail")]
    assert [each for each in by if each[2] == "webhook"] == [
        ("ada", "add", "webhook", "ops"),
        ("bob", "change", "webhook", "ops"),
        ("carol", "disable", "webhook", "ops"),
        ("dan", "enable", "webhook", "ops"),
        ("eve", "remove", "webhook", "ops"),
    ]
    assert [each[1:] for each in actions_of(store, subject="approval_token")] == [
        ("add", "approval_token", question.id)
    ]
    seal(store)
    assert (verify(store).actions, flaws(store)) == (len(actions_of(store, limit=1000)), [])


def test_actions_record_the_change_without_secrets(store: Store) -> None:
    run = store.run
    run(store.limits.set(Rule.of("queue", "mail", 5), "ada", "default"))
    run(store.limits.set(Rule.of("queue", "mail", None, "10/s"), "ada", "default"))
    options: Any = {"payload": {"password": "hunter2"}}
    new = NewSubscription.of("after", "paid", "ship", declared=True, start="beginning", options=options)
    run(store.subscriptions.set(new, new_id(), "ada", "default"))
    other: Any = {"payload": {"password": "hunter3"}}
    run(
        store.subscriptions.set(
            NewSubscription.of("after", "paid", "ship", declared=True, options=other), new_id(), "bob", "default"
        )
    )
    actions = run(store.audit.actions(ActionFilter(tenant="default")))
    assert [each.changed for each in actions if each.subject == "limit"] == [
        {"concurrency": [5, None], "rate": [None, 10], "per": [None, 1], "burst": [None, 1]},
        {"concurrency": 5},
    ]
    changes = [each.changed for each in actions if each.subject == "subscription"]
    assert (changes[0], len(changes)) == ({"job_options": "changed"}, 2)
    assert "hunter" not in repr(actions)
    assert run(store.audit.actions(ActionFilter(tenant="other"))) == []


def test_hand_written_sql_is_recorded_and_work_of_jobs_is_not(store: Store, by_hand: ByHand) -> None:
    hourly = add(store, name="hourly", timing="@hourly")
    before = actions_of(store)
    store.run(store.schedules.fire([decided(hourly, firing())], "*"))
    put_one(store)
    work(store)
    assert actions_of(store) == before
    by_hand.execute("update schedule set timing = '@daily' where name = 'hourly'")
    who = "sql" if by_hand.name == "sqlite" else by_hand.execute("select caller()::text")[0][0]
    assert actions_of(store) == [*before, (who, "change", "schedule", "hourly")]
    by_hand.begin()
    by_hand.execute("update schedule set timing = '@weekly' where name = 'hourly'")
    by_hand.rollback()
    assert len(actions_of(store)) == len(before) + 1  # recorded with the change, or not at all
