"""Model of changes to jobs from outside: maintenance tasks and operator actions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime
from fractions import Fraction
from typing import Any

from holdfast.engine.job import EVERY_TENANT, Sweep, Verdict
from holdfast.engine.order import Move
from holdfast.engine.settlement import fingerprint
from holdfast.engine.states import ACTIVE, State
from holdfast.features.audit.model import content_digest
from holdfast.stores.requests import OperatorAction, Reschedule
from tests.model.model_base import ModelBase, ModelJob, ledger_time, seconds

LATE = ("deadline_passed", "the deadline passed before the job was done")
LOST = ("worker_lost", "the worker that ran this job stopped renewing its lease")


def group_of(note: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the part of the final note that a dead letter keeps: its group (DP-15)."""
    return {name: note[name] for name in ("fingerprint", "frame") if name in note} or None if note else None


class OperationsModel(ModelBase):
    # -- maintenance -------------------------------------------------------------------------------------------

    def due(self, scope: str) -> list[ModelJob]:
        """Return the jobs that ``promote_due`` would promote, the longest due first."""
        jobs = [job for job in self.within(scope) if job.due_at is not None and job.due_at <= self.now]
        return sorted(jobs, key=lambda job: job.due_at or self.now)

    def overdue(self, scope: str) -> list[ModelJob]:
        """Return the jobs that ``expire_overdue`` would expire, the longest overdue first."""
        waiting = (State.QUEUED, State.LEASED, State.RETRY_WAITING, State.WAITING_FOR_APPROVAL)
        jobs = [job for job in self.within(scope) if job.state in waiting and self.is_overdue(job)]
        return sorted(jobs, key=lambda job: job.spec.deadline_at or self.now)

    def promote_due(self, want: int, scope: str) -> int:
        chosen = self.due(scope)[:want]
        for job in chosen:
            if job.state is State.RETRY_WAITING:
                self.step(job, "due", "maintenance")
            job.due_at = job.note = None
        return len(chosen)

    def expire_overdue(self, want: int, scope: str) -> int:
        chosen = self.overdue(scope)[:want]
        for job in chosen:
            job.error = LATE
            self.step(job, "expire", "maintenance")
        return len(chosen)

    def recover_leases(self, want: int, scope: str) -> Sweep:
        ours = {name: each for name, each in self.leases.items() if scope in (EVERY_TENANT, each.tenant)}
        expired = [lease for lease in ours.values() if not lease.ended and lease.until <= self.now]
        for lease in expired:
            lease.ended = True
        unswept = {name for name, lease in ours.items() if lease.ended and not lease.swept}
        held = sorted((job for job in self.jobs.values() if job.lease in unswept), key=lambda job: job.id)
        leased = [job for job in held[:want] if job.state is State.LEASED]
        begun = [job for job in held[:want] if job.state is State.IN_PROGRESS]
        for job in leased:
            self.step(job, "lease_expired", "recovery", {"reason": "lease_expired"})
        for job in begun:
            job.error = LOST
            group = {"fingerprint": fingerprint(job.spec.kind, *LOST)}
            self.crash(job, "lease_expired", "recovery", None, self.now, group)
        for name in unswept - {job.lease for job in self.jobs.values()}:
            self.leases[name].swept = True
        return Sweep(len(expired), len(leased), len(begun))

    def crash(
        self,
        job: ModelJob,
        operation: str,
        actor: str,
        note: dict[str, Any] | None,
        later: datetime,
        group: dict[str, Any] | None,
    ) -> None:
        """Record a crash. Crashes are counted apart from the handler's failures, against their own limit (CX-10)."""
        self.step(job, operation, actor, note)
        again = job.crashes < job.spec.retry.max_crashes
        job.crashes += 1
        self.step(
            job, "retry" if again else "dead_letter", actor, None if again else group, due=later if again else None
        )

    # -- operators -----------------------------------------------------------------------------------------------

    def operate(
        self,
        operation: OperatorAction,
        ids: Sequence[str],
        reason: str | None,
        actor: str,
        scope: str,
        limit: int | None = None,
    ) -> list[Verdict]:
        if operation == "discard" and not (reason or "").strip():
            return [Verdict(job_id, None, True, "reason_required") for job_id in ids]
        seen = {job.id: job for job in self.within(scope) if job.id in ids}
        done = {job.id for job in seen.values() if _allows(operation, job)}
        for job_id in sorted(done):
            job = seen[job_id]
            if operation == "redrive":
                job.retries = job.crashes = 0
                job.error = (None, None)
                job.attempts_override = job.attempts_override if limit is None else limit
            self.step(job, operation, actor, _note(reason, limit) or None)
        return [_verdict(operation, job_id, seen.get(job_id), job_id in done) for job_id in ids]

    def reschedule(
        self, ids: Sequence[str], when: Reschedule, reason: str | None, actor: str, scope: str
    ) -> list[Verdict]:
        """Make jobs due now or later. The ledger records who did it, once for identical requests."""
        due = when.at if when.at is not None else self.now + seconds(when.delay or 0.0)
        later = due if due > self.now else None
        note = {"rescheduled": ledger_time(later) if later else "now", "by": actor} | _note(reason, when.max_attempts)
        verdicts: dict[str, Verdict] = {}
        for job in self.within(scope):
            if job.id in ids:
                refusal = _reschedule_refusal(job, when)
                if refusal is None:
                    job.attempts_override = job.attempts_override if when.max_attempts is None else when.max_attempts
                    if job.state is State.RETRY_WAITING or job.note != note:
                        self.step(job, "reschedule", actor, note)
                    job.due_at = later
                verdicts[job.id] = Verdict(job.id, job.state, refusal is not None, refusal)
        return [verdicts.get(job_id, Verdict(job_id, None, True, "not_found")) for job_id in ids]

    def move(self, job_id: str, move: Move, reason: str | None, actor: str, scope: str) -> Verdict:
        """Move a job among those of its queue and priority, of all tenants. Every move is recorded."""
        seen = {job.id: job for job in self.within(scope)}
        job, other = seen.get(job_id), seen.get(move.other or "")
        if job is None:
            return Verdict(job_id, None, True, "not_found")
        refusal = _move_refusal(job, other, move)
        if refusal is None:
            if other is not job:
                job.priority_override = (
                    other.priority if other else job.priority if move.priority is None else move.priority
                )
                job.position = self._position(job, other, move)
            times = 1 + sum(event.type == "move" for event in job.events)
            values = {"to": move.where, "other": move.other, "priority": job.priority, "reason": reason or None}
            note = {name: value for name, value in values.items() if value is not None} | {"times": times}
            job.note = (job.note or {}) | {"moved": note}
            self.record(job, "move", job.state, actor, note)
        return Verdict(job_id, job.state, refusal is not None, refusal)

    def replace_payload(self, job_id: str, payload: str, reason: str, actor: str, scope: str) -> Verdict:
        """Replace the payload and record both digests, unless it is the same."""
        job = {job.id: job for job in self.within(scope)}.get(job_id)
        if job is None:
            return Verdict(job_id, None, True, "not_found")
        refusal = _replace_refusal(job)
        if refusal is None and job.spec.payload != payload:
            old, new = (content_digest("payload", job_id, text).hex() for text in (job.spec.payload, payload))
            times = 1 + sum(event.type == "replace" for event in job.events)
            note = {"old": old, "new": new, "size": len(payload.encode()), "reason": reason, "times": times}
            kept = {name: value for name, value in (job.note or {}).items() if name not in ("moved", "rescheduled")}
            job.note = kept | {"replaced": note}
            job.spec = dataclasses.replace(job.spec, payload=payload)
            self.record(job, "replace", job.state, actor, note)
        return Verdict(job_id, job.state, refusal is not None, refusal)

    def _position(self, job: ModelJob, other: ModelJob | None, move: Move) -> Fraction:
        waiting = [each for each in self.jobs.values() if each is not job and each.waiting]
        waiting = [each for each in waiting if (each.spec.queue, each.priority) == (job.spec.queue, job.priority)]
        positions = sorted(each.position for each in waiting)
        if move.where == "last" or not positions:
            return self.last_position()
        if move.where == "first":
            return positions[0] - 1
        assert other is not None
        before = max((each for each in positions if each < other.position), default=other.position - 2)
        after = min((each for each in positions if each > other.position), default=self.last_position() + 1)
        return (other.position + (before if move.where == "before" else after)) / 2

    def last_position(self) -> Fraction:
        return max((job.position for job in self.jobs.values()), default=Fraction(0)) + 1


def _replace_refusal(job: ModelJob) -> str | None:
    if job.state not in (State.QUEUED, State.RETRY_WAITING):
        return "not_waiting"
    if job.spec.content_key is not None:
        return "content_key"
    return "steps_recorded" if job.steps else None


def _move_refusal(job: ModelJob, other: ModelJob | None, move: Move) -> str | None:
    if not job.waiting:
        return "not_waiting"
    if move.other is None:
        return None
    if other is None:
        return "target_not_found"
    if other.spec.queue != job.spec.queue:
        return "other_queue"
    return None if other.waiting else "target_not_waiting"


def _note(reason: str | None, limit: int | None) -> dict[str, Any]:
    return ({"reason": reason} if reason else {}) | ({} if limit is None else {"max_attempts": limit})


def _reschedule_refusal(job: ModelJob, when: Reschedule) -> str | None:
    if job.state not in (State.QUEUED, State.RETRY_WAITING):
        return "not_waiting"
    if job.held:
        return "job_held"
    return "limit_too_low" if when.max_attempts is not None and job.retries >= when.max_attempts else None


def _allows(operation: OperatorAction, job: ModelJob) -> bool:
    return job.state in ACTIVE if operation == "cancel" else job.state is State.DEAD_LETTER


def _verdict(operation: OperatorAction, job_id: str, job: ModelJob | None, done: bool) -> Verdict:
    if job is None:
        return Verdict(job_id, None, True, "not_found")
    refusal = "already_finished" if operation == "cancel" else "not_dead"
    return Verdict(job_id, job.state, not done, None if done else refusal)
