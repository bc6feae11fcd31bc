"""Flows about one job that combine several operations of the store: its details, why it does not run, redrives from a
step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.engine.ids import parse_id
from holdfast.engine.job import EVERY_TENANT, Artifact, Attempt, Event, Job, Liveness, References, Result, Verdict
from holdfast.engine.operation import Program
from holdfast.engine.payload import encode
from holdfast.engine.requirement import ANY
from holdfast.engine.settlement import storable
from holdfast.engine.states import HELD as HELD_STATES
from holdfast.engine.states import State
from holdfast.engine.steps import FORK_TAG, RESERVED, RUNNING, Step, with_running
from holdfast.errors import JobFailed, NotFound
from holdfast.features.agents.model import Agent, JobSituation
from holdfast.features.approvals.model import Approval, ApprovalFilter, CastVote
from holdfast.features.dead_letters.model import DeadLetterGroup
from holdfast.features.jobs.model import FromStep, Story, View, Why, accepted
from holdfast.features.jobs.why import reasons
from holdfast.features.jobs.why_reasons import Reason, Snapshot
from holdfast.features.limits.model import Limit, Reservation
from holdfast.features.payloads.model import HIDDEN, WITHHELD, Effective, effective
from holdfast.features.workflows.model import ParentResult
from holdfast.stores.flow import Flow, Steps, flow, read_together, run
from holdfast.stores.namespace import call
from holdfast.stores.requests import JobFilter, Reschedule
from holdfast.stores.vault import Vault, What, is_stored

if TYPE_CHECKING:
    from holdfast.features.assembly import Store
    from holdfast.stores.session import Session

T = TypeVar("T")

SHOWN_APPROVALS = 50
SHOWN_FORKS = 50


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
    forks = (yield from store.jobs.list(forks_of(job)).start()) if steps else []
    return Story(
        *(job, history, attempts, artifacts, checkpoints, result, agent, steps, approval, made_from, parents, chain),
        *(group, remade, references, liveness),
        votes=(yield from _votes(store, job, steps, tenant)),
        forks=[fork.id for fork in forks],
    )


def forks_of(job: Job) -> JobFilter:
    return JobFilter(tenant=job.tenant, tag=(f"{FORK_TAG}{job.id}",), limit=SHOWN_FORKS, payloads=False)


def _votes(store: Store, job: Job, steps: list[Step], tenant: str) -> Steps[list[CastVote]]:
    if not any(step.kind == "approval" for step in steps):
        return []
    wanted = ApprovalFilter(tenant=tenant, state=None, job_id=job.id, limit=SHOWN_APPROVALS, newest=True)
    votes: list[CastVote] = []
    for approval in (yield from store.approvals.list(wanted).start()):
        cast = yield from store.approvals.votes(approval.id, tenant).start()
        votes += [CastVote(**asdict(vote), approval=approval.name) for vote in cast]
    return sorted(votes, key=lambda vote: (vote.at, vote.n))


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
        raise not_found(job_id, tenant)
    return jobs


def _job_with(store: Store, read: Callable[[str, str], Flow[T]], job_id: str, tenant: str) -> Steps[tuple[Job, T]]:
    """The job and the result of another read about it; ``NotFound`` if there is no such job."""
    job, value = yield from read_together(store.jobs.get(job_id, tenant).start(), read(job_id, tenant).start())
    if job is None:
        raise not_found(job_id, tenant)
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
        raise not_found(job_id, tenant)
    return liveness


@flow(writes=False)
def steps_of(store: Store, job_id: str, tenant: str) -> Steps[tuple[Job, list[Step]]]:
    """A job and its durable steps, without their values if its kind is restricted."""
    reads = (store.jobs.get, store.steps.list, store.jobs.checkpoints)
    job, steps, checkpoints = yield from read_together(*(read(job_id, tenant).start() for read in reads))
    if job is None:
        raise not_found(job_id, tenant)
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


def opened_result(store: Store, vault: Vault, job_id: str, tenant: str) -> Program[Result]:
    """The result of a job that has succeeded; ``JobFailed`` in any other state."""
    job, result = yield from run(result_of(store, job_id, tenant))
    if job.state is not State.SUCCEEDED:
        raise JobFailed(
            f"job {job.id} is {job.state}: it has no result", fix=f"Read the reason: holdfast jobs show {job.id}"
        )
    if result is None:
        return Result(None, None)
    opened = partial(vault.open_value, result.value, result.ref, tenant=job.tenant, job_id=job.id)
    return Result((yield from call(opened)), result.ref)


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


@flow(writes=False)
def why(store: Store, job_id: str, tenant: str) -> Steps[Why]:
    """Explain why a job is not running. All reads use a key or an index, and counts are capped."""
    job = yield from store.jobs.get(job_id, tenant).start()
    if job is None:
        raise not_found(job_id, tenant)
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
        raise not_found(job_id, tenant)
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
    requirement, versions = ANY, dict[str, int]()
    if waits:
        requirement = yield from store.versions.requirement(job_id, tenant).start()
        versions = (yield from store.versions.live(job.tenant).start()) if requirement.version is not None else {}
    share = (yield from store.tenants.next_share(job_id, tenant).start()) if job.state is State.QUEUED else None
    snapshot = Snapshot(
        *(job, around, history, steps, approval, agent, executors, successor),
        *(parents, limits, reservations, pauses, share, requirement, versions, group),
    )
    return reasons(snapshot)


def not_found(job_id: str, tenant: str) -> NotFound:
    where = "any tenant" if tenant == EVERY_TENANT else f"tenant {tenant}"
    return NotFound(f"no job {job_id} in {where}", fix="If it belongs to another tenant, try --all-tenants.")


# --- replace a payload ---

CheckPayload = Callable[[str, Any, Effective], tuple[str, Effective]]
"""Turns the payload of a kind into JSON text, and returns the payload rule to store it under."""


def plain_payload(kind: str, payload: Any, rule: Effective) -> tuple[str, Effective]:
    """The ``CheckPayload`` of programs that declare no kinds."""
    return encode({} if payload is None else payload), rule


def replace_payload(session: Session, check: CheckPayload, job: Job, payload: Any, reason: str) -> Program[Verdict]:
    """Check, seal and store the new payload as ``enqueue`` does, and replace the current one with it."""
    store, vault = session.store, session.vault
    rules = yield from run(store.payload_rules.list(job.tenant))
    text, rule = check(job.kind, payload, effective(rules, job.tenant, job.kind))
    pack = partial(vault.pack, text, rule, what="payload", kind=job.kind, tenant=job.tenant, job_id=job.id)
    packed = (yield from call(pack)) if vault.artifacts is not None else pack()
    replacement = store.jobs.replace_payload(job.id, packed, storable(reason) or "", session.actor, job.tenant)
    verdict = yield from run(replacement)
    if verdict.refused and packed is not text:
        yield from call(partial(vault.drop, packed, tenant=job.tenant))
    return accepted([verdict])


# --- redrive, optionally from a step ---


@flow(notifies=True)
def redrive_jobs(
    store: Store,
    ids: Sequence[str],
    from_step: FromStep | None,
    reason: str | None,
    actor: str,
    tenant: str,
    max_attempts: int | None,
    when: Reschedule | None = None,
) -> Steps[list[Verdict]]:
    """Redrive dead letters in one transaction, after deleting ``from_step`` and the steps after it.

    No reader sees a dead letter without its steps, or a queued job with the deleted ones.
    """
    job_ids, verdicts = [parse_id(job_id) for job_id in ids], {}
    for job_id in sorted(set(job_ids)):  # every batch locks jobs in this order
        verdict = yield from _redrive(store, job_id, from_step, reason, actor, tenant, max_attempts)
        if when is not None and not verdict.refused:  # same transaction: no worker can claim the job in between
            yield from store.jobs.reschedule([job_id], when, storable(reason), actor, tenant).start()
        verdicts[job_id] = verdict
    return [verdicts[job_id] for job_id in job_ids]


def _redrive(
    store: Store,
    job_id: str,
    from_step: FromStep | None,
    reason: str | None,
    actor: str,
    tenant: str,
    max_attempts: int | None,
) -> Steps[Verdict]:
    job = None if from_step is None else (yield from store.jobs.get(job_id, tenant).start())
    if job is not None and from_step is not None and job.state is State.DEAD_LETTER:
        steps = yield from store.steps.list(job_id, tenant).start()
        numbers = step_numbers(steps, from_step)
        if not numbers:
            return Verdict(job_id, job.state, True, "no_such_step")
        if len(numbers) > 1:
            return Verdict(job_id, job.state, True, "step_ambiguous")
        yield from store.steps.rewind(job_id, numbers[0], actor, tenant).start()
        label = step_label(steps, numbers[0])
        reason = f"{label}: {reason}" if reason else label
    # The store refuses jobs that are not dead letters, or no longer.
    verdicts = yield from store.jobs.operate("redrive", [job_id], storable(reason), actor, tenant, max_attempts).start()
    return verdicts[0]


def step_numbers(steps: Sequence[Step], from_step: FromStep) -> list[int]:
    """The steps that ``from_step`` may mean. A number between two recorded steps is valid, too: of steps that ran
    concurrently, the first may not have been recorded."""
    if isinstance(from_step, str):
        return [step.n for step in steps if step.name == from_step]
    return [from_step] if any(step.n >= from_step for step in steps) else []


def step_label(steps: Sequence[Step], n: int) -> str:
    return next((f"from step {n} ({step.name})" for step in steps if step.n == n), f"from step {n}")
