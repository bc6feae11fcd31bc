"""Pure rules of workflows: cycles, statuses, and the status of jobs."""

from __future__ import annotations

import pytest

from holdfast.engine.states import State
from holdfast.features.workflows.model import Counts, Edge, NodeStatus, WorkflowStatus, derive, find_cycle

pytestmark = pytest.mark.req("DP-14")


@pytest.mark.parametrize(
    ("parents", "cycle"),
    [
        ({"a": [], "b": ["a"], "c": ["a", "b"]}, None),
        ({"a": ["a"]}, ["a", "a"]),
        ({"a": ["b"], "b": ["a"]}, ["a", "b", "a"]),
        ({"x": [], "a": ["x", "c"], "b": ["a"], "c": ["b"], "y": ["c"]}, ["a", "b", "c", "a"]),
        ({str(n): [str(n - 1)] for n in range(1, 5000)} | {"0": []}, None),
    ],
)
def test_cycle_is_reported_in_execution_order(parents: dict[str, list[str]], cycle: list[str] | None) -> None:
    assert find_cycle(parents) == cycle


@pytest.mark.parametrize(
    ("counts", "stopped", "cancelled", "status"),
    [
        (Counts(open=1, dead=3), True, False, "active"),
        (Counts(succeeded=2), False, False, "succeeded"),
        (Counts(succeeded=2, dead=1, skipped=3), False, False, "partially_failed"),
        (Counts(succeeded=2, failed=1), False, False, "partially_failed"),
        (Counts(succeeded=2, dead=1), True, False, "failed"),
        (Counts(failed=1, skipped=3), False, False, "failed"),
        (Counts(succeeded=2, cancelled=1), False, False, "cancelled"),
        (Counts(succeeded=2, dead=1, cancelled=1), False, True, "cancelled"),
    ],
)
def test_status_follows_from_counts(counts: Counts, stopped: bool, cancelled: bool, status: str) -> None:
    assert counts.status(stopped=stopped, cancelled=cancelled) == WorkflowStatus(status)


def test_status_follows_from_states() -> None:
    states = {"a": State.DEAD_LETTER, "b": State.QUEUED, "c": State.QUEUED, "d": State.QUEUED, "e": State.QUEUED}
    edges = [
        Edge("b", "a", "skip", met=False),
        Edge("c", "b", "stop", met=False),
        Edge("d", "c", "continue", met=True),
        Edge("e", "d", "skip", met=False),
    ]
    skipped, open_ = NodeStatus.SKIPPED, NodeStatus.OPEN
    assert derive(states, edges) == {"a": NodeStatus.DEAD, "b": skipped, "c": skipped, "d": open_, "e": open_}
    assert derive(states, edges, stopped=True)["e"] is skipped
