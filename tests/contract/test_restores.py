"""What a database says about itself after a restore, and how it goes on. `tests/faults/test_58_copies.py` restores real
copies; here the row that shows where it was written is written again, as a restored dump does (HF-14, fault 58)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest

from holdfast.engine.job import EVERY_TENANT
from holdfast.errors import Conflict, HoldfastError, Refused
from holdfast.features.assembly import Store, open_store
from holdfast.features.audit.store import ActionFilter
from holdfast.features.restores.model import RestoreReport, Unread
from tests.support.direct_sql import PostgresByHand
from tests.support.ledger import check_ledger, events_by_number, read_events
from tests.support.postgres_roles import as_role
from tests.support.stores import claim, open_lease, put_one, work
from tests.support.transactions import Transaction
from tests.support.waiting import until

pytestmark = pytest.mark.req("HF-14")


@pytest.fixture
def postgres(owned_postgres_url: str) -> Iterator[Store]:
    with closing(open_store(owned_postgres_url)) as store:
        yield store
        check_ledger(store)


def report(store: Store) -> RestoreReport:
    return store.run(store.restores.report())


def adopt(store: Store) -> int:
    return store.run(store.restores.adopt("ada"))


def restore_a_dump(store: Store) -> None:
    with closing(PostgresByHand(store.url)) as by_hand:
        by_hand.execute("update ledger_epoch set at = at")


@pytest.mark.every_case
def test_report_names_what_happens_again(store: Store) -> None:
    put_one(store)
    first = read_events(store)[-1]
    assert store.run(store.ledger.save_cursor("billing", first.cursor, None, EVERY_TENANT))
    while store.run(store.audit.seal("test")):
        pass
    put_one(store)
    (running,) = claim(store, open_lease(store), 1)
    found = report(store)
    assert (found.running, found.running_jobs) == (1, (running.id,))
    assert found.unread == (Unread(EVERY_TENANT, "consumer billing", 2),)
    assert found.last_event == events_by_number(store)[-1].seq
    assert (found.epoch, found.seal) == (0, 1)
    assert not found.must_adopt


@pytest.mark.every_case
def test_cursors_and_numbers_of_a_lost_future_miss_nothing(store: Store) -> None:
    """A cursor that the original issued after the copy was made: its number and its transactions are reached again."""
    put_one(store)
    before = events_by_number(store)[-1].seq
    end = store.run(store.ledger.end(EVERY_TENANT))
    number, *snapshot = end.split(";")
    lost = [str(int(number) + 1000)]
    if snapshot and ":" in snapshot[0]:
        ahead = int(snapshot[0].split(":")[1]) + 100_000
        lost.append(f"{ahead}:{ahead}:")
    assert adopt(store) == 1
    put_one(store)
    seen = read_events(store, after=";".join(lost))
    assert [event.seq for event in seen] == [event.seq for event in events_by_number(store) if event.seq > before]
    assert seen[0].seq > before + 1_000_000_000
    assert len(read_events(store, after=end)) == 1
    actions = store.run(store.audit.actions(ActionFilter(tenant=EVERY_TENANT)))
    assert [(action.actor, action.type) for action in actions if action.subject == "database"] == [("ada", "adopt")]


@pytest.mark.every_case
def test_adopting_twice_does_no_harm(store: Store) -> None:
    cursor = store.run(store.ledger.end(EVERY_TENANT))
    assert [adopt(store), adopt(store)] == [1, 2]
    jobs = [put_one(store), put_one(store)]
    assert [event.job_id for event in read_events(store, after=cursor)] == jobs
    work(store, want=2)


def test_copy_refuses_work_until_it_is_adopted(postgres: Store) -> None:
    put_one(postgres)
    cursor = postgres.run(postgres.ledger.end(EVERY_TENANT))
    restore_a_dump(postgres)
    with closing(open_store(postgres.url)) as copy:
        assert report(copy).origin == "copied"
        uses: list[Callable[[], object]] = [
            lambda: put_one(copy),
            lambda: open_lease(copy),
            lambda: copy.run(copy.ledger.read(cursor, 1, EVERY_TENANT)),
            lambda: copy.run(copy.audit.seal("test")),
        ]
        for use in uses:
            with pytest.raises(Refused) as refused:
                use()
            assert refused.value.code == "copy_not_adopted"
            assert "holdfast restore-check --adopt" in (refused.value.fix or "")
        assert {finding.name for finding in copy.diagnose() if not finding.ok} >= {"copied"}
        adopt(copy)
        assert report(copy).origin == "here"
        job = put_one(copy)
        assert [event.job_id for event in read_events(copy, after=cursor)] == [job]


def test_connection_with_cached_plans_uses_the_new_epoch(postgres: Store) -> None:
    for _ in range(10):  # after five executions the server keeps a generic plan
        put_one(postgres)
    cursor = postgres.run(postgres.ledger.end(EVERY_TENANT))
    with closing(open_store(postgres.url)) as other:
        adopt(other)
        end = other.run(other.ledger.end(EVERY_TENANT))
        jobs = [put_one(postgres) for _ in range(2)]
        assert [event.job_id for event in read_events(other, after=end)] == jobs
    assert [event.job_id for event in read_events(postgres, after=cursor)] == jobs


def test_writer_that_waits_for_an_adoption_is_in_the_new_epoch(postgres: Store) -> None:
    """Its statement began before the adoption was committed, and its plan is made after it."""
    put_one(postgres)
    with closing(open_store(postgres.url)) as other, ThreadPoolExecutor() as pool:
        transaction = Transaction(other)
        transaction.run(other.restores.adopt("ada"))
        writer = pool.submit(put_one, postgres)
        with psycopg.connect(other.url, autocommit=True) as connection:
            waiting = "select 1 from pg_locks where relation = 'holdfast.event'::regclass and not granted"
            until(lambda: connection.execute(waiting).fetchall(), "the writer waits")
        transaction.end()
        job = writer.result(timeout=60)
        first = read_events(other)[0]
        assert [event.job_id for event in read_events(other, after=first.cursor)] == [job]
        end = other.run(other.ledger.end(EVERY_TENANT))
        later = [put_one(postgres) for _ in range(10)]
        assert [event.job_id for event in read_events(other, after=end)] == later


def test_open_transaction_prevents_an_adoption(postgres: Store) -> None:
    transaction = Transaction(postgres)
    transaction.enqueue()
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("alter function holdfast.adopt_copy set lock_timeout = '100ms'")
    with pytest.raises(Conflict) as refused:
        adopt(postgres)
    assert refused.value.code == "copy_in_use"
    transaction.end()
    assert (report(postgres).epoch, adopt(postgres)) == (0, 1)


def test_only_administrators_adopt(postgres: Store) -> None:
    for role, may in (("holdfast_executor", False), ("holdfast_admin", True)):
        with closing(open_store(as_role(postgres.url.partition("?")[0], role))) as store:
            if may:
                assert adopt(store) == 1
                continue
            with pytest.raises(HoldfastError, match=r"holdfast_admin|permission denied"):
                adopt(store)


def test_rewritten_table_is_not_a_copy(postgres: Store) -> None:
    """Maintenance keeps what shows where the row was written."""
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        for command in ("vacuum freeze", "vacuum full", "cluster"):
            target = "holdfast.ledger_epoch" + (" using ledger_epoch_pkey" if command == "cluster" else "")
            connection.execute(f"{command} {target}".encode())
            assert report(postgres).origin == "here"
