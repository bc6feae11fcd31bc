"""The database records every change of settings, for every actor and client (CX-4)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.agents.model import Definition
from holdfast.features.assembly import Store
from holdfast.features.audit.store import ActionFilter
from holdfast.features.events.model import NewSubscription
from holdfast.features.limits.model import ReservationRequest, Rule
from holdfast.features.registry.model import EventTypeDraft
from holdfast.stores.action_triggers import RECORDED
from holdfast.stores.table_text import Table
from tests.contract.test_attacks import _populate
from tests.support.direct_sql import ByHand, PostgresByHand
from tests.support.features import draft, feed_all, flaws, pause, resume, seal, verify, webhook
from tests.support.schedules import add, decided, firing, placed, template
from tests.support.sqlite_names import PREFIX
from tests.support.steps import approve, asking, keep_token
from tests.support.stores import forward, new_id, open_lease, put_one, work

pytestmark = pytest.mark.req("CX-4", "HF-4")

# Jobs and their rows are recorded in the ledger; counters, locks and internal tables are not settings. A table in which
# people set something belongs in stores/action_triggers.py instead.
NOT_RECORDED = {
    *("reference", "resealed", "replaced_payload"),  # facts of jobs, and a history that never changes
    *("tenant_load", "pending_change", "fair_place"),
    *("job", "job_state", "job_tag", "event", "result", "checkpoint", "artifact", "step", "app_event", "approval"),
    "attempt_log",
    *("workflow", "node", "dependency", "callback", "fire", "made_from", "delivery", "idempotency", "content"),
    *("lease", "cancellation", "watch", "occupied_slot", "rate_meter", "migration", "installed"),
    *("ready", "round", "moved"),  # scratch tables of SQLite, used during a claim or a move
    *("action", "seal"),
    *("archive", "archived"),
    *("retention_pass", "event_partition", "ledger_epoch", "usage", "usage_place", "upkeep", "orphaned_file"),
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
    recorded = [each for each in RECORDED if each.table in tables]
    assert tables - {each.table for each in recorded} - NOT_RECORDED == set()
    assert {each.table for each in RECORDED} - tables <= ({"login_pin"} if by_hand.name == "sqlite" else set())
    if by_hand.name == "sqlite":
        query = "select tbl_name from sqlite_master where type = 'trigger' and name like 'holdfast_record_added_%'"
    else:
        query = "select tgrelid::regclass::text from pg_trigger where tgname = 'record_action'"
    assert {str(row[0]).split(".")[-1].removeprefix(PREFIX) for row in by_hand.execute(query)} == {
        each.table for each in recorded if each.by_hand
    }


def fill(store: Store, by_hand: ByHand) -> None:
    """At least one row in every table of settings."""
    _populate(store, by_hand)
    run, tenant = store.run, "default"
    run(store.queues.set_aging("slow", 60.0, 1, 9, "ada", tenant))
    run(store.executors.set("gpu", "executor", "ada"))
    run(store.kinds.register({"mail.send": "Sends mail"}, "ada"))
    run(store.event_types.set(EventTypeDraft("billing.paid", "billing"), "ada"))
    run(store.ledger.save_cursor("billing", "0", None, tenant))
    run(store.reservations.set(ReservationRequest(new_id(), "resource", "gpu", 30), "ada", tenant))
    if by_hand.name == "postgres":
        by_hand.execute(
            "insert into login_pin (login, tenant, set_by, created_at) values ('eve', 'acme', 'ada', now())"
        )


# Values that the checks of a column allow. Without one, a value is derived from the type.
VALID = {
    "scope": ("'kind'", "'queue'"),
}


def columns_of(by_hand: ByHand, table: str) -> dict[str, tuple[str, bool]]:
    """The columns that can be written: their types, and whether they are in the primary key."""
    if by_hand.name == "sqlite":
        return {row[1]: (row[2].lower(), row[5] > 0) for row in by_hand.execute(f"pragma table_info({table})")}
    rows = by_hand.execute(
        "select a.attname, format_type(a.atttypid, null), coalesce(a.attnum = any (i.indkey), false)"
        " from pg_attribute a"
        " left join pg_index i on i.indrelid = a.attrelid and i.indisprimary"
        f" where a.attrelid = '{table}'::regclass and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''"
    )
    return {row[0]: (row[1], row[2]) for row in rows}


def other_values(by_hand: ByHand, column: str, kind: str) -> Iterator[str]:
    """Expressions for another value of a column, of which the checks of the table may allow some."""
    yield from VALID.get(column, ())
    if kind == "boolean":
        yield f"not coalesce({column}, false)"
    elif kind.startswith("timestamp"):
        yield f"coalesce({column}, clock_timestamp()) + interval '1 day'"
    elif kind == "interval":
        yield f"coalesce({column}, '0') + interval '1 day'"
    elif kind in ("integer", "bigint", "smallint", "double precision", "real", "numeric", "int"):
        yield from (f"coalesce({column}, 0) + 1", f"1 - {column}", f"coalesce({column}, 0) + 86400000000")
    elif kind == "uuid":
        yield "gen_random_uuid()"
    elif kind in ("json", "jsonb"):
        yield from ("""'{"other": 1}'""", "'[]'", "'{}'")
    elif kind.endswith("[]"):
        yield from (f"'{{other}}'::{kind}", f"'{{}}'::{kind}")
    elif kind == "bytea" or kind == "blob":
        yield "'other'" if kind == "bytea" else "x'00'"
    else:
        yield from (f"coalesce({column}, '') || 'x'", "'other'", f"'{new_id()}'", """'{"other": 1}'""", "'[]'")
    yield "null"


def outcome_of(by_hand: ByHand, statement: str, key: dict[str, Any]) -> str:
    """What a hand-written update does: changes nothing, is `recorded`, `refused` or `unrecorded`, or is `invalid`."""
    by_hand.begin()
    try:
        before = by_hand.execute("select count(*) from action")
        if not by_hand.execute(statement + " returning 1", key):
            return "unchanged"
        return "unrecorded" if by_hand.execute("select count(*) from action") == before else "recorded"
    except psycopg.Error as error:
        return "refused" if error.sqlstate == "ZH002" else "invalid"
    except sqlite3.DatabaseError as error:
        return "refused" if str(error).startswith("immutable") else "invalid"
    finally:
        by_hand.rollback()


@pytest.mark.every_case
@pytest.mark.slow
def test_no_column_of_a_setting_changes_without_an_action(store: Store, by_hand: ByHand) -> None:
    """The columns come from the catalogue."""
    fill(store, by_hand)
    wrong = list[str]()
    for each in RECORDED:
        if each.table == "login_pin" and by_hand.name == "sqlite":
            continue
        columns = columns_of(by_hand, each.table)
        recorded = each.on(Table(each.table, "", dict.fromkeys(columns, "")))
        keys = [name for name, (_, key) in columns.items() if key]
        rows = by_hand.execute(f"select {', '.join(keys)} from {each.table}")
        assert rows, each.table
        for column, (kind, _) in columns.items():
            found = set[str]()
            for row in rows:
                where = " and ".join(f"{name} = :k_{name}" for name in keys)
                for value in other_values(by_hand, column, kind):
                    statement = (
                        f"update {each.table} set {column} = {value}"
                        f" where {where} and {column} is distinct from ({value})"
                    )
                    found.add(
                        outcome_of(by_hand, statement, {f"k_{name}": at for name, at in zip(keys, row, strict=True)})
                    )
            found -= {"unchanged", "invalid"}
            listed = column in each.unrecorded
            if not found:  # the checks allow it to change with other columns only
                if column not in [*recorded.watched, *recorded.operated]:
                    wrong.append(f"{each.table}.{column}: no value to try; add one to VALID")
            elif ("recorded" if listed else "unrecorded") in found:
                wrong.append(f"{each.table}.{column}: {'recorded, but listed' if listed else 'not recorded'}")
    assert "\n".join(wrong) == ""


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
    run(store.executors.set("gpu", "executor", "ada"))
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


def test_tables_with_one_row_are_recorded_without_a_tenant(store: Store, by_hand: ByHand) -> None:
    """The session of an owner has no tenant unless it sets one."""
    if isinstance(by_hand, PostgresByHand):
        by_hand.execute("reset holdfast.tenant")
    by_hand.execute("update dispatch set tenant_required = not tenant_required")
    one_hour = "3600000000" if by_hand.name == "sqlite" else "interval '1 h'"
    by_hand.execute(f"update clock set shift = {one_hour}")
    assert [each[1:3] for each in actions_of(store)] == [("change", "dispatch"), ("change", "clock")]


def test_work_and_operations_are_not_taken_for_hand_written_sql(store: Store, by_hand: ByHand) -> None:
    """Operations change positions, counters and leases all the time."""
    run, tenant = store.run, "default"
    _populate(store, by_hand)
    run(store.ledger.save_cursor("billing", "0", None, tenant))
    before = actions_of(store, limit=1000)
    lease = open_lease(store)
    assert run(store.leases.renew(lease, 60.0, "*"))
    put_one(store, "import", queue="import")
    feed_all(store, "follow")
    run(store.ledger.save_cursor("billing", "1", "0", tenant))
    forward(store, 3600.0)
    run(store.leases.end(lease, "closed", "*"))
    assert actions_of(store, limit=1000) == before
    run(store.policies.set({"tenant_required": True}, "ada"))
    assert actions_of(store, limit=1000) == [*before, ("ada", "change", "policies", "tenant_required")]
