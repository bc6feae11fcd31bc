"""The records of a job: the specification that is enqueued, the claim of a worker, and what can be read later.

These are the data that the stores exchange with the rest of the code. Ids are lower-case text, times are aware UTC
datetimes, payloads are JSON text until a handler needs them. The records of the hot path are not frozen, although no
code changes them: a frozen dataclass takes three times as long to build.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, overload

from holdfast.engine.retry import PATIENT, Backoff, Retry
from holdfast.engine.states import State
from holdfast.engine.trace import Trace
from holdfast.errors import InvalidSetting

EVERY_TENANT = "*"
DEFAULT_TENANT = "default"
DEFAULT_QUEUE = "default"

WORKER_HOLDER_PATTERN = "worker ________-____-____-____-____________ (%:%)"
"""A pattern for SQL's ``like``: the holder of a lease of Holdfast's own workers. Those fire schedules; workers of other
programs only run jobs."""


def worker_holder(id: object, host: str, process: int) -> str:
    return f"worker {id} ({host}:{process})"


DEFAULT_RETRY = Retry()

Dedupe = Literal["skip", "coalesce"]


@dataclass(frozen=True, slots=True)
class References:
    """URIs of the data of a job: its input, its output, and its payload if that is stored elsewhere."""

    source_ref: str | None = None
    target_ref: str | None = None
    payload_ref: str | None = None


@dataclass(slots=True, kw_only=True)
class JobSpec:
    """A job about to be enqueued. ``payload`` is JSON text that has been checked already."""

    id: str
    kind: str
    payload: str
    enqueued_by: str
    source_system: str
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    delay: float | None = None
    run_at: datetime | None = None
    deadline_at: datetime | None = None
    deadline_in: float | None = None
    """The deadline in seconds from now, by the store's clock, instead of ``deadline_at``."""
    retry: Retry = DEFAULT_RETRY
    retry_given: bool = False
    """Whether the policy was given for this job or its kind. If so, the policy of an agent does not replace it."""
    key: str | None = None
    payload_hash: str | None = None
    """The hash of the original payload, if it is sealed or stored elsewhere. It tells whether two payloads are
    equal."""
    content_key: str | None = None
    dedupe: Dedupe | None = None
    tags: tuple[str, ...] = ()
    agent: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    parent_id: str | None = None
    workflow_id: str | None = None
    external_ref: str | None = None
    uses: tuple[str, ...] = ()
    """Limits that count it, in addition to those of its queue and kind: ``key:…``, ``resource:…``
    (features/limits/model.py)."""
    retry_as: str | None = None
    """``new_job``: each retry is a separate job that refers to the previous one."""
    depth: int | None = None
    """Number of subscriptions in the chain that created it; None without one."""
    executor: str | None = None
    """Only workers with this label may run it; None: every worker."""
    references: References | None = None
    alike: object = None
    """Jobs with the same object here differ only in id and payload, and have no key and no parent."""


@dataclass(frozen=True, slots=True)
class AlikeSpecs(Sequence[JobSpec]):
    """Jobs that differ only in id and payload, and that a store creates all or none of. Each ``JobSpec`` is made when
    it is read."""

    shared: Mapping[str, Any]
    ids: list[str]
    payloads: list[str]

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> JobSpec: ...
    @overload
    def __getitem__(self, index: slice) -> list[JobSpec]: ...
    def __getitem__(self, index: int | slice) -> JobSpec | list[JobSpec]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        return JobSpec(id=self.ids[index], payload=self.payloads[index], **self.shared)


@dataclass(slots=True)
class Enqueued:
    """The result for one ``JobSpec``: the job's id, and the reason if no new job was created."""

    id: str | None
    created: bool
    reason: str | None = None
    state: State | None = State.QUEUED
    detail: str | None = None
    """More about the reason, in words."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A worker's promise that it is alive; the first half of the fence."""

    id: str
    until: datetime


StopMode = Literal["drain", "stop"]
"""How a worker ends on request: after its running jobs have ended, or after its grace period."""
Renewal = Literal[False, "kept", "drain", "stop"]
"""The result of a heartbeat: False if the lease has ended, a ``StopMode`` if an operator requests the worker's end."""


@dataclass(slots=True)
class Claim:
    """A job claimed by a worker. ``lease`` and ``attempt`` are the fence of every later write."""

    id: str
    lease: str
    attempt: int
    tenant: str
    kind: str
    queue: str
    payload: str
    retries: int
    crashes: int
    max_attempts: int
    max_crashes: int
    backoff: dict[str, Any] | None
    priority: int
    position: int
    deadline_at: datetime | None
    created_at: datetime
    correlation_id: str | None
    parent_id: str | None
    workflow_id: str | None
    agent: str | None
    tags: tuple[str, ...]
    unreadable: str | None = None
    """Which columns of its row cannot be read, and why. Such a job is not run: it becomes a dead letter."""

    @property
    def trace(self) -> Trace:
        """The trace it belongs to: the producer's, else one derived from its id."""
        return Trace.of_job(self.id, self.tags)

    @property
    def resumed(self) -> bool:
        """Whether an attempt may have ended otherwise than by a failure or a crash: only then can the job have asked
        for an approval."""
        return self.attempt - 1 > self.retries + self.crashes


def log_fields(claim: Claim) -> dict[str, object]:
    """The fields of every log line about a claimed job."""
    fields: dict[str, object] = {
        "job_id": claim.id,
        "kind": claim.kind,
        "queue": claim.queue,
        "tenant": claim.tenant,
        "attempt": claim.attempt,
        "correlation_id": claim.correlation_id,
    }
    trace = claim.trace
    return fields | {"trace_id": trace.trace_id, "span_id": trace.span_id}


@dataclass(slots=True)
class Exchange:
    """The result of a worker's exchange with the database: the claimed jobs, and the ids of stale settlements.

    ``live`` is False if the lease has expired: nothing can be claimed under it until it is renewed. ``pick_us`` is the
    time that the database took to select the jobs, in microseconds. ``next_in`` is set if a rate limit holds jobs back:
    the seconds until it has the next token.
    """

    claims: list[Claim]
    stale: list[str]
    live: bool = True
    pick_us: int = 0
    next_in: float | None = None


@dataclass(frozen=True, slots=True)
class Holding:
    """A job under a lease, according to the database."""

    id: str
    attempt: int
    begun: bool


@dataclass(frozen=True, slots=True)
class Job:
    """A job: its facts and its current state."""

    id: str
    tenant: str
    kind: str
    queue: str
    state: State
    attempt: int
    retries: int
    crashes: int
    max_attempts: int
    max_crashes: int
    priority: int
    position: int
    due_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    error_code: str | None
    error_message: str | None
    created_at: datetime
    run_at: datetime | None
    deadline_at: datetime | None
    payload: Any
    backoff: dict[str, Any] | None
    idempotency_key: str | None
    content_key: str | None
    tags: tuple[str, ...]
    agent: str | None
    correlation_id: str | None
    causation_id: str | None
    parent_id: str | None
    workflow_id: str | None
    external_ref: str | None
    enqueued_by: str
    source_system: str
    uses: tuple[str, ...] | None = None
    """The limit key and resources it uses: ``key:…`` and ``resource:…``."""
    retry_as: str | None = None
    retry_of: str | None = None
    """The job that this one retries."""
    depth: int | None = None
    """Number of subscriptions in the chain that created it; None without one."""
    executor: str | None = None
    """Only workers with this label may run it; None: every worker."""
    updated_at: datetime | None = None
    """When it last changed its state: the time of its newest ledger event."""
    last_error_at: datetime | None = None
    """When its last failed or crashed attempt ended; None if none has."""
    queued_at: datetime | None = None
    """When it last became queued: enqueued, due again, handed back or redriven."""
    worker: str | None = None
    """The worker that has it, or ran it last; None before the first claim."""
    domain: str | None = None
    """The domain that its kind is registered with."""
    template: str | None = None
    """The template that it was made from, and its version."""
    template_version: int | None = None
    schedule_id: str | None = None
    """The schedule that made it, and the time that it was made for."""
    schedule: str | None = None
    scheduled_for: datetime | None = None
    part: str | None = None
    """Its group or sub-workflow in its workflow."""
    unreadable: str | None = None
    """Columns of its row that cannot be read, and why; normally None."""

    @property
    def trace(self) -> Trace:
        """The trace it belongs to: the producer's, else one derived from its id."""
        return Trace.of_job(self.id, self.tags)

    @property
    def retry_span(self) -> float:
        """The longest total time that its retries wait, in seconds: the longest outage it survives without becoming a
        dead letter."""
        try:
            backoff = Backoff.from_json(self.backoff) if self.backoff else PATIENT
        except InvalidSetting:
            backoff = PATIENT
        return backoff.span(self.max_attempts - 1)

    @property
    def retried(self) -> bool:
        """Whether another job may have replaced it: it failed, and each of its retries is a separate job."""
        return self.retry_as is not None and self.state is State.FAILED


@dataclass(frozen=True, slots=True)
class Event:
    """One row of the ledger. ``cursor`` is a consumer's position after it."""

    seq: int
    job_id: str
    tenant: str
    kind: str
    type: str
    from_state: State | None
    to_state: State
    attempt: int
    at: datetime
    actor: str
    meta: dict[str, Any]
    cursor: str = ""

    @property
    def name(self) -> str:
        return f"job.{self.type}"


@dataclass(frozen=True, slots=True)
class Liveness:
    """Signs of life of the newest attempt that are not events: renewals of its lease and reports of progress.

    ``renewals`` and ``renewed_at`` are those of the whole lease, which a worker renews for all its jobs at once. They
    are None before the first claim, and for a worker that was declared lost.
    """

    job_id: str
    attempt: int
    worker: str | None
    renewals: int | None
    renewed_at: datetime | None
    reports: int
    reported_at: datetime | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One execution of a job, read from the ledger: start, end, outcome. A skipped time of a schedule has an attempt
    with the number 0. ``log`` is ``database``, or the reference of a program's output; None if nothing was logged."""

    job_id: str
    tenant: str
    kind: str
    attempt: int
    worker: str
    started_at: datetime
    ended_at: datetime | None
    outcome: str | None
    error_code: str | None
    error_message: str | None
    exit_code: int | None
    log: str | None
    traceback: str | None
    payload: Any = None
    """The payload it ran with. None if the job is part of the same response and its payload was not replaced since."""
    version: str | None = None
    """The version of the application that ran it."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that an attempt created: its name and its location."""

    job_id: str
    attempt: int
    name: str
    ref: str
    meta: dict[str, Any]
    at: datetime


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an operator's action did to one job. A refusal is a result, not an error."""

    id: str
    state: State | None
    refused: bool
    reason: str | None


@dataclass(frozen=True, slots=True)
class Sweep:
    """The counts of one recovery run."""

    leases: int
    requeued: int
    crashed: int
    dead: tuple[str, ...] = field(default=(), compare=False)
    """Ids of the crashed jobs that are dead letters now."""


@dataclass(frozen=True, slots=True)
class Result:
    """A job's result: the value, or the location of a large one."""

    value: Any
    ref: str | None
