"""Health (DP-19): each reason with its code, where it begins to count, and the plain views for other tools."""

from __future__ import annotations

import asyncio
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from holdfast import App
from holdfast.errors import InvalidSetting, Refused
from holdfast.features.assembly import Store, open_store
from holdfast.features.health.model import CAP, Health, Thresholds, judged
from holdfast.features.limits.model import Rule
from tests.support.direct_sql import ByHand, PostgresByHand
from tests.support.features import keep, pause, resume, seal, share, subscribe, sweep
from tests.support.postgres_roles import ROLES, OwnedDatabases, as_role
from tests.support.schedules import add, placed
from tests.support.steps import asks
from tests.support.stores import (
    FINAL,
    apply,
    claim,
    forward,
    new_id,
    open_lease,
    put,
    put_one,
    settle,
    spec,
    take,
    work,
)

pytestmark = pytest.mark.req("DP-19")

VIEWS = {
    "backlog": ("tenant", "queue", "kind", "waiting"),
    "in_progress": ("tenant", "queue", "kind", "running", "oldest_started_at"),
    "dead_letter_open": ("tenant", "queue", "kind", "error_code", "dead", "first_at", "last_at"),
}


def codes(store: Store, tenant: str = "default", **when: Any) -> list[str]:
    return [each.code for each in store.run(store.health.get(tenant, Thresholds(**when))).reasons]


def test_each_reason_has_its_code_and_is_gone_when_its_cause_is(store: Store) -> None:
    forward(store)
    run = store.run
    assert codes(store) == codes(store, "*") == []
    lease = run(store.leases.open("one", 1e6, "*", "worker", ["mail.send"], ["default"], 4)).id
    # Somebody takes the kind, but not in that queue; somebody serves the queue, but does not know the kind.
    put(store, spec("mail.send", queue="bulk"), spec("unknown"))
    found = run(store.health.get("default"))
    assert found.unserved == (("bulk", "mail.send"), ("default", "unknown"))
    assert (found.workers, [each.code for each in found.reasons]) == (1, ["unserved_kinds"])
    run(store.leases.open("two", 1e6, "default", "worker", None, None, None))
    assert codes(store) == []
    assert codes(store, "*") == []
    settle(store, claim(store, lease, 9, queues=("default", "bulk")))
    pause(store, "SMTP is down", queue="mail", until=60.0)
    assert codes(store) == codes(store, "acme") == ["paused"]
    assert "SMTP is down" in run(store.health.get("default")).reasons[0].says
    resume(store, queue="mail")
    # What waits in a queue that is paused waits for nobody.
    run(store.jobs.enqueue([spec("mail.send"), spec("other", queue="bulk")], "default"))
    forward(store, 301)
    assert codes(store) == codes(store, "*") == ["oldest_waits"]
    pause(store, queue="default")
    assert codes(store, "*") == ["oldest_waits", "paused"]
    pause(store, queue="bulk", tenant="default")
    assert (codes(store), codes(store, "*")) == (["paused"], ["oldest_waits", "paused"])
    pause(store, everything=True)
    assert codes(store, "*") == ["paused"]
    assert (resume(store, queue="default"), resume(store, queue="bulk", tenant="default")) == (True, True)
    assert resume(store, everything=True)
    settle(store, claim(store, lease, 9, queues=("default", "bulk")))
    # Limits.
    run(store.limits.set(Rule("kind", "slow", 1), "ada", "default"))
    put(store, *(spec("slow") for _ in range(4)))
    slow = claim(store, lease, 9)
    assert codes(store, parked_warn=3) == codes(store, "*", parked_warn=3) == ["limits_hold_many"]
    assert codes(store, "acme", parked_warn=1) == codes(store, parked_warn=4) == []
    run(store.limits.remove("kind", "slow", "ada", "default"))
    settle(store, slow)
    settle(store, claim(store, lease, 9))
    # People.
    put_one(store)
    (asking,) = claim(store, lease)
    apply(store, lease, asks(asking, new_id(), expires_in=30.0))
    assert codes(store) == []
    forward(store, 31)
    assert codes(store) == codes(store, "*") == ["approvals_overdue"]
    run(store.approvals.attend())
    assert codes(store) == []
    # Schedules, consumers, subscriptions.
    run(store.clock.set(timedelta(0), placed().next_fire_at))
    schedule = add(store)
    assert schedule.next_fire_at is not None
    run(store.clock.set(timedelta(0), schedule.next_fire_at + timedelta(seconds=61)))
    run(store.leases.open("three", 1e9, "*"))
    assert codes(store) == ["schedules_late"]
    assert codes(store, schedule_late_warn=62.0) == codes(store, "acme") == []
    run(store.ledger.save_cursor("reader", "0", None, "default"))
    subscribe(store, "after", "job.enqueue", start="beginning")
    late: dict[str, Any] = {"schedule_late_warn": None}
    assert codes(store, **late) == []
    assert run(store.health.get("default", Thresholds(behind_warn=5, **late))).behind == (
        "consumer reader",
        "subscription after",
    )


def test_the_worst_reason_is_the_verdict(store: Store) -> None:
    forward(store)
    put_one(store)
    work(store, FINAL)
    put_one(store)
    forward(store, 4000)
    found = store.run(store.health.get("default"))
    assert found.verdict == "critical"
    assert [(each.code, each.level) for each in found.reasons] == [("no_worker", "critical"), ("dead_letters", "warn")]
    assert all(each.fix for each in found.reasons)


def test_thresholds_as_people_write_them() -> None:
    said = ("oldest_warn=10m", "oldest_critical=none", "dead_letters_warn=5", "wal_warn=1MB", "skew_warn=0.5")
    assert Thresholds.of(said) == Thresholds(
        oldest_warn=600.0, oldest_critical=None, dead_letters_warn=5, wal_warn=1 << 20, skew_warn=0.5
    )
    for wrong in ("mood=good", "oldest_warn", "behind_warn=-1", "wal_warn=large"):
        with pytest.raises(InvalidSetting):
            Thresholds.of([wrong])
    many = Health(CAP, 0, 0, 0, 1.0, 1, (), "ok", capped=True)
    assert judged(many, Thresholds(backlog_warn=10)).reasons[0].says == "10,000 or more jobs wait"


def test_the_views_count_by_tenant_queue_and_kind(store: Store, by_hand: ByHand) -> None:
    share(store)  # the order of the queue, whichever tenant
    now = forward(store)
    put(store, spec("pay"), spec("pay"), spec("pay", delay=60), spec("mail", queue="bulk"))
    put_one(store, "pay", tenant="acme")
    put_one(store, "held", priority=9)
    take(store)
    for _ in range(2):
        put_one(store, "dead", priority=9)
        work(store, FINAL)
    rows = {
        name: by_hand.execute(f"select {', '.join(columns)} from {name} order by 1, 2, 3")
        for name, columns in VIEWS.items()
    }
    assert rows["backlog"] == [
        ("acme", "default", "pay", 1),
        ("default", "bulk", "mail", 1),
        ("default", "default", "pay", 2),
    ]
    assert [row[:4] for row in rows["in_progress"]] == [("default", "default", "held", 1)]
    assert [row[:5] for row in rows["dead_letter_open"]] == [("default", "default", "dead", "broken", 2)]
    at = rows["in_progress"][0][4]
    assert rows["dead_letter_open"][0][5:] == (at, at)
    assert at == now or isinstance(at, int)
    pause(store, queue="bulk")
    pause(store, kind="pay", tenant="acme")
    claim(store, open_lease(store), 1, queues=("none",))
    assert by_hand.execute("select count(*) from backlog") == [(3,)]


@pytest.mark.req("DP-17", "JF-1")
def test_a_viewer_reads_the_views_of_its_tenant_and_no_other(owned_databases: OwnedDatabases) -> None:
    with owned_databases.fresh() as url, closing(open_store(as_role(url, owned_databases.owner))) as store:
        put_one(store, "pay", tenant="acme")
        put_one(store, "pay", tenant="umbrella")
        for role in ROLES:
            with closing(PostgresByHand(as_role(url, role), tenant="acme")) as viewer:
                for name in VIEWS:
                    assert {row[0] for row in viewer.execute(f"select tenant from {name}")} <= {"acme"}
                assert viewer.execute("select waiting from backlog") == [(1,)]


@pytest.mark.req("SC-11", "DP-17")
def test_a_role_that_could_do_everything_is_named_and_refused_where_asked(
    owned_databases: OwnedDatabases, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A superuser, the owner of the tables; not one that was only granted a role (rule 11)."""
    with owned_databases.fresh() as url:
        for each in (url, as_role(url, owned_databases.owner)):
            with closing(App(each)) as app:
                (concern,) = [reason for reason in app.health.get().reasons if reason.code == "role_too_powerful"]
                assert (concern.level, app.health.get().verdict) == ("advice", "ok")
                caplog.clear()
                app.worker()
                app.worker()
                said = [each.getMessage() for each in caplog.records if each.name.startswith("holdfast")]
                assert said == [f"{concern.says}. {concern.fix}"]
            with closing(App(each, strict=True)) as app, pytest.raises(Refused) as refused:
                app.worker()
            assert refused.value.code == "role_too_powerful"
            monkeypatch.setenv("HOLDFAST_STRICT", "1")
            with closing(App(each)) as app, pytest.raises(Refused):
                asyncio.run(app.atick())
            monkeypatch.delenv("HOLDFAST_STRICT")
        with closing(App(as_role(url, "holdfast_executor"), strict=True)) as app:
            app.worker()
            assert app.health.get().verdict == "ok"


def test_an_old_transaction_is_told(owned_databases: OwnedDatabases) -> None:
    """To those who may see it: whoever has the same login, or was granted pg_read_all_stats."""
    with owned_databases.fresh() as url, closing(open_store(url)) as store, psycopg.connect(url) as old:
        old.execute("set transaction isolation level repeatable read")
        old.execute("select pg_sleep(0.05)")
        soon = Thresholds(transaction_warn=0.01, transaction_critical=None)
        assert "old_transaction" in [each.code for each in store.conditions(soon)]
        later = Thresholds(transaction_warn=60.0)
        assert "old_transaction" not in [each.code for each in store.conditions(later)]


def test_the_log_and_the_disk_of_a_file_are_told(sqlite_url: str) -> None:
    with closing(open_store(sqlite_url)) as store:
        store.migrate()
        put_one(store)
        assert store.conditions() == []
        tight = Thresholds(wal_warn=1, disk_warn=10**18)
        assert [(each.code, each.level) for each in store.conditions(tight)] == [
            ("wal_large", "warn"),
            ("disk_full", "critical"),
        ]


@pytest.mark.req("DP-19", "HF-4", "DP-16")
def test_what_is_not_sealed_and_what_cannot_go_is_said(store: Store) -> None:
    """The chain is one for all tenants, so only those are told who ask for all; a reader that stays behind is named."""
    put_one(store)
    work(store)
    forward(store, 3500)
    assert "ledger_unsealed" not in codes(store, "*")
    forward(store, 200)
    assert "ledger_unsealed" in codes(store, "*")
    assert "ledger_unsealed" not in codes(store)
    assert "ledger_unsealed" not in codes(store, "*", unsealed_warn=None)
    seal(store)
    assert "ledger_unsealed" not in codes(store, "*")
    (first,) = store.run(store.ledger.read(None, 1, "*"))
    assert store.run(store.ledger.save_cursor("slow", first.cursor, None, "*"))
    keep(store, None, "1h")
    put_one(store)
    sweep(store)
    (held,) = [each for each in store.run(store.health.get("*")).reasons if each.code == "retention_held"]
    assert "consumer slow" in held.says
    assert "retention_held" not in codes(store, "acme")
    store.run(store.consumers.remove("slow", "*"))
    put_one(store)  # the newest row of SQLite's ledger has to stay
    seal(store)  # of a job that is sealed in part nothing goes
    forward(store, 60)
    assert sweep(store)["purge"] == 1
    assert "retention_held" not in codes(store, "*")


async def test_whoever_looks_all_the_time_needs_no_connection_of_its_own(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page is looked at every few seconds, and to open a connection takes a server as long as most pages."""
    tight = Thresholds(transaction_warn=None, wal_warn=1, disk_warn=10**18)
    said, status = store.conditions(tight), store.schema()
    try:
        await store.aschema()
        for whose in (psycopg, psycopg.AsyncConnection):
            monkeypatch.setattr(whose, "connect", _refused)
        told = await store.aconditions(tight)
        assert [each.code for each in told] == [each.code for each in said]  # how much room is left changes meanwhile
        assert await store.aschema() == status
        assert status.current
        assert said != [], "nothing was compared"
    finally:
        await store.leave_loop()


def _refused(*_: object, **__: object) -> None:
    raise AssertionError("a connection was opened")
