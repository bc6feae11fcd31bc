"""Verify the result of the demo: compare the jobs and the ledger in the database with what was enqueued.

``judge`` is a pure function of the accepted ids, the jobs and the whole ledger.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.cli.demo.workers import ALWAYS_FAILS
from holdfast.engine.job import Event, Job
from holdfast.engine.states import TRANSITIONS, EventType, State, Step, Transition, replay
from holdfast.features.assembly import Store
from holdfast.stores.requests import JobFilter

PAGE = 1000
MAX_NAMED = 3  # ids that a problem lists

_STEPS = frozenset(TRANSITIONS)
_EVENT_TYPES = frozenset(EventType)


@dataclass(frozen=True, slots=True)
class Reading:
    """All jobs and events of one tenant."""

    jobs: Mapping[str, Job]
    events: Sequence[Event]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The figures, and the problems; ``ok`` without any."""

    accepted: int
    succeeded: int
    dead_letter: int
    retried: int
    recovered: int
    lost: int
    run_twice: int
    illegal: int
    ledger_ok: bool
    events: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


def read(store: Store, tenant: str) -> Reading:
    """Read all jobs and events of a tenant, in pages."""
    jobs: dict[str, Job] = {}
    before: str | None = None
    while batch := store.run(store.jobs.list(JobFilter(tenant=tenant, before=before, limit=PAGE))):
        jobs.update((job.id, job) for job in batch)
        before = batch[-1].id
    events: list[Event] = []
    cursor: str | None = None
    while page := store.run(store.ledger.read(cursor, PAGE, tenant)):
        events += page
        cursor = page[-1].cursor
    return Reading(jobs, events)


def judge(accepted: Sequence[str], doomed: int, reading: Reading) -> Verdict:
    """Check the invariants. Exactly ``doomed`` jobs must end as dead letters."""
    jobs = reading.jobs
    ledgers: dict[str, list[Event]] = defaultdict(list)
    for event in reading.events:
        ledgers[event.job_id].append(event)
    states = Counter(job.state for job in jobs.values())
    dead = {job.id for job in jobs.values() if job.state is State.DEAD_LETTER}
    designed = {job.id for job in jobs.values() if job.kind == ALWAYS_FAILS}
    lost = [job_id for job_id in accepted if job_id not in jobs or not jobs[job_id].state.finished]
    twice = [job_id for job_id, ledger in ledgers.items() if _times(ledger, EventType.SUCCEED) > 1]
    illegal = [event.job_id for event in reading.events if not _legal(event)]
    recovered = {job_id for job_id, ledger in ledgers.items() if _was_lost(ledger) and ledger[-1].to_state.finished}
    mismatched = [
        *(f"{job_id}: {why}" for job_id, job in jobs.items() if (why := _mismatch(job, ledgers.get(job_id, [])))),
        *(f"{job_id}: has a ledger but no job" for job_id in ledgers.keys() - jobs.keys()),
    ]
    checks = (
        (not lost, "accepted but not finished", lost),
        (not jobs.keys() - set(accepted), "in the database but never accepted", jobs.keys() - set(accepted)),
        (states[State.SUCCEEDED] == len(accepted) - doomed, "neither succeeded nor meant to fail", dead - designed),
        (len(dead) == doomed and dead <= designed, f"dead letters other than the {doomed} designed", dead ^ designed),
        (not twice, "that succeeded twice", twice),
        (not illegal, "with an illegal transition", illegal),
        (not mismatched, "whose ledger does not lead to their state", mismatched),
        (bool(recovered), "no job was recovered after the kill", ()),
    )
    return Verdict(
        accepted=len(accepted),
        succeeded=states[State.SUCCEEDED],
        dead_letter=len(dead),
        retried=sum(_times(ledger, EventType.RETRY, after=EventType.FAIL) > 0 for ledger in ledgers.values()),
        recovered=len(recovered),
        lost=len(lost),
        run_twice=len(twice),
        illegal=len(illegal),
        ledger_ok=not mismatched and not illegal,
        events=len(reading.events),
        problems=tuple(_with_ids(problem, ids) for holds, problem, ids in checks if not holds),
    )


def _with_ids(problem: str, ids: Iterable[str]) -> str:
    """Format a problem: ``12 jobs accepted but not finished: a, b, c, …``."""
    names = sorted(ids)
    if not names:
        return problem
    more = ", …" if len(names) > MAX_NAMED else ""
    return f"{len(names)} jobs {problem}: {', '.join(names[:MAX_NAMED])}{more}"


def _times(ledger: Sequence[Event], event_type: EventType, after: EventType | None = None) -> int:
    """Count the events of a type; with ``after``, only those directly after an event of that type."""
    return sum(
        event.type == event_type and (after is None or (index > 0 and ledger[index - 1].type == after))
        for index, event in enumerate(ledger)
    )


def _was_lost(ledger: Sequence[Event]) -> bool:
    return any(event.type == EventType.LAPSE and event.from_state is State.IN_PROGRESS for event in ledger)


def _legal(event: Event) -> bool:
    return event.type in _EVENT_TYPES and Transition(event.from_state, EventType(event.type), event.to_state) in _STEPS


def _mismatch(job: Job, ledger: Sequence[Event]) -> str | None:
    """Replay the ledger and return how it contradicts the job, or None."""
    try:
        replayed = replay(Step(event.type, event.from_state, event.to_state) for event in ledger)
    except ValueError as error:
        return str(error)
    if replayed is not job.state:
        return f"the ledger ends in {replayed}, the job is {job.state}"
    started = [event.attempt for event in ledger if event.to_state is State.IN_PROGRESS]
    if started != list(range(1, job.attempt + 1)):
        return f"attempts {started} have started, the job counts {job.attempt}"
    return None
