"""Which maintenance tasks have work, as a store tells it; and how maintenance is told from the work of jobs."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

# What a store answers for. A task of another name is run as often as it asks for.
KNOWN: Final = frozenset(
    {
        *("promote", "limits", "subscriptions", "operations", "schedules", "expire", "approvals", "aging", "reap"),
        *("seal", "retention", "leftovers", "callbacks"),
    }
)


@dataclass(frozen=True, slots=True)
class DueWork:
    """``tasks`` have work now; the next known work falls due in ``next_in`` seconds. Of the workers that are alive one
    ``leads``: it asks most often, the others less. ``notifies``: new jobs are announced in this database."""

    tasks: frozenset[str]
    leads: bool
    next_in: float | None
    notifies: bool


maintaining: ContextVar[bool] = ContextVar("holdfast_maintaining", default=False)
"""Whether what is asked for is maintenance: it may use a connection of the exchanges while that rests."""
