"""Fork a job: a new job with the recorded steps of another one, up to a step."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.engine.job import Enqueued, Job, JobSpec, References
from holdfast.engine.names import check_name
from holdfast.engine.operation import Program
from holdfast.engine.payload import Unreadable, encode
from holdfast.engine.retry import PATIENT, Backoff, Retry
from holdfast.engine.settlement import storable
from holdfast.engine.states import State
from holdfast.engine.steps import FORK_TAG, Step, origin_of
from holdfast.engine.trace import plain_tags
from holdfast.errors import Conflict, NotFound, Refused
from holdfast.features.jobs.model import Fork, FromStep
from holdfast.features.jobs.store import not_found, step_numbers
from holdfast.features.payloads.model import HIDDEN, Effective, effective
from holdfast.stores.flow import Steps, flow, read_together, run
from holdfast.stores.namespace import call
from holdfast.stores.requests import new_id
from holdfast.stores.vault import NAME, Part, Vault

if TYPE_CHECKING:
    from holdfast.features.assembly import Store
    from holdfast.stores.session import Session

_REFUSALS: Final = {
    "cleaned": ("retention has deleted its payload and steps", None),
    "in_workflow": ("it belongs to a workflow, whose other jobs wait for this one", "Start the workflow again."),
    "restricted": ("its kind is restricted, and its payload is not read outside a worker", "Enqueue a new job."),
    "unreadable": ("its payload cannot be read", None),
    "no_steps": ("it has no recorded steps", "Enqueue a new job."),
    "step_ambiguous": ("several of its steps have this name", "Give the number of the step: holdfast jobs show ID"),
}


@dataclass(frozen=True, slots=True)
class _Origin:
    job: Job
    steps: list[Step]
    references: References
    rule: Effective


@dataclass(frozen=True, slots=True)
class _Packed:
    """The payload and the steps for the new job, which may be sealed for it and stored for it."""

    payload: str
    digest: str
    """Of the plain payload."""
    parts: Mapping[int, str]


def fork(
    session: Session, job_id: str, from_step: FromStep, key: str | None, reason: str | None, tenant: str
) -> Program[Fork]:
    if key is not None:
        key = check_name(key, "key", limit=200)
    origin = yield from run(_origin(session.store, job_id, tenant))
    job = origin.job
    n = _position(job, origin.steps, from_step)
    new, vault = new_id(), session.vault
    before = [step for step in origin.steps if step.n < n and step.over and step.kind == "step"]

    def pack() -> _Packed:
        return _pack(vault, origin, before, new)

    packed = (yield from call(pack)) if vault.artifacts is not None else pack()
    spec = _spec(session, origin, new, packed, n, key)
    step = next((step.name for step in origin.steps if step.n == n), str(n))
    made = _made(session.store, spec, job, n, step, packed.parts, storable(reason), session.actor)
    result = yield from run(made)
    if not result.created:
        yield from call(lambda: _drop(vault, packed, job.tenant))
    return Fork(_accepted(job, result), job.id, n, result.created)


@flow(writes=False)
def _origin(store: Store, job_id: str, tenant: str) -> Steps[_Origin]:
    job = yield from store.jobs.get(job_id, tenant).start()
    if job is None:
        raise not_found(job_id, tenant)
    steps, references, rules = yield from read_together(
        store.steps.list(job.id, job.tenant).start(),
        store.jobs.references(job.id, job.tenant).start(),
        store.payload_rules.list(job.tenant).start(),
    )
    return _Origin(job, steps, references, effective(rules, job.tenant, job.kind))


def _position(job: Job, steps: Sequence[Step], from_step: FromStep) -> int:
    """The number of the first step that the new job does itself; raises if the job cannot be forked there."""
    checks = {
        "cleaned": job.state is State.CLEANED,
        "in_workflow": job.workflow_id is not None,
        "restricted": job.payload == HIDDEN,
        "unreadable": job.unreadable is not None or isinstance(job.payload, Unreadable),
        "no_steps": not steps,
    }
    if refusal := next((code for code, holds in checks.items() if holds), None):
        raise _refused(job, refusal)
    numbers = step_numbers(steps, from_step)
    if not numbers:
        names = ", ".join(f"{step.n} {step.name}" for step in steps[:20])
        raise NotFound(
            f"job {job.id} has no recorded step {from_step!r}", code="no_such_step", fix=f"Its steps: {names}"
        )
    if len(numbers) > 1:
        raise _refused(job, "step_ambiguous")
    return numbers[0]


def _refused(job: Job, code: str) -> Conflict:
    why, fix = _REFUSALS[code]
    return Conflict(f"job {job.id} cannot be forked: {why}", code=code, fix=fix)


def _pack(vault: Vault, origin: _Origin, before: Sequence[Step], new: str) -> _Packed:
    """Open what is sealed for the old job or stored for it, and pack it for the new one."""
    job, rule = origin.job, origin.rule
    text = encode(vault.open_payload(job.payload, tenant=job.tenant, job_id=job.id), limit=vault.limit(rule))
    payload = vault.pack(text, rule, what="payload", kind=job.kind, tenant=job.tenant, job_id=new)
    parts: dict[int, str] = {}
    for step in before:
        if not isinstance(step.value, dict) or step.value.keys() != {NAME}:
            continue
        where = {"tenant": job.tenant, "place": str(step.n)}
        value = vault.open_part(step.value, what="step", job_id=job.id, **where)
        part: Part = vault.pack_part(vault.encode_part(value, "step"), what="step", job_id=new, **where)
        if part.ref is not None:
            vault.upload(part, tenant=job.tenant, job_id=new)
        parts[step.n] = part.text
    return _Packed(payload, vault.digest(text), parts)


def _drop(vault: Vault, packed: _Packed, tenant: str) -> None:
    for text in (packed.payload, *packed.parts.values()):
        vault.drop(text, tenant=tenant)


def _spec(session: Session, origin: _Origin, new: str, packed: _Packed, n: int, key: str | None) -> JobSpec:
    """The new job: the same work with the same settings, now, and outside of any chain of retries."""
    job = origin.job
    backoff = Backoff.from_json(job.backoff) if job.backoff else PATIENT
    tags = tuple(tag for tag in plain_tags(job.tags) if origin_of((tag,)) is None)
    executor = job.executor if job.executor is not None and job.executor.isprintable() else None
    return JobSpec(
        id=new,
        kind=job.kind,
        payload=packed.payload,
        # With the same key, a fork from another step is another request.
        payload_hash=hashlib.sha256(f"{packed.digest} {n}".encode()).hexdigest(),
        enqueued_by=session.actor,
        source_system=session.name,
        queue=job.queue,
        priority=job.priority,
        retry=Retry(max_attempts=job.max_attempts, max_crashes=job.max_crashes, backoff=backoff),
        retry_given=True,
        key=None if key is None else f"{job.id}:{key}",
        tags=(*tags, f"{FORK_TAG}{job.id}"),
        agent=job.agent,
        correlation_id=job.correlation_id or job.id,
        causation_id=job.id,
        external_ref=job.external_ref,
        uses=job.uses or (),
        retry_as=job.retry_as,
        depth=job.depth,
        executor=executor,
        references=None if origin.references == References() else origin.references,
    )


@flow(notifies=True)
def _made(
    store: Store, spec: JobSpec, job: Job, n: int, step: str, parts: Mapping[int, str], reason: str | None, actor: str
) -> Steps[Enqueued]:
    """Enqueue the job and copy the steps in one transaction: no worker sees the job without them."""
    (result,) = yield from store.jobs.enqueue([spec], job.tenant).start()
    if result.created:
        yield from store.steps.fork(job.id, spec.id, n, step, parts, reason, actor, job.tenant).start()
    return result


def _accepted(job: Job, result: Enqueued) -> str:
    if result.reason == "idempotency_conflict":
        raise Conflict(
            f"job {result.id} was forked under this key from another step of job {job.id}",
            code="idempotency_conflict",
            fix="Use another key, or the same step.",
        )
    if result.id is None:
        raise Refused(result.detail or f"a fork of job {job.id} was refused", code=result.reason)
    return result.id
