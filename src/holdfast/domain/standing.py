"""How queues and workers stand, as people look at them. Everything that is counted is counted up to a limit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

COUNTED: Final = 10_000
"""Up to how many jobs of a queue are counted; of one tenant, of all its queues together."""
MOST_QUEUES: Final = 200
MOST_WORKERS: Final = 200


@dataclass(frozen=True, slots=True)
class QueueStanding:
    """``ready`` may be begun now, since ``oldest_at``; ``later`` wait for a time or are held back."""

    queue: str
    ready: int = 0
    later: int = 0
    running: int = 0
    oldest_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class WorkerStanding:
    """A lease that is alive: who holds it, what it takes, and how many jobs it has in hand. None: it did not say."""

    label: str
    holder: str
    tenant: str
    kinds: tuple[str, ...] | None
    queues: tuple[str, ...] | None
    slots: int | None
    busy: int
    opened_at: datetime
    renewed_at: datetime
    until: datetime
