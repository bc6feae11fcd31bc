"""Agents and executors: their records, and the rules of an agent's jobs.

A job names its agent by id. An id that is not registered is only a label. A registered agent has a retry policy and
limits, which every store enforces. The rules are written here for the store without SQL functions, and again in SQL;
the contract tests compare the two.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal, TypedDict

from holdfast.engine.declared import Help
from holdfast.engine.job import JobSpec
from holdfast.engine.names import check_name
from holdfast.engine.retry import PATIENT, Backoff, Retry, as_stored_policy, preset
from holdfast.engine.units import Duration, Size, in_bytes, seconds
from holdfast.errors import InvalidSetting

NAME_LIMIT: Final = 255
LARGEST_PAYLOAD: Final = 2**30
SHORTEST_WAIT, LONGEST_WAIT = 0.001, 100 * 365 * 86_400.0
WAITING_CAP: Final = 10_000
"""Limit of the count of waiting jobs, so that listing agents does not read all of their jobs."""
DISABLED_DELAY: Final = timedelta(minutes=10)
"""How long the jobs of a disabled agent are postponed before a claim considers them again."""


@dataclass(frozen=True, slots=True)
class Agent:
    """A registered agent: a named owner of jobs.

    ``max_attempts``, ``max_crashes`` and ``backoff`` are None if those of the job's kind apply. ``waiting`` counts the
    agent's waiting, delayed and retrying jobs, up to 10,000. ``max_wait`` is in seconds.
    """

    tenant: str
    id: str
    name: str
    kind: str | None
    max_attempts: int | None
    max_crashes: int | None
    backoff: dict[str, Any] | None
    max_payload_bytes: int | None
    max_wait: float | None
    requires_approval: bool
    disabled_at: datetime | None
    disabled_by: str | None
    disabled_reason: str | None
    created_at: datetime
    updated_at: datetime
    waiting: int

    @property
    def disabled(self) -> bool:
        return self.disabled_at is not None

    def policy(self, otherwise: Retry) -> Retry:
        """The retry policy of the agent's jobs, with ``otherwise`` for the parts that are not registered."""
        return Retry(
            max_attempts=otherwise.max_attempts if self.max_attempts is None else self.max_attempts,
            max_crashes=otherwise.max_crashes if self.max_crashes is None else self.max_crashes,
            backoff=otherwise.backoff if self.backoff is None else _stored_backoff(self.backoff),
        )


class AgentOptions(TypedDict, total=False):
    """The options of ``app.agents.set``."""

    name: Annotated[str | None, Help("Display name.")]
    kind: Annotated[str | None, Help("Accept only jobs of this kind.", "NAME")]
    retry: Annotated[Retry | str | None, Help("Retry policy of its jobs; default: the kind's.", "PRESET")]
    max_payload: Annotated[Size | None, Help("Maximum payload size: 500, 64KB.", "SIZE", longest=50, example="64KB")]
    max_wait: Annotated[Duration | None, Help("Maximum time a job may wait before it starts: 90, 5m.")]
    requires_approval: Annotated[bool, Help("Require a person's approval before its jobs run.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """The complete, checked definition of an agent."""

    id: str
    name: str
    kind: str | None = None
    max_attempts: int | None = None
    max_crashes: int | None = None
    backoff: Backoff | None = None
    max_payload_bytes: int | None = None
    max_wait: float | None = None
    requires_approval: bool = False

    @classmethod
    def of(
        cls,
        id: str,
        *,
        name: str | None = None,
        kind: str | None = None,
        retry: Retry | str | None = None,
        max_payload: Size | None = None,
        max_wait: Duration | None = None,
        requires_approval: bool = False,
    ) -> Definition:
        """Check the options of ``set``. The name of a preset sets only the backoff; a ``Retry`` is a whole policy."""
        if not isinstance(requires_approval, bool):
            raise InvalidSetting("requires_approval must be true or false", code="invalid_agent")
        backoff, policy = None, None
        if isinstance(retry, str):
            backoff = preset(retry)
        elif retry is not None:
            policy = as_stored_policy(retry)
            backoff = policy.backoff
        id = check_name(id, "agent", limit=NAME_LIMIT)
        return cls(
            id=id,
            name=id if name is None else check_name(name, "name", limit=NAME_LIMIT),
            kind=None if kind is None else check_name(kind, "kind"),
            max_attempts=None if policy is None else policy.max_attempts,
            max_crashes=None if policy is None else policy.max_crashes,
            backoff=backoff,
            max_payload_bytes=None if max_payload is None else _payload_limit(max_payload),
            max_wait=None if max_wait is None else _wait_limit(max_wait),
            requires_approval=requires_approval,
        )


@dataclass(frozen=True, slots=True)
class AgentRefusal:
    """Why an agent refuses a job: a stable code and a message."""

    reason: str
    detail: str


def agent_refusal(agent: Agent, kind: str, payload_bytes: int) -> AgentRefusal | None:
    """Why the agent refuses a job of this kind and size, or None if it accepts it."""
    if agent.disabled_at is not None:
        since = agent.disabled_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        detail = f"agent {agent.id} was disabled by {agent.disabled_by} on {since}: {agent.disabled_reason}"
        return AgentRefusal("agent_disabled", detail)
    if agent.kind is not None and agent.kind != kind:
        return AgentRefusal("agent_kind_mismatch", f"agent {agent.id} runs jobs of kind {agent.kind}, not {kind}")
    limit = agent.max_payload_bytes
    if limit is not None and payload_bytes > limit:
        detail = f"agent {agent.id} takes payloads of up to {limit} bytes, and this one has {payload_bytes}"
        return AgentRefusal("agent_payload_limit", detail)
    return None


def with_agent_settings(agent: Agent, spec: JobSpec, now: datetime) -> JobSpec:
    """The job with its agent's retry policy and deadline. A policy given for this job takes precedence."""
    deadline = spec.deadline_at
    if spec.deadline_in is not None:
        deadline = now + timedelta(seconds=spec.deadline_in)
    if agent.max_wait is not None:
        due = spec.run_at or (now if spec.delay is None else now + timedelta(seconds=spec.delay))
        latest = max(due, now) + timedelta(seconds=agent.max_wait)
        deadline = latest if deadline is None else min(deadline, latest)
    retry = spec.retry if spec.retry_given else agent.policy(spec.retry)
    return dataclasses.replace(spec, retry=retry, deadline_at=deadline, deadline_in=None)


def _stored_backoff(backoff: dict[str, Any]) -> Backoff:
    """Decode a stored backoff. An invalid one, written with SQL, counts as the default, as it does in settlements."""
    try:
        return Backoff.from_json(backoff)
    except InvalidSetting:
        return PATIENT


def _payload_limit(size: Size) -> int:
    limit = in_bytes(size, "payload limit", least=2)
    if limit > LARGEST_PAYLOAD:
        raise InvalidSetting(f"a payload limit must be at most {LARGEST_PAYLOAD:,} bytes", code="invalid_size")
    return limit


def _wait_limit(wait: Duration) -> float:
    limit = seconds(wait, "wait")
    if not SHORTEST_WAIT <= limit <= LONGEST_WAIT:
        raise InvalidSetting("max_wait must be from one millisecond to 100 years", code="invalid_duration")
    return limit


MAX_AHEAD: Final = 1000
"""Limit of the count of jobs ahead of a job in its queue."""

ExecutorRole = Literal["executor", "generator"]


@dataclass(frozen=True, slots=True)
class Executor:
    """A registered label. An ``executor`` may open leases; a ``generator`` plans work and may not."""

    label: str
    role: str
    added_by: str
    added_at: datetime


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """A running worker. ``kinds``, ``queues`` and ``slots`` are None if the worker did not report them."""

    label: str
    holder: str
    tenant: str
    kinds: tuple[str, ...] | None
    queues: tuple[str, ...] | None
    slots: int | None
    busy: int

    @property
    def full(self) -> bool:
        return self.slots is not None and self.busy >= self.slots


@dataclass(frozen=True, slots=True)
class JobSituation:
    """The facts that explain why a job waits or runs: its lease, its position in the queue, and the workers."""

    now: datetime
    note: dict[str, Any]
    """The note of the job's last transition."""
    holder: str | None = None
    label: str | None = None
    held_until: datetime | None = None
    held: bool | None = None
    """Whether the job's lease is live; None if the job has no lease."""
    ahead: int | None = None
    """The number of claimable jobs ahead of it in its queue, up to ``AHEAD``; None if the job is not claimable."""
    workers: tuple[WorkerSeen, ...] = ()
    renewed_at: datetime | None = None
    """When the worker that holds the job last renewed its lease."""

    @property
    def lease_expired_at(self) -> datetime | None:
        """When the lease that holds the job expired; None if it has not, or if no lease holds the job."""
        expired = self.held is False and self.held_until is not None and self.held_until <= self.now
        return self.held_until if expired else None
