"""A login without any grant holds locks, listens and notifies; Holdfast is not affected (fault 54).

Holdfast takes no advisory locks (docs/adr/0028), because any login can take them; it locks only its own tables. The
locks that say who awaits new jobs are the exception: held by a stranger, they cause announcements and prevent none.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

import holdfast
from holdfast.engine.states import State
from holdfast.errors import Conflict
from holdfast.features.assembly import Store, open_store
from holdfast.features.limits.model import Rule
from tests.support.direct_sql import PostgresByHand
from tests.support.features import disable, enable, feed_all, moved, set_agent, subscribe, tell
from tests.support.postgres_roles import OwnedDatabases, as_role, ensure_roles
from tests.support.schedules import template
from tests.support.steps import running, send, waits
from tests.support.stores import claim, enqueue, open_lease, put, put_one, settle, spec, state_of
from tests.support.waiting import until

pytestmark = pytest.mark.req("JF-1", "JF-7")

OUTSIDER = "holdfast_outsider"
SOURCES = Path(holdfast.__file__).parent


def test_no_other_source_file_takes_an_advisory_lock() -> None:
    """With an advisory lock, every login of the server could block us."""
    harmless = {SOURCES / "stores/postgres/listener.py", SOURCES / "stores/postgres/sql/notify.sql"}
    taken = re.compile(r"pg_(try_)?advisory")
    result = [
        f"{path.relative_to(SOURCES)}:{number}"
        for path in sorted({*SOURCES.rglob("*.py"), *SOURCES.rglob("*.sql")} - harmless)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if taken.search(line)
    ]
    assert result == []


@pytest.fixture
def url(owned_databases: OwnedDatabases) -> Iterator[str]:
    """A database, and its administrator's URL; lock waits time out so that a failure does not hang."""
    with owned_databases.fresh() as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            ensure_roles(connection, OUTSIDER)
        yield dsn


@pytest.fixture
def store(url: str, owned_databases: OwnedDatabases) -> Iterator[Store]:
    with closing(open_store(as_role(url, owned_databases.owner) + "%20-c%20lock_timeout%3D5s")) as opened:
        yield opened


@pytest.fixture
def outsider(url: str) -> Iterator[psycopg.Connection[object]]:
    with psycopg.connect(as_role(url, OUTSIDER), autocommit=True) as connection:
        yield connection


def names_of(schema: str) -> list[str]:
    """Texts whose hashes earlier versions used for advisory locks."""
    unit = chr(31)
    texts = [f"{schema}", f"{schema} order default", f"{schema} subscription default follow"]
    texts += [f"agent{unit}{schema}{unit}default{unit}planner", f"template{unit}{schema}{unit}default{unit}daily"]
    texts += [f'limit{unit}{schema}{unit}["default","{scope}","{name}"]' for scope, name in LIMITS]
    texts += [f"fair{unit}{schema}{unit}default{unit}", f"seal.{schema}"]
    return [f"holdfast.{text}" for text in texts] + [f"{schema} default paid"]


LIMITS = [("all", "*"), ("queue", "default"), ("kind", "k")]


def test_advisory_locks_of_an_outsider_block_nothing(
    store: Store, url: str, outsider: psycopg.Connection[object]
) -> None:
    with psycopg.connect(url) as admin:
        ((dispatch,),) = admin.execute("select 'holdfast.dispatch'::regclass::oid::integer").fetchall()
    outsider.execute("select pg_advisory_lock(%s, 0)", (dispatch,))
    for name in names_of("holdfast"):
        outsider.execute("select pg_advisory_lock(hashtextextended(%s, 0))", (name,))

    first, second = put(store, spec(), spec())
    moved(store, second, first=True)
    assert [each.id for each in claim(store, open_lease(store), 1)] == [second]
    assert store.run(store.audit.seal("test")) > 0
    for scope, name in LIMITS:
        store.run(store.limits.set(Rule.of(scope, name, 5), "ada", "default"))
    settle(store, claim(store, open_lease(store), 5))
    assert state_of(store, first) is State.SUCCEEDED
    set_agent(store)
    assert enqueue(store, spec(agent="planner"))[0].created
    disable(store)
    enable(store)
    job, held = running(store)
    store.run(store.leases.settle(held.lease, [waits(held)], "*"))
    assert send(store).woke == 1
    assert state_of(store, job) is State.QUEUED
    assert store.run(store.templates.set(template(), "ada", "default"))
    subscribe(store, "follow", "paid")
    tell(store, "paid")
    assert feed_all(store, "follow") == 1
    assert store.migrate().current


def test_no_other_database_function_takes_an_advisory_lock(url: str) -> None:
    with closing(PostgresByHand(url)) as by_hand:
        rows = by_hand.execute(
            "select proname from pg_proc where pronamespace = 'holdfast'::regnamespace"
            " and pg_get_functiondef(oid) ~ 'advisory_' and prokind = 'f' order by 1"
        )
        waiting = by_hand.execute(
            "select pg_get_functiondef(oid) ~ 'pg_advisory_(lock|xact)' from pg_proc"
            " where proname in ('announce_upkeep', 'is_awaited', 'signal_key')"
        )
    assert rows == [("announce_upkeep",), ("is_awaited",), ("signal_key",)]
    assert waiting == [(False,)] * 3, "only attempts, which never wait"


@pytest.mark.parametrize("mode", ["", "_shared"])
def test_outsider_with_the_locks_on_queues_prevents_no_announcement(
    store: Store, outsider: psycopg.Connection[object], mode: str
) -> None:
    for queue in ("mail", ""):
        outsider.execute(f"select pg_advisory_lock{mode}(hashtext('holdfast'), hashtext(%s))".encode(), [queue])
    notified: list[str] = []
    stop = store.listen(notified.append, lambda: ["mail"], lambda: ["mail"])
    until(lambda: "mail" in notified, "it listens and was told to look once")
    until(lambda: store.listening, "it listens")
    put_one(store, queue="mail")
    until(lambda: notified.count("mail") > 1, "it was notified")
    stop()
    with closing(PostgresByHand(store.url)) as old_release:
        assert old_release.execute("select holdfast.signal_key() <> ''") == [(True,)]


@pytest.mark.parametrize("table", ["job_state", "lock_dispatch", "lock_seal", "lock_subscription_0", "mutex", "agent"])
@pytest.mark.parametrize("mode", ["access share", "row share", "exclusive"])
def test_outsider_cannot_lock_tables(outsider: psycopg.Connection[object], table: str, mode: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        outsider.execute(f"begin; lock table holdfast.{table} in {mode} mode".encode())


# -- sessions with rights: named by doctor, the log and the error ----------------------------------------------------


@pytest.fixture
def owner(url: str, owned_databases: OwnedDatabases) -> Iterator[psycopg.Connection[object]]:
    with psycopg.connect(as_role(url, owned_databases.owner), application_name="a-migration-tool") as connection:
        yield connection


@pytest.mark.slow
def test_blocked_sealing_names_the_lock_holder(
    store: Store, owner: psycopg.Connection[object], owned_databases: OwnedDatabases
) -> None:
    put_one(store)
    owner.execute("lock table holdfast.lock_seal in exclusive mode")
    with pytest.raises(Conflict, match=f"process {owner.info.backend_pid} .*a-migration-tool") as refused:
        store.run(store.audit.seal("test"))
    assert refused.value.code == "sealing_blocked"
    (finding,) = [each for each in store.diagnose() if each.name == "locks"]
    assert not finding.ok
    assert f"process {owner.info.backend_pid}" in finding.says
    assert "lock_seal" in finding.says
    owner.rollback()
    assert store.run(store.audit.seal("test")) > 0


@pytest.mark.slow
def test_blocked_claim_logs_the_lock_holder(
    store: Store, owner: psycopg.Connection[object], caplog: pytest.LogCaptureFixture
) -> None:
    put_one(store)
    lease = open_lease(store)
    owner.execute("lock table holdfast.lock_dispatch in exclusive mode")
    claiming = threading.Thread(target=claim, args=(store, lease, 1), daemon=True)
    claiming.start()
    says = f"process {owner.info.backend_pid} (role"
    until(lambda: any(says in each.message for each in caplog.records), "the log names the session")
    (line,) = {each.message for each in caplog.records if says in each.message}
    assert "lock_dispatch" in line
    assert "a-migration-tool" in line
    (finding,) = [each for each in store.diagnose() if each.name == "locks"]
    assert says in finding.says
    owner.rollback()
    claiming.join(30)
    assert not claiming.is_alive()


# -- LISTEN and NOTIFY -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_notifications_contain_no_names(store: Store, outsider: psycopg.Connection[object]) -> None:
    outsider.execute("listen holdfast")
    outsider.execute("select pg_advisory_lock_shared(hashtext('holdfast'), hashtext(''))")
    job = put_one(store, queue="payroll-of-acme", tenant="acme")
    put(store, *(spec(queue="payroll-of-acme") for _ in range(3)), tenant="acme")
    held = claim(store, open_lease(store), 1, queues=["payroll-of-acme"])
    settle(store, held)
    moved(store, put_one(store, queue="payroll-of-acme"), first=True)
    payloads = [each.payload for each in outsider.notifies(timeout=1.0)]
    assert len(payloads) >= 3
    for each in payloads:
        assert re.fullmatch(r"[0-9a-f]{32}|", each), each
        assert job not in each


def test_worker_recognizes_hashed_notifications(store: Store) -> None:
    notified: list[str] = []
    stop = store.listen(notified.append, lambda: ("mail", " mail"), lambda: ("mail", "other"))
    until(lambda: "mail" in notified, "it listens")
    notified.clear()
    put_one(store, queue="other")
    put_one(store, queue="mail")
    until(lambda: "mail" in notified, "it was notified")
    assert set(notified) <= {"", "mail"}
    stop()
