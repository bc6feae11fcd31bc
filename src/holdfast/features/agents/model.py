"""``Agent``, what it allows; ``Executor``, workers seen around a job.

Agents: those whom jobs are for, with the policy and the limits of their jobs (CX-16).

A job names its agent by id. A name that nobody has registered is only a label; one that is registered stands for
rules, which every store keeps by itself. They are written here for the store that has no functions of its own, and
once in SQL; the contract tests run on both.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypedDict

from holdfast.engine.job import JobSpec
from holdfast.engine.names import check_name
from holdfast.engine.retry import PATIENT, Backoff, Retry, as_stored_policy, preset
from holdfast.engine.units import Duration, Size, in_bytes, seconds
from holdfast.errors import InvalidSetting

NAME_LIMIT: Final = 255
LARGEST_PAYLOAD: Final = 2**30
SHORTEST_WAIT, LONGEST_WAIT = 0.001, 100 * 365 * 86_400.0
WAITING_CAP: Final = 10_000
"""Jobs that wait are counted up to here: a list of agents must not read the jobs of all of them."""
HOLD: Final = timedelta(minutes=10)
"""How long jobs of a disabled agent are put off before a claim looks at them again."""


@dataclass(frozen=True, slots=True)
class Agent:
    """A registered agent: a named owner of jobs.

    ``max_attempts``, ``max_crashes`` and ``backoff`` are None where the kind's own apply. ``waiting`` counts its
    waiting, delayed and retrying jobs, up to 10,000. ``max_wait`` is in seconds.
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
        """How its jobs are tried again: what was registered, and for the rest what their kind says."""
        return Retry(
            max_attempts=otherwise.max_attempts if self.max_attempts is None else self.max_attempts,
            max_crashes=otherwise.max_crashes if self.max_crashes is None else self.max_crashes,
            backoff=otherwise.backoff if self.backoff is None else _readable(self.backoff),
        )


class AgentOptions(TypedDict, total=False):
    """What ``register`` takes besides the id."""

    name: str | None
    kind: str | None
    retry: Retry | str | None
    max_payload: Size | None
    max_wait: Duration | None
    requires_approval: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What is registered of an agent, complete and checked."""

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
        """As people say it. The name of a preset is a backoff and no more; a ``Retry`` is the whole policy."""
        if not isinstance(requires_approval, bool):
            raise InvalidSetting("requires_approval must be true or false", code="invalid_agent")
        backoff, policy = None, None
        if isinstance(retry, str):
            backoff = preset(retry)
        elif retry is not None:
            policy = as_stored_policy(retry)
            backoff = policy.backoff
        called = check_name(id, "agent", limit=NAME_LIMIT)
        return cls(
            id=called,
            name=called if name is None else check_name(name, "name", limit=NAME_LIMIT),
            kind=None if kind is None else check_name(kind, "kind"),
            max_attempts=None if policy is None else policy.max_attempts,
            max_crashes=None if policy is None else policy.max_crashes,
            backoff=backoff,
            max_payload_bytes=None if max_payload is None else _largest(max_payload),
            max_wait=None if max_wait is None else _longest(max_wait),
            requires_approval=requires_approval,
        )


@dataclass(frozen=True, slots=True)
class Objection:
    """Why an agent does not take a job: the stable code, and the words."""

    reason: str
    detail: str


def objection(agent: Agent, kind: str, payload_bytes: int) -> Objection | None:
    if agent.disabled_at is not None:
        since = agent.disabled_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        why = f"agent {agent.id} was disabled by {agent.disabled_by} on {since}: {agent.disabled_reason}"
        return Objection("agent_disabled", why)
    if agent.kind is not None and agent.kind != kind:
        return Objection("agent_kind_mismatch", f"agent {agent.id} runs jobs of kind {agent.kind}, not {kind}")
    most = agent.max_payload_bytes
    if most is not None and payload_bytes > most:
        why = f"agent {agent.id} takes payloads of up to {most} bytes, and this one has {payload_bytes}"
        return Objection("agent_payload_limit", why)
    return None


def under(agent: Agent, spec: JobSpec, now: datetime) -> JobSpec:
    """The job with what it has of its agent. A policy that was given for this very job stays its own."""
    deadline = spec.deadline_at
    if agent.max_wait is not None:
        due = spec.run_at or (now if spec.delay is None else now + timedelta(seconds=spec.delay))
        latest = max(due, now) + timedelta(seconds=agent.max_wait)
        deadline = latest if deadline is None else min(deadline, latest)
    retry = spec.retry if spec.retry_given else agent.policy(spec.retry)
    return dataclasses.replace(spec, retry=retry, deadline_at=deadline)


def _readable(backoff: dict[str, Any]) -> Backoff:
    """The usual one where somebody wrote one by hand that makes no sense, as when a job is settled."""
    try:
        return Backoff.from_json(backoff)
    except InvalidSetting:
        return PATIENT


def _largest(size: Size) -> int:
    found = in_bytes(size, "payload limit", least=2)
    if found > LARGEST_PAYLOAD:
        raise InvalidSetting(f"a payload limit must be at most {LARGEST_PAYLOAD:,} bytes", code="invalid_size")
    return found


def _longest(wait: Duration) -> float:
    found = seconds(wait, "wait")
    if not SHORTEST_WAIT <= found <= LONGEST_WAIT:
        raise InvalidSetting("max_wait must be from one millisecond to 100 years", code="invalid_duration")
    return found


AHEAD: Final = 1000
"""How many jobs before one are counted at most."""

ExecutorRole = Literal["executor", "generator"]


@dataclass(frozen=True, slots=True)
class Executor:
    """A label that leases may be opened under (``executor``), or never (``generator``: it plans work)."""

    label: str
    role: str
    added_by: str
    added_at: datetime


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """A living worker. None: it did not say."""

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
class Circumstances:
    now: datetime
    note: dict[str, Any]
    """What its last transition was about."""
    holder: str | None = None
    label: str | None = None
    held_until: datetime | None = None
    held: bool | None = None
    """Whether the lease it is under is live; None: it is under none."""
    ahead: int | None = None
    """How many claimable jobs are before it in its queue, counted up to a limit; None: it is not claimable itself."""
    workers: tuple[WorkerSeen, ...] = ()
    renewed_at: datetime | None = None
    """When the worker that holds it last renewed its lease."""
