"""Responses of the HTTP API to workers: the records that its routes and the remote client share."""

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
    """A job that a lease holds."""

    id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class RenewedLease:
    """``jobs`` are those that the lease still holds. Any other running job was cancelled or taken over by another
    worker."""

    lease: str
    jobs: list[HeldJob]


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A claimed job. Every later request about it must carry ``attempt``. ``checkpoints`` were saved by earlier
    attempts."""

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
    """The result of a settlement: ``ending`` is the decision, ``reason`` explains why nothing was written."""

    job: str
    attempt: int
    settled: bool
    ending: str | None = None
    reason: str | None = None
