"""The in-memory model of Holdfast that the stores are compared with.

It is written from the design (states, order, leases, keys), not from the SQL: slow and obvious. It raises the errors
that a store would raise, and a refused command changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from holdfast.engine.job import Claim, Enqueued, JobSpec
from holdfast.engine.settlement import Settlement
from holdfast.engine.states import ACTIVE, State
from holdfast.errors import Conflict, Refused, StaleLease
from holdfast.stores.requests import ClaimRequest
from tests.model.model_base import ModelJob, ModelLease, seconds
from tests.model.model_operations import group_of
from tests.model.model_steps import StepsModel
from tests.model.model_workflows import WorkflowsModel
from tests.model.views import claim_of


class Model(StepsModel, WorkflowsModel):
    def __init__(self, now: datetime) -> None:
        super().__init__(now)
        self.keys: dict[tuple[str, str, str], tuple[str, Any]] = {}
        self.contents: dict[tuple[str, str], str] = {}

    # -- enqueueing --------------------------------------------------------------------------------------------

    def enqueue(self, specs: Sequence[JobSpec], tenant: str) -> list[Enqueued]:
        """Enqueue in the given order. A parent must have existed before the batch."""
        before = dict(self.jobs), dict(self.keys), dict(self.contents)
        try:
            return [self._enqueue(spec, tenant, before[0].keys()) for spec in specs]
        except Conflict:
            self.jobs, self.keys, self.contents = before
            raise

    def _enqueue(self, spec: JobSpec, tenant: str, known: Collection[str]) -> Enqueued:
        if spec.parent_id is not None:
            parent = self.jobs.get(spec.parent_id) if spec.parent_id in known else None
            if parent is None or parent.tenant != tenant:
                return Enqueued(None, False, "parent_not_found", None)
            spec = _inherit(spec, parent.spec)
        payload = json.loads(spec.payload)
        name = (tenant, spec.kind, spec.key or "")
        if spec.key is not None:
            if name in self.keys:
                first, first_payload = self.keys[name]
                reason = "duplicate_key" if first_payload == payload else "idempotency_conflict"
                return Enqueued(first, False, reason, self.jobs[first].state)
            self.keys[name] = (spec.id, payload)
        if spec.content_key is not None:
            last = self.contents.get((tenant, spec.content_key))
            if last is not None and _is_duplicate(self.jobs[last], spec):
                if spec.key is not None:
                    self.keys[name] = (last, payload)
                return Enqueued(last, False, "duplicate_content", self.jobs[last].state)
        refused = self.refusal(spec, tenant)
        if refused is not None:  # its keys are free again
            self.keys.pop(name, None)
            return Enqueued(None, False, refused.reason, None, refused.detail)
        if spec.content_key is not None:
            self.contents[tenant, spec.content_key] = spec.id
        self.create(self.with_agent_policy(spec, tenant), tenant)
        return Enqueued(spec.id, True)

    def create(self, spec: JobSpec, tenant: str) -> None:
        if spec.id in self.jobs:
            raise Conflict("an id twice", code="already_exists")
        after = spec.run_at
        if after is None and spec.delay is not None:
            after = self.now + seconds(spec.delay)
        due = after if after is not None and after > self.now else None
        job = ModelJob(spec, tenant, self.last_position(), self.now, after, due)
        self.record(job, "enqueue", None, spec.enqueued_by, {})
        self.jobs[spec.id] = job

    # -- leases --------------------------------------------------------------------------------------------------

    def open_lease(self, name: str, holder: str, ttl: float, tenant: str) -> datetime:
        lease = self.leases[name] = ModelLease(tenant, holder, self.now + seconds(ttl))
        return lease.until

    def renew_lease(self, name: str, ttl: float, tenant: str) -> bool:
        lease = self.leases.get(name)
        if lease is None or lease.tenant != tenant or lease.ended:
            return False
        lease.until = max(lease.until, self.now + seconds(ttl))
        return True

    def end_lease(self, name: str, why: str, tenant: str) -> bool:
        lease = self.leases.get(name)
        if lease is None or lease.tenant != tenant or lease.ended:
            return False
        lease.ended = True
        return True

    # -- under a lease -------------------------------------------------------------------------------------------

    def claim(self, request: ClaimRequest) -> list[Claim]:
        holder = self.holder(request.lease, request.tenant)
        if not self.live(self.leases[request.lease]):
            raise StaleLease("not live")
        taken: list[Claim] = []
        for queue in request.queues:
            while self.defer_disabled(picked := self._next(request, queue, request.want - len(taken))):
                pass
            for job in picked:
                job.lease, job.settled_by = request.lease, None
                self.step(job, "take" if request.begin else "claim", holder)
                taken.append(claim_of(job))
        return taken

    def _next(self, request: ClaimRequest, queue: str, want: int) -> list[ModelJob]:
        jobs = [
            job
            for job in self.claimable_jobs(request.tenant, queue)
            if not self.is_overdue(job) and not self.is_reserved(job)
        ]
        return self.admit([job for job in jobs if request.kinds is None or job.spec.kind in request.kinds], want)

    def exchange(self, settlements: Sequence[Settlement], request: ClaimRequest) -> tuple[list[str], list[Claim], bool]:
        """Settle, then claim; under an expired lease, settle only."""
        stale = self.settle(request.lease, settlements, request.tenant)
        self.advance()
        live = self.live(self.leases[request.lease])
        return stale, self.claim(request) if live else [], live

    def start(self, lease: str, ids: Sequence[str], tenant: str) -> dict[str, int]:
        overdue = [each for each in ids if each in self.jobs and self.is_overdue(self.jobs[each])]
        return {job.id: job.attempt for job in self._all(lease, set(ids) - set(overdue), tenant, "start")}

    def release(self, lease: str, ids: Sequence[str], tenant: str) -> list[str]:
        return sorted(job.id for job in self._all(lease, ids, tenant, "release"))

    def _all(self, lease: str, ids: Collection[str], tenant: str, event_type: str) -> list[ModelJob]:
        holder = self.holder(lease, tenant)
        ours = [job for job in self.held_by(lease, State.LEASED) if job.id in ids]
        for job in ours:
            self.step(job, event_type, holder)
        return ours

    def _fenced(self, job_id: str, lease: str, attempt: int) -> ModelJob | None:
        running = {job.id: job for job in self.held_by(lease, State.IN_PROGRESS) if job.attempt == attempt}
        return running.get(job_id)

    def settle(self, lease: str, settlements: Sequence[Settlement], tenant: str) -> list[str]:
        """Settle, and return the ids of jobs that the lease no longer holds."""
        holder = self.holder(lease, tenant)
        offered: dict[tuple[str, int], Settlement] = {}
        for item in settlements:  # the first settlement of an attempt counts
            offered.setdefault((item.id, item.attempt), item)
        pairs = [(item, self._fenced(item.id, lease, item.attempt)) for item in offered.values()]
        for item, job in pairs:
            if job is not None and _is_invalid(item, job):
                raise Refused("more retries than there are, or no error", code="broken_invariant")
        for item, job in pairs:
            if job is not None:
                self._end(job, item, lease, holder)
        ended = {job.id for _, job in pairs if job is not None}
        return sorted({item.id for item in settlements} - ended)

    def _end(self, job: ModelJob, item: Settlement, lease: str, holder: str) -> None:
        job.settled_by = lease
        job.error = (item.code, item.message)
        later = self.now + seconds(item.delay)
        if item.ending == "succeeded":
            job.result = item.result if item.result is not None else job.result
            self.step(job, "succeed", holder, item.note)
        elif item.ending == "snooze":
            self.step(job, "snooze", holder, item.note, due=later)
        elif item.ending == "cancel":
            self.step(job, "cancel", holder, item.note)
        elif item.ending in ("pause", "ask"):
            self.suspend(job, item, holder)
        elif item.ending == "crash":
            self.crash(job, "crash", holder, item.note, later, group_of(item.note))
        else:
            self.step(job, "fail", holder, item.note)
            if item.ending == "retry":
                job.retries += 1
                self.step(job, "retry", holder, due=later)
            elif item.ending == "dead_letter":
                self.step(job, "dead_letter", holder, group_of(item.note))

    def save_checkpoint(self, job_id: str, lease: str, attempt: int, name: str, value: str, tenant: str) -> bool:
        self.holder(lease, tenant)
        job = self._fenced(job_id, lease, attempt)
        if job is not None:
            job.checkpoints[name] = (self.now, json.loads(value))
        return job is not None

    def add_artifact(self, job_id: str, lease: str, attempt: int, name: str, ref: str, tenant: str) -> bool:
        self.holder(lease, tenant)
        job = self.jobs.get(job_id)
        if job is None or job.attempt != attempt or lease not in (job.lease, job.settled_by):
            return False
        if (attempt, name) in job.artifacts:
            raise Conflict("a name twice", code="already_exists")
        job.artifacts[attempt, name] = (self.now, ref)
        return True


def _inherit(spec: JobSpec, parent: JobSpec) -> JobSpec:
    """Copy the parent's correlation and workflow to a child that has none (DP-10)."""
    return replace(
        spec,
        correlation_id=spec.correlation_id or parent.correlation_id or parent.id,
        workflow_id=spec.workflow_id or parent.workflow_id,
    )


def _is_duplicate(job: ModelJob, spec: JobSpec) -> bool:
    """Whether an existing job with the same content replaces a new one (HK-2): it is active, or not yet tried."""
    if spec.dedupe == "coalesce":
        return job.state is State.QUEUED and job.attempt == 0
    return job.state in ACTIVE


def _is_invalid(item: Settlement, job: ModelJob) -> bool:
    if item.ending == "retry" and job.retries + 1 >= job.max_attempts:
        return True
    return item.ending in ("retry", "dead_letter", "fail", "crash") and None in (item.code, item.message)
