"""The cost and the effect of fair shares: one tenant with very many jobs, and ninety-nine with ten each.

One connection makes exchanges of 100 (settle and claim in one). The databases differ only in whether fair shares are
on; they are filled alike and drained alternately. On SQLite, where this process does all the work, CPU time is
measured, because neighbours disturb it less.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass

from bench.console import note
from bench.peers.backends import Backends, Place
from bench.peers.catalog import BY_NAME, OURS, Subject
from bench.subjects import PAYLOAD, Ours, new_ids
from bench.waiting import Beside
from holdfast.engine.job import JobSpec
from holdfast.engine.settlement import Settlement
from holdfast.features.assembly import open_store
from holdfast.stores.requests import ClaimRequest

BATCH = 100
EACH = 10


@dataclass(frozen=True)
class Sizes:
    large: int = 100_000
    drain: int = 10_000
    rounds: int = 3
    many: int = 1_000
    small: int = 99


QUICK = Sizes(large=10_000, drain=3_000)
LONG = Sizes(large=1_000_000)


def _fill(ours: Ours, tenant: str, count: int) -> None:
    for start in range(0, count, 1000):
        specs = [
            JobSpec(id=job_id, kind="noop", payload=PAYLOAD, enqueued_by="b", source_system="b")
            for job_id in new_ids.many(min(1000, count - start))
        ]
        ours.store.run(ours.store.jobs.enqueue(specs, tenant))


def _small_ones(ours: Ours, tenants: int) -> None:
    for n in range(tenants):
        _fill(ours, f"small-{n:02}", EACH)


def _many(ours: Ours, count: int, tenants: int) -> None:
    for n in range(tenants):
        _fill(ours, f"tenant-{n:04}", max(1, count // tenants))


def _drain(ours: Ours, count: int, until: Callable[[str], bool] | None = None) -> float:
    """Return the seconds until ``count`` of the selected jobs have ended."""
    store, ended, settlements, counted = ours.store, 0, list[Settlement](), 0
    request = ClaimRequest(lease=ours.lease, queues=("default",), want=BATCH)
    clock = time.process_time if ours.store.embedded else time.perf_counter
    start = clock()
    while ended < count:
        turn = ours.store.run(store.leases.exchange(settlements, request))
        ended += counted
        settlements = [Settlement(claim.id, claim.attempt, "succeeded") for claim in turn.claims]
        counted = len(settlements) if until is None else sum(until(claim.tenant) for claim in turn.claims)
        if turn.stale or (not settlements and ended < count):
            raise RuntimeError(f"{ended} of {count} ended: the figure would mean nothing")
    seconds = clock() - start
    ours.store.run(store.leases.settle(ours.lease, settlements, "*"))
    return seconds


def measure(backends: Backends, subject: Subject, sizes: Sizes) -> list[Beside]:
    names = ("one tenant", "one tenant, shared", "large", "large, shared", "small ones", "many", "many, shared")
    with ExitStack() as stack:
        places: dict[str, Place] = {}
        ours: dict[str, Ours] = {}
        for name in names:
            places[name] = stack.enter_context(backends.fresh(subject.backend, "sqlite:///"))
            store = stack.enter_context(closing(open_store(places[name].url)))
            store.migrate()
            ours[name] = Ours(store)
            store.run(store.tenants.set_fair(["*"] if name.endswith("shared") else [], "bench"))
            if name.startswith("large"):
                _fill(ours[name], "large", sizes.large)
        taken: dict[str, list[float]] = {name: [] for name in (*names, "small ones, shared")}
        for turn in range(sizes.rounds):
            for name in names:
                if name.startswith("one tenant"):
                    _fill(ours[name], "only", sizes.drain)
                elif name.startswith("many"):
                    _many(ours[name], sizes.drain, sizes.many)
                else:
                    _small_ones(ours[name], sizes.small)
                places[name].settle_down()
                if name == "large, shared":
                    small = _drain(ours[name], sizes.small * EACH, lambda tenant: tenant != "large")
                    taken["small ones, shared"].append(small)
                    _small_ones(ours[name], sizes.small)
                count = sizes.small * EACH if name == "small ones" else sizes.drain
                taken[name].append(_drain(ours[name], count))
            said = (f"{name} {seconds[-1] * 1e6 / sizes.drain:,.1f} µs" for name, seconds in taken.items())
            note(f"{subject.name} round {turn + 1} " + "  ".join(said))
    found = []
    for what, alone, shared in (
        ("drain, one tenant alone", "one tenant", "one tenant, shared"),
        (f"drain, one of {sizes.large:,} and {sizes.small} of {EACH}", "large", "large, shared"),
        (f"drain, {sizes.many:,} tenants", "many", "many, shared"),
        (f"until {sizes.small} tenants of {EACH} are done", "small ones", "small ones, shared"),
    ):
        one, other = (statistics.median(taken[name]) for name in (alone, shared))
        found.append(Beside(subject.place, what, "ms", one * 1e3, other * 1e3, other / one))
    return found


def run(backends: Backends, store: str, sizes: Sizes) -> list[Beside]:
    found: list[Beside] = []
    print("\nShared fairly between tenants")
    for subject in (BY_NAME[name] for name in OURS):
        if store in (subject.backend, "both"):
            for row in measure(backends, subject, sizes):
                print(row.line(), flush=True)
                found.append(row)
    return found
