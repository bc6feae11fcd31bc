"""Parents that end at the same time in separate transactions: each child is released exactly once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from functools import partial

import pytest

from holdfast.engine.job import Claim
from holdfast.engine.settlement import decide
from holdfast.engine.states import State
from holdfast.features.assembly import Store, open_store
from holdfast.features.workflows.model import Graph
from tests.support.concurrency import together
from tests.support.stores import BROKEN, FINAL, TENANT, claim, open_lease, settle, types_of
from tests.support.workflows import Flow, check

pytestmark = pytest.mark.req("DP-14", "CX-10")

SETTLERS = 8


@pytest.fixture
def others(store: Store) -> Iterator[list[Store]]:
    with ExitStack() as stack:
        yield [stack.enter_context(closing(open_store(store.url))) for _ in range(SETTLERS)]


@pytest.mark.slow
def test_concurrent_ends_of_parents_release_each_child_once(store: Store, others: list[Store]) -> None:
    """Layers of eight jobs, each behind all jobs of the previous layer: the last end of a layer releases the next."""
    layers, width = 6, SETTLERS
    drawn: dict[str, str | list[str]] = {f"0.{n}": "" for n in range(width)}
    for layer in range(1, layers):
        drawn |= {f"{layer}.{n}": [f"{layer - 1}.{m}" for m in range(width)] for n in range(width)}
    flow = Flow(store, drawn)
    flow.start()
    for layer in range(layers):
        claims = claim(store, open_lease(store, ttl=1000), 100)
        assert sorted(each.kind for each in claims) == sorted(f"do.{layer}.{n}" for n in range(width))
        ends = together(*(partial(settle, other, [each]) for other, each in zip(others, claims, strict=True)))
        assert ends == [[]] * width
    assert flow.status == "succeeded"
    check(flow.graph)
    assert {tuple(types_of(store, job_id)) for job_id in flow.ids.values()} == {("enqueue", "take", "succeed")}


@pytest.mark.slow
def test_concurrent_stops_cancels_and_ends_stay_consistent(store: Store, others: list[Store]) -> None:
    """Successes, failures, retries and a cancel at once: the counts follow from the jobs, and no job waits for an ended
    parent.
    """
    choice = random.Random(5)
    for on_failure in ("stop", "skip"):
        drawn: dict[str, str | list[str]] = {f"p{n}": "" for n in range(SETTLERS)}
        drawn |= {f"c{n}": [f"p{n}", f"p{(n + 1) % SETTLERS}"] for n in range(SETTLERS)}
        drawn["end"] = [f"c{n}" for n in range(SETTLERS)]
        flow = Flow(store, drawn, on_failure, edges={f"c{n}>end": "continue" for n in range(0, SETTLERS, 2)})
        flow.start()
        claims = claim(store, open_lease(store, ttl=1000), 100)

        def end(other: Store, each: Claim, how: float) -> object:
            outcome = FINAL if how < 0.25 else BROKEN if how < 0.4 else None
            return settle(other, [each], outcome) if outcome else settle(other, [each])

        together(
            *(partial(end, o, c, choice.random()) for o, c in zip(others[1:], claims[1:], strict=False)),
            partial(end, others[0], claims[0], 0.0),
        )
        assert_sound(check(flow.graph))
        together(
            partial(others[0].run, others[0].workflows.cancel(flow.id, None, "ada", TENANT)),
            partial(others[1].run, others[1].workflows.resume(flow.id, None, "ada", TENANT)),
            partial(others[2].run, others[2].jobs.operate("cancel", [flow.ids["c3"]], None, "ada", TENANT)),
            partial(others[3].run, others[3].leases.promote()),
        )
        assert_sound(check(flow.graph))
        store.run(store.workflows.cancel(flow.id, None, "ada", TENANT))
        graph = check(flow.graph)
        assert graph.workflow.open == 0


def assert_sound(graph: Graph) -> None:
    """Held jobs have not started."""
    for node in graph.nodes:
        if node.status == "skipped":
            assert node.state in (State.QUEUED, State.RETRY_WAITING, State.CANCELLED)


def test_retry_written_while_the_workflow_stops_is_held(store: Store, others: list[Store]) -> None:
    """A retry is written in a transaction that is still open when another one stops the workflow.

    Without a lock neither would see the other.
    """
    flow = Flow(store, {"fails": "", "again": ""}, "stop")
    flow.start()
    held = {each.kind: each for each in claim(store, open_lease(store, ttl=1000), 2)}
    again, fails = held["do.again"], held["do.fails"]
    with ThreadPoolExecutor(1) as pool:
        with store.transaction() as connection:
            ending = store.on_connection.settle(again.lease, decide(again, BROKEN, 1.0), "*")
            assert store.run_on_connection(connection, ending, within=True)
            stopping = pool.submit(settle, others[0], [fails], FINAL)
            wait([stopping], timeout=0.5)  # it waits for the open transaction, or is done
        assert stopping.result(timeout=30) == []
    assert flow.statuses() == {"fails": "dead", "again": "skipped"}
