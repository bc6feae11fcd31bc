"""``DueWork``: which maintenance tasks have work; and the mark that distinguishes maintenance from exchanges."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

# The tasks that a store reports as due or not. A task of another name runs at its own interval.
KNOWN: Final = frozenset(
    {
        *("promote", "limits", "subscriptions", "operations", "schedules", "expire", "approvals", "aging", "reap"),
        *("seal", "retention", "leftovers", "callbacks"),
    }
)


@dataclass(frozen=True, slots=True)
class DueWork:
    """``tasks`` have work now; the next known work is due in ``next_in`` seconds. One of the live workers ``leads`` and
    polls more often than the others. ``notifies``: this database sends notifications of new jobs."""

    tasks: frozenset[str]
    leads: bool
    next_in: float | None
    notifies: bool


maintaining: ContextVar[bool] = ContextVar("holdfast_maintaining", default=False)
"""Whether the current statements are maintenance: they may use the connection of the exchanges while it is idle."""
