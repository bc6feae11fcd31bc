"""The ledger against the truth: replays what happened to every job and compares with where it is (N5).

Reads the whole ledger the way a consumer does, page by page, so a page that skips or repeats is seen as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from holdfast.engine.job import EVERY_TENANT, Event, Job
from holdfast.engine.states import State, Step, replay
from holdfast.features.assembly import Store
from holdfast.stores.requests import JobFilter

PAGE = 1000


def read_events(store: Store, *, tenant: str = EVERY_TENANT, page: int = PAGE, after: str | None = None) -> list[Event]:
    """Everything a consumer gets from `after` on, before it finds nothing more."""
    found: list[Event] = []
    while batch := store.run(store.ledger.read(after, page, tenant)):
        assert len(batch) <= page
        found += batch
        after = batch[-1].cursor
    return found


def all_jobs(store: Store, *, tenant: str = EVERY_TENANT) -> Iterator[Job]:
    before: str | None = None
    while page := store.run(store.jobs.list(JobFilter(tenant=tenant, before=before, limit=PAGE))):
        yield from page
        before = page[-1].id


def check_ledger(store: Store) -> None:
    """Every job's ledger leads, by legal steps, to the state the job is in, and says as much as its counters."""
    ledgers: dict[str, list[Event]] = defaultdict(list)
    for event in read_events(store):
        ledgers[event.job_id].append(event)
    problems = []
    jobs = {job.id: job for job in all_jobs(store)}
    retried = {job.retry_of for job in jobs.values() if job.retry_of is not None}
    for job in jobs.values():
        before = None if job.retry_of is None else jobs[job.retry_of]
        found = _compare(job, ledgers.pop(job.id, []), before, job.id in retried)
        problems += [f"{job.id} ({job.kind}): {problem}" for problem in found]
    problems += [f"{job_id}: has a ledger but is no job" for job_id in ledgers]
    assert not problems, "\n".join(problems)


def _compare(job: Job, events: list[Event], before: Job | None, superseded: bool) -> Iterator[str]:
    """``before`` is the job of which this one is a retry: the counters go on from there, until it is redriven."""
    try:
        replayed = replay(Step(event.type, event.from_state, event.to_state) for event in events)
    except ValueError as error:
        yield str(error)
        return
    if replayed != job.state:
        yield f"the ledger ends in {replayed}, the job is {job.state}"
    started = [event.attempt for event in events if event.to_state == State.IN_PROGRESS]
    if started != list(range(1, job.attempt + 1)):
        yield f"attempts {started} were begun, the job counts {job.attempt}"
    redriven = max((n for n, event in enumerate(events) if event.type == "redrive"), default=0)
    life = events[redriven:]
    lost = sum(event.type in ("lapse", "crash") and event.to_state == State.FAILED for event in life)
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
            yield f"it was retried as another job, and is {job.state}"
    if retried != job.retries:
        yield f"{retried} retries were granted, the job counts {job.retries}"
    if any(event.tenant != job.tenant or event.kind != job.kind for event in events):
        yield "an event names another tenant or kind"
    if not all(event.actor.strip() for event in events):
        yield "an event names nobody"
