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


def unknown_state(stored: str) -> State:
    """For a row that holds a word that is no state: it is shown as it is, and equals none of them."""
    unknown = str.__new__(State, stored)
    unknown._name_, unknown._value_ = "UNKNOWN", stored
    return unknown


def state_of(stored: str) -> State:
    """The state that a row names; ``unknown_state`` for a word that is none."""
    try:
        return State(stored)
    except ValueError:
        return unknown_state(stored)


ACTIVE = frozenset({State.QUEUED, State.LEASED, State.IN_PROGRESS, State.RETRY_WAITING, State.WAITING_FOR_APPROVAL})
FINISHED = frozenset(State) - ACTIVE
HELD = frozenset({State.LEASED, State.IN_PROGRESS})
