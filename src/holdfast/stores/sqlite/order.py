"""Move a waiting job to another position in its queue. There is one writer at a time, so no reader sees an intermediate
state.

The order of a queue spans all tenants. An operator of a tenant can name only jobs of that tenant, but "first" is first
of all jobs, and where a gap is full, the jobs of all tenants around it are renumbered, in the same order.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from holdfast.engine.job import Verdict
from holdfast.engine.order import GAP, WINDOW, Move, needed
from holdfast.engine.states import State, state_of
from holdfast.stores.flow import Statement, Steps
from holdfast.stores.sqlite.base import any_tenant, begin_write, end_write

WAITING = (State.QUEUED, State.RETRY_WAITING)
LOWEST, HIGHEST = -(2**63), 2**63 - 1


class Slot(NamedTuple):
    """A job's number and position in its queue; the number breaks ties, as it does for claims."""

    n: int
    position: int
    queue: str = ""
    priority: int = 0
    state: State = State.QUEUED


_FIND = (
    "SELECT n, position, queue, priority, state FROM holdfast_job_state WHERE id = :id AND (:any OR tenant = :tenant)"
)
_NEAR = (
    "SELECT n, position FROM holdfast_job_state INDEXED BY holdfast_{index} WHERE queue = :queue AND priority ="
    " :priority"
    " AND (position, n) {than} (:position, :n) AND n <> :job AND {waiting}"
    " ORDER BY position {way}, n {way} LIMIT :want"
)
# Jobs that are not due yet are in another index.
_INDEXES = {
    "claimable": "state = 'queued' AND due_at IS NULL",
    "postponed": "due_at IS NOT NULL AND state IN ('queued', 'retry_waiting')",
}
_BEHIND, _BEFORE = (
    [_NEAR.format(index=index, waiting=waiting, than=than, way=way) for index, waiting in _INDEXES.items()]
    for than, way in ((">", "ASC"), ("<", "DESC"))
)
# The position of a new job is a hundred times its number.
_NEWEST = "SELECT max(n) FROM holdfast_job_state"
_RENUMBER = (
    "UPDATE holdfast_job_state SET position = w.position"
    " FROM (SELECT CAST(key AS INTEGER) AS n, value AS position FROM json_each(:places)) w WHERE holdfast_job_state.n"
    " = w.n"
)
# The ledger records the move from the note, the rest of which may still be needed. The counter makes each move a
# change.
_MOVE = (
    "UPDATE holdfast_job_state SET priority = :priority, position = :position,"
    " note = json_set(coalesce(note, '{}'), '$.moved', json_patch('{}', json_object('to', :to, 'other', :other,"
    " 'priority', :priority, 'reason', :reason,"
    " 'times', 1 + (SELECT count(*) FROM holdfast_event e WHERE e.job_id = holdfast_job_state.id AND e.type ="
    " 'move')))) WHERE n = :job"
)


def move_job(job_id: str, move: Move, reason: str | None, actor: str, tenant: str) -> Steps[Verdict]:
    job = yield from _find(job_id, tenant)
    other = None if move.other is None else (yield from _find(move.other, tenant))
    if job is None:
        return Verdict(job_id, None, True, "not_found")
    refusal = _refusal(job, other, move)
    if refusal is not None:
        return Verdict(job_id, job.state, True, refusal)
    yield from begin_write(actor)
    order = QueueOrder(job, move.priority if move.priority is not None else (other or job).priority)
    position = yield from order.new_position(move, other)
    params = {"job": job.n, "priority": order.priority, "position": position, "to": move.where}
    yield Statement(_MOVE, {**params, "other": move.other, "reason": reason or None})
    yield from end_write()
    return Verdict(job_id, job.state, False, None)


class QueueOrder:
    """The waiting jobs of one queue and priority, among which a job is to be moved."""

    def __init__(self, job: Slot, priority: int) -> None:
        self.job = job
        self.priority = priority

    def new_position(self, move: Move, other: Slot | None) -> Steps[int]:
        """The new position of the job. Renumbers other jobs if there is no free position."""
        before = other if move.where == "after" else None
        behind = other if move.where == "before" else None
        if behind is None and move.where != "last":
            nearest = yield from self._near(_BEHIND, before or Slot(0, LOWEST), 1)
            behind = nearest[0] if nearest else None
        if before is None and move.where != "first":
            nearest = yield from self._near(_BEFORE, behind or Slot(0, HIGHEST), 1)
            before = nearest[0] if nearest else None
        if other is not None and other.n == self.job.n:
            return self.job.position
        if self._is_between(before, behind):
            return self.job.position
        if behind is None:
            return (yield from self._last(before)) if before else self.job.position
        if before is None:
            return behind.position - GAP
        if behind.position - before.position >= 2:
            return before.position + (behind.position - before.position) // 2
        return (yield from self._renumber(before, behind))

    def _is_between(self, before: Slot | None, behind: Slot | None) -> bool:
        return (
            self.job.priority == self.priority
            and (before is None or before.position < self.job.position)
            and (behind is None or self.job.position < behind.position)
        )

    def _last(self, before: Slot) -> Steps[int]:
        """The position after all existing jobs and before all future ones."""
        ((newest,),) = yield Statement(_NEWEST)
        position, next_job = max(newest * GAP, before.position) + 1, (newest + 1) * GAP
        if position == next_job:
            return (yield from self._renumber(before, Slot(0, next_job)))
        return int(position)

    def _renumber(self, before: Slot, behind: Slot) -> Steps[int]:
        """Renumber the jobs around a full gap; returns the position of the job. The window grows until the gaps are
        large enough. Before the first job positions are unlimited; the last job keeps its position, because new jobs
        follow right after it."""
        window = WINDOW
        while True:
            front = yield from self._near(_BEFORE, behind, window + 1)
            rear = yield from self._near(_BEHIND, before, window + 1)
            border = rear.pop() if rear else behind
            above = front[window].position if len(front) > window else None
            slots = [*reversed(front[:window]), self.job, *rear]
            step = GAP if above is None else (border.position - above) // (len(slots) + 1)
            if above is None or step >= needed(window):
                break
            window *= 2
        if above is None:
            above = border.position - step * (len(slots) + 1)
        positions = {slot.n: above + step * index for index, slot in enumerate(slots, 1)}
        position = positions.pop(self.job.n)
        yield Statement(_RENUMBER, {"places": json.dumps(positions)})
        return position

    def _near(self, queries: list[str], start: Slot, want: int) -> Steps[list[Slot]]:
        """The jobs next to a position, nearest first."""
        params = {
            "queue": self.job.queue,
            "priority": self.priority,
            "position": start.position,
            "n": start.n,
            "job": self.job.n,
            "want": want,
        }
        slots: list[Slot] = []
        for query in queries:
            slots += [Slot(*row) for row in (yield Statement(query, params))]
        slots.sort(key=lambda slot: (slot.position, slot.n), reverse=queries is _BEFORE)
        return slots[:want]


def _find(job_id: str, tenant: str) -> Steps[Slot | None]:
    rows = yield Statement(_FIND, {"id": job_id, "any": any_tenant(tenant), "tenant": tenant})
    if not rows:
        return None
    n, position, queue, priority, state = rows[0]
    return Slot(n, position, queue, priority, state_of(state))


def _refusal(job: Slot, other: Slot | None, move: Move) -> str | None:
    if job.state not in WAITING:
        return "not_waiting"
    if move.other is None:
        return None
    if other is None:
        return "target_not_found"
    if other.queue != job.queue:
        return "other_queue"
    return None if other.state in WAITING else "target_not_waiting"
