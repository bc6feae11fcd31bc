"""Details of one job, composed of several reads in one transaction: for the CLI, the API and the dashboard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.engine.job import Artifact, Attempt, Event, Job, Liveness, References, Result
from holdfast.engine.operation import Program
from holdfast.engine.states import HELD as HELD_STATES
from holdfast.engine.states import State
from holdfast.engine.steps import RESERVED, RUNNING, Step, with_running
from holdfast.errors import NotFound
from holdfast.features.agents.model import Agent, JobSituation
from holdfast.features.approvals.model import Approval, ApprovalFilter, CastVote
from holdfast.features.dead_letters.model import DeadLetterGroup, Replacement
from holdfast.features.jobs.why import reasons
from holdfast.features.jobs.why_reasons import Reason, Snapshot
from holdfast.features.limits.model import Limit, Reservation
from holdfast.features.payloads.model import HIDDEN, WITHHELD, effective
from holdfast.features.schedules.model import MadeFrom
from holdfast.features.workflows.model import ParentResult
from holdfast.stores.flow import Flow, Steps, flow, read_together, run
from holdfast.stores.namespace import call
from holdfast.stores.requests import JobFilter
from holdfast.stores.vault import Vault, What, is_stored

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

T = TypeVar("T")

SHOWN_APPROVALS = 50


@dataclass(frozen=True, slots=True)
class Story:
    """Everything about one job. ``approval`` is the approval that it waits for."""

    job: Job
    history: list[Event]
    attempts: list[Attempt]
    artifacts: list[Artifact]
    checkpoints: dict[str, Any]
    result: Result | None
    agent: Agent | None
    """The registered agent that owns the job."""
    steps: list[Step]
    approval: Approval | None
    made_from: MadeFrom | None
    """The template, or the schedule and its time, that the job was created from."""
    parents: list[ParentResult]
    """The jobs of its workflow that it depends on."""
    chain: list[Job]
    """The job and its retries, where each retry is a new job; only the job itself otherwise."""
    group: DeadLetterGroup | None = None
    """For a dead letter: the group of dead letters with the same failure."""
    remade: list[Replacement] = field(default_factory=list)
    """The job that this one replaced, or that replaced it, in a redrive with another payload."""
    references: References = field(default_factory=References)
    """URIs of the input, the output and the payload."""
    liveness: Liveness | None = None
    """Renewals of the lease and progress reports. These writes have no events."""
    lease_expired_at: datetime | None = None
    """When the lease of its worker expired, if no worker has taken the job over yet. The stored state is unchanged."""
    votes: list[CastVote] = field(default_factory=list)
    """The votes on its approvals, oldest first. A vote that decides nothing yet has no event."""

    @property
    def waits_in(self) -> Step | None:
        """The durable call that the job waits in; None if it runs, has ended, or waits for a retry of the whole
        handler."""
        if self.job.state not in (State.RETRY_WAITING, State.WAITING_FOR_APPROVAL):
            return None
        approval = self.job.state is State.WAITING_FOR_APPROVAL
        open_calls = [step for step in self.steps if not step.over and (step.kind == "approval") == approval]
        return next((step for step in open_calls if approval or step.wake_at == self.job.due_at), None)


@flow(writes=False)
def story(store: Store, job_id: str, tenant: str) -> Steps[Story | None]:
    """The details of a job, without the values of a restricted kind; None if there is no such job."""
    details = yield from _story(store, job_id, tenant)
    if details is None:
        return None
    if details.job.state in HELD_STATES:
        around = yield from store.jobs.circumstances(job_id, tenant).start()
        details = replace(details, lease_expired_at=None if around is None else around.lease_expired_at)
    return _redacted(details)


def _story(store: Store, job_id: str, tenant: str) -> Steps[Story | None]:
    job = yield from store.jobs.get(job_id, tenant).start()
    if job is None:
        return None
    reads: list[Callable[[str, str], Flow[Any]]] = [
        *(store.jobs.history, store.jobs.attempts, store.jobs.artifacts, store.jobs.checkpoints, store.jobs.result),
        *(store.steps.list, store.templates.made_from, store.dead_letters.remade, store.jobs.references),
        store.jobs.liveness,
    ]
    values = yield from read_together(*(read(job_id, tenant).start() for read in reads))
    history, attempts, artifacts, checkpoints, result, steps, made_from, remade, references, liveness = values
    steps = with_running(steps, checkpoints, job.id, job.attempt if job.state is State.IN_PROGRESS else None)
    agent = None if job.agent is None else (yield from store.agents.get(job.agent, job.tenant).start())
    approval = yield from _open_approval(store, job, tenant)
    parents = [] if job.workflow_id is None else (yield from _parents(store, job, tenant))
    chain = [job] if job.retry_as is None else (yield from store.jobs.chain(job_id, tenant).start())
    group = (yield from store.dead_letters.group_of(job_id, tenant).start()) if job.state is State.DEAD_LETTER else None
    return Story(
        *(job, history, attempts, artifacts, checkpoints, result, agent, steps, approval, made_from, parents, chain),
        *(group, remade, references, liveness),
        votes=(yield from _votes(store, job, steps, tenant)),
    )


def _votes(store: Store, job: Job, steps: list[Step], tenant: str) -> Steps[list[CastVote]]:
    if not any(step.kind == "approval" for step in steps):
        return []
    wanted = ApprovalFilter(tenant=tenant, state=None, job_id=job.id, limit=SHOWN_APPROVALS, newest=True)
    votes: list[CastVote] = []
    for approval in (yield from store.approvals.list(wanted).start()):
        cast = yield from store.approvals.votes(approval.id, tenant).start()
        votes += [CastVote(**asdict(vote), approval=approval.name) for vote in cast]
    return sorted(votes, key=lambda vote: (vote.at, vote.n))


@dataclass(frozen=True, slots=True)
class View:
    """The contents of the page of a job."""

    story: Story
    reasons: list[Reason]
    children: list[Job]
    now: datetime


@flow(writes=False)
def view(store: Store, job_id: str, tenant: str, children: int) -> Steps[View | None]:
    """Read the page of a job in one transaction, without reading anything twice.

    The page needs about thirty queries. On a loaded server, each separate transaction would wait for a connection.
    """
    details = yield from _story(store, job_id, tenant)
    if details is None:
        return None
    details = _redacted(details)
    job = details.job
    spawned = yield from store.jobs.list(
        JobFilter(tenant=tenant, parent_id=job_id, limit=children, payloads=False)
    ).start()
    now = yield from store.clock.now().start()
    if job.state is State.SUCCEEDED:
        return View(details, [], spawned, now)
    steps = details.steps if job.state in (State.RETRY_WAITING, State.IN_PROGRESS) else []
    chain = details.chain if job.retried else []
    known = (details.history, steps, details.approval, details.agent, chain, details.group)
    around = yield from _around(store, job_id, tenant)
    details = replace(details, lease_expired_at=around.lease_expired_at)
    return View(details, (yield from _reasons(store, tenant, job, around, *known)), spawned, now)


def _open_approval(store: Store, job: Job, tenant: str) -> Steps[Approval | None]:
    if job.state is not State.WAITING_FOR_APPROVAL:
        return None
    approvals = yield from store.approvals.list(ApprovalFilter(tenant=tenant, job_id=job.id, limit=1)).start()
    return approvals[0] if approvals else None


def _parents(store: Store, job: Job, tenant: str) -> Steps[list[ParentResult]]:
    """The results of the jobs that it depends on, without the values of restricted kinds."""
    parents = yield from store.workflows.parent_results(job.id, tenant).start()
    rules = (yield from store.payload_rules.list(job.tenant).start()) if parents else []
    return [
        replace(parent, value=HIDDEN)
        if parent.value is not None and effective(rules, job.tenant, parent.kind).restricted
        else parent
        for parent in parents
    ]


ATTEMPT_TEXTS = frozenset({"error_message", "traceback", "log", "error"})
"""Keys of an event whose text comes from an attempt."""


@flow(writes=False)
def ledger_of(store: Store, job_id: str, tenant: str) -> Steps[list[Event]]:
    """The events of a job. For a restricted kind, texts that attempts wrote before it was restricted are hidden."""
    job = yield from store.jobs.get(job_id, tenant).start()
    history = yield from store.jobs.history(job_id, tenant).start()
    return [_redacted_event(event) for event in history] if job is not None and job.payload == HIDDEN else history


@flow(writes=False)
def chain_of(store: Store, job_id: str, tenant: str) -> Steps[list[Job]]:
    """List a job and its retries as new jobs, oldest first."""
    jobs = yield from store.jobs.chain(job_id, tenant).start()
    if not jobs:
        raise _not_found(job_id, tenant)
    return jobs


def _job_with(store: Store, read: Callable[[str, str], Flow[T]], job_id: str, tenant: str) -> Steps[tuple[Job, T]]:
    """The job and the result of another read about it; ``NotFound`` if there is no such job."""
    job, value = yield from read_together(store.jobs.get(job_id, tenant).start(), read(job_id, tenant).start())
    if job is None:
        raise _not_found(job_id, tenant)
    return job, value


@flow(writes=False)
def artifacts_of(store: Store, job_id: str, tenant: str) -> Steps[list[Artifact]]:
    """The artifacts that the attempts of a job recorded."""
    return (yield from _job_with(store, store.jobs.artifacts, job_id, tenant))[1]


@flow(writes=False)
def attempts_of(
    store: Store, job_id: str, tenant: str, after: int = -1, limit: int | None = None
) -> Steps[list[Attempt]]:
    """The attempts of a job, with the payload they ran with; one more than the limit."""
    read = partial(store.jobs.attempts, after=after, limit=limit)
    job, attempts = yield from _job_with(store, read, job_id, tenant)
    return [attempt if attempt.payload is not None else replace(attempt, payload=job.payload) for attempt in attempts]


@flow(writes=False)
def references_of(store: Store, job_id: str, tenant: str) -> Steps[References]:
    return (yield from _job_with(store, store.jobs.references, job_id, tenant))[1]


@flow(writes=False)
def liveness_of(store: Store, job_id: str, tenant: str) -> Steps[Liveness]:
    liveness = yield from store.jobs.liveness(job_id, tenant).start()
    if liveness is None:
        raise _not_found(job_id, tenant)
    return liveness


@flow(writes=False)
def steps_of(store: Store, job_id: str, tenant: str) -> Steps[tuple[Job, list[Step]]]:
    """A job and its durable steps, without their values if its kind is restricted."""
    reads = (store.jobs.get, store.steps.list, store.jobs.checkpoints)
    job, steps, checkpoints = yield from read_together(*(read(job_id, tenant).start() for read in reads))
    if job is None:
        raise _not_found(job_id, tenant)
    steps = with_running(steps, checkpoints, job.id, job.attempt if job.state is State.IN_PROGRESS else None)
    return job, [_redacted_step(step) for step in steps] if job.payload == HIDDEN else steps


@flow(writes=False)
def checkpoints_of(store: Store, job_id: str, tenant: str) -> Steps[tuple[Job, dict[str, Any]]]:
    """A job and its named checkpoints, without their values if its kind is restricted."""
    job, checkpoints = yield from _job_with(store, store.jobs.checkpoints, job_id, tenant)
    return job, {
        name: HIDDEN if job.payload == HIDDEN else value
        for name, value in checkpoints.items()
        if name not in (RESERVED, RUNNING)
    }


def _opened(vault: Vault, job: Job, value: Any, what: What, place: str) -> Any:
    """A value that the handler saved: read from the artifact store, and unsealed if this program has the keys."""
    if not isinstance(value, dict) or (vault.keys is None and not is_stored(value)):
        return value
    return vault.open_part(value, what=what, tenant=job.tenant, job_id=job.id, place=place)


def opened_steps(store: Store, vault: Vault, job_id: str, tenant: str) -> Program[list[Step]]:
    """The durable steps of a job with their values."""
    job, steps = yield from run(steps_of(store, job_id, tenant))

    def opened() -> list[Step]:
        return [replace(step, value=_opened(vault, job, step.value, "step", str(step.n))) for step in steps]

    return (yield from call(opened)) if any(is_stored(step.value) for step in steps) else opened()


def opened_checkpoints(store: Store, vault: Vault, job_id: str, tenant: str) -> Program[dict[str, Any]]:
    """The named checkpoints of a job with their values."""
    job, checkpoints = yield from run(checkpoints_of(store, job_id, tenant))

    def opened() -> dict[str, Any]:
        return {name: _opened(vault, job, value, "checkpoint", name) for name, value in checkpoints.items()}

    return (yield from call(opened)) if any(map(is_stored, checkpoints.values())) else opened()


@flow(writes=False)
def result_of(store: Store, job_id: str, tenant: str) -> Steps[tuple[Job, Result | None]]:
    return (yield from _job_with(store, store.jobs.result, job_id, tenant))


def _redacted(story: Story) -> Story:
    """For a restricted kind, hide the values and texts that the handler wrote, like the payload itself."""
    if story.job.payload != HIDDEN:
        return story
    checkpoints = {name: value if name == RESERVED else HIDDEN for name, value in story.checkpoints.items()}
    result = None if story.result is None else Result(HIDDEN, story.result.ref)
    steps = [_redacted_step(step) for step in story.steps]
    history = [_redacted_event(event) for event in story.history]
    votes = [replace(vote, comment=vote.comment and HIDDEN, data=vote.data and HIDDEN) for vote in story.votes]
    approval = None if story.approval is None else _redacted_approval(story.approval)
    return replace(
        story, checkpoints=checkpoints, result=result, steps=steps, history=history, votes=votes, approval=approval
    )


def _redacted_approval(approval: Approval) -> Approval:
    return replace(approval, summary=HIDDEN, data=None, form=None, content_hash="")


def _redacted_event(event: Event) -> Event:
    if not ATTEMPT_TEXTS & event.meta.keys() or event.meta.get("error_message") == WITHHELD:
        return event
    return replace(event, meta={name: HIDDEN if name in ATTEMPT_TEXTS else value for name, value in event.meta.items()})


def _redacted_step(step: Step) -> Step:
    return replace(
        step,
        value=None if step.value is None else HIDDEN,
        error=None if step.error is None else step.error | {"message": HIDDEN},
        wanted=None if step.wanted is None else dict.fromkeys(step.wanted, HIDDEN),
    )


@dataclass(frozen=True, slots=True)
class Why:
    """Why a job is not running: every reason that applies, and what would change it."""

    job: Job
    reasons: list[Reason]


@flow(writes=False)
def why(store: Store, job_id: str, tenant: str) -> Steps[Why]:
    """Explain why a job is not running. All reads use a key or an index, and counts are capped."""
    job = yield from store.jobs.get(job_id, tenant).start()
    if job is None:
        raise _not_found(job_id, tenant)
    history = yield from store.jobs.history(job_id, tenant).start()
    steps = (yield from store.steps.list(job_id, tenant).start()) if job.state is State.RETRY_WAITING else []
    if job.state is State.IN_PROGRESS:
        checkpoints = yield from store.jobs.checkpoints(job_id, tenant).start()
        steps = with_running([], checkpoints, job.id, job.attempt)
    approval = yield from _open_approval(store, job, tenant)
    agent = None if job.agent is None else (yield from store.agents.get(job.agent, job.tenant).start())
    chain = (yield from store.jobs.chain(job_id, tenant).start()) if job.retried else []
    group = (yield from store.dead_letters.group_of(job_id, tenant).start()) if job.state is State.DEAD_LETTER else None
    around = yield from _around(store, job_id, tenant)
    if job.payload == HIDDEN:
        steps, history = [_redacted_step(step) for step in steps], [_redacted_event(event) for event in history]
        approval = None if approval is None else _redacted_approval(approval)
    return Why(job, (yield from _reasons(store, tenant, job, around, history, steps, approval, agent, chain, group)))


def _around(store: Store, job_id: str, tenant: str) -> Steps[JobSituation]:
    around = yield from store.jobs.circumstances(job_id, tenant).start()
    if around is None:  # the job was deleted meanwhile
        raise _not_found(job_id, tenant)
    return around


def _reasons(
    store: Store,
    tenant: str,
    job: Job,
    around: JobSituation,
    history: list[Event],
    steps: list[Step],
    approval: Approval | None,
    agent: Agent | None,
    chain: list[Job],
    group: DeadLetterGroup | None,
) -> Steps[list[Reason]]:
    """Read the rest of what ``reasons`` needs, and return the reasons."""
    job_id = job.id
    successor = next((retry for retry in chain if retry.retry_of == job_id), None)
    executors = yield from store.executors.list().start()
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
    share = (yield from store.tenants.next_share(job_id, tenant).start()) if job.state is State.QUEUED else None
    snapshot = Snapshot(
        *(job, around, history, steps, approval, agent, executors, successor),
        *(parents, limits, reservations, pauses, share, group),
    )
    return reasons(snapshot)


def _not_found(job_id: str, tenant: str) -> NotFound:
    return NotFound(f"no job {job_id} in tenant {tenant}", fix="If it belongs to another tenant, try --all-tenants.")
