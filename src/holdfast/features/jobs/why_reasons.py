"""``Reason``, ``Snapshot``, and the reasons of waiting and held jobs: workflow parents, limits, reservations, pauses,
retries, durable calls, approvals. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from holdfast.engine.job import EVERY_TENANT, Event, Job
from holdfast.engine.requirement import ANY, Requirement
from holdfast.engine.states import State
from holdfast.engine.steps import Step
from holdfast.features.agents.model import Agent, Executor, JobSituation, WorkerSeen
from holdfast.features.approvals.model import Approval
from holdfast.features.dead_letters.model import DeadLetterGroup
from holdfast.features.limits.model import EACH, Limit, Pause, Reservation
from holdfast.features.tenants.model import QueueShare
from holdfast.features.versions.model import Mismatch
from holdfast.features.workflows.model import ParentResult

WAITING: Final = frozenset({State.QUEUED, State.RETRY_WAITING})


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that the reasons depend on."""

    job: Job
    around: JobSituation
    history: list[Event]
    steps: list[Step]
    approval: Approval | None
    agent: Agent | None
    executors: list[Executor]
    successor: Job | None
    parents: list[ParentResult] = field(default_factory=list)
    limits: list[Limit] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)
    share: QueueShare | None = None
    """The share of its tenant, if tenants share its queue fairly."""
    requirement: Requirement = ANY
    versions: dict[str, int] = field(default_factory=dict)
    """The number of live workers by version of the application."""
    group: DeadLetterGroup | None = None
    """For a dead letter: the group of dead letters with the same failure."""

    @property
    def mismatch(self) -> Mismatch | None:
        """Why the job is held, if its recorded steps do not fit the code."""
        return Mismatch.of(self.around.note) if self.job.state is State.RETRY_WAITING else None

    def last(self, *event_types: str) -> Event | None:
        return next((event for event in reversed(self.history) if event.type in event_types), None)

    @property
    def waits_in(self) -> Step | None:
        """The durable call that the job waits in."""
        if self.job.state is not State.RETRY_WAITING:
            return None
        waits = (step for step in self.steps if not step.over and step.wake_at == self.job.due_at)
        return next(waits, None)

    @property
    def is_due(self) -> bool:
        """Whether only a worker is missing."""
        job = self.job
        late = job.due_at is not None and job.due_at <= self.around.now
        ready = (job.state is State.QUEUED and job.due_at is None) or (job.state in WAITING and late)
        return ready and "held" not in self.around.note

    @property
    def fitting(self) -> list[WorkerSeen]:
        """The running workers that serve its tenant."""
        return [worker for worker in self.around.workers if worker.tenant in (self.job.tenant, EVERY_TENANT)]

    @property
    def ahead(self) -> int | None:
        """The number of jobs before it; only those of its tenant if tenants share the queue."""
        return self.around.ahead if self.share is None else self.share.ahead

    @property
    def others(self) -> int:
        """The number of other tenants that share the queue."""
        return 0 if self.share is None else max(0, self.share.tenants - 1)

    def taking(self) -> list[WorkerSeen]:
        """The workers that would claim it: those of its tenant, queue, kind and executor; none if no worker runs its
        version."""
        if self.requirement.version is not None and self.requirement.version not in self.versions:
            return []
        return [worker for worker in self.able if self.job.executor in (None, worker.label)]

    @property
    def able(self) -> list[WorkerSeen]:
        """The workers of its tenant, queue and kind, with any label."""
        return [
            worker
            for worker in self.fitting
            if (worker.queues is None or self.job.queue in worker.queues)
            and (worker.kinds is None or self.job.kind in worker.kinds)
        ]


def at(moment: datetime | None) -> str:
    return "some time" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason why a job is not running. ``code`` is stable; ``says`` and ``change`` (what would change it) are for
    people."""

    code: str
    says: str
    change: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)


LOST = frozenset({State.FAILED, State.DEAD_LETTER, State.CANCELLED})


def by_parents(job: Job, parents: list[ParentResult]) -> Reason:
    """The job is held for its parents: those that have not ended, or one that failed."""
    resume = f"holdfast workflows resume {job.workflow_id}"
    lost = [parent for parent in parents if parent.state in LOST]
    open_ = [parent for parent in parents if not parent.state.finished]
    facts = {"held": "parents", "workflow_id": job.workflow_id, "parents": [parent.job_id for parent in open_ + lost]}
    if lost:
        dead = any(parent.state is State.DEAD_LETTER for parent in lost)
        change = f"To run the failed jobs again, and this one after them: {resume}" if dead else None
        return Reason("behind_a_failure", f"it is held back behind {_named(lost)}", change, facts)
    if open_:
        return Reason("parents", f"it waits for {_named(open_)}", f"See: holdfast why {open_[0].job_id}", facts)
    return Reason(
        "workflow_stopped", "a job of its workflow failed, and that stops the others", f"See: {resume}", facts
    )


def by_limits(job: Job, note: dict[str, Any], limits: list[Limit]) -> list[Reason]:
    """The limit that the job is held for, or the limits of its queue, kind or tenant that are full. The latter hold no
    single job."""
    if note.get("held") == "limit":
        bucket = json.loads(note["by"]) if "by" in note else None
        full = [limit for limit in limits if bucket is not None and _is_of(limit, bucket)]
        name = bucket[2] if bucket is not None else EACH
        return [_reached(limit, name) for limit in full]
    return [
        _reached(limit, limit.name)
        for limit in limits
        if limit.concurrency is not None
        and limit.running >= limit.concurrency
        and limit.name in _counted(job).get(limit.scope, ())
        and limit.tenant in (EVERY_TENANT, job.tenant)
    ]


def by_reservations(job: Job, reservations: list[Reservation]) -> list[Reason]:
    counted = _counted(job)
    return [
        Reason(
            "reserved",
            f"{held.holder} has reserved {held.what}" + (f": {held.reason}" if held.reason else ""),
            f"It continues when that ends. To end it: holdfast reservations release {held.id}",
            {"reservation": held.id},
        )
        for held in reservations
        if held.state == "active"
        and held.tenant in (EVERY_TENANT, job.tenant)
        and (held.scope == "all" or held.name in counted.get(held.scope, ()))
    ]


def by_pauses(job: Job, pauses: list[Pause]) -> list[Reason]:
    return [
        Reason(
            "paused",
            pause.says,
            ("It continues by itself then. " if pause.until is not None else "")
            + f"To continue now: holdfast resume {pause.options}",
            {"scope": pause.scope, "name": pause.name, "tenant": pause.tenant},
        )
        for pause in pauses
        if pause.holds(job.tenant, job.queue, job.kind, job.agent)
    ]


def _counted(job: Job) -> dict[str, set[str]]:
    """The names under which the job is counted, by scope."""
    names = {"all": {EACH}, "queue": {job.queue}, "kind": {job.kind}, "tenant": {job.tenant}}
    if job.agent is not None:
        names["agent"] = {job.agent}
    for use in job.uses or ():
        scope, _, name = use.partition(":")
        names.setdefault(scope, set()).add(name)
    return names


def _is_of(limit: Limit, bucket: list[str]) -> bool:
    tenant, scope, name = bucket
    return (limit.tenant, limit.scope) == (tenant, scope) and limit.name in (name, EACH)


def _reached(limit: Limit, name: str) -> Reason:
    what = "all jobs" if limit.scope == "all" else f"{limit.scope} {name}"
    bounds = [f"{limit.concurrency} at a time"] if limit.concurrency is not None else []
    if limit.rate is not None and limit.per is not None:
        bounds.append(f"{limit.rate} in {limit.per:g} s")
    option = "" if limit.scope == "all" else f" --{limit.scope} '{limit.name}'"
    return Reason(
        "limit_reached",
        f"the limit of {what} is reached: {' and '.join(bounds)}",
        f"It starts when the limit has room. To see or change the limit: holdfast limits show{option}",
        {"scope": limit.scope, "name": name, "concurrency": limit.concurrency, "rate": limit.rate},
    )


def _named(parents: list[ParentResult]) -> str:
    shown = [f"{parent.name or parent.job_id} ({parent.state})" for parent in parents[:5]]
    return ", ".join(shown) + (f" and {len(parents) - 5} more" if len(parents) > 5 else "")


def retry_waiting(snapshot: Snapshot) -> Reason | None:
    job = snapshot.job
    if job.state is not State.RETRY_WAITING or snapshot.waits_in is not None:
        return None
    event = snapshot.last("retry", "snooze")
    if event is None or event.type == "snooze":
        return None
    return Reason(
        "retry_waiting",
        f"its last attempt failed ({job.error_code}: {job.error_message}); it is tried again at {at(job.due_at)},"
        f" with {job.retries} of {job.max_attempts - 1} retries and"
        f" {job.crashes} of {job.max_crashes} lost workers used",
        f"To try at once: holdfast jobs reschedule {job.id}",
        {"due_at": at(job.due_at), "error_code": job.error_code},
    )


def snoozed(snapshot: Snapshot) -> Reason | None:
    job, event = snapshot.job, snapshot.last("retry", "snooze")
    if job.state is not State.RETRY_WAITING or snapshot.waits_in is not None or event is None or event.type != "snooze":
        return None
    if snapshot.mismatch is not None:
        return None
    reason = event.meta.get("reason")
    handed_back = {
        "worker_stopped": "its worker stopped and handed it back",
        "never_begun": "its worker handed it back before it began",
    }
    who = handed_back.get(str(reason), "its handler put it off")
    detail = f" ({reason})" if reason and reason not in handed_back else ""
    change = f"To run it at once: holdfast jobs reschedule {job.id}"
    return Reason("snoozed", f"{who}{detail}, until {at(job.due_at)}", change, {"due_at": at(job.due_at)})


def code_mismatch(snapshot: Snapshot) -> Reason | None:
    job, mismatch = snapshot.job, snapshot.mismatch
    if mismatch is None:
        return None
    calls = "; ".join(
        f"call {row['n']} was {row['recorded']}, the code called {row['called']}" for row in mismatch.differing[:3]
    )
    tried = f"{len(mismatch.tried)} version{'s' if len(mismatch.tried) > 1 else ''} of the code tried"
    return Reason(
        "code_mismatch",
        f"it is held since {at(mismatch.since)}: its recorded steps do not fit the code ({calls}; {tried});"
        f" at {at(job.due_at)} it is tried for the last time",
        "It continues by itself when a worker with fitting code starts. Deploy such code, or cancel the job.",
        {"since": at(mismatch.since), "steps": list(mismatch.steps), "tried": len(mismatch.tried)},
    )


def no_worker_for_version(snapshot: Snapshot) -> Reason | None:
    job, version = snapshot.job, snapshot.requirement.version
    if job.state not in WAITING or version is None or version in snapshot.versions:
        return None
    others = f" (there are workers of {', '.join(sorted(snapshot.versions)[:5])})" if snapshot.versions else ""
    return Reason(
        "no_worker_for_version",
        f"it is pinned to version {version} of the application, and no running worker has that version{others}",
        f"Start one, or move the job: holdfast versions move {version} --to VERSION --job {job.id}",
        {"version": version},
    )


def in_a_call(snapshot: Snapshot) -> Reason | None:
    """The job sleeps, waits for an event, or waits for the retry of a step."""
    step = snapshot.waits_in
    if step is None:
        return None
    until = "" if step.until is None else f" until {at(step.until)}"
    if step.kind == "sleep":
        return Reason("sleeping", f"its handler sleeps{until}", "It continues by itself.", {"step": step.name})
    if step.kind == "event":
        wanted = ", ".join(f"{name} = {value!r}" for name, value in sorted((step.wanted or {}).items()))
        says = f"it waits for the event {step.name}{f' with {wanted}' if wanted else ''}{until}"
        return Reason("waiting_for_event", says, f"holdfast send-event {step.name} …", {"event": step.name})
    error = (step.error or {}).get("message", "")
    says = f"its step {step.name} failed {step.tries} times ({error}) and is tried again at {at(step.wake_at)}"
    return Reason(
        "step_retry", says, f"To try at once: holdfast jobs reschedule {snapshot.job.id}", {"step": step.name}
    )


def waiting_for_approval(snapshot: Snapshot) -> Reason | None:
    approval = snapshot.approval
    if snapshot.job.state is not State.WAITING_FOR_APPROVAL or approval is None:
        return None
    who = ", ".join(approval.approvers) or "anyone"
    expires = "" if approval.expires_at is None else f"; it expires at {at(approval.expires_at)}"
    not_requester = f", but not {approval.requester}" if approval.not_requester else ""
    by = " --by NAME" if approval.approvers else ""
    return Reason(
        "waiting_for_approval",
        f"it waits for a decision: {approval.summary} ({approval.name}). {who} may decide{not_requester};"
        f" it has {approval.approvals} of {approval.quorum} approvals{expires}",
        f"holdfast approvals token {approval.id} --for NAME: only a token decides it"
        if approval.token_only
        else f"holdfast approvals approve {approval.id}{by} (or: holdfast approvals deny {approval.id}{by})",
        {"approval": approval.id, "approvers": list(approval.approvers)},
    )


def agent_disabled(snapshot: Snapshot) -> Reason | None:
    agent = snapshot.agent
    if agent is None or agent.disabled_at is None or snapshot.job.state not in WAITING:
        return None
    return Reason(
        "agent_disabled",
        f"its agent {agent.id} was disabled by {agent.disabled_by} at {at(agent.disabled_at)}: {agent.disabled_reason}",
        f"holdfast agents enable {agent.id}",
        {"agent": agent.id},
    )


def held(snapshot: Snapshot) -> Reason | None:
    """The job is held for the reason that its note gives."""
    why = snapshot.around.note.get("held")
    if snapshot.job.state not in WAITING or why is None or (why == "agent_disabled" and snapshot.agent is not None):
        return None
    if why == "parents":
        return by_parents(snapshot.job, snapshot.parents)
    if why == "limit" and (limited(snapshot) or reserved(snapshot) or paused(snapshot)):
        return None
    return Reason("held", f"it is held back ({why})", "It continues when it is released.", {"held": why})


def limited(snapshot: Snapshot) -> list[Reason]:
    if snapshot.job.state is not State.QUEUED or (
        snapshot.job.due_at is not None and "held" not in snapshot.around.note
    ):
        return []
    return by_limits(snapshot.job, snapshot.around.note, snapshot.limits)


def paused(snapshot: Snapshot) -> list[Reason]:
    return by_pauses(snapshot.job, snapshot.pauses) if snapshot.job.state in WAITING else []


def reserved(snapshot: Snapshot) -> list[Reason]:
    return by_reservations(snapshot.job, snapshot.reservations) if snapshot.job.state in WAITING else []


def not_due(snapshot: Snapshot) -> Reason | None:
    job, around = snapshot.job, snapshot.around
    if job.state is not State.QUEUED or job.due_at is None or job.due_at <= around.now or "held" in around.note:
        return None
    by = around.note.get("by") if "rescheduled" in around.note else None
    says = f"it is not due yet: it is due at {at(job.due_at)}" + (f", as {by} decided" if by else "")
    change = f"To run it at once: holdfast jobs reschedule {job.id}"
    return Reason("not_due", says, change, {"due_at": at(job.due_at)})


def deadline(snapshot: Snapshot) -> Reason | None:
    job = snapshot.job
    waits = job.state in WAITING or job.state is State.WAITING_FOR_APPROVAL
    if not waits or job.deadline_at is None or job.deadline_at > snapshot.around.now:
        return None
    return Reason(
        "deadline_over",
        f"its deadline was {at(job.deadline_at)}: it is not started any more, and the next sweep ends it as failed",
        "Enqueue it again with a later deadline.",
    )


def to_be_promoted(snapshot: Snapshot) -> Reason | None:
    job = snapshot.job
    if job.due_at is None or job.due_at > snapshot.around.now or job.state not in WAITING:
        return None
    says = f"it was due at {at(job.due_at)}; it will be queued at the next poll of a worker"
    return Reason("due", says, "A worker does this, or: holdfast tick")
