"""The checker of limits: replays who held what from the ledger alone, and says where there was one too many."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.engine.job import Event, Job
from holdfast.engine.states import HELD
from holdfast.features.assembly import Store
from holdfast.stores.requests import JobFilter

CountedBy = Callable[[Job], Iterable[str]]


def ledger(store: Store) -> list[Event]:
    """All of it, by its numbers: who was let in where a place came free has a higher one than whoever left it."""
    found: list[Event] = []
    cursor = None
    while page := store.run(store.ledger.read(cursor, 1000, "*")):
        found += page
        cursor = page[-1].cursor
    return sorted(found, key=lambda event: event.seq)


def jobs(store: Store) -> dict[str, Job]:
    found: dict[str, Job] = {}
    before = None
    while page := store.run(store.jobs.list(JobFilter(tenant="*", before=before, limit=1000))):
        found |= {job.id: job for job in page}
        before = page[-1].id
    return found


def most_at_once(store: Store, counted_by: CountedBy) -> dict[str, int]:
    """For each name that jobs are counted by, how many were held at once at most."""
    known, held, most = jobs(store), dict[str, int](), dict[str, int]()
    for event in ledger(store):
        step = (event.to_state in HELD) - (event.from_state in HELD)
        for name in counted_by(known[event.job_id]) if step else ():
            held[name] = held.get(name, 0) + step
            most[name] = max(most.get(name, 0), held[name])
    assert all(count == 0 for count in held.values()), held
    return most
