"""Usage (HK-5): the ledger counted in its order into sums that outlive it, with the place in one transaction."""

from __future__ import annotations

from typing import Any

from holdfast.features.retention.model import COUNTS
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.sqlite.base import sign, unsign

_SUMS = (*COUNTS, "run_time", "wait_time", "cost")
_MORE = (
    "SELECT 1 FROM usage_place u WHERE EXISTS (SELECT 1 FROM event WHERE seq > CAST(coalesce(u.cursor, 0) AS INTEGER))"
)
_PLACE = "SELECT CAST(coalesce(cursor, 0) AS INTEGER) FROM usage_place"
_BEGIN = "INSERT INTO usage_place (id, cursor, updated_at) VALUES (1, NULL, ?) ON CONFLICT DO NOTHING"
_LAST = "SELECT count(*), max(seq) FROM (SELECT seq FROM event WHERE seq > :after ORDER BY seq LIMIT :want)"
_GO_ON = "UPDATE usage_place SET cursor = ?, updated_at = ?"
# One event that was written by hand must not keep the others from being counted: its time is taken to be within the
# years 1 to 9999, its context to be JSON, and it costs no more than this.
_AT = "max(-62135596800000000, min(253402300799999999, {}))"
_META = "CASE WHEN json_valid({0}) THEN {0} END"
_MOST = 10**15
_RAN = (
    f"(SELECT {_AT.format('e.at')} - {_AT.format('b.at')} FROM event b"
    " WHERE b.job_id = e.job_id AND b.seq < e.seq AND b.to_state = 'in_progress' ORDER BY b.seq DESC LIMIT 1)"
)
_READY = (
    "CASE q.verb WHEN 'enqueue' THEN (SELECT j.process_after FROM job j WHERE j.id = e.job_id)"
    f" WHEN 'reschedule' THEN CAST(round((julianday(nullif(json_extract({_META.format('q.meta')}, '$.rescheduled'),"
    " 'now')) - 2440587.5) * 86400000) AS INTEGER) * 1000 END"
)
# From when it could have been taken: asked for, and due by then. Times in the ledger's context have milliseconds.
_WAITED = (
    f"(SELECT {_AT.format('e.at')} - {_AT.format('max(q.at, coalesce(' + _READY + ', q.at))')} FROM event q"
    " WHERE q.job_id = e.job_id AND q.seq < e.seq AND q.to_state = 'queued' ORDER BY q.seq DESC LIMIT 1)"
)
_ADD = (
    f"INSERT INTO usage (tenant, day, kind, {', '.join(_SUMS)})"
    f" SELECT e.tenant, date({_AT.format('e.at')} / 1000000, 'unixepoch'), e.kind, sum(e.verb = 'enqueue'),"
    " sum(e.to_state = 'in_progress'), sum(e.to_state = 'succeeded'), sum(e.verb = 'fail'),"
    " sum(e.from_state IS 'in_progress' AND e.verb IN ('lapse', 'crash')), sum(e.verb = 'bury'),"
    " sum(e.verb = 'cancel'), sum(e.to_state = 'failed' AND e.verb IN ('expire', 'deny')),"
    f" sum(CASE WHEN e.from_state = 'in_progress' THEN max(0, coalesce({_RAN}, 0)) ELSE 0 END),"
    f" sum(CASE WHEN e.to_state = 'in_progress' THEN max(0, coalesce({_WAITED}, 0)) ELSE 0 END),"
    " sum(CASE WHEN e.from_state = 'in_progress'"
    f" AND json_type({_META.format('e.meta')}, '$.cost') IN ('integer', 'real')"
    f" THEN max(0, min({_MOST}, CAST(round(json_extract(e.meta, '$.cost') * 1000000) AS INTEGER))) ELSE 0 END)"
    " FROM event e WHERE e.seq > :after AND e.seq <= :last GROUP BY 1, 2, 3"
    " ON CONFLICT DO UPDATE SET " + ", ".join(f"{name} = {name} + excluded.{name}" for name in _SUMS)
)


def _nothing(_: object, want: int = 2000, begin: bool = False) -> Steps[Any]:
    """A look that finds nothing must not take the write lock."""
    rows = yield Statement(_MORE)
    return None if rows or begin else 0


class UsageVerbs:
    @flow(peek=_nothing)
    def count_usage(self, want: int = 2000, begin: bool = False) -> Steps[int]:
        now = yield from sign(None)
        if begin:
            yield Statement(_BEGIN, (now,))
        place = yield Statement(_PLACE)
        count = 0
        if place:
            after = int(place[0][0])
            ((count, last),) = yield Statement(_LAST, {"after": after, "want": want})
            if count:
                yield Statement(_ADD, {"after": after, "last": last})
                yield Statement(_GO_ON, (str(last), now))
        yield from unsign()
        return int(count)
