"""The cost of limits: a drain with and without them, and a claim beside ten thousand full keys.

One connection makes exchanges of 100 (settle and claim in one), on databases that differ only in the limits. Limits
that hold jobs back allow 100: each job above that is parked, and continues when a slot is free.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass

from bench.console import note
from bench.depth import claim_seconds
from bench.peers.backends import Backends, Place
from bench.peers.catalog import BY_NAME, OURS, Subject
from bench.subjects import PAYLOAD, Ours, new_ids
from bench.waiting import Beside
from holdfast.engine.job import JobSpec
from holdfast.engine.settlement import Settlement
from holdfast.features.assembly import open_store
from holdfast.features.limits.model import EACH, Rule
from holdfast.stores.requests import ClaimRequest

BATCH = 100
KEYS_IN_USE = 50


@dataclass(frozen=True)
class Sizes:
    drain: int = 10_000
    rounds: int = 5
    keys: int = 10_000
    claims: int = 60


QUICK = Sizes(drain=3_000, rounds=3, keys=10_000, claims=20)

LIMITS: dict[str, Rule | None] = {
    "without": None,
    "queue, wide": Rule("queue", "default", 1_000),
    "queue, holding back": Rule("queue", "default", BATCH // 2),
    "kind, wide": Rule("kind", "noop", 1_000),
    "each key, wide": Rule("key", EACH, 1_000),
    "each key, holding back": Rule("key", EACH, 1),
    "kind, holding back": Rule("kind", "noop", BATCH // 2),
}


def _fill(ours: Ours, count: int, key: Callable[[int], str]) -> None:
    for start in range(0, count, 1000):
        specs = [
            JobSpec(
                id=job_id, kind="noop", payload=PAYLOAD, enqueued_by="b", source_system="b", uses=(f"key:{key(n)}",)
            )
            for n, job_id in enumerate(new_ids.many(min(1000, count - start)), start)
        ]
        ours.store.run(ours.store.jobs.enqueue(specs, ours.tenant))


def drain_turns(ours: Ours, count: int) -> float:
    """Return the jobs per second."""
    store, ended, settlements = ours.store, 0, list[Settlement]()
    request = ClaimRequest(lease=ours.lease, queues=("default",), want=BATCH)
    start = time.perf_counter()
    while ended < count:
        turn = ours.store.run(store.leases.exchange(settlements, request))
        ended += len(settlements)
        settlements = [Settlement(claim.id, claim.attempt, "succeeded") for claim in turn.claims]
        if turn.stale or (not settlements and ended < count):
            raise RuntimeError(f"{ended} of {count} ended: the figure would mean nothing")
    return count / (time.perf_counter() - start)


def measure(backends: Backends, subject: Subject, sizes: Sizes) -> list[Beside]:
    rates: dict[str, list[float]] = {name: [] for name in LIMITS}
    claims: list[list[float]] = [[], []]
    with ExitStack() as stack:
        places: dict[str, Place] = {}
        ours: dict[str, Ours] = {}
        for name, rule in [*LIMITS.items(), ("keys", Rule("key", EACH, 0))]:
            places[name] = stack.enter_context(backends.fresh(subject.backend, "sqlite:///"))
            store = stack.enter_context(closing(open_store(places[name].url)))
            store.migrate()
            ours[name] = Ours(store)
            if rule is not None:
                store.run(store.limits.set(rule, "bench", ours[name].tenant))
        for turn in range(sizes.rounds):
            for name in LIMITS:
                _fill(ours[name], sizes.drain, lambda n: f"k{n % KEYS_IN_USE}")
                places[name].settle_down()
                rates[name].append(drain_turns(ours[name], sizes.drain))
            note(f"{subject.name} round {turn + 1} " + "  ".join(f"{k} {v[-1]:,.0f}" for k, v in rates.items()))
        full = ours["keys"]
        _fill(full, sizes.keys, lambda n: f"k{n}")
        request = ClaimRequest(lease=full.lease, queues=("default",), want=1000)
        while full.store.run(full.store.limits.list(full.tenant))[0].waiting < sizes.keys:
            full.store.run(full.store.leases.exchange([], request))
        for each in (ours["without"], full):
            each.enqueue(sizes.claims * 200, 200)
        for _ in range(sizes.claims):
            for index, each in enumerate((ours["without"], full)):
                claims[index].append(claim_seconds(each, 1, 200) * 1e3)
    base, one, other = (statistics.median(each) for each in (rates["without"], *claims))
    found = [
        Beside(subject.place, f"drain, {name}", "jobs/s", base, statistics.median(each), base / statistics.median(each))
        for name, each in rates.items()
        if name != "without"
    ]
    return [*found, Beside(subject.place, f"claim of 200, {sizes.keys:,} full keys", "ms", one, other, other / one)]


def run(backends: Backends, store: str, sizes: Sizes) -> list[Beside]:
    found: list[Beside] = []
    print("\nWith limits")
    for subject in (BY_NAME[name] for name in OURS):
        if store in (subject.backend, "both"):
            for row in measure(backends, subject, sizes):
                print(row.line(), flush=True)
                found.append(row)
    return found
