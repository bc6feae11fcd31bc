"""A worker's turn: settle what has ended and take what is next, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.engine.job import Turn
from holdfast.engine.settlement import Settlement
from holdfast.stores.base import ClaimRequest
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.sqlite.operations.leases import LeaseVerbs, anything_for, live, refused
from holdfast.stores.sqlite.operations.settle import end_attempts
from holdfast.stores.sqlite.operations.writer import act_under, unsign


def _look(_: object, settlements: Sequence[Settlement], request: ClaimRequest) -> Steps[Turn | None]:
    """An idle worker must not write: each commit waits for the disk, and rouses all other idle workers."""
    if settlements:
        return None
    rows = yield Statement("SELECT now FROM present")
    alive, may = yield from live(request, rows[0][0])
    if alive and not may and request.want > 0:
        raise refused()
    if alive and request.want > 0 and (yield from anything_for(request, rows[0][0])):
        return None
    return Turn([], [], alive)


class TurnVerb(LeaseVerbs):
    @flow(peek=_look)
    def turn(self, settlements: Sequence[Settlement], request: ClaimRequest) -> Steps[Turn]:
        now = yield from act_under(request.lease, request.tenant)
        stale = (yield from end_attempts(request.lease, settlements, now)) if settlements else []
        alive, may = yield from live(request, now)
        # Taken off the list after it had opened its lease: what it has ended is kept, and it takes nothing more.
        claims = (yield from self.take(request, now)) if alive and may and request.want > 0 else []
        yield from unsign()
        return Turn(claims, stale, alive)
