"""Applies the same random commands to a workflow on both stores: graphs, policies, ends, redrives, cancels, added jobs.

After every command both are equal, and follow from the states and dependencies alone (`derive`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from holdfast.engine.outcome import Outcome
from holdfast.features.assembly import Store, open_store
from holdfast.features.workflows.model import ON_FAILURE, OnFailure
from holdfast.stores.requests import OperatorAction
from tests.support.ledger import check_ledger
from tests.support.stores import BROKEN, DONE, FINAL, TENANT, claim, open_lease, settle
from tests.support.workflows import Flow, check

pytestmark = pytest.mark.req("DP-14", "SC-17", "CX-1")

COMMANDS = 40
OUTCOMES: list[Outcome] = [DONE, DONE, FINAL, BROKEN]
TYPES: list[OperatorAction] = ["redrive", "redrive", "discard", "cancel"]


@pytest.fixture
def stores(sqlite_url: str, postgres_url: str) -> Iterator[list[Store]]:
    with closing(open_store(sqlite_url)) as one, closing(open_store(postgres_url)) as other:
        for store in (one, other):
            store.migrate()
        yield [one, other]
        for store in (one, other):
            check_ledger(store)


class WorkflowPair:
    """One workflow on both stores."""

    def __init__(self, stores: list[Store], choice: random.Random) -> None:
        self.choice = choice
        self.names = [f"j{n}" for n in range(choice.randint(2, 7))]
        drawn = {name: self._some(self.names[:n]) for n, name in enumerate(self.names)}
        policy = self._policy()
        edges = {f"{p}>{c}": self._policy() for c, parents in drawn.items() for p in parents if choice.random() < 0.4}
        self.flows = [Flow(store, drawn, policy, edges=edges) for store in stores]
        self.leases = [open_lease(store, ttl=10_000_000) for store in stores]
        for flow in self.flows:
            assert flow.start().created

    def _policy(self) -> OnFailure:
        return self.choice.choice(ON_FAILURE)

    def _some(self, names: list[str]) -> list[str]:
        return self.choice.sample(names, k=min(len(names), self.choice.randint(0, 2)))

    def both(self, call: Callable[[Flow, int], Any]) -> Any:
        """Apply the call to both workflows; the results must be equal."""
        one, other = (call(flow, index) for index, flow in enumerate(self.flows))
        assert one == other
        return one

    def snapshot(self, flow: Flow, _: int) -> object:
        graph = check(flow.graph)
        workflow = graph.workflow
        jobs = {node.label: (node.status, node.state, node.unmet, node.attempt) for node in graph.nodes}
        return jobs, workflow.status, workflow.counts, workflow.stopped, workflow.cancelled_at is None

    # -- the commands --------------------------------------------------------------------------------------------

    def run(self) -> None:
        name = self.choice.choice(self.names)
        outcome: Outcome = self.choice.choice(OUTCOMES)

        def command(flow: Flow, index: int) -> bool:
            held = claim(flow.store, self.leases[index], 1, kinds=(f"do.{name}",))
            return not held or settle(flow.store, held, outcome) == []

        assert self.both(command)

    def operate(self) -> None:
        name, operation = self.choice.choice(self.names), self.choice.choice(TYPES)

        def command(flow: Flow, _: int) -> object:
            (verdict,) = flow.store.run(flow.store.jobs.operate(operation, [flow.ids[name]], "why", "ada", TENANT))
            return verdict.refused, verdict.reason, verdict.state

        self.both(command)

    def change_workflow(self) -> None:
        operation = self.choice.choice(["resume"] * 5 + ["cancel"])

        def command(flow: Flow, _: int) -> object:
            result = flow.store.run(getattr(flow.store.workflows, operation)(flow.id, None, "ada", TENANT))
            return result.jobs, result.refused, result.reason

        self.both(command)

    def add(self) -> None:
        name, parents, policy = f"j{len(self.names)}", self._some(self.names), self._policy()

        def command(flow: Flow, _: int) -> object:
            flow.on_failure = policy
            return flow.add({name: parents}).reason

        if self.both(command) is None:
            self.names.append(name)

    def later(self) -> None:
        def command(flow: Flow, _: int) -> int:
            moment = flow.store.run(flow.store.clock.now()) + timedelta(hours=1)
            flow.store.run(flow.store.clock.set(timedelta(0), moment))
            return flow.store.run(flow.store.leases.promote())

        self.both(command)


@pytest.mark.parametrize(
    "seed",
    [
        1,
        pytest.param(0, marks=pytest.mark.slow),
        *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 60)),
    ],
)
def test_stores_agree_on_random_workflows(stores: list[Store], seed: int) -> None:
    choice = random.Random(seed)
    for _ in range(2):
        pair = WorkflowPair(stores, choice)
        for _ in range(COMMANDS):
            moves = [pair.run] * 8 + [pair.operate] * 3 + [pair.change_workflow, pair.later, pair.later, pair.add]
            choice.choice(moves)()
            pair.both(pair.snapshot)
