"""What the service answers to workers over HTTP: the records that its routes and the remote client share."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class OpenedLease:
    lease: str
    until: datetime


@dataclass(frozen=True, slots=True)
class HeldJob:
    """A job that a lease holds, as the service sees it."""

    id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class RenewedLease:
    """``jobs`` are those it still holds: any other that is running was cancelled, or another worker has taken it."""

    lease: str
    jobs: list[HeldJob]


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job that the caller has claimed. Every later request about it carries ``attempt``. ``checkpoints`` are those
    that earlier attempts have saved."""

    id: str
    attempt: int
    tenant: str
    kind: str
    queue: str
    payload: Any
    retries: int
    max_attempts: int
    crashes: int
    max_crashes: int
    priority: int
    created_at: datetime
    deadline_at: datetime | None
    correlation_id: str | None
    parent_id: str | None
    workflow_id: str | None
    agent: str | None
    tags: list[str]
    checkpoints: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SettleResult:
    """What became of a settlement: ``ending`` is what was decided, ``reason`` why nothing was written."""

    job: str
    attempt: int
    settled: bool
    ending: str | None = None
    reason: str | None = None
