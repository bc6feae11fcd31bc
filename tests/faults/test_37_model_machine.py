"""Fault 37: the state machine of `tests/model` with more faults: SQLite, PostgreSQL and the model stay equal.

`tests/model` aborts only enqueues and claims. Here every operation is aborted, responses are lost and requests
repeated, and a sweep dies half-way and is continued by another process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from holdfast.engine.settlement import decide
from holdfast.engine.states import State
from holdfast.stores.flow import Flow
from tests.model import views
from tests.model.conftest import MakeStores, make_stores
from tests.model.machine import StoresMachine
from tests.model.store_driver import PowerCut, StoreDriver, cut
from tests.model.strategies import outcomes

pytestmark = pytest.mark.req("CX-1", "CX-15", "SC-19", "DP-8")

__all__ = ["make_stores"]

QUICK = settings(
    derandomize=True,
    max_examples=4,
    stateful_step_count=20,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
LONG = settings(QUICK, derandomize=False, max_examples=400, stateful_step_count=60)


class FaultyMachine(StoresMachine):
    @rule(data=st.data())
    def cut_any_operation(self, data: st.DataObject) -> None:
        """An aborted operation has no effect."""
        after = data.draw(st.integers(0, 6), label="after")
        restart = data.draw(st.booleans(), label="restart")
        lease = data.draw(st.sampled_from(list(self.model.leases)), label="lease")
        scope = self.model.leases[lease].tenant
        held = list(self.model.held_by(lease, State.IN_PROGRESS))
        ids = [job.id for job in self.model.jobs.values()]
        settlements = [decide(views.claim_of(job), data.draw(outcomes, label=job.id), 0.5) for job in held]
        flows: dict[str, Callable[[StoreDriver], Flow[Any]]] = {
            "settle": lambda driver: driver.store.leases.settle(driver.token(lease), settlements, scope),
            "recover": lambda driver: driver.store.leases.recover(),
            "promote": lambda driver: driver.store.leases.promote(),
            "expire": lambda driver: driver.store.leases.expire(),
            "cancel": lambda driver: driver.store.jobs.operate("cancel", ids, "cut", "an operator", "*"),
            "renew": lambda driver: driver.store.leases.renew(driver.token(lease), 3600.0, scope),
            "end": lambda driver: driver.store.leases.end(driver.token(lease), "closed", scope),
        }
        name = data.draw(st.sampled_from(sorted(flows)), label="operation")
        for driver in self.drivers.values():
            with pytest.raises(PowerCut):
                driver.store.run(cut(flows[name](driver), after))
            if restart:
                driver.restart()

    @rule(data=st.data())
    def lose_response_to_settlement(self, data: st.DataObject) -> None:
        """The settlement is committed and its response is lost: a repeat changes nothing and reports all as stale."""
        holders = self.leases_holding(State.IN_PROGRESS)
        if not holders:
            return
        lease = data.draw(st.sampled_from(holders), label="lease")
        scope = self.model.leases[lease].tenant
        outcome = data.draw(outcomes, label="outcome")
        batch = [decide(views.claim_of(job), outcome, 0.5) for job in self.model.held_by(lease, State.IN_PROGRESS)]
        self.apply(lambda side: side.settle(lease, batch, scope))
        for driver in self.drivers.values():
            driver.restart()
        self.apply(lambda side: side.settle(lease, batch, scope))

    @rule()
    def sweep_twice(self) -> None:
        """A sweep that dies half-way equals a smaller sweep; the next process continues it."""
        if any(not lease.swept and lease.ended for lease in self.model.leases.values()):
            return  # the order of leases is not promised
        self.apply(lambda side: side.recover_leases(1000, "*"))
        for driver in self.drivers.values():
            driver.restart()
        self.apply(lambda side: side.recover_leases(1000, "*"))


def run_machine(make_stores: MakeStores, how: settings) -> None:
    class Machine(FaultyMachine):
        def __init__(self) -> None:
            super().__init__(make_stores)

    run_state_machine_as_test(Machine, settings=how)


@pytest.mark.timeout(600)
def test_stores_and_model_agree_under_faults(make_stores: MakeStores) -> None:
    run_machine(make_stores, QUICK)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_stores_and_model_agree_under_faults_for_long(make_stores: MakeStores) -> None:
    run_machine(make_stores, LONG)
