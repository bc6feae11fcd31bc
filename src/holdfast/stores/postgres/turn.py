"""A turn of a worker: what has ended is settled and new jobs are claimed, by one call (``code/42_turn.sql``)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from holdfast.engine.job import Claim, Turn
from holdfast.engine.settlement import Settlement
from holdfast.stores.base import ClaimRequest
from holdfast.stores.codecs import Record, texts
from holdfast.stores.flow import Row, Statement, Steps, flow
from holdfast.stores.postgres.calls import Calls
from holdfast.stores.postgres.codec import PostgresCodec
from holdfast.stores.postgres.settle import endings

CLAIM_COLUMNS = Record.columns(Claim, "c.", skip=("lease",))


class TurnVerbs(Calls):
    @cached_property
    def _turn_text(self) -> str:
        """Not put together anew for each call: a connection knows again what it was asked before by the text itself."""
        return (
            f"select {CLAIM_COLUMNS}, c.stale, c.live, c.pick_us from {self._s}turn("
            "%s, %s::uuid[], %s::int[], %s::text[], %s::json[], %s, %s, %s, %s, %s::smallint[], %s::bigint[], %s) c"
        )

    @flow(single=True, hot=True)
    def turn(self, settlements: Sequence[Settlement], request: ClaimRequest) -> Steps[Turn]:
        places = [request.after.get(queue) for queue in request.queues] if request.after else []
        rows = yield Statement(
            self._turn_text,
            (
                request.lease,
                *endings(settlements),
                list(request.queues),
                request.want,
                request.begin,
                None if request.kinds is None else list(request.kinds),
                [place and place[0] for place in places] or None,
                [place and place[1] for place in places] or None,
                request.tenant,
            ),
        )
        stale, live, pick_us = rows.pop()[-3:]
        lease = request.lease
        claims: list[Any] = rows
        # In its place: each row goes as its claim comes, so the collector has half as many to look at.
        try:
            for place, row in enumerate(rows):
                claims[place] = _claim(row, lease, -4)
        except Exception:
            claims = [each if isinstance(each, Claim) else _readable(each[:-3], lease) for each in claims]
        return Turn(claims, [str(job_id) for job_id in stale or ()], live, pick_us)

    @flow(single=True)
    def claim(self, request: ClaimRequest) -> Steps[list[Claim]]:
        kinds = None if request.kinds is None else list(request.kinds)
        rows = yield Statement(
            f"select {CLAIM_COLUMNS} from {self._s}claim_many(%s, %s, %s, %s, %s, %s) c",
            (request.lease, list(request.queues), request.want, request.begin, kinds, request.tenant),
        )
        try:
            return [_claim(row, request.lease) for row in rows]
        except Exception:
            return [_readable(row, request.lease) for row in rows]


def _readable(row: Row, lease: str) -> Claim:
    """Of a batch in which one cannot be read: that one says so, the others are as ever."""
    return Record.decoder(Claim, PostgresCodec(), raw=("payload", "lease"))((row[0], lease, *row[1:]))


def _claim(row: Row, lease: str, tags: int = -1) -> Claim:
    """By hand, since there are thousands a second: the columns are ``CLAIM_COLUMNS``, the last one the tags."""
    backoff = row[_BACKOFF]
    if backoff is not None and type(backoff) is not dict:
        raise ValueError("not a backoff")
    facts: Any = (row[0], lease, *row[1:tags], texts(row[tags]) if row[tags] else ())
    return Claim(*facts)


_BACKOFF = CLAIM_COLUMNS.split(", ").index("c.backoff")
