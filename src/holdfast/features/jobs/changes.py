"""Changes to jobs that ``app.jobs`` and a ``Handle`` share: redrive from a step, replace a payload, check verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.engine.ids import parse_id
from holdfast.engine.job import Verdict
from holdfast.engine.names import check_name
from holdfast.engine.operation import Program
from holdfast.engine.payload import encode
from holdfast.engine.settlement import storable
from holdfast.engine.states import State
from holdfast.engine.steps import NAME_LIMIT, Step
from holdfast.engine.units import Duration
from holdfast.errors import Conflict, InvalidInput, InvalidSetting, NotFound
from holdfast.features.payloads.model import Effective, effective
from holdfast.stores.flow import Steps, flow, run
from holdfast.stores.namespace import call
from holdfast.stores.requests import Reschedule

if TYPE_CHECKING:
    from holdfast.features.assembly import Store
    from holdfast.stores.session import Session

# Reasons of a refusal other than the state of the job.
_CONFLICTS = {
    "not_replaceable": "the payload rules of this kind do not allow replacing a payload",
    "content_key": "the job is deduplicated by its content",
    "steps_recorded": "the job has recorded steps, which were made with the old payload",
    "checkpoints_recorded": "the job has checkpoints, which were made with the old payload",
    "job_held": "the job is held back, and not because of its time",
    "target_not_found": "the other job is not in this tenant",
    "target_not_waiting": "the other job is not waiting",
    "other_queue": "the other job is in another queue",
}
_FIXES = {
    "not_replaceable": "Declare PayloadPolicy(replaceable=True), or run: holdfast rules set KIND --replaceable",
    "content_key": "Cancel the job and enqueue another one.",
    "steps_recorded": "Cancel the job and enqueue another one.",
    "checkpoints_recorded": "Cancel the job and enqueue another one.",
}


def accepted(verdicts: list[Verdict]) -> Verdict:
    """The verdict on one job; raises ``NotFound`` or ``Conflict`` if the store refused the change."""
    verdict = verdicts[0]
    if verdict.refused:
        if verdict.reason == "not_found":
            raise NotFound(f"no job {verdict.id} in this tenant")
        message = _CONFLICTS.get(verdict.reason or "", f"job {verdict.id} is {verdict.state}")
        raise Conflict(message, code=verdict.reason, fix=_FIXES.get(verdict.reason or ""))
    return verdict


# --- replace a payload ---

CheckPayload = Callable[[str, Any, Effective], tuple[str, Effective]]
"""Turns the payload of a kind into JSON text, and returns the payload rule to store it under."""


def plain_payload(kind: str, payload: Any, rule: Effective) -> tuple[str, Effective]:
    """The ``CheckPayload`` of programs that declare no kinds."""
    return encode({} if payload is None else payload), rule


def replace_payload(
    session: Session, check: CheckPayload, job_id: str, payload: Any, reason: str, tenant: str
) -> Program[Verdict]:
    """Check, seal and store the new payload as ``enqueue`` does, and replace the current one with it."""
    store, vault = session.store, session.vault
    if not str(reason or "").strip():
        raise InvalidInput("replacing a payload needs a reason", code="reason_required")
    job = yield from run(store.jobs.get(job_id, tenant))
    if job is None:
        raise NotFound(f"no job {parse_id(job_id)} in tenant {tenant}")
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

FromStep = int | str
"""A step's number, or its name."""


def check_from_step(from_step: object) -> FromStep:
    if isinstance(from_step, int) and not isinstance(from_step, bool) and 0 <= from_step < 2**31:
        return from_step
    if isinstance(from_step, str):
        return check_name(from_step, "name of the step", limit=NAME_LIMIT)
    raise InvalidSetting("from_step must be a step's number or name", code="invalid_setting")


def redrive_time(at: datetime | None, delay: Duration | None) -> Reschedule | None:
    """The earliest start of redriven jobs; None to start immediately."""
    return None if at is None and delay is None else Reschedule.of(at, delay, None)


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
        numbers = _step_numbers(steps, from_step)
        if not numbers:
            return Verdict(job_id, job.state, True, "no_such_step")
        if len(numbers) > 1:
            return Verdict(job_id, job.state, True, "step_ambiguous")
        yield from store.steps.rewind(job_id, numbers[0], actor, tenant).start()
        label = _step_label(steps, numbers[0])
        reason = f"{label}: {reason}" if reason else label
    # The store refuses jobs that are not dead letters, or no longer.
    verdicts = yield from store.jobs.operate("redrive", [job_id], storable(reason), actor, tenant, max_attempts).start()
    return verdicts[0]


def _step_numbers(steps: Sequence[Step], from_step: FromStep) -> list[int]:
    """The steps that ``from_step`` may mean. A number between two recorded steps is valid, too: of steps that ran
    concurrently, the first may not have been recorded."""
    if isinstance(from_step, str):
        return [step.n for step in steps if step.name == from_step]
    return [from_step] if any(step.n >= from_step for step in steps) else []


def _step_label(steps: Sequence[Step], n: int) -> str:
    return next((f"from step {n} ({step.name})" for step in steps if step.n == n), f"from step {n}")
