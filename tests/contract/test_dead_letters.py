"""Dead letters in groups (DP-15): grouping, counts, notes, redrives and discards."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.outcome import Crashed, Failed
from holdfast.engine.settlement import fingerprint
from holdfast.engine.states import State
from holdfast.features.assembly import Store, open_store
from holdfast.features.dead_letters.model import DeadLetterGroup, GroupFilter
from holdfast.stores.requests import JobFilter
from tests.support.direct_sql import ByHand
from tests.support.stores import (
    TENANT,
    claim,
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
    take,
    tries,
    work,
)

pytestmark = pytest.mark.req("DP-15")


def refused(order: int, where: str = "shop:charge") -> Failed:
    return Failed("CardRefused", f"order {order} was refused", final=True, frame=where)


def groups(store: Store, tenant: str = TENANT, **wanted: Any) -> list[DeadLetterGroup]:
    return store.run(store.dead_letters.groups(GroupFilter(tenant=tenant, **wanted)))


def dead_letter(store: Store, outcome: Failed, *, tenant: str = TENANT, kind: str = "pay", **fields: Any) -> str:
    job_id = put_one(store, kind, tenant=tenant, **fields)
    (claimed,) = claim(store, open_lease(store), queues=(fields.get("queue", "default"),))
    assert claimed.id == job_id
    settle(store, claimed, outcome)
    assert state_of(store, job_id) is State.DEAD_LETTER
    return job_id


def counted(result: list[DeadLetterGroup]) -> dict[tuple[str, str], int]:
    return {(each.tenant, each.fingerprint): each.open for each in result}


def counted_by_hand(by_hand: ByHand) -> dict[tuple[str, str], int]:
    """Open dead letters by group, counted from the rows of the jobs."""
    rows = by_hand.execute(
        "select l.tenant, l.fingerprint, count(*) from dead_letter l join job_state s"
        " on s.id = l.job_id and s.tenant = l.tenant where s.state = 'dead_letter' group by l.tenant, l.fingerprint"
    )
    dead = by_hand.execute("select count(*) from job_state where state = 'dead_letter'")[0][0]
    assert sum(row[2] for row in rows) == dead
    return {(row[0], row[1]): row[2] for row in rows}


def test_equal_failures_are_one_group(store: Store, by_hand: ByHand) -> None:
    first = dead_letter(store, refused(1))
    start = forward(store)
    forward(store, 60)
    second = dead_letter(store, refused(22))
    other = dead_letter(store, refused(3, where="shop:refund"))
    elsewhere = dead_letter(store, refused(4), kind="repay")
    assert dead_letter(store, refused(5), tenant="b")
    newest, *_ = result = groups(store)
    assert len(result) == 3, "one group per kind and frame; another tenant has its own"
    same = store.run(store.dead_letters.group_of(first, TENANT))
    name = fingerprint("pay", "CardRefused", "order 9 was refused", "shop:charge")
    assert same == store.run(store.dead_letters.group(name, TENANT))
    assert same is not None
    assert (same.times, same.open, same.sample_job, same.frame) == (2, 2, second, "shop:charge")
    assert same.error_message == "order 22 was refused"
    assert same.last_at - same.first_at >= timedelta(seconds=60)
    assert same.first_at <= start
    assert newest.last_at >= same.last_at
    wanted = JobFilter(tenant=TENANT, fingerprint=same.fingerprint)
    assert [each.id for each in store.run(store.jobs.list(wanted))] == [second, first]
    assert {each.sample_job for each in result} == {second, other, elsewhere}
    assert history(store, first)[-1].meta["fingerprint"] == same.fingerprint
    assert store.run(store.dead_letters.group_of(first, "b")) is None
    assert counted_by_hand(by_hand) == counted(groups(store, EVERY_TENANT))


def test_every_way_into_and_out_of_dead_letters_is_counted(store: Store, by_hand: ByHand) -> None:
    """Lost worker, lost process, failed handler; redriven, discarded, dead-lettered again, changed by SQL."""
    lost = put_one(store, "pay", retry=tries(1, crashes=0))
    lease = open_lease(store)
    claim(store, lease)
    store.run(store.leases.end(lease, "lost", EVERY_TENANT))
    store.run(store.leases.recover())
    crashed = put_one(store, "pay", retry=tries(1, crashes=0))
    settle(store, take(store), Crashed("process_died", "the process was killed by signal 9"))
    failed = dead_letter(store, refused(1))
    assert [state_of(store, each) for each in (lost, crashed, failed)] == [State.DEAD_LETTER] * 3
    names = {each.error_code: each for each in groups(store)}
    expected = {
        "worker_lost": fingerprint("pay", "worker_lost", "the worker that ran this job stopped renewing its lease"),
        "process_died": fingerprint("pay", "process_died", "the process was killed by signal 9"),
        "CardRefused": fingerprint("pay", "CardRefused", "order 1 was refused", "shop:charge"),
    }
    assert {code: each.fingerprint for code, each in names.items()} == expected
    store.run(store.jobs.operate("discard", [lost], "gone", "ada", TENANT))
    store.run(store.jobs.operate("redrive", [failed], None, "ada", TENANT))
    assert [each.error_code for each in groups(store)] == ["process_died"]
    work(store, refused(7))
    again = {each.error_code: (each.times, each.open) for each in groups(store, resolved=True)}
    assert again == {"worker_lost": (1, 0), "process_died": (1, 1), "CardRefused": (2, 1)}
    by_hand.execute(
        "update job_state set state = 'queued', finished_at = null, error_code = null,"
        " error_message = null where id = :id",
        {"id": failed},
    )
    assert [each.error_code for each in groups(store)] == ["process_died"]
    counted_by_hand(by_hand)


def test_groups_are_paged_and_filtered(store: Store) -> None:
    forward(store)
    kinds = ["a", "b", "c", "d"]
    for number, kind in enumerate(kinds):
        forward(store, 10)
        for _ in range(4 - number):
            dead_letter(store, Failed("Broken", f"100 %_{kind}! is wrong", final=True), kind=kind, queue=f"q-{kind}")
    newest_first = groups(store)
    assert [each.kind for each in newest_first] == kinds[::-1]
    assert [each.kind for each in groups(store, order="count")] == kinds
    for order in ("last", "count"):
        page: list[DeadLetterGroup] = []
        while more := groups(store, order=order, limit=3, after=page[-1].cursor if page else None):
            page += more
        assert page == groups(store, order=order)
    assert [each.kind for each in groups(store, kind="c")] == ["c"]
    assert [each.kind for each in groups(store, queue="q-b")] == ["b"]
    assert groups(store, queue="q-x") == []
    assert [each.kind for each in groups(store, text="%_B!")] == ["b"]
    assert groups(store, text="_%") == []
    assert [each.kind for each in groups(store, since=newest_first[1].last_at)] == ["d", "c"]
    (tagged,) = put(store, spec("a", tags=("x",), retry=tries(1)))
    work(store, Failed("Broken", "100 %_a! is wrong"))
    wanted = JobFilter(tenant=TENANT, fingerprint=newest_first[-1].fingerprint, tag="x", state=State.DEAD_LETTER)
    assert [each.id for each in store.run(store.jobs.list(wanted))] == [tagged]


def test_note_stays_with_its_group(store: Store) -> None:
    dead_letter(store, refused(1))
    (group,) = groups(store)
    assert store.run(store.dead_letters.note(group.fingerprint, "the bank is down", "ada", TENANT))
    dead_letter(store, refused(2))
    (noted,) = groups(store, text="BANK")
    assert (noted.note, noted.noted_by, noted.times) == ("the bank is down", "ada", 2)
    assert not store.run(store.dead_letters.note("nothing", "x", "ada", TENANT))
    assert not store.run(store.dead_letters.note(group.fingerprint, "x", "eve", "b"))
    assert store.run(store.dead_letters.note(group.fingerprint, None, "ada", TENANT))
    assert [(each.note, each.noted_by) for each in groups(store)] == [(None, None)]


@pytest.mark.slow
def test_counts_are_exact_under_concurrent_failures_and_redrives(store_url: str, store: Store, by_hand: ByHand) -> None:
    """Two kinds of failures, which each worker settles in the opposite order: without ordered locks this deadlocks."""
    rounds, start = 6, threading.Barrier(4)
    put(store, *(spec(f"k{number % 2}") for number in range(rounds * 4 * 4)))

    def worker(number: int) -> int:
        with closing(open_store(store_url)) as own:
            start.wait()
            done = 0
            for _ in range(rounds):
                held = claim(own, open_lease(own, f"w-{number}"), 4)
                held.sort(key=lambda each: each.kind, reverse=bool(number % 2))
                settle(own, held, Failed("Broken", f"by {number}", final=True))
                done += len(held)
                own.run(own.jobs.operate("redrive", [held[0].id], None, "ada", TENANT))
            return done

    with ThreadPoolExecutor(4) as pool:
        done = sum(pool.map(worker, range(4)))
    result = groups(store)
    assert sum(each.times for each in result) == done
    assert sum(each.open for each in result) == done - 4 * rounds
    assert counted_by_hand(by_hand) == counted(result)


def test_redrive_with_a_changed_payload(store: Store) -> None:
    old = dead_letter(
        store, refused(1), key="order-7", payload={"amount": 1}, tags=("x",), correlation_id="c", priority=3
    )
    new = new_id()
    made = store.run(store.dead_letters.redrive_as(old, new, '{"amount": 2}', "it was the amount", "ada", TENANT))
    assert (made.id, made.created) == (new, True)
    assert state_of(store, old) is State.CANCELLED
    fresh, was = job(store, new), job(store, old)
    assert (fresh.payload, fresh.kind, fresh.tags, fresh.correlation_id, fresh.priority) == (
        *({"amount": 2}, was.kind, was.tags, was.correlation_id, was.priority),
    )
    assert (fresh.state, fresh.attempt, fresh.retries, fresh.enqueued_by) == (State.QUEUED, 0, 0, "ada")
    assert history(store, old)[-1].meta["reason"] == f"redriven as {new}: it was the amount"
    (link,) = store.run(store.dead_letters.remade(old, TENANT))
    assert [link] == store.run(store.dead_letters.remade(new, TENANT))
    assert (link.job_id, link.new_id, link.by) == (old, new, "ada")
    again = store.run(store.dead_letters.redrive_as(old, new_id(), '{"amount": 2}', None, "ada", TENANT))
    assert (again.id, again.created) == (new, False)
    (same,) = store.run(store.jobs.enqueue([spec("pay", key="order-7", payload={"amount": 1})], TENANT))
    assert (same.id, same.created) == (new, False), "its idempotency key now refers to the new job"
    assert groups(store) == []
    waiting = put_one(store)
    for wrong, reason in ((new_id(), "not_found"), (waiting, "not_dead")):
        answer = store.run(store.dead_letters.redrive_as(wrong, new_id(), "{}", None, "ada", TENANT))
        assert (answer.id, answer.reason) == (None, reason)
    assert store.run(store.dead_letters.redrive_as(old, new_id(), "{}", None, "eve", "b")).reason == "not_found"
