"""Fault 37: the model's own machine, with more faults among its moves: SQLite, PostgreSQL and the model stay equal.

`tests/model` plays the operations and cuts the power in an enqueue or a claim. Here every operation is cut, answers
are lost and asked for again, and a sweep dies half-way and is taken up by another process.
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
from tests.model.conftest import Make, make
from tests.model.drafts import outcomes
from tests.model.machine import StoresMachine
from tests.model.player import Player, PowerCut, cut

pytestmark = pytest.mark.req("CX-1", "CX-15", "SC-19", "DP-8")

__all__ = ["make"]

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
        """Whatever was under way, nothing of it has happened."""
        after = data.draw(st.integers(0, 6), label="after")
        restart = data.draw(st.booleans(), label="restart")
        lease = data.draw(st.sampled_from(list(self.model.leases)), label="lease")
        scope = self.model.leases[lease].tenant
        held = list(self.model.held_by(lease, State.IN_PROGRESS))
        ids = [job.id for job in self.model.jobs.values()]
        settlements = [decide(views.claim_of(job), data.draw(outcomes, label=job.id), 0.5) for job in held]
        flows: dict[str, Callable[[Player], Flow[Any]]] = {
            "settle": lambda player: player.store.leases.settle(player.token(lease), settlements, scope),
            "reap": lambda player: player.store.leases.reap(),
            "promote": lambda player: player.store.leases.promote(),
            "expire": lambda player: player.store.leases.expire(),
            "cancel": lambda player: player.store.jobs.operate("cancel", ids, "cut", "an operator", "*"),
            "renew": lambda player: player.store.leases.renew(player.token(lease), 3600.0, scope),
            "end": lambda player: player.store.leases.end(player.token(lease), "closed", scope),
        }
        name = data.draw(st.sampled_from(sorted(flows)), label="operation")
        for player in self.players.values():
            with pytest.raises(PowerCut):
                player.store.run(cut(flows[name](player), after))
            if restart:
                player.restart()

    @rule(data=st.data())
    def lose_the_answer_to_a_settlement(self, data: st.DataObject) -> None:
        """It was committed and nobody was told: the same once more changes nothing, and names every job as stale."""
        holders = self.holding(State.IN_PROGRESS)
        if not holders:
            return
        lease = data.draw(st.sampled_from(holders), label="lease")
        scope = self.model.leases[lease].tenant
        outcome = data.draw(outcomes, label="outcome")
        batch = [decide(views.claim_of(job), outcome, 0.5) for job in self.model.held_by(lease, State.IN_PROGRESS)]
        self.play(lambda side: side.settle(lease, batch, scope))
        for player in self.players.values():
            player.restart()
        self.play(lambda side: side.settle(lease, batch, scope))

    @rule()
    def sweep_in_two(self) -> None:
        """A sweep that dies half-way is what a small one looks like; the next process goes on with it."""
        if any(not lease.swept and lease.ended for lease in self.model.leases.values()):
            return  # which lease comes first is not promised
        self.play(lambda side: side.reap_lapsed(1000, "*"))
        for player in self.players.values():
            player.restart()
        self.play(lambda side: side.reap_lapsed(1000, "*"))


def play(make: Make, how: settings) -> None:
    class Machine(FaultyMachine):
        def __init__(self) -> None:
            super().__init__(make)

    run_state_machine_as_test(Machine, settings=how)


@pytest.mark.timeout(600)
def test_stores_and_model_agree_under_faults(make: Make) -> None:
    play(make, QUICK)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_stores_and_model_agree_under_faults_for_long(make: Make) -> None:
    play(make, LONG)
