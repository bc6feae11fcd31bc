"""Read the whole ledger, replay it, and compare it with the jobs.

It is read page by page, as a consumer reads it, so that a page that skips or repeats events is noticed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

from holdfast.engine.job import EVERY_TENANT, Event, Job
from holdfast.engine.states import HELD, State, Step, replay
from holdfast.features.assembly import Store
from holdfast.stores.requests import JobFilter

PAGE = 1000


def read_events(store: Store, *, tenant: str = EVERY_TENANT, page: int = PAGE, after: str | None = None) -> list[Event]:
    """Every event that a consumer reads after the cursor `after`."""
    events: list[Event] = []
    while batch := store.run(store.ledger.read(after, page, tenant)):
        assert len(batch) <= page
        events += batch
        after = batch[-1].cursor
    return events


def events_by_number(store: Store) -> list[Event]:
    """Every event by its number: a job admitted to a freed slot has a higher number than the job that freed it."""
    return sorted(read_events(store), key=lambda event: event.seq)


def all_jobs(store: Store, *, tenant: str = EVERY_TENANT) -> Iterator[Job]:
    before: str | None = None
    while page := store.run(store.jobs.list(JobFilter(tenant=tenant, before=before, limit=PAGE))):
        yield from page
        before = page[-1].id


def check_ledger(store: Store) -> None:
    """Check that the events of each job are legal, lead to its state, and agree with its counters."""
    ledgers: dict[str, list[Event]] = defaultdict(list)
    for event in read_events(store):
        ledgers[event.job_id].append(event)
    problems = []
    jobs = {job.id: job for job in all_jobs(store)}
    retried = {job.retry_of for job in jobs.values() if job.retry_of is not None}
    for job in jobs.values():
        before = None if job.retry_of is None else jobs[job.retry_of]
        found = differences(job, ledgers.pop(job.id, []), before, superseded=job.id in retried)
        problems += [f"{job.id} ({job.kind}): {difference}" for difference in found]
    problems += [f"{job_id}: has events but no job" for job_id in ledgers]
    assert not problems, "\n".join(problems)


def most_at_once(store: Store, counted_by: Callable[[Job], Iterable[str]]) -> dict[str, int]:
    """The highest number of jobs held at once, per name that `counted_by` gives a job. For tests of limits."""
    jobs, held, most = {job.id: job for job in all_jobs(store)}, dict[str, int](), dict[str, int]()
    for event in events_by_number(store):
        step = (event.to_state in HELD) - (event.from_state in HELD)
        for name in counted_by(jobs[event.job_id]) if step else ():
            held[name] = held.get(name, 0) + step
            most[name] = max(most.get(name, 0), held[name])
    assert all(count == 0 for count in held.values()), held
    return most


def differences(job: Job, events: list[Event], before: Job | None = None, *, superseded: bool = False) -> Iterator[str]:
    """What in a job contradicts its events. ``before`` is the job that this one retries: until a redrive the counters
    continue from it."""
    try:
        replayed = replay(Step(event.type, event.from_state, event.to_state) for event in events)
    except ValueError as error:
        yield str(error)
        return
    if replayed != job.state:
        yield f"the ledger ends in {replayed}, the job is {job.state}"
    started = [event.attempt for event in events if event.to_state == State.IN_PROGRESS]
    if started != list(range(1, job.attempt + 1)):
        yield f"the events start attempts {started}, the job counts {job.attempt}"
    redriven = max((n for n, event in enumerate(events) if event.type == "redrive"), default=0)
    life = events[redriven:]
    lost = sum(event.type in ("lease_expired", "crash") and event.to_state == State.FAILED for event in life)
    if before is not None and not redriven:
        lost += before.crashes
    if lost != job.crashes:
        yield f"{lost} workers were lost, the job counts {job.crashes}"
    retried = sum((one.type, two.type) == ("fail", "retry") for one, two in pairwise(life))
    if before is not None and not redriven:
        retried += before.retries
    if superseded:  # its retry is another job
        retried += next(event.type for event in reversed(life) if event.type != "clean") == "fail"
        if job.state not in (State.FAILED, State.CLEANED):
            yield f"it was retried as another job, but is {job.state}"
    if retried != job.retries:
        yield f"{retried} retries were granted, the job counts {job.retries}"
    if any(event.tenant != job.tenant or event.kind != job.kind for event in events):
        yield "an event names another tenant or kind"
    if not all(event.actor.strip() for event in events):
        yield "an event has no actor"
