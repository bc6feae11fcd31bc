"""Fault 45 for workflows: workers are killed within a workflow. Every ended parent releases its children, and all jobs
end.

The end of a parent and the release of its children are one transaction, so nothing can be lost between them.
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast import App, State
from holdfast.app.internals import session_of
from holdfast.features.workflows.model import CallbackSpec
from holdfast.features.workflows.parts import MAP
from tests.faults.checker import RECOVERY_LIMIT, check
from tests.faults.crash_points import EXIT_CODE, CrashPoint, When, start_worker
from tests.faults.effects import effects
from tests.faults.workload import PATIENT, states, wait_for_all
from tests.support.stores import history, spec
from tests.support.waiting import until
from tests.support.worker_processes import Crew
from tests.support.workflows import Flow
from tests.support.workflows import check as check_workflow

pytestmark = pytest.mark.req("DP-14", "CX-15")


class WorkFlow(Flow):
    """A workflow whose jobs have the kind "work"."""

    def _job(self, name: str, fields: dict[str, object]) -> object:  # type: ignore[override]
        payload = {"number": 1, "nap": 0.02}
        return spec("work", id=self.ids[name], payload=payload, workflow_id=self.id, retry=PATIENT)


@pytest.mark.parametrize("when", ["before", "within", "after"])
@pytest.mark.slow
def test_crash_at_the_end_of_parent_keeps_workflow_consistent(app: App, folder: Path, when: When) -> None:
    if when == "within" and not session_of(app).store.embedded:
        pytest.skip("on PostgreSQL the operation is one statement")
    flow = WorkFlow(session_of(app).store, {"a": "", "b": "a", "c": ["a", "b"]})
    flow.start()
    # The lease is long enough to reach that point on a busy machine.
    victim = start_worker(session_of(app).store.url, folder, CrashPoint("settling", when), burst=True, lease_ttl=1.5)
    victim.join(60)
    assert victim.exitcode == EXIT_CODE, (folder / "worker.log").read_text()
    graph = check_workflow(flow.graph)
    ended = graph.nodes[0].state is State.SUCCEEDED
    assert ended == (when == "after")
    assert [node.unmet for node in graph.nodes] == ([0, 0, 1] if ended else [0, 1, 2])
    rescuer = start_worker(session_of(app).store.url, folder, burst=False)
    try:
        wait_for_all(app, 3)
    finally:
        rescuer.kill()
        rescuer.join(10)
    check_workflow(flow.graph)
    assert flow.status == "succeeded"


@pytest.mark.parametrize(
    ("operation", "when"), [("extend", "after"), ("fire_callbacks", "before"), ("fire_callbacks", "after")]
)
def test_crash_in_map_or_callback_creates_no_duplicates(app: App, folder: Path, operation: str, when: When) -> None:
    """A map adds each of its jobs once, its descendants wait for them, and a callback is created once."""
    template = {
        "kind": "awork",
        "argument": "number",
        "options": {},
        "retry_given": False,
        "uses": [],
        "delay": None,
        "run_at": None,
        "deadline_at": None,
    }
    callback = CallbackSpec(spec("work", payload={"number": 9}, retry=PATIENT), "success", None)
    flow = Flow(session_of(app).store, {"m": "", "last": "m"}, callbacks=(callback,))
    mapped, last = (replace(node.job, retry=PATIENT) for node in flow.nodes)
    mapped.kind, mapped.payload = MAP, json.dumps({"items": [1, 2, 3], "job": template, "limit": 10})
    last.kind, last.payload = "work", json.dumps({"number": 4})
    nodes = tuple(replace(node, job=job) for node, job in zip(flow.nodes, (mapped, last), strict=True))
    session_of(app).store.run(session_of(app).store.workflows.start(replace(flow.spec, nodes=nodes), "default"))
    victim = start_worker(
        session_of(app).store.url, folder, CrashPoint(f"workflows.{operation}", when), burst=False, lease_ttl=1.5
    )
    victim.join(60)
    assert victim.exitcode == EXIT_CODE, (folder / "worker.log").read_text()
    rescuer = start_worker(session_of(app).store.url, folder, burst=False)
    try:
        wait_for_all(app, 6)
    finally:
        rescuer.kill()
        rescuer.join(10)
    check_workflow(flow.graph)
    assert flow.status == "succeeded"
    assert sorted(node.label for node in flow.graph.nodes) == ["last", "m", "m.1", "m.2", "m.3"]
    assert app.jobs.get(callback.job.id).state is State.SUCCEEDED
    assert session_of(app).store.run(session_of(app).store.workflows.fire_callbacks(10, "*")) == 0
    # By the ledger, because an exchange settles one job and claims the next at the same time.
    seen = {node.label: {each.type: each.seq for each in app.jobs.history(node.job_id)} for node in flow.graph.nodes}
    assert all(seen[f"m.{n}"]["succeed"] < seen["last"]["take"] for n in (1, 2, 3))


def kill_workers(
    app: App, crew: Crew, folder: Path, choice: random.Random, *, layers: int, width: int, kills: int
) -> None:
    drawn: dict[str, str | list[str]] = {f"0.{n}": "" for n in range(width)}
    for layer in range(1, layers):
        drawn |= {f"{layer}.{n}": [f"{layer - 1}.{m}" for m in range(width)] for n in range(width)}
    flow = WorkFlow(session_of(app).store, drawn)
    flow.start()
    crew.start(3)
    until(lambda: effects(folder), "the first job runs")
    for _ in range(kills):
        time.sleep(choice.uniform(0.0, 0.4))
        crew.kill_one(choice)
        crew.start(1)
    ids = list(flow.ids.values())
    wait_for_all(app, len(ids), limit=120)
    check(session_of(app).store.url, ids, folder=folder, within=RECOVERY_LIMIT)
    assert set(states(app, ids)) == {State.SUCCEEDED}
    check_workflow(flow.graph)
    assert flow.status == "succeeded"
    # No job began before its parents had ended. By the ledger, because an exchange has one time for all its events.
    began: dict[str, int] = {}
    ended: dict[str, int] = {}
    for name, job_id in flow.ids.items():
        events = history(session_of(app).store, job_id)
        began[name] = min(event.seq for event in events if event.type == "take")
        ended[name] = max(event.seq for event in events if event.type == "succeed")
    for name, parents in drawn.items():
        assert all(began[name] > ended[parent] for parent in parents)


@pytest.mark.slow
def test_workflow_survives_three_kills(app: App, crew: Crew, folder: Path, choice: random.Random) -> None:
    kill_workers(app, crew, folder, choice, layers=6, width=5, kills=3)


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_workflow_survives_two_hundred_kills(app: App, crew: Crew, folder: Path, choice: random.Random) -> None:
    for _ in range(5):
        kill_workers(app, crew, folder, choice, layers=60, width=20, kills=40)
