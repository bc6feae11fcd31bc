"""Bulk operations (DP-15): each job once, at a bounded rate, with progress that survives the worker."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import timedelta
from typing import Any

import pytest

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.outcome import Failed
from holdfast.engine.states import State
from holdfast.errors import HoldfastError, InvalidSetting
from holdfast.features.assembly import Store, open_store
from holdfast.features.audit.store import ActionFilter
from holdfast.features.dead_letters import store as dead_letters
from holdfast.features.dead_letters.model import BATCH, GroupFilter, NewOperation, Operation
from holdfast.stores.flow import drive_steps
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
    types_of,
)

pytestmark = pytest.mark.req("DP-15")

DEAD = Failed("Broken", "it broke", final=True)


class Killed(Exception):
    """Raised in the middle of a batch."""


def dead(store: Store, count: int, kind: str = "pay", *, tenant: str = TENANT, **fields: Any) -> list[str]:
    ids = put(store, *(spec(kind, **fields) for _ in range(count)), tenant=tenant)
    held = claim(store, open_lease(store), count)
    assert len(held) == count
    settle(store, held, DEAD)
    return ids


def start(
    store: Store, operation: Any = "redrive", *, tenant: str = TENANT, how: Any = None, **wanted: Any
) -> Operation:
    given = {"reason": "wrong month" if operation == "discard" else None} | (how or {})
    new = NewOperation(new_id(), operation, **given)
    return store.run(store.operations.start(new, JobFilter(tenant=tenant, **wanted), "ada", tenant))


def current(store: Store, operation: Operation) -> Operation:
    stored = store.run(store.operations.get(operation.id, operation.tenant))
    assert stored is not None
    return stored


def work_off(store: Store, tenant: str = EVERY_TENANT) -> list[int]:
    """Run all batches that are due; returns the size of each."""
    batches = []
    while (done := store.run(store.operations.work(tenant))) is not None:
        batches.append(done)
    return batches


def test_redrive_handles_exactly_the_matching_jobs(store: Store) -> None:
    ids = dead(store, BATCH + 20)
    others = dead(store, 2, "repay") + dead(store, 2, tenant="b")
    assert store.run(store.operations.next()) is None
    started = start(store, kind="pay", how={"max_attempts": 7})
    assert (started.state, started.total, started.done, started.fraction) == ("running", BATCH + 20, 0, 0.0)
    assert started.wanted == {"kind": "pay", "state": "dead_letter"}
    assert store.run(store.operations.next()) == 0
    assert store.run(store.operations.next("b")) is None, "it belongs to another tenant"
    assert store.run(store.operations.work("b")) is None
    assert store.run(store.operations.work()) == BATCH
    half = current(store, started)
    assert (half.done, half.state, half.created_by) == (BATCH, "running", "ada")
    assert half.fraction == pytest.approx(BATCH / (BATCH + 20))
    assert work_off(store) == [20]
    ended = current(store, started)
    assert (ended.state, ended.done, ended.refused, ended.fraction) == ("done", BATCH + 20, 0, 1.0)
    assert ended.finished_at is not None
    assert {state_of(store, each) for each in ids} == {State.QUEUED}
    assert {state_of(store, each) for each in others} == {State.DEAD_LETTER}
    event = history(store, ids[0])[-1]
    assert (event.type, event.actor, event.meta) == ("redrive", "ada", {"operation": started.id, "max_attempts": 7})
    assert store.run(store.operations.list(TENANT)) == [ended]
    assert store.run(store.operations.list(TENANT, running=True)) == []
    assert store.run(store.operations.list("b")) == []


def test_payloads_are_not_read(store: Store, by_hand: ByHand) -> None:
    """A number that JSON permits and PostgreSQL's `jsonb` cannot hold."""
    by_hand.execute("insert into job (tenant, kind, payload) values ('default', 'pay', '{\"n\": 1e200000}')")
    settle(store, claim(store, open_lease(store)), DEAD)
    started = start(store, kind="pay", queue="default")
    assert work_off(store) == [1]
    assert (current(store, started).state, current(store, started).done) == ("done", 1)


@pytest.mark.req("DP-26")
def test_redriven_jobs_start_at_the_time_of_the_operation(store: Store) -> None:
    now = store.run(store.clock.now())
    for how, expected in (({"at": now + timedelta(hours=2)}, 7200), ({"delay": 60.0}, 60), ({"at": now}, None)):
        (job_id,) = dead(store, 1)
        started = start(store, how=how)
        assert started.run_at is not None
        assert abs((started.run_at - now).total_seconds() - (expected or 0)) < 60
        assert work_off(store) == [1]
        assert job(store, job_id).due_at == (started.run_at if expected else None)
        assert types_of(store, job_id)[-2:] == (["redrive", "reschedule"] if expected else ["dead_letter", "redrive"])
        store.run(store.jobs.operate("cancel", [job_id], None, "ada", TENANT))
    with pytest.raises(HoldfastError, match="time_redriven"):
        start(store, "cancel", how={"delay": 60.0})


def test_job_that_fails_again_is_not_redriven_twice(store: Store) -> None:
    ids = dead(store, BATCH + 1)
    started = start(store)
    assert store.run(store.operations.work()) == BATCH
    held = claim(store, open_lease(store), BATCH)
    settle(store, held, DEAD)
    later = dead(store, 1)
    assert work_off(store) == [1]
    assert current(store, started).state == "done"
    assert sorted(types_of(store, each).count("redrive") for each in ids) == [1] * len(ids)
    assert state_of(store, later[0]) is State.DEAD_LETTER, "it did not exist when the operation started"


def test_operation_filters(store: Store) -> None:
    (old,) = dead(store, 1, tags=("x",), agent="a1")
    before = store.run(store.clock.now())
    (group,) = {store.run(store.dead_letters.group_of(old, TENANT))}
    assert group is not None
    (elsewhere,) = dead(store, 1, tenant="b")
    (other,) = dead(store, 1, "repay")
    assert start(store, tag="y").total == 0
    assert start(store, since=before + timedelta(days=1)).total == 0
    assert start(store, until=before + timedelta(days=1), agent="a1", queue="default", tag="x").total == 1
    assert sum(work_off(store)) == 1
    assert state_of(store, old) is State.QUEUED
    settle(store, claim(store, open_lease(store), 1), DEAD)
    assert start(store, "discard", fingerprint=group.fingerprint).total == 1
    work_off(store)
    assert state_of(store, old) is State.CANCELLED
    assert history(store, old)[-1].meta["reason"] == "wrong month"
    everyone = start(store, tenant=EVERY_TENANT)
    assert everyone.total == 2
    assert store.run(store.operations.get(everyone.id, TENANT)) is None
    work_off(store)
    assert (state_of(store, elsewhere), state_of(store, other)) == (State.QUEUED, State.QUEUED)


def test_rate_bounds_all_workers_together(store: Store) -> None:
    forward(store)
    dead(store, 7)
    start(store, how={"rate": 2})
    slow = start(store, "cancel", kind="nothing", how={"rate": 0.5})
    assert slow.batch == 1
    assert sorted(work_off(store)) == [0, 2], "one second's worth, and the empty operation"
    assert store.run(store.operations.next()) == pytest.approx(1)
    forward(store, 0.9)
    assert work_off(store) == []
    forward(store, 0.1)
    assert work_off(store) == [2]
    forward(store, 60)
    assert work_off(store) == [2], "missed capacity is not made up for"
    forward(store, 1)
    assert work_off(store) == [1]


@pytest.mark.req("SC-19")
def test_operation_continues_after_the_clock_was_set_back(store: Store) -> None:
    forward(store)
    dead(store, 4)
    start(store, how={"rate": 2})
    assert work_off(store) == [2]
    forward(store, -3600)
    assert store.run(store.operations.next()) == 0
    assert work_off(store) == [2]


def test_cancelled_operation_stops_and_is_recorded(store: Store) -> None:
    ids = dead(store, 3)
    started = start(store, how={"rate": 1})
    assert store.run(store.operations.work()) == 1
    assert not store.run(store.operations.cancel(started.id, None, "eve", "b"))
    assert store.run(store.operations.cancel(started.id, "too early", "bob", TENANT))
    forward(store, 100)
    assert work_off(store) == []
    ended = current(store, started)
    assert (ended.state, ended.cancelled_by, ended.cancelled_reason, ended.done) == ("cancelled", "bob", "too early", 1)
    assert not store.run(store.operations.cancel(started.id, None, "bob", TENANT))
    (group,) = store.run(store.dead_letters.groups(GroupFilter(tenant=TENANT)))
    store.run(store.dead_letters.note(group.fingerprint, "known", "carol", TENANT))
    acts = store.run(store.audit.actions(ActionFilter(tenant=TENANT)))
    assert [(each.actor, each.type, each.subject) for each in reversed(acts)] == [
        ("ada", "add", "operation"),
        ("bob", "change", "operation"),
        ("carol", "change", "dead_letter_group"),
    ]
    assert [state_of(store, each) for each in ids].count(State.DEAD_LETTER) == 2


def test_bulk_cancel_skips_finished_jobs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "WINDOW", 5)
    waiting = put(store, *(spec("pay") for _ in range(3)))
    ended = put(store, *(spec("pay", priority=9) for _ in range(9)))
    held = claim(store, open_lease(store), 10)
    settle(store, held[:9])
    started = start(store, "cancel", kind="pay")
    assert started.total == 3
    assert sum(work_off(store)) == 3
    assert (current(store, started).done, current(store, started).refused) == (3, 0)
    assert {state_of(store, each) for each in waiting} == {State.CANCELLED}, "also the running one"
    assert {state_of(store, each) for each in ended} == {State.SUCCEEDED}
    put_one(store, "pay")
    assert start(store, "cancel", state=State.QUEUED).total == 1
    for operation, state in (("cancel", State.SUCCEEDED), ("redrive", State.QUEUED)):
        with pytest.raises(InvalidSetting):
            start(store, operation, state=state)


def test_uncommitted_batch_leaves_no_trace(store: Store) -> None:
    """All statements of a batch except the commit, as a killed worker leaves it."""
    ids = dead(store, 3)
    started = start(store, "discard")
    with suppress(Killed), store.transaction() as connection:

        def execute(statement: Any) -> Any:
            return connection.execute(statement.sql, statement.params).fetchall()

        assert drive_steps(store.operations.work().start(), execute) == 3
        raise Killed
    assert current(store, started) == started
    assert {state_of(store, each) for each in ids} == {State.DEAD_LETTER}
    assert work_off(store) == [3]


def test_concurrent_workers_handle_each_job_once(store_url: str, store: Store) -> None:
    ids = dead(store, 60)
    started = [start(store, how={"rate": 1_000_000}), start(store, "discard")]
    begin = threading.Barrier(3)

    def worker(_: int) -> int:
        with closing(open_store(store_url)) as own:
            begin.wait()
            return sum(work_off(own))

    with ThreadPoolExecutor(3) as pool:
        handled = sum(pool.map(worker, range(3)))
    work_off(store)
    ended = [current(store, each) for each in started]
    assert [each.state for each in ended] == ["done", "done"]
    assert sum(each.done for each in ended) == 60
    assert handled >= 60
    resolved = [sum(operation in ("redrive", "discard") for operation in types_of(store, each)) for each in ids]
    assert resolved == [1] * 60
