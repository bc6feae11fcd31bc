"""Builds the records that the stores return from the model.

``position`` and ``seq`` differ between stores; the order that they define is compared instead.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from holdfast.engine.job import EVERY_TENANT, Artifact, Attempt, Claim, Event, Job, Result
from holdfast.engine.retry import PATIENT
from holdfast.engine.states import HELD, State
from holdfast.engine.steps import Step
from holdfast.features.approvals.model import Approval, ApprovalFilter
from holdfast.features.health.model import Health
from holdfast.stores.job_filters import BY_NAME
from holdfast.stores.requests import JobFilter
from tests.model.model_base import ModelBase, ModelJob
from tests.model.model_steps import StepsModel
from tests.model.model_workflows import ModelFlow

OUTCOMES = {
    "succeed": "succeeded",
    "fail": "failed",
    "lease_expired": "crashed",
    "crash": "crashed",
    "snooze": "suspended",
    "ask": "suspended",
    "cancel": "cancelled",
}


# Fields of a job that have the same name in the model's job or in its spec.
OF_JOB = (
    *("id", "tenant", "state", "attempt", "retries", "crashes", "max_attempts", "priority", "due_at", "started_at"),
    *("finished_at", "created_at", "run_at"),
)
OF_SPEC = (
    *("kind", "queue", "deadline_at", "content_key", "tags", "agent", "correlation_id", "causation_id", "parent_id"),
    *("workflow_id", "external_ref", "enqueued_by", "source_system"),
)


def job_of(job: ModelJob) -> Job:
    spec = job.spec
    same: dict[str, Any] = {name: getattr(job, name) for name in OF_JOB} | {n: getattr(spec, n) for n in OF_SPEC}
    return Job(
        **same,
        max_crashes=spec.retry.max_crashes,
        position=0,
        error_code=job.error[0],
        error_message=job.error[1],
        payload=json.loads(spec.payload),
        backoff=None if spec.retry.backoff == PATIENT else spec.retry.backoff.to_json(),
        idempotency_key=spec.key,
        uses=spec.uses or None,
        updated_at=job.events[-1].at,
        last_error_at=next((each.at for each in reversed(job.events) if _is_error(each)), None),
        queued_at=next(each.at for each in reversed(job.events) if _enters(each, State.QUEUED)),
        worker=next((each.actor for each in reversed(job.events) if _enters(each, *HELD)), None),
    )


def _enters(event: Event, *states: State) -> bool:
    return event.to_state in states and event.from_state is not event.to_state


def _is_error(event: Event) -> bool:
    return event.from_state is State.IN_PROGRESS and event.type in ("fail", "lease_expired", "crash")


def claim_of(job: ModelJob) -> Claim:
    seen = job_of(job)
    same = {name: getattr(seen, name) for name in Claim.__slots__ if name not in ("lease", "payload")}
    return Claim(lease=job.lease or "", payload=job.spec.payload, **same)


def attempts_of(job: ModelJob) -> list[Attempt]:
    """An attempt is the event that began it and the next one of the job (SC-5)."""
    attempts = []
    for began, after in zip(job.events, [*job.events[1:], None], strict=True):
        if began.type in ("take", "start"):
            end = (after.at, OUTCOMES[after.type]) if after else (None, None)
            meta = after.meta if after else {}
            noted = (meta.get(name) for name in ("error_code", "error_message", "exit_code", "log", "traceback"))
            facts = (job.id, job.tenant, job.spec.kind, began.attempt, began.actor, began.at)
            attempts.append(Attempt(*facts, *end, *noted))
    return attempts


def artifacts_of(job: ModelJob) -> list[Artifact]:
    return [
        Artifact(job.id, attempt, name, ref, {}, at) for (attempt, name), (at, ref) in sorted(job.artifacts.items())
    ]


def checkpoints_of(job: ModelJob) -> list[tuple[str, object]]:
    """Return the checkpoints, oldest first."""
    saved = sorted(job.checkpoints.items(), key=lambda item: (item[1][0], item[0]))
    return [(name, value) for name, (_, value) in saved]


def result_of(job: ModelJob) -> Result | None:
    return None if job.result is None else Result(json.loads(job.result), None)


def steps_of(job: ModelJob) -> list[Step]:
    return [step for _, step in sorted(job.steps.items())]


def flow_of(flow: ModelFlow) -> dict[str, object]:
    return {
        "jobs": {job_id: (status.value, flow.unmet(job_id)) for job_id, status in flow.status.items()},
        "met": {(edge.child, edge.parent): edge.met for edge in flow.edges},
        "flow": (bool(flow.stopped_by), flow.finished_at, flow.cancelled_at),
    }


def approvals_of(model: StepsModel, wanted: ApprovalFilter) -> list[Approval]:
    """Return the matching approvals by id, oldest first."""
    records = [
        approval.record
        for approval in model.approvals.values()
        if wanted.tenant in (EVERY_TENANT, approval.record.tenant)
    ]
    if wanted.state is not None:
        records = [approval for approval in records if approval.state == wanted.state]
    if wanted.job_id is not None:
        records = [approval for approval in records if approval.job_id == wanted.job_id]
    if wanted.approver is not None:
        records = [approval for approval in records if not approval.approvers or wanted.approver in approval.people]
    return sorted(records, key=lambda approval: approval.id)[: wanted.limit]


def list_jobs(model: ModelBase, wanted: JobFilter) -> list[Job]:
    """Return the matching jobs by id, newest first (CX-14)."""
    jobs = [job_of(job) for job in model.within(wanted.tenant)]
    for name, value in wanted.given.items():
        checked = BY_NAME[name].check(value)
        jobs = [job for job in jobs if BY_NAME[name].holds(job, checked)]
    if wanted.before is not None:
        jobs = [job for job in jobs if job.id < wanted.before]
    return sorted(jobs, key=lambda job: job.id, reverse=True)[: wanted.limit]


def counts_of(model: ModelBase, scope: str) -> dict[State, int]:
    states = [job.state for job in model.within(scope)]
    return {state: states.count(state) for state in set(states)}


def _ready_since(job: ModelJob) -> datetime:
    if job.attempt:
        return job.events[-1].at
    return max(job.created_at, job.run_at or job.created_at)


def health_of(model: StepsModel, scope: str) -> Health:
    """Compute the health without the reasons, which are text for people."""
    jobs = model.within(scope)
    waiting = [job for job in jobs if job.claimable]
    dead = sum(job.state is State.DEAD_LETTER for job in jobs)
    seen = [each for each in model.leases.values() if scope == EVERY_TENANT or each.tenant in (scope, "*")]
    alive = sum(model.live(lease) for lease in seen)
    oldest = min((_ready_since(job) for job in waiting), default=None)
    age = None if oldest is None else (model.now - oldest) / timedelta(seconds=1)
    approvals = approvals_of(model, ApprovalFilter(tenant=scope, limit=1000))
    due = [job.due_at for job in jobs if not job.held and job.due_at is not None and job.due_at <= model.now]
    late_by = max(((model.now - moment) / timedelta(seconds=1) for moment in due), default=None)
    ended = [lease.until for lease in seen if not lease.ended and lease.until <= model.now]
    expired = max(((model.now - moment) / timedelta(seconds=1) for moment in ended), default=None)
    held = sum(job.lease is not None for job in jobs)
    overdue = any(
        approval.escalated_at is not None or (approval.expires_at is not None and approval.expires_at <= model.now)
        for approval in approvals
    )
    # The model does not seal, so the first event of all is the oldest unsealed one.
    first = min((job.events[0].at for job in jobs), default=None) if scope == EVERY_TENANT else None
    unsealed = None if first is None else (model.now - first) / timedelta(seconds=1)
    late = (age is not None and age > 300) or (unsealed is not None and unsealed > 3600)
    unattended = [] if alive else [each for each in (age, late_by, expired if held else None) if each is not None]
    worrying = dead or overdue or unattended or late
    alarming = (alive and age is not None and age > 3600) or any(each > 300 for each in unattended)
    return Health(
        len(waiting),
        sum(job.due_at is not None or job.held for job in jobs),
        held,
        dead,
        age,
        alive,
        tuple(sorted({job.spec.kind for job in waiting})),
        "critical" if alarming else "warn" if worrying else "ok",
        approvals_open=len(approvals),
        oldest_approval_age_s=max(
            ((model.now - approval.opened_at) / timedelta(seconds=1) for approval in approvals), default=None
        ),
        unsealed_age_s=unsealed,
        due=len(due),
        oldest_due_age_s=late_by,
        expired_lease_age_s=expired,
    )
