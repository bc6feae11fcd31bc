"""Reads made of several, each in one transaction: what the CLI, the API and the dashboard show."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from holdfast.engine.job import EVERY_TENANT, Artifact, Attempt, Event, Job, Liveness, References, Result
from holdfast.engine.operation import Program
from holdfast.engine.states import State
from holdfast.engine.steps import RESERVED, RUNNING, Step, with_running
from holdfast.errors import NotFound
from holdfast.features.agents.model import Agent
from holdfast.features.approvals.model import Approval, ApprovalFilter
from holdfast.features.dead_letters.model import DeadLetterGroup, Remade
from holdfast.features.jobs.search import PayloadTerm, Search
from holdfast.features.jobs.why import reasons
from holdfast.features.jobs.why_reasons import Reason, Scene
from holdfast.features.limits.model import Limit, Reservation
from holdfast.features.payloads.model import HIDDEN, WITHHELD, effective
from holdfast.features.schedules.model import MadeFrom
from holdfast.features.workflows.model import ParentResult
from holdfast.stores.flow import Steps, flow, read_together, run
from holdfast.stores.namespace import call
from holdfast.stores.requests import Counted, JobFilter
from holdfast.stores.vault import Vault, What, is_stored

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

WAITING = frozenset({State.RETRY_WAITING, State.WAITING_FOR_APPROVAL})


@dataclass(frozen=True, slots=True)
class Story:
    """Everything about one job. ``approval`` is the question it waits for an answer to."""

    job: Job
    history: list[Event]
    attempts: list[Attempt]
    artifacts: list[Artifact]
    checkpoints: dict[str, Any]
    result: Result | None
    agent: Agent | None
    """Whom the job is for, if that is registered."""
    steps: list[Step]
    approval: Approval | None
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
    "URI of the input."
    liveness: Liveness | None = None
    """Renewals of the lease and reports of progress, which have no events."""

    @property
    def waits_in(self) -> Step | None:
        """The durable call that the job waits in; None if it runs, has ended, or waits for a retry of its own."""
        if self.job.state not in WAITING:
            return None
        asks = self.job.state is State.WAITING_FOR_APPROVAL
        open_calls = [step for step in self.steps if not step.over and (step.kind == "approval") == asks]
        return next((step for step in open_calls if asks or step.wake_at == self.job.due_at), None)


@flow(writes=False)
def story(store: Store, job_id: str, tenant: str) -> Steps[Story | None]:
    found = yield from _story(store, job_id, tenant)
    return None if found is None else _shown(found)


def _shown(found: Story) -> Story:
    return _hidden(found) if found.job.payload == HIDDEN else found


def _story(store: Store, job_id: str, tenant: str) -> Steps[Story | None]:
    job = yield from store.jobs.get(job_id, tenant).start()
    if job is None:
        return None
    made = [store.jobs.history, store.jobs.attempts, store.jobs.artifacts, store.jobs.checkpoints, store.jobs.result]
    named = [store.steps.list, store.templates.made_from, store.dead_letters.remade, store.jobs.references]
    told = yield from read_together(
        *(read(job_id, tenant).start() for read in (*made, *named, store.jobs.liveness)),
    )
    history, attempts, artifacts, checkpoints, result, steps, made_from, remade, references, liveness = told
    steps = with_running(steps, checkpoints, job.id, job.attempt if job.state is State.IN_PROGRESS else None)
    agent = None if job.agent is None else (yield from store.agents.get(job.agent, job.tenant).start())
    approvals: list[Approval] = []
    if job.state is State.WAITING_FOR_APPROVAL:
        approvals = yield from store.approvals.list(ApprovalFilter(tenant=tenant, job_id=job_id, limit=1)).start()
    approval = approvals[0] if approvals else None
    parents = [] if job.workflow_id is None else (yield from _parents(store, job, tenant))
    chain = [job] if job.retry_as is None else (yield from store.jobs.chain(job_id, tenant).start())
    group = (yield from store.dead_letters.group_of(job_id, tenant).start()) if job.state is State.DEAD_LETTER else None
    return Story(
        *(job, history, attempts, artifacts, checkpoints, result, agent, steps, approval, made_from, parents, chain),
        *(group, remade, references, liveness),
    )


@dataclass(frozen=True, slots=True)
class View:
    """What the page of a job shows."""

    story: Story
    reasons: list[Reason]
    children: list[Job]
    now: datetime


@flow(writes=False)
def view(store: Store, job_id: str, tenant: str, children: int) -> Steps[View | None]:
    """In one transaction, with nothing read twice: a page of thirty questions waits thirty times where many ask."""
    found = yield from _story(store, job_id, tenant)
    if found is None:
        return None
    spawned = yield from store.jobs.list(JobFilter(tenant=tenant, parent_id=job_id, limit=children)).start()
    now = yield from store.clock.now().start()
    if found.job.state is State.SUCCEEDED:
        return View(_shown(found), [], spawned, now)
    steps = found.steps if found.job.state in (State.RETRY_WAITING, State.IN_PROGRESS) else []
    chain = found.chain if found.job.retried else []
    known = (found.history, steps, found.approval, found.agent, chain, found.group)
    told = yield from _reasons(store, tenant, found.job, *known)
    return View(_shown(found), told, spawned, now)


def _parents(store: Store, job: Job, tenant: str) -> Steps[list[ParentResult]]:
    """What the jobs before it have returned, but for those of a restricted kind."""
    found = yield from store.workflows.parent_results(job.id, tenant).start()
    rules = (yield from store.payload_rules.list(job.tenant).start()) if found else []
    return [
        replace(each, value=HIDDEN)
        if each.value is not None and effective(rules, job.tenant, each.kind).restricted
        else each
        for each in found
    ]


SPOKEN = frozenset({"error_message", "traceback", "log", "error"})
"""What an attempt has said, in the ledger."""


@flow(writes=False)
def ledger_of(store: Store, job_id: str, tenant: str) -> Steps[list[Event]]:
    """The events of a job; of a restricted one without what its attempts have said before it was."""
    job = yield from store.jobs.get(job_id, tenant).start()
    history = yield from store.jobs.history(job_id, tenant).start()
    return [_untold(event) for event in history] if job is not None and job.payload == HIDDEN else history


@flow(writes=False)
def chain_of(store: Store, job_id: str, tenant: str) -> Steps[list[Job]]:
    """List a job and its retries as new jobs, oldest first."""
    found = yield from store.jobs.chain(job_id, tenant).start()
    if not found:
        raise _nobody(job_id, tenant)
    return found


@flow(writes=False)
def artifacts_of(store: Store, job_id: str, tenant: str) -> Steps[list[Artifact]]:
    """What the attempts of a job left behind, which may be nothing."""
    found = yield from store.jobs.artifacts(job_id, tenant).start()
    if not found and (yield from store.jobs.get(job_id, tenant).start()) is None:
        raise _nobody(job_id, tenant)
    return found


@flow(writes=False)
def attempts_of(store: Store, job_id: str, tenant: str) -> Steps[list[Attempt]]:
    """The attempts of a job, which may be none, with the parameters they ran with."""
    job, found = yield from read_together(
        store.jobs.get(job_id, tenant).start(), store.jobs.attempts(job_id, tenant).start()
    )
    if job is None:
        raise _nobody(job_id, tenant)
    return [replace(each, payload=job.payload) for each in found]


@flow(writes=False)
def references_of(store: Store, job_id: str, tenant: str) -> Steps[References]:
    job, found = yield from read_together(
        store.jobs.get(job_id, tenant).start(), store.jobs.references(job_id, tenant).start()
    )
    if job is None:
        raise _nobody(job_id, tenant)
    return found


@flow(writes=False)
def liveness_of(store: Store, job_id: str, tenant: str) -> Steps[Liveness]:
    found = yield from store.jobs.liveness(job_id, tenant).start()
    if found is None:
        raise _nobody(job_id, tenant)
    return found


@flow(writes=False)
def steps_of(store: Store, job_id: str, tenant: str) -> Steps[tuple[Job, list[Step]]]:
    """A job and its durable steps; of a restricted one without their values."""
    reads = (store.jobs.get, store.steps.list, store.jobs.checkpoints)
    job, found, checkpoints = yield from read_together(*(read(job_id, tenant).start() for read in reads))
    if job is None:
        raise _nobody(job_id, tenant)
    found = with_running(found, checkpoints, job.id, job.attempt if job.state is State.IN_PROGRESS else None)
    return job, [_valueless(step) for step in found] if job.payload == HIDDEN else found


@flow(writes=False)
def checkpoints_of(store: Store, job_id: str, tenant: str) -> Steps[tuple[Job, dict[str, Any]]]:
    """A job and its named checkpoints; of a restricted one without their values."""
    job, found = yield from read_together(
        store.jobs.get(job_id, tenant).start(), store.jobs.checkpoints(job_id, tenant).start()
    )
    if job is None:
        raise _nobody(job_id, tenant)
    return job, {
        name: HIDDEN if job.payload == HIDDEN else value
        for name, value in found.items()
        if name not in (RESERVED, RUNNING)
    }


def opened_part(vault: Vault, job: Job, value: Any, what: What, place: str) -> Any:
    """A value that the handler has kept: read from the artifact store, and unsealed where this program has keys."""
    if not isinstance(value, dict) or (vault.keys is None and not is_stored(value)):
        return value
    return vault.open_kept(value, what=what, tenant=job.tenant, job_id=job.id, place=place)


def opened_steps(store: Store, vault: Vault, job_id: str, tenant: str) -> Program[list[Step]]:
    """The durable steps of a job with their values."""
    job, found = yield from run(steps_of(store, job_id, tenant))

    def opened() -> list[Step]:
        return [replace(step, value=opened_part(vault, job, step.value, "step", str(step.n))) for step in found]

    return (yield from call(opened)) if any(is_stored(step.value) for step in found) else opened()


def opened_checkpoints(store: Store, vault: Vault, job_id: str, tenant: str) -> Program[dict[str, Any]]:
    """The named checkpoints of a job with their values."""
    job, found = yield from run(checkpoints_of(store, job_id, tenant))

    def opened() -> dict[str, Any]:
        return {name: opened_part(vault, job, value, "checkpoint", name) for name, value in found.items()}

    return (yield from call(opened)) if any(map(is_stored, found.values())) else opened()


@flow(writes=False)
def result_of(store: Store, job_id: str, tenant: str) -> Steps[tuple[Job, Result | None]]:
    job, found = yield from read_together(
        store.jobs.get(job_id, tenant).start(), store.jobs.result(job_id, tenant).start()
    )
    if job is None:
        raise _nobody(job_id, tenant)
    return job, found


def _untold(event: Event) -> Event:
    if not SPOKEN & event.meta.keys() or event.meta.get("error_message") == WITHHELD:
        return event
    return replace(event, meta={name: HIDDEN if name in SPOKEN else value for name, value in event.meta.items()})


def _hidden(found: Story) -> Story:
    """What a handler of a restricted kind has kept, returned and said is as little to be seen as what it was given."""
    kept = {name: value if name == RESERVED else HIDDEN for name, value in found.checkpoints.items()}
    result = None if found.result is None else Result(HIDDEN, found.result.ref)
    steps = [_valueless(step) for step in found.steps]
    history = [_untold(event) for event in found.history]
    return replace(found, checkpoints=kept, result=result, steps=steps, history=history)


def _valueless(step: Step) -> Step:
    return replace(
        step,
        value=None if step.value is None else HIDDEN,
        error=None if step.error is None else step.error | {"message": HIDDEN},
    )


@dataclass(frozen=True, slots=True)
class Page:
    """Jobs, and what is noted of those that wait: what for."""

    jobs: list[Job]
    notes: dict[str, dict[str, Any]]


@flow(writes=False)
def page(store: Store, wanted: JobFilter) -> Steps[Page]:
    """One read more than the jobs alone, however many they are; none where nothing waits."""
    jobs = yield from store.jobs.list(wanted).start()
    if not any(_may_wait(job) for job in jobs):
        return Page(jobs, {})
    notes = yield from store.jobs.notes(wanted).start()
    return Page(jobs, {job.id: notes[job.id] for job in jobs if _may_wait(job) and job.id in notes})


LOOKED_AT = 2_000
"""Words of an error are in no index, nor are most keys of payloads: so many jobs are examined before the answer says
where to go on."""
EXAMINED_FOR = 2.0
"""Seconds after which it says so earlier: payloads may be large."""


@dataclass(frozen=True, slots=True)
class Found:
    """A page of what was searched for. ``next`` is where to go on: the jobs before this id."""

    jobs: list[Job]
    notes: dict[str, dict[str, Any]]
    next: str | None


@flow(writes=False)
def matching(
    store: Store, search: Search, tenant: str, limit: int, before: str | None = None, payloads: bool = False
) -> Steps[Found]:
    """Newest first. One more than asked for tells whether there is another page."""
    if not search.examines:
        wanted = search.filter(tenant, limit=limit + 1, before=before, payloads=payloads)
        found = yield from page(store, wanted).start()
        jobs = found.jobs[:limit]
        return Found(jobs, found.notes, jobs[-1].id if len(found.jobs) > limit else None)
    jobs, place, seen, until = [], before, 0, time.monotonic() + EXAMINED_FOR
    term = (yield from _indexed(store, search, tenant)) if search.payload else None
    while seen < LOOKED_AT and (not seen or time.monotonic() < until):
        part = yield from _candidates(store, search, tenant, place, term, payloads or bool(search.payload))
        for job_id, job in part:
            place, seen = job_id, seen + 1
            if job is not None and search.fits(job) and search.holds(job):
                jobs.append(job if payloads else replace(job, payload=None))
                if len(jobs) == limit:
                    return Found(jobs, {}, place)
        if len(part) < BATCH:
            return Found(jobs, {}, None)
    return Found(jobs, {}, place)


BATCH = 200


def _indexed(store: Store, search: Search, tenant: str) -> Steps[PayloadTerm | None]:
    """The first key that an index has, if any."""
    terms = [term for term in search.payload if term.indexable]
    if not terms or "fingerprint" in search.given or tenant == EVERY_TENANT:
        return None
    there = yield from store.jobs.payload_indexes().start()
    return next((term for term in terms if ".".join(("payload", *term.path)) in there), None)


def _candidates(
    store: Store, search: Search, tenant: str, before: str | None, term: PayloadTerm | None, payloads: bool
) -> Steps[list[tuple[str, Job | None]]]:
    """The next jobs that may fit, newest first."""
    if term is None:
        wanted = search.filter(tenant, limit=BATCH, before=before, payloads=payloads)
        return [(job.id, job) for job in (yield from store.jobs.list(wanted).start())]
    ids = yield from store.jobs.by_payload(term.path, term.value, tenant, before, BATCH).start()
    found: list[tuple[str, Job | None]] = []
    for job_id in ids:
        job = yield from store.jobs.get(job_id, tenant).start()
        found.append((job_id, job))
    return found


@flow(writes=False)
def listed(
    store: Store, search: Search, tenant: str, limit: int, before: str | None, most: int
) -> Steps[tuple[Found, Counted | None]]:
    """The page, and how many jobs there are in each state, where nothing but a state was searched for: how many of
    those that match are in which is in no index."""
    finding = matching(store, search, tenant, limit, before).start()
    if search.examines or search.given.keys() - {"state"}:
        return (yield from finding), None
    counting = store.jobs.capped_counts(JobFilter(tenant=tenant), most).start()
    return (yield from read_together(finding, counting))


def _may_wait(job: Job) -> bool:
    return job.state in WAITING or (job.state is State.QUEUED and job.workflow_id is not None)


@dataclass(frozen=True, slots=True)
class Why:
    """Why a job is not running: every reason that applies, and what would change it."""

    job: Job
    reasons: list[Reason]


@flow(writes=False)
def why(store: Store, job_id: str, tenant: str) -> Steps[Why]:
    """Reads by key and by index alone; what is counted is counted up to a limit."""
    job = yield from store.jobs.get(job_id, tenant).start()
    if job is None:
        raise _nobody(job_id, tenant)
    history = yield from store.jobs.history(job_id, tenant).start()
    steps = (yield from store.steps.list(job_id, tenant).start()) if job.state is State.RETRY_WAITING else []
    if job.state is State.IN_PROGRESS:
        checkpoints = yield from store.jobs.checkpoints(job_id, tenant).start()
        steps = with_running([], checkpoints, job.id, job.attempt)
    approvals: list[Approval] = []
    if job.state is State.WAITING_FOR_APPROVAL:
        approvals = yield from store.approvals.list(ApprovalFilter(tenant=tenant, job_id=job_id, limit=1)).start()
    approval = approvals[0] if approvals else None
    agent = None if job.agent is None else (yield from store.agents.get(job.agent, job.tenant).start())
    chain = (yield from store.jobs.chain(job_id, tenant).start()) if job.retried else []
    group = (yield from store.dead_letters.group_of(job_id, tenant).start()) if job.state is State.DEAD_LETTER else None
    told = yield from _reasons(store, tenant, job, history, steps, approval, agent, chain, group)
    return Why(job, told)


def _reasons(
    store: Store,
    tenant: str,
    job: Job,
    history: list[Event],
    steps: list[Step],
    approval: Approval | None,
    agent: Agent | None,
    chain: list[Job],
    group: DeadLetterGroup | None,
) -> Steps[list[Reason]]:
    """Of what is known of it already, and of what has to be looked up besides."""
    job_id = job.id
    successor = next((each for each in chain if each.retry_of == job_id), None)
    executors = yield from store.executors.list().start()
    around = yield from store.jobs.circumstances(job_id, tenant).start()
    if around is None:  # it has gone in between
        raise _nobody(job_id, tenant)
    parents = (
        (yield from store.workflows.parent_results(job_id, tenant).start())
        if around.note.get("held") == "parents"
        else []
    )
    limits: list[Limit] = []
    reservations: list[Reservation] = []
    if job.state is State.QUEUED and job.due_at is None:
        limits = yield from store.limits.list(job.tenant).start()
        reservations = yield from store.reservations.list(job.tenant).start()
    waits = job.state in (State.QUEUED, State.RETRY_WAITING)
    pauses = (yield from store.pauses.list(job.tenant).start()) if waits else []
    turn = (yield from store.tenants.next_share(job_id, tenant).start()) if job.state is State.QUEUED else None
    scene = Scene(
        *(job, around, history, steps, approval, agent, executors, successor),
        *(parents, limits, reservations, pauses, turn, group),
    )
    return reasons(scene)


def _nobody(job_id: str, tenant: str) -> NotFound:
    return NotFound(f"no job {job_id} in tenant {tenant}", fix="If it belongs to another tenant, try --all-tenants.")
