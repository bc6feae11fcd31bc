"""The states a job can be in (DP-1). The names are the ones stored, printed and matched on everywhere."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    QUEUED = "queued"
    LEASED = "leased"
    IN_PROGRESS = "in_progress"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RETRY_WAITING = "retry_waiting"
    DEAD_LETTER = "dead_letter"
    CANCELLED = "cancelled"
    CLEANED = "cleaned"
    WAITING_FOR_APPROVAL = "waiting_for_approval"

    @property
    def finished(self) -> bool:
        """It has an end time. A dead letter has one too, though someone may still redrive it."""
        return self in FINISHED

    @property
    def active(self) -> bool:
        return self in ACTIVE


ACTIVE = frozenset({State.QUEUED, State.LEASED, State.IN_PROGRESS, State.RETRY_WAITING, State.WAITING_FOR_APPROVAL})
FINISHED = frozenset(State) - ACTIVE
HELD = frozenset({State.LEASED, State.IN_PROGRESS})
