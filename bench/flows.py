"""The cost of workflows: 1,000 jobs and one that depends on all of them, compared with the same jobs enqueued one by
one; and a claim beside jobs that wait for their parents."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from bench.depth import claim_seconds
from bench.peers.backends import Backends, Place
from bench.peers.bench import Bench
from bench.peers.catalog import BY_NAME, OURS
from bench.subjects import PAYLOAD, Ours, new_ids
from bench.waiting import Beside
from holdfast.engine.job import JobSpec
from holdfast.features.assembly import Store, open_store
from holdfast.features.workflows.model import EdgeSpec, NodeSpec, WorkflowSpec

BATCH = 200


@dataclass(frozen=True)
class Sizes:
    fan: int = 1_000
    rounds: int = 9
    blocked: int = 100_000
    claims: int = 60


QUICK = Sizes(fan=1_000, rounds=3, blocked=10_000, claims=20)


def _job(job_id: str, workflow_id: str | None = None) -> JobSpec:
    return JobSpec(
        id=job_id, kind="noop", payload=PAYLOAD, enqueued_by="bench", source_system="bench", workflow_id=workflow_id
    )


def fan_in(parents: int, children: int = 1) -> WorkflowSpec:
    """Add this many jobs, and others that depend on all of them."""
    flow_id, *ids = new_ids.many(1 + parents + children)
    nodes = tuple(NodeSpec(_job(job_id, flow_id), str(number)) for number, job_id in enumerate(ids))
    edges = tuple(EdgeSpec(child, parent, "skip") for child in ids[parents:] for parent in ids[:parents])
    return WorkflowSpec(
        id=flow_id,
        kind="bench",
        generator="bench",
        enqueued_by="bench",
        source_system="bench",
        nodes=nodes,
        edges=edges,
    )


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _plain(ours: Ours, count: int) -> None:
    for job_id in new_ids.many(count):
        ours.store.run(ours.store.jobs.enqueue([_job(job_id)], ours.tenant))
    ours.drain(count, BATCH)


def _joined(ours: Ours, count: int) -> None:
    ours.store.run(ours.store.workflows.start(fan_in(count - 1), ours.tenant))
    ours.drain(count, BATCH)


def _bulk(ours: Ours, count: int) -> None:
    ours.store.run(ours.store.jobs.enqueue([_job(job_id) for job_id in new_ids.many(count)], ours.tenant))
    ours.drain(count, BATCH)


def measure(place: str, store: Store, sizes: Sizes) -> list[Beside]:
    ours, count = Ours(store), sizes.fan
    times: dict[str, list[float]] = {"loop": [], "bulk": [], "flow": []}
    for _ in range(sizes.rounds):
        times["loop"].append(_seconds(lambda: _plain(ours, count)) * 1e3)
        times["bulk"].append(_seconds(lambda: _bulk(ours, count)) * 1e3)
        times["flow"].append(_seconds(lambda: _joined(ours, count)) * 1e3)
    loop, bulk, flow = (statistics.median(times[name]) for name in ("loop", "bulk", "flow"))
    return [
        Beside(place, f"fan-in of {count:,}, one by one", "ms", loop, flow, flow / loop),
        Beside(place, f"fan-in of {count:,}, in bulk", "ms", bulk, flow, flow / bulk),
    ]


def beside_blocked(place: str, empty: Place, deep: Place, sizes: Sizes) -> Beside:
    with closing(open_store(empty.url)) as one, closing(open_store(deep.url)) as other:
        ours = (Ours(one), Ours(other))
        for _ in range(sizes.blocked // 1_000):
            # A job that is never claimed, and a thousand that depend on it.
            spec = fan_in(1, 1_000)
            spec.nodes[0].job.queue = "elsewhere"
            other.run(other.workflows.start(spec, ours[1].tenant))
        for each in ours:
            each.enqueue(sizes.claims * BATCH, BATCH)
        for each_place in (empty, deep):
            each_place.settle_down()
        times: tuple[list[float], list[float]] = ([], [])
        for turn in range(sizes.claims):
            for index in (1, 0) if turn % 2 else (0, 1):
                times[index].append(claim_seconds(ours[index], 1, BATCH) * 1e3)
    without, beside = (statistics.median(each) for each in times)
    what = f"claim of {BATCH}, {sizes.blocked:,} blocked"
    return Beside(place, what, "ms", without, beside, beside / without)


def run(backends: Backends, store: str, sizes: Sizes) -> list[Beside]:
    found: list[Beside] = []
    print(f"\nWorkflows: {sizes.fan:,} jobs enqueued and drained, and as the parents of one; {sizes.blocked:,} blocked")
    for subject in (BY_NAME[name] for name in OURS):
        if store not in (subject.backend, "both"):
            continue
        bench = Bench(backends, subject)
        with bench.place() as one, closing(open_store(one.url)) as store_there:
            found += measure(subject.place, store_there, sizes)
        with bench.place() as one, bench.place() as other:
            found.append(beside_blocked(subject.place, one, other, sizes))
        for row in found[-3:]:
            print(row.line(), flush=True)
    return found
