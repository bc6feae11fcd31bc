"""The states of a job, and the table of legal transitions: (from, event type, to).

Each database enforces the same pairs with triggers. A test tries every ordered pair of states with plain SQL on both
stores and compares the result with this table.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


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
        """Whether it has an end time. A dead letter has one too, although it may be redriven."""
        return self in FINISHED

    @property
    def active(self) -> bool:
        return self in ACTIVE


def unknown_state(stored: str) -> State:
    """A state for a row with an unknown state: it is shown as it is stored, and equals no other state."""
    unknown = str.__new__(State, stored)
    unknown._name_, unknown._value_ = "UNKNOWN", stored
    return unknown


def state_of(stored: str) -> State:
    """The state of a row; an ``unknown_state`` if there is no such state."""
    try:
        return State(stored)
    except ValueError:
        return unknown_state(stored)


ACTIVE = frozenset({State.QUEUED, State.LEASED, State.IN_PROGRESS, State.RETRY_WAITING, State.WAITING_FOR_APPROVAL})
FINISHED = frozenset(State) - ACTIVE
HELD = frozenset({State.LEASED, State.IN_PROGRESS})


class EventType(StrEnum):
    ENQUEUE = "enqueue"
    CLAIM = "claim"
    TAKE = "take"
    START = "start"
    RELEASE = "release"
    LEASE_EXPIRED = "lease_expired"
    CRASH = "crash"
    SUCCEED = "succeed"
    FAIL = "fail"
    ASK = "ask"
    SNOOZE = "snooze"
    APPROVE = "approve"
    DENY = "deny"
    EXPIRE = "expire"
    RETRY = "retry"
    DEAD_LETTER = "dead_letter"
    DUE = "due"
    REDRIVE = "redrive"
    DISCARD = "discard"
    RESCHEDULE = "reschedule"
    MOVE = "move"
    REPLACE = "replace"
    CANCEL = "cancel"
    CLEAN = "clean"


class Transition(NamedTuple):
    source: State | None
    type: EventType
    target: State


S, V = State, EventType

TRANSITIONS: tuple[Transition, ...] = (
    Transition(None, V.ENQUEUE, S.QUEUED),
    Transition(S.QUEUED, V.CLAIM, S.LEASED),
    Transition(S.QUEUED, V.TAKE, S.IN_PROGRESS),
    Transition(S.QUEUED, V.EXPIRE, S.FAILED),
    Transition(S.LEASED, V.START, S.IN_PROGRESS),
    Transition(S.LEASED, V.RELEASE, S.QUEUED),
    Transition(S.LEASED, V.LEASE_EXPIRED, S.QUEUED),
    Transition(S.LEASED, V.EXPIRE, S.FAILED),
    Transition(S.IN_PROGRESS, V.SUCCEED, S.SUCCEEDED),
    Transition(S.IN_PROGRESS, V.FAIL, S.FAILED),
    Transition(S.IN_PROGRESS, V.LEASE_EXPIRED, S.FAILED),
    Transition(S.IN_PROGRESS, V.CRASH, S.FAILED),
    Transition(S.IN_PROGRESS, V.ASK, S.WAITING_FOR_APPROVAL),
    Transition(S.IN_PROGRESS, V.SNOOZE, S.RETRY_WAITING),
    Transition(S.WAITING_FOR_APPROVAL, V.APPROVE, S.QUEUED),
    Transition(S.WAITING_FOR_APPROVAL, V.DENY, S.FAILED),
    Transition(S.WAITING_FOR_APPROVAL, V.EXPIRE, S.FAILED),
    # The handler itself deals with the denial (``on_deny="resume"``).
    Transition(S.WAITING_FOR_APPROVAL, V.DENY, S.QUEUED),
    Transition(S.WAITING_FOR_APPROVAL, V.EXPIRE, S.QUEUED),
    Transition(S.FAILED, V.RETRY, S.RETRY_WAITING),
    Transition(S.FAILED, V.DEAD_LETTER, S.DEAD_LETTER),
    Transition(S.RETRY_WAITING, V.DUE, S.QUEUED),
    Transition(S.RETRY_WAITING, V.EXPIRE, S.FAILED),
    Transition(S.RETRY_WAITING, V.RESCHEDULE, S.QUEUED),
    # A waiting job gets another time, position or payload, and keeps its state.
    Transition(S.QUEUED, V.RESCHEDULE, S.QUEUED),
    Transition(S.QUEUED, V.MOVE, S.QUEUED),
    Transition(S.RETRY_WAITING, V.MOVE, S.RETRY_WAITING),
    Transition(S.QUEUED, V.REPLACE, S.QUEUED),
    Transition(S.RETRY_WAITING, V.REPLACE, S.RETRY_WAITING),
    Transition(S.DEAD_LETTER, V.REDRIVE, S.QUEUED),
    Transition(S.DEAD_LETTER, V.DISCARD, S.CANCELLED),
    *(Transition(state, V.CANCEL, S.CANCELLED) for state in sorted(ACTIVE)),
    *(Transition(state, V.CLEAN, S.CLEANED) for state in (S.SUCCEEDED, S.FAILED, S.CANCELLED)),
)

PAIRS: frozenset[tuple[State | None, State]] = frozenset(
    (t.source, t.target) for t in TRANSITIONS if t.source != t.target
)
_STEPS = frozenset(TRANSITIONS)


def targets(source: State) -> list[State]:
    """The other states that a job can reach from this one, in the order of the table."""
    return list(dict.fromkeys(t.target for t in TRANSITIONS if t.source is source and t.target is not source))


def is_legal(source: State | None, target: State) -> bool:
    return (source, target) in PAIRS


class Step(NamedTuple):
    """One row of a job's ledger, with the columns that ``replay`` needs."""

    type: str
    source: State | None
    target: State


def replay(steps: Iterable[Step]) -> State:
    """The state at the end of a job's ledger.

    Raises ``ValueError`` with the first step that does not follow from the previous one.
    """
    state: State | None = None
    for number, step in enumerate(steps, 1):
        if step.source != state:
            raise ValueError(f"step {number} starts from {step.source}, but the job was {state}")
        if Transition(step.source, EventType(step.type), step.target) not in _STEPS:
            raise ValueError(f"step {number}: {step.source} -{step.type}-> {step.target} is not in the table")
        state = step.target
    if state is None:
        raise ValueError("the ledger is empty")
    return state
