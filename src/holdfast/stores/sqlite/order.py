"""Move a waiting job to another place in its queue. One writer at a time: nobody sees a half-moved queue.

A queue is one row of people for all its tenants: a tenant's operator names the tenant's own jobs only, but "first" is
first of all, and where a gap is full everybody's jobs around it are numbered anew, in the order they had.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from holdfast.engine.job import Verdict
from holdfast.engine.order import GAP, WINDOW, Move, needed
from holdfast.engine.states import State, state_of
from holdfast.stores.flow import Statement, Steps
from holdfast.stores.sqlite.base import any_tenant, sign, unsign

WAITING = (State.QUEUED, State.RETRY_WAITING)
LOWEST, HIGHEST = -(2**63), 2**63 - 1


class Stand(NamedTuple):
    """A job's number and place; the number settles what is left of ties, as it does for claims."""

    n: int
    position: int
    queue: str = ""
    priority: int = 0
    state: State = State.QUEUED


_FIND = "SELECT n, position, queue, priority, state FROM job_state WHERE id = :id AND (:any OR tenant = :tenant)"
_NEAR = (
    "SELECT n, position FROM job_state INDEXED BY {index} WHERE queue = :queue AND priority = :priority"
    " AND (position, n) {than} (:position, :n) AND n <> :job AND {waiting}"
    " ORDER BY position {way}, n {way} LIMIT :want"
)
# Those that are not due have an index of their own.
_INDEXES = {
    "claimable": "state = 'queued' AND due_at IS NULL",
    "postponed": "due_at IS NOT NULL AND state IN ('queued', 'retry_waiting')",
}
_BEHIND, _BEFORE = (
    [_NEAR.format(index=index, waiting=waiting, than=than, way=way) for index, waiting in _INDEXES.items()]
    for than, way in ((">", "ASC"), ("<", "DESC"))
)
# New jobs come to stand at a hundred times their number.
_NEWEST = "SELECT max(n) FROM job_state"
_RENUMBER = (
    "UPDATE job_state SET position = w.position"
    " FROM (SELECT CAST(key AS INTEGER) AS n, value AS position FROM json_each(:places)) w WHERE job_state.n = w.n"
)
# The ledger tells it from the note, whose rest may still be needed; counted, so that each is told.
_MOVE = (
    "UPDATE job_state SET priority = :priority, position = :position,"
    " note = json_set(coalesce(note, '{}'), '$.moved', json_patch('{}', json_object('to', :to, 'other', :other,"
    " 'priority', :priority, 'reason', :reason,"
    " 'times', 1 + (SELECT count(*) FROM event e WHERE e.job_id = job_state.id AND e.type = 'move')))) WHERE n = :job"
)


def move_job(job_id: str, move: Move, reason: str | None, actor: str, tenant: str) -> Steps[Verdict]:
    job = yield from _find(job_id, tenant)
    other = None if move.other is None else (yield from _find(move.other, tenant))
    if job is None:
        return Verdict(job_id, None, True, "not_found")
    refusal = _reason_against(job, other, move)
    if refusal is not None:
        return Verdict(job_id, job.state, True, refusal)
    yield from sign(actor)
    line = Line(job, move.priority if move.priority is not None else (other or job).priority)
    position = yield from line.place(move, other)
    params = {"job": job.n, "priority": line.priority, "position": position, "to": move.where}
    yield Statement(_MOVE, {**params, "other": move.other, "reason": reason or None})
    yield from unsign()
    return Verdict(job_id, job.state, False, None)


class Line:
    """The waiting jobs of a queue and priority, as they are to a job that is about to stand among them."""

    def __init__(self, job: Stand, priority: int) -> None:
        self.job = job
        self.priority = priority

    def place(self, move: Move, other: Stand | None) -> Steps[int]:
        """The position to give it; whoever is in the way has been numbered anew."""
        before = other if move.where == "after" else None
        behind = other if move.where == "before" else None
        if behind is None and move.where != "last":
            found = yield from self._near(_BEHIND, before or Stand(0, LOWEST), 1)
            behind = found[0] if found else None
        if before is None and move.where != "first":
            found = yield from self._near(_BEFORE, behind or Stand(0, HIGHEST), 1)
            before = found[0] if found else None
        if other is not None and other.n == self.job.n:
            return self.job.position
        if self._stands(before, behind):
            return self.job.position
        if behind is None:
            return (yield from self._last(before)) if before else self.job.position
        if before is None:
            return behind.position - GAP
        if behind.position - before.position >= 2:
            return before.position + (behind.position - before.position) // 2
        return (yield from self._make_room(before, behind))

    def _stands(self, before: Stand | None, behind: Stand | None) -> bool:
        return (
            self.job.priority == self.priority
            and (before is None or before.position < self.job.position)
            and (behind is None or self.job.position < behind.position)
        )

    def _last(self, before: Stand) -> Steps[int]:
        """Behind all there are, and before all that will come."""
        ((newest,),) = yield Statement(_NEWEST)
        position, coming = max(newest * GAP, before.position) + 1, (newest + 1) * GAP
        if position == coming:
            return (yield from self._make_room(before, Stand(0, coming)))
        return int(position)

    def _make_room(self, before: Stand, behind: Stand) -> Steps[int]:
        """Number the jobs around a full gap anew. The window grows until they come to stand far enough apart; in
        front of the first job there is room without end, and the last one stays where it is, since new jobs come
        right behind it."""
        window = WINDOW
        while True:
            front = yield from self._near(_BEFORE, behind, window + 1)
            rear = yield from self._near(_BEHIND, before, window + 1)
            border = rear.pop() if rear else behind
            above = front[window].position if len(front) > window else None
            places = [*reversed(front[:window]), self.job, *rear]
            step = GAP if above is None else (border.position - above) // (len(places) + 1)
            if above is None or step >= needed(window):
                break
            window *= 2
        if above is None:
            above = border.position - step * (len(places) + 1)
        numbers = {each.n: above + step * place for place, each in enumerate(places, 1)}
        position = numbers.pop(self.job.n)
        yield Statement(_RENUMBER, {"places": json.dumps(numbers)})
        return position

    def _near(self, queries: list[str], place: Stand, want: int) -> Steps[list[Stand]]:
        """The jobs next to a place, the nearest first."""
        params = {
            "queue": self.job.queue,
            "priority": self.priority,
            "position": place.position,
            "n": place.n,
            "job": self.job.n,
            "want": want,
        }
        found: list[Stand] = []
        for query in queries:
            found += [Stand(*row) for row in (yield Statement(query, params))]
        found.sort(key=lambda each: (each.position, each.n), reverse=queries is _BEFORE)
        return found[:want]


def _find(job_id: str, tenant: str) -> Steps[Stand | None]:
    rows = yield Statement(_FIND, {"id": job_id, "any": any_tenant(tenant), "tenant": tenant})
    if not rows:
        return None
    n, position, queue, priority, state = rows[0]
    return Stand(n, position, queue, priority, state_of(state))


def _reason_against(job: Stand, other: Stand | None, move: Move) -> str | None:
    if job.state not in WAITING:
        return "not_waiting"
    if move.other is None:
        return None
    if other is None:
        return "target_not_found"
    if other.queue != job.queue:
        return "other_queue"
    return None if other.state in WAITING else "target_not_waiting"
