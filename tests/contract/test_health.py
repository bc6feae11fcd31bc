"""Health (DP-19): each reason with its code and threshold, and the plain views for other tools."""

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
from holdfast.features.health.model import CAP, Health, Thresholds, assess
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


def test_each_reason_appears_and_disappears_with_its_cause(store: Store) -> None:
    forward(store)
    run = store.run
    assert codes(store) == codes(store, "*") == []
    lease = run(store.leases.open("one", 1e6, "*", "worker", ["mail.send"], ["default"], 4)).id
    # One worker runs the kind, but not in that queue; one serves the queue, but does not know the kind.
    put(store, spec("mail.send", queue="bulk"), spec("unknown"))
    result = run(store.health.get("default"))
    assert result.unserved == (("bulk", "mail.send"), ("default", "unknown"))
    assert (result.workers, [each.code for each in result.reasons]) == (1, ["unserved_kinds"])
    run(store.leases.open("two", 1e6, "default", "worker", None, None, None))
    assert codes(store) == []
    assert codes(store, "*") == []
    settle(store, claim(store, lease, 9, queues=("default", "bulk")))
    pause(store, "SMTP is down", queue="mail", until=60.0)
    assert codes(store) == codes(store, "acme") == ["paused"]
    assert "SMTP is down" in run(store.health.get("default")).reasons[0].says
    resume(store, queue="mail")
    # Jobs in a paused queue do not count as waiting.
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
    # Approvals.
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


def test_worst_reason_is_the_verdict(store: Store) -> None:
    forward(store)
    put_one(store)
    work(store, FINAL)
    put_one(store)
    forward(store, 4000)
    result = store.run(store.health.get("default"))
    assert result.verdict == "critical"
    assert [(each.code, each.level) for each in result.reasons] == [("no_worker", "critical"), ("dead_letters", "warn")]
    assert all(each.fix for each in result.reasons)


@pytest.mark.req("DP-3")
def test_job_that_runs_much_longer_than_its_kind_is_listed(store: Store) -> None:
    forward(store)
    lease = open_lease(store, ttl=1e6)
    for seconds in (2.0, 5.0, 4.0):
        put_one(store, "import")
        (claimed,) = claim(store, lease)
        forward(store, seconds)
        settle(store, claimed)
    hung, new = put(store, spec("import"), spec("first"))
    claim(store, lease, 2)
    forward(store, 40.0)
    assert store.run(store.health.get("default")).long_running == (), "ten times the median"
    forward(store, 0.5)
    (job,) = store.run(store.health.get("*")).long_running
    assert (job.id, job.kind, job.tenant, job.seconds, job.usual_s) == (hung, "import", "default", 40.5, 4.0)
    result = store.run(store.health.get("default"))
    (reason,) = (each for each in result.reasons if each.code == "long_running")
    assert (reason.level, result.verdict) == ("warn", "warn")
    assert f"import {hung} for 40 s, usually 4 s" in reason.says
    assert "long_running" not in codes(store, "other")
    assert "long_running" not in codes(store, long_running_times=None)
    assert "long_running" not in codes(store, long_running_times=20.0)
    # A limit also applies to kinds that have not run before.
    result = store.run(store.health.get("default", Thresholds(long_running_times=None, long_running_warn=40.0)))
    assert {(each.id, each.usual_s) for each in result.long_running} == {(hung, 4.0), (new, None)}
    forward(store, 86_400.0)
    assert {each.id for each in store.run(store.health.get("default")).long_running} == {hung, new}


def test_only_the_first_long_running_jobs_of_a_kind_are_listed(store: Store) -> None:
    forward(store)
    put(store, *(spec(kind) for kind in ("a", "b") for _ in range(5)))
    claim(store, open_lease(store, ttl=1e6), 10)
    forward(store, 11.0)
    listed = store.run(store.health.get("default", Thresholds(long_running_warn=10.0))).long_running
    assert sorted(each.kind for each in listed) == ["a", "a", "a", "b", "b", "b"]


def test_short_job_is_not_long_running_before_half_a_minute(store: Store) -> None:
    forward(store)
    lease = open_lease(store, ttl=1e6)
    for _ in range(3):
        put_one(store)
        settle(store, claim(store, lease))
    put_one(store)
    claim(store, lease)
    forward(store, 30.0)
    assert "long_running" not in codes(store)
    forward(store, 0.1)
    assert "long_running" in codes(store)


def test_without_a_worker_health_names_the_jobs_of_expired_leases(store: Store) -> None:
    forward(store)
    put_one(store)
    claim(store, open_lease(store, ttl=30))
    assert codes(store) == codes(store, "*") == []
    forward(store, 68)
    [concern] = store.run(store.health.get("default")).reasons
    assert (concern.code, concern.level) == ("expired_leases", "warn")
    assert concern.says == "1 job is claimed by a worker whose lease expired 38 s ago, and no worker is running"
    assert "holdfast worker MODULE:APP" in concern.fix
    assert (codes(store, "*"), codes(store, "acme")) == (["expired_leases"], [])
    forward(store, 300)
    assert store.run(store.health.get("default")).verdict == "critical"
    open_lease(store)
    assert codes(store) == [], "a worker takes it over within seconds"


def test_without_a_worker_health_counts_jobs_that_are_due(store: Store) -> None:
    forward(store)
    put(store, spec(delay=60), spec(delay=600))
    assert codes(store) == []
    forward(store, 70)
    [concern] = store.run(store.health.get("default")).reasons
    assert (concern.code, concern.says) == ("no_worker", "1 job waits and no worker is running")
    assert codes(store, "acme") == []
    pause(store, queue="default")
    assert codes(store) == ["paused"]


def test_jobs_that_a_limit_holds_back_are_not_scheduled(store: Store) -> None:
    store.run(store.limits.set(Rule.of("kind", "mail.send", 1), "ada", "default"))
    put(store, *(spec() for _ in range(4)), spec("other", delay=60))
    claim(store, open_lease(store), 4)
    for tenant in ("default", "*"):
        health = store.run(store.health.get(tenant))
        assert health.backlog + health.parked == 3
        assert (health.scheduled, health.in_progress) == (1, 1)


def test_health_names_an_executor_without_a_worker(store: Store) -> None:
    put_one(store, executor="gpu-1")
    (concern,) = [each for each in store.run(store.health.get("default")).reasons if each.code == "unserved_executors"]
    assert "--executor gpu-1" in (concern.fix or "")


def test_thresholds_are_parsed_from_text() -> None:
    texts = ("oldest_warn=10m", "oldest_critical=none", "dead_letters_warn=5", "wal_warn=1MB", "skew_warn=0.5")
    assert Thresholds.of(texts) == Thresholds(
        oldest_warn=600.0, oldest_critical=None, dead_letters_warn=5, wal_warn=1 << 20, skew_warn=0.5
    )
    for wrong in ("mood=good", "oldest_warn", "behind_warn=-1", "wal_warn=large"):
        with pytest.raises(InvalidSetting):
            Thresholds.of([wrong])
    many = Health(CAP, 0, 0, 0, 1.0, 1, (), "ok", capped=True)
    assert assess(many, Thresholds(backlog_warn=10)).reasons[0].says == "10,000 or more jobs wait"


def test_views_count_by_tenant_queue_and_kind(store: Store, by_hand: ByHand) -> None:
    share(store)  # the order of the queue, without fair shares between tenants
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
def test_views_show_only_the_callers_tenant(owned_databases: OwnedDatabases) -> None:
    with owned_databases.fresh() as url, closing(open_store(as_role(url, owned_databases.owner))) as store:
        put_one(store, "pay", tenant="acme")
        put_one(store, "pay", tenant="umbrella")
        for role in ROLES:
            with closing(PostgresByHand(as_role(url, role), tenant="acme")) as viewer:
                for name in VIEWS:
                    assert {row[0] for row in viewer.execute(f"select tenant from {name}")} <= {"acme"}
                assert viewer.execute("select waiting from backlog") == [(1,)]


@pytest.mark.req("SC-11", "DP-17")
def test_powerful_role_is_reported_and_refused_when_strict(
    owned_databases: OwnedDatabases, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A superuser or the owner of the tables is reported; a login that was only granted a role is not."""
    with owned_databases.fresh() as url:
        for each in (url, as_role(url, owned_databases.owner)):
            with closing(App(each)) as app:
                (concern,) = [reason for reason in app.health.get().reasons if reason.code == "role_too_powerful"]
                assert (concern.level, app.health.get().verdict) == ("advice", "ok")
                caplog.clear()
                app.worker()
                app.worker()
                messages = [each.getMessage() for each in caplog.records if each.name.startswith("holdfast")]
                assert messages == [f"{concern.says}. {concern.fix}"]
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


def test_old_transaction_is_reported(owned_databases: OwnedDatabases) -> None:
    """Reported to sessions with the same login, or with pg_read_all_stats."""
    with owned_databases.fresh() as url, closing(open_store(url)) as store, psycopg.connect(url) as old:
        old.execute("set transaction isolation level repeatable read")
        old.execute("select pg_sleep(0.05)")
        soon = Thresholds(transaction_warn=0.01, transaction_critical=None)
        assert "old_transaction" in [each.code for each in store.conditions(soon)]
        later = Thresholds(transaction_warn=60.0)
        assert "old_transaction" not in [each.code for each in store.conditions(later)]


def test_sqlite_reports_wal_size_and_free_disk(sqlite_url: str) -> None:
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
def test_unsealed_ledger_and_held_retention_are_reported(store: Store) -> None:
    """The chain covers all tenants, so only reads of all tenants report it; a consumer that lags is named."""
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
    put_one(store)  # the newest row of SQLite's ledger stays
    seal(store)  # a job that is sealed in part is not purged
    forward(store, 60)
    assert sweep(store)["purge"] == 1
    assert "retention_held" not in codes(store, "*")


async def test_repeated_health_reads_open_no_connection(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page refreshes every few seconds, and opening a connection takes the server as long as most pages."""
    tight = Thresholds(transaction_warn=None, wal_warn=1, disk_warn=10**18)
    before, status = store.conditions(tight), store.schema()
    try:
        await store.aschema()
        for whose in (psycopg, psycopg.AsyncConnection):
            monkeypatch.setattr(whose, "connect", _refused)
        fresh = await store.aconditions(tight)
        assert [each.code for each in fresh] == [each.code for each in before]  # the free space changes in between
        assert await store.aschema() == status
        assert status.current
        assert before != [], "nothing was compared"
    finally:
        await store.leave_loop()


def _refused(*_: object, **__: object) -> None:
    raise AssertionError("a connection was opened")
