"""What there is around a job: who holds it, who could take it, how many are before it; and who may execute at all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

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
