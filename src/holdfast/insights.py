"""Reads made of several, each in one transaction: what the CLI, the API and the dashboard show."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.domain.agents import Agent
from holdfast.domain.dead_letters import DeadLetterGroup, Remade
from holdfast.domain.errors import NotFound
from holdfast.domain.gates import Gate, GateFilter
from holdfast.domain.job import Artifact, Attempt, Event, Job, References, Result
from holdfast.domain.limits import Limit
from holdfast.domain.progress import RESERVED
from holdfast.domain.reason import Reason
from holdfast.domain.reservations import Reservation
from holdfast.domain.rules import HIDDEN
from holdfast.domain.scene import Scene
from holdfast.domain.states import State
from holdfast.domain.steps import Step
from holdfast.domain.templates import MadeFrom
from holdfast.domain.why import reasons
from holdfast.domain.workflows import ParentResult
from holdfast.searching import Search
from holdfast.stores.base import JobFilter, Verbs
from holdfast.stores.flow import Steps, flow

WAITING = frozenset({State.RETRY_WAITING, State.WAITING_FOR_APPROVAL})


@dataclass(frozen=True, slots=True)
class Story:
    """Everything about one job. ``gate`` is the question it waits for an answer to."""

    job: Job
    history: list[Event]
    attempts: list[Attempt]
    artifacts: list[Artifact]
    checkpoints: dict[str, Any]
    result: Result | None
    agent: Agent | None
    """Whom the job is for, if that is registered."""
    steps: list[Step]
    gate: Gate | None
    made_from: MadeFrom | None
    """The template, the schedule and its time, if it was made from any."""
    parents: list[ParentResult]
    """The jobs of its workflow that it is after."""
    chain: list[Job]
    """The tries, where each is a job of its own; it alone otherwise."""
    group: DeadLetterGroup | None = None
    """Of a dead letter: those that failed for the same reason."""
    remade: list[Remade] = field(default_factory=list)
    """The job it took the place of, or that took its, where it was redriven with another payload."""
    references: References = field(default_factory=References)
    """Where what it is about lies."""

    @property
    def waits_in(self) -> Step | None:
        """The durable call that the job waits in; None if it runs, has ended, or waits for a retry of its own."""
        if self.job.state not in WAITING:
            return None
        asks = self.job.state is State.WAITING_FOR_APPROVAL
        open_calls = [step for step in self.steps if not step.over and (step.kind == "approval") == asks]
        return next((step for step in open_calls if asks or step.wake_at == self.job.due_at), None)


@flow(writes=False)
def story(verbs: Verbs, job_id: str, tenant: str) -> Steps[Story | None]:
    job = yield from verbs.get(job_id, tenant).start()
    if job is None:
        return None
    history = yield from verbs.history(job_id, tenant).start()
    attempts = yield from verbs.attempts(job_id, tenant).start()
    artifacts = yield from verbs.artifacts(job_id, tenant).start()
    checkpoints = yield from verbs.checkpoints(job_id, tenant).start()
    result = yield from verbs.result(job_id, tenant).start()
    agent = None if job.agent is None else (yield from verbs.agent(job.agent, job.tenant).start())
    steps = yield from verbs.steps(job_id, tenant).start()
    gates: list[Gate] = []
    if job.state is State.WAITING_FOR_APPROVAL:
        gates = yield from verbs.gates(GateFilter(tenant=tenant, job_id=job_id, limit=1)).start()
    gate = gates[0] if gates else None
    made_from = yield from verbs.made_from(job_id, tenant).start()
    parents = [] if job.workflow_id is None else (yield from verbs.parent_results(job_id, tenant).start())
    chain = [job] if job.retry_as is None else (yield from verbs.chain(job_id, tenant).start())
    group = (yield from verbs.group_of(job_id, tenant).start()) if job.state is State.DEAD_LETTER else None
    remade = yield from verbs.remade(job_id, tenant).start()
    references = yield from verbs.references(job_id, tenant).start()
    found = Story(
        *(job, history, attempts, artifacts, checkpoints, result, agent, steps, gate, made_from, parents, chain),
        *(group, remade, references),
    )
    return _hidden(found) if job.payload == HIDDEN else found


def _hidden(found: Story) -> Story:
    """What a handler of a restricted kind has kept and returned is as little to be seen as what it was given."""
    kept = {name: value if name == RESERVED else HIDDEN for name, value in found.checkpoints.items()}
    result = None if found.result is None else Result(HIDDEN, found.result.ref)
    steps = [replace(step, value=None if step.value is None else HIDDEN) for step in found.steps]
    return replace(found, checkpoints=kept, result=result, steps=steps)


@dataclass(frozen=True, slots=True)
class Page:
    """Jobs, and what is noted of those that wait: what for."""

    jobs: list[Job]
    notes: dict[str, dict[str, Any]]


@flow(writes=False)
def page(verbs: Verbs, wanted: JobFilter) -> Steps[Page]:
    """One read more than the jobs alone, however many they are; none where nothing waits."""
    jobs = yield from verbs.list_jobs(wanted).start()
    if not any(_may_wait(job) for job in jobs):
        return Page(jobs, {})
    notes = yield from verbs.notes(wanted).start()
    return Page(jobs, {job.id: notes[job.id] for job in jobs if _may_wait(job) and job.id in notes})


LOOKED_AT = 2_000
"""Words of an error are in no index: so many jobs are looked through before the answer says where to go on."""


@dataclass(frozen=True, slots=True)
class Found:
    """A page of what was searched for. ``next`` is where to go on: the jobs before this id."""

    jobs: list[Job]
    notes: dict[str, dict[str, Any]]
    next: str | None


@flow(writes=False)
def matching(
    verbs: Verbs, search: Search, tenant: str, limit: int, before: str | None = None, payloads: bool = False
) -> Steps[Found]:
    """Newest first. One more than asked for tells whether there is another page."""
    if not search.words:
        wanted = search.filter(tenant, limit=limit + 1, before=before, payloads=payloads)
        found = yield from page(verbs, wanted).start()
        jobs = found.jobs[:limit]
        return Found(jobs, found.notes, jobs[-1].id if len(found.jobs) > limit else None)
    jobs, place, seen = [], before, 0
    while seen < LOOKED_AT:
        part = yield from verbs.list_jobs(search.filter(tenant, limit=200, before=place, payloads=payloads)).start()
        for job in part:
            place, seen = job.id, seen + 1
            if search.fits(job):
                jobs.append(job)
                if len(jobs) == limit:
                    return Found(jobs, {}, place)
        if len(part) < 200:
            return Found(jobs, {}, None)
    return Found(jobs, {}, place)


def _may_wait(job: Job) -> bool:
    return job.state in WAITING or (job.state is State.QUEUED and job.workflow_id is not None)


@dataclass(frozen=True, slots=True)
class Why:
    """Why a job is where it is: every reason that holds, and what would change it."""

    job: Job
    reasons: list[Reason]


@flow(writes=False)
def why(verbs: Verbs, job_id: str, tenant: str) -> Steps[Why]:
    """Reads by key and by index alone; what is counted is counted up to a limit."""
    job = yield from verbs.get(job_id, tenant).start()
    around = None if job is None else (yield from verbs.circumstances(job_id, tenant).start())
    if job is None or around is None:
        raise NotFound(f"there is no job {job_id} in tenant {tenant}", fix="Is it another tenant's? Try --all-tenants.")
    history = yield from verbs.history(job_id, tenant).start()
    steps = (yield from verbs.steps(job_id, tenant).start()) if job.state is State.RETRY_WAITING else []
    gates: list[Gate] = []
    if job.state is State.WAITING_FOR_APPROVAL:
        gates = yield from verbs.gates(GateFilter(tenant=tenant, job_id=job_id, limit=1)).start()
    agent = None if job.agent is None else (yield from verbs.agent(job.agent, job.tenant).start())
    chain = (yield from verbs.chain(job_id, tenant).start()) if job.retried else []
    successor = next((each for each in chain if each.retry_of == job.id), None)
    executors = yield from verbs.executors().start()
    parents = (yield from verbs.parent_results(job_id, tenant).start()) if around.note.get("held") == "parents" else []
    limits: list[Limit] = []
    reservations: list[Reservation] = []
    if job.state is State.QUEUED and job.due_at is None:
        limits = yield from verbs.limits(job.tenant).start()
        reservations = yield from verbs.reservations(job.tenant).start()
    waits = job.state in (State.QUEUED, State.RETRY_WAITING)
    switches = (yield from verbs.switches(job.tenant).start()) if waits else []
    turn = (yield from verbs.turn_of(job_id, tenant).start()) if job.state is State.QUEUED else None
    group = (yield from verbs.group_of(job_id, tenant).start()) if job.state is State.DEAD_LETTER else None
    scene = Scene(
        *(job, around, history, steps, gates[0] if gates else None, agent, executors, successor),
        *(parents, limits, reservations, switches, turn, group),
    )
    return Why(job, reasons(scene))
