"""Fault 10: recovery and a settlement race for the same job: one ends the attempt, the other learns that it lost."""

from __future__ import annotations

import random
import threading
from functools import partial

import pytest

from holdfast.engine.settlement import decide
from holdfast.engine.states import State
from holdfast.features.assembly import Store
from tests.faults.checker import check
from tests.support.concurrency import together
from tests.support.stores import DONE, claim, forward, open_lease, put, settle, spec, state_of, tries
from tests.support.transactions import Transaction

pytestmark = pytest.mark.req("DP-7", "DP-8", "CX-10")


def sweep(store: Store) -> list[str]:
    store.run(store.leases.recover())
    return []


@pytest.mark.slow
def test_concurrent_sweeps_and_settlements_end_each_attempt_once(store: Store, choice: random.Random) -> None:
    """Five rounds: a lease of thirty jobs expires; two reapers and three settlements start together."""
    ids: list[str] = []
    for number in range(5):
        forward(store)
        ids += put(store, *(spec(retry=tries(5, crashes=100)) for _ in range(30)))
        claims = claim(store, open_lease(store, f"w-{number}", ttl=10), 1000)
        forward(store, 10)
        choice.shuffle(claims)
        parts = [partial(settle, store, claims[n::3]) for n in range(3)]
        results = together(*parts, *(partial(sweep, store) for _ in range(2)))
        stale = {job for result in results for job in result}
        store.run(store.leases.recover())
        for each in claims:
            assert state_of(store, each.id) == (State.RETRY_WAITING if each.id in stale else State.SUCCEEDED)
        store.run(store.leases.promote())
    while left := claim(store, open_lease(store), 1000):
        settle(store, left)
    check(store.url, ids)


# -- PostgreSQL: one of the two has written but not committed --------------------------------------------------


@pytest.fixture
def expired(store: Store) -> list[str]:
    forward(store)
    return put(store, *(spec() for _ in range(3)))


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_sweep_skips_job_of_open_settlement(store: Store, expired: list[str], end: str) -> None:
    """The sweep does not wait for the settlement."""
    claims = claim(store, open_lease(store, ttl=10), 3)
    forward(store, 10)
    settling = Transaction(store)
    settling.run(store.leases.settle(claims[0].lease, [decide(claims[0], DONE, 1.0)], "*"))
    swept = store.run(store.leases.recover())
    assert swept.crashed == 2
    settling.end(end)
    assert store.run(store.leases.recover()).crashed == (0 if end == "commit" else 1)
    wanted = State.SUCCEEDED if end == "commit" else State.RETRY_WAITING
    assert [state_of(store, job) for job in expired] == [wanted, State.RETRY_WAITING, State.RETRY_WAITING]
    check(store.url, expired, ended=False)


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_settlement_waits_for_open_sweep(store: Store, expired: list[str], end: str) -> None:
    """The settlement is stale if the sweep commits, and valid if it rolls back."""
    claims = claim(store, open_lease(store, ttl=10), 3)
    forward(store, 10)
    sweeping = Transaction(store)
    assert sweeping.run(store.leases.recover()).crashed == 3
    stale: list[list[str]] = []
    settling = threading.Thread(target=lambda: stale.append(settle(store, claims)))
    settling.start()
    sweeping.end(end)
    settling.join(20)
    assert sorted(stale[0]) == (sorted(expired) if end == "commit" else [])
    wanted = State.RETRY_WAITING if end == "commit" else State.SUCCEEDED
    assert {state_of(store, job) for job in expired} == {wanted}
    check(store.url, expired, ended=False)
