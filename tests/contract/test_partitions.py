"""Purging a whole partition of the ledger removes the same jobs as purging rows, is proven by the chain of seals, and
removes nothing that must stay.
"""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from holdfast.engine.outcome import Succeeded
from holdfast.engine.states import State
from holdfast.features.archives.model import Finished
from holdfast.features.assembly import Store
from tests.support.direct_sql import ByHand, unguarded
from tests.support.features import flaws, keep, seal, sweep, verify
from tests.support.ledger import read_events
from tests.support.stores import (
    DONE,
    FINAL,
    TENANT,
    claim,
    enqueue,
    forward,
    history,
    job,
    new_id,
    open_lease,
    put,
    put_one,
    settle,
    spec,
    state_of,
)

DAY = 86_400.0
MANY = 1_050  # a partition with fewer jobs is purged by rows
OUTSIDE = "01900000-0000-7000-8000-000000000001"  # a time without a partition
on_postgres = pytest.mark.parametrize("store_url", ["postgres"], indirect=True)

pytestmark = pytest.mark.req("CX-18", "DP-16")


def finish(store: Store, count: int = MANY, **fields: Any) -> list[str]:
    ids = put(store, *(spec(**fields) for _ in range(count)))
    lease = open_lease(store, ttl=3600)
    while claimed := claim(store, lease, 1000):
        settle(store, claimed, DONE)
    return ids


def partitions(by_hand: ByHand) -> list[tuple[Any, ...]]:
    """Name and announcement of each partition, oldest first."""
    return by_hand.execute("select name, announced from event_partition order by low")


def count(by_hand: ByHand, table: str) -> int:
    return int(by_hand.execute(f"select count(*) from {table}")[0][0])


def announce(store: Store, by_hand: ByHand) -> int:
    """Make jobs due, sealed and read, and announce the purge of their partition; returns the announcement's number."""
    keep(store, purge="30d")
    seal(store)
    forward(store, 80 * DAY)
    while store.run(store.usage.count(499)):
        pass
    for _ in range(5):
        store.run(store.retention.sweep())
        if result := [number for _, number in partitions(by_hand) if number is not None]:
            return int(result[0])
    raise AssertionError("not announced")


@pytest.mark.slow
def test_purge_removes_due_jobs_only(store: Store, by_hand: ByHand) -> None:
    """Results, keys and tags are purged too; a dead letter, a queued job and a kind with another policy stay."""
    lease = open_lease(store, ttl=3600)
    (dead,) = put(store, spec())
    settle(store, claim(store, lease), FINAL)
    other = finish(store, 1, kind="kept")[0]
    ids = put(store, *(spec(key=f"k-{n}", content_key=f"c-{n}", tags=("blue",)) for n in range(MANY)))
    for part in (claim(store, lease, 600), claim(store, lease, 600)):
        settle(store, part, Succeeded('{"x": 1}'))
    keep(store, purge="30d")
    keep(store, kind="kept")
    seal(store)
    forward(store, 80 * DAY)
    waiting = put_one(store, id=ids[-1][:-4] + "ffff")  # in their partition, and not finished
    stays = {dead: State.DEAD_LETTER, other: State.SUCCEEDED, waiting: State.QUEUED}
    seal(store)
    purged = sweep(store)["purge"]
    stays[put_one(store, id=OUTSIDE)] = State.QUEUED  # the newest row of SQLite's ledger stays
    before = {each: history(store, each) for each in stays}
    for _ in range(2):
        seal(store)
        forward(store, 15)
        purged += sweep(store)["purge"]
    assert purged == MANY
    assert {each: state_of(store, each) for each in stays} == stays
    assert {each: history(store, each) for each in stays} == before
    everything = repr({table: rows for table, rows in by_hand.contents().items() if table != "action"})
    assert not any(each in everything for each in ids)
    assert (count(by_hand, "job"), count(by_hand, "job_tag"), count(by_hand, "idempotency")) == (4, 0, 0)
    report = verify(store)
    assert (report.ok, report.purged >= 3 * MANY) == (True, True)
    assert enqueue(store, spec(key="k-1", content_key="c-1"))[0].created
    if by_hand.name == "postgres":
        assert [row[0] for row in by_hand.execute("select type from action where subject = 'ledger' order by seq")] == [
            "announce",
            "purge",
        ]


@on_postgres
def test_purge_truncates_and_drops_an_empty_partition(store: Store, by_hand: ByHand) -> None:
    ids = finish(store)
    ended = job(store, ids[0]).finished_at
    assert ended is not None
    archived = [Finished(ids[0], TENANT, ended)]  # by a policy that wanted archives until now
    store.run(store.archives.record(new_id(), "artifact://a", 1, archived, "ada", TENANT))
    name = partitions(by_hand)[0][0]
    pages = f"select pg_relation_size('holdfast.{name}'), (select reltuples from pg_class where relname = '{name}')"
    (first,) = store.run(store.ledger.read(None, 1, "*"))
    assert store.run(store.ledger.save_cursor("slow", first.cursor, None, "*"))
    with pytest.raises(AssertionError, match="not announced"):
        announce(store, by_hand)  # a consumer has not read the events
    last = read_events(store, after=first.cursor)[-1].cursor
    assert store.run(store.ledger.save_cursor("slow", last, first.cursor, "*"))
    number = announce(store, by_hand)
    assert by_hand.execute(pages)[0][0] > 100_000
    assert sweep(store)["purge"] == 0, "the announcement is not sealed"
    events = count(by_hand, "event")  # some jobs were cleaned by rows while the consumer lagged
    seal(store)
    assert sweep(store)["purge"] == MANY
    assert count(by_hand, "archived") == 0
    assert by_hand.execute(pages)[0][0] == 0
    ((changed,),) = by_hand.execute("select changed from action where type = 'purge'")
    assert (changed["announced"], changed["count"]) == (number, events)
    forward(store, 120)
    sweep(store)
    assert name not in [each for each, _ in partitions(by_hand)]
    assert by_hand.execute("select to_regclass(:name)", {"name": f"holdfast.{name}"}) == [(None,)]
    assert flaws(store) == []


@on_postgres
@pytest.mark.parametrize("change", ["a policy", "a retry", "a new job"])
def test_purge_is_withdrawn_if_anything_changed_since(store: Store, by_hand: ByHand, change: str) -> None:
    ids = finish(store)
    announce(store, by_hand)
    seal(store)
    if change == "a policy":
        keep(store, purge="3000d")
    elif change == "a retry":
        with unguarded(by_hand, "job"):
            by_hand.execute(
                "insert into job (id, tenant, kind, retry_of) values (:id, 'default', 'x', :of)",
                {"id": OUTSIDE, "of": ids[3]},
            )
    else:
        put_one(store, id=ids[-1][:-4] + "ffff")
    store.run(store.retention.sweep())
    assert count(by_hand, "job") >= MANY
    assert by_hand.execute("select count(*) from action where type = 'withdraw'") == [(1,)]
    assert flaws(store) == []
    if change == "a retry":
        by_hand.execute("delete from job where id = :id", {"id": OUTSIDE})


@pytest.mark.slow
@on_postgres
def test_purge_waits_for_readers_of_the_partition(store: Store, by_hand: ByHand, store_url: str) -> None:
    """A backup, for example. Workers are not blocked, and the purge is tried again."""
    finish(store)
    announce(store, by_hand)
    seal(store)
    name = partitions(by_hand)[0][0]
    with psycopg.connect(store_url) as backup:
        backup.execute(f"lock table holdfast.{name} in access share mode".encode())
        assert store.run(store.retention.sweep()).done == 0
        assert count(by_hand, "job") == MANY
        put_one(store, id=OUTSIDE)
    forward(store, 120)
    assert sweep(store)["purge"] == MANY


@on_postgres
def test_jobs_without_a_partition_are_purged_by_rows(store: Store, by_hand: ByHand) -> None:
    put_one(store, id=OUTSIDE)
    lease = open_lease(store)
    settle(store, claim(store, lease))
    assert count(by_hand, "event_rest") == 3
    assert [event.seq for event in history(store, OUTSIDE)] == [event.seq for event in read_events(store)]
    keep(store, purge="1h")
    forward(store, 4000)
    assert sweep(store)["purge"] == 1
    assert count(by_hand, "event_rest") == 0


@on_postgres
def test_partitions_follow_the_policy_and_exist_in_advance(store: Store, by_hand: ByHand) -> None:
    def spans() -> list[float]:
        text = "select extract(epoch from time_of(high) - time_of(low)) from event_partition order by low"
        return [float(row[0]) / DAY for row in by_hand.execute(text)]

    assert spans()[0] == 30
    keep(store, purge="30d")
    forward(store, 31 * DAY)
    sweep(store)
    assert spans()[-1] == 1
    ((ahead,),) = by_hand.execute("select max(time_of(high)) >= clock_now() + interval '1 day' from event_partition")
    assert ahead
    for _ in range(3):  # a repeated sweep creates no more partitions
        forward(store, 700)
        sweep(store)
    assert len(spans()) <= 4
    keep(store, purge="1d")
    forward(store, 2 * DAY)
    sweep(store)
    assert round(spans()[-1] * 24) == 1


@on_postgres
def test_partitions_cannot_be_changed_by_hand(store: Store, by_hand: ByHand) -> None:
    (job_id,) = finish(store, 1)
    name = partitions(by_hand)[0][0]
    for statement in (
        f"insert into {name} select * from event",
        f"update {name} set actor = 'm'",
        f"delete from {name}",
        f"truncate {name}",
        "truncate event",
        "update event_partition set low = '00000000-0000-0000-0000-000000000000'",
        "update event_partition set announced = 1",
        "delete from event_partition",
        "truncate event_partition",
        "delete from job_state",
        "delete from job",
    ):
        refusal = by_hand.refusal(statement)
        assert refusal is not None, statement
        assert any(each in refusal for each in ("never", "only", "cannot change", "when its table is dropped")), refusal
    assert len(history(store, job_id)) == 3


@on_postgres
@pytest.mark.req("HF-4")
@pytest.mark.parametrize("forgery", ["without announcement", "sealed together", "withdrawn", "other events"])
def test_forged_purge_of_a_partition_is_detected(store: Store, by_hand: ByHand, forgery: str) -> None:
    ids = finish(store, 3)
    seal(store)
    numbers = [event.seq for event in history(store, ids[0])]
    written = (
        "insert into action (tenant, at, actor, type, subject, name, changed, first_seq, last_seq)"
        " values (:tenant, (select now from present), (select actor from present), :type, 'ledger', 'p', :changed,"
        " :low, :high)"
        " returning seq"
    )

    def write(type: str, changed: dict[str, Any], *span: int) -> int:
        low, high = span or (None, None)
        values = {
            "tenant": "default" if span else "*",
            "type": type,
            "changed": json.dumps(changed),
            "low": low,
            "high": high,
        }
        return int(by_hand.execute(written, values)[0][0])

    number = 999
    if forgery != "without announcement":
        events = numbers[1:] if forgery == "other events" else numbers
        number = write("announce", {"events": ",".join(map(str, events))})
        if forgery == "withdrawn":
            write("withdraw", {"announced": number})
        if forgery != "sealed together":
            seal(store)
    write("purge", {"announced": number, "count": 3, "through": numbers[-1]}, numbers[0], numbers[-1])
    with unguarded(by_hand, "event", "job", "job_state"):
        for table, column in (("job_state", "id"), ("job", "id"), ("event", "job_id")):
            by_hand.execute(f"delete from {table} where {column} = :id", {"id": ids[0]})
    for _ in range(2):
        result = {(flaw.kind, flaw.what) for flaw in verify(store).flaws}
        assert (("deleted", "event") if forgery == "other events" else ("forged", "action")) in result
        seal(store)


@on_postgres
@pytest.mark.req("HF-4")
def test_event_with_a_duplicate_number_is_detected(store: Store, by_hand: ByHand) -> None:
    first, second = finish(store, 2)
    seal(store)
    with unguarded(by_hand, "event"):
        by_hand.execute("drop policy written_now on event")
        by_hand.execute(
            "insert into event"
            " select seq, xid, :other, tenant, kind, type, from_state, to_state, attempt, at, actor, meta"
            " from event where job_id = :id and type = 'enqueue'",
            {"id": first, "other": second},
        )
    assert "inserted" in {flaw.kind for flaw in verify(store).flaws if flaw.what == "event"}
    with unguarded(by_hand, "event"):
        by_hand.execute(
            "delete from event where job_id = :id and seq in (select seq from event where job_id = :of)",
            {"id": second, "of": first},
        )
