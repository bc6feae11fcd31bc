"""How the last hour went (features/health/statistics.py), at a bounded cost for any number of jobs and events (JF-16).

The ledger has no index by time, so its end is read: up to ``TAIL`` rows by their numbers. Where more has happened
within the hour, samples are read instead, each a run of numbers, and what lies before each is reckoned to be like it:
numbers are given in order, so their distance is how much it was. Rows are counted by number and never by how many of
them a tenant has, so that a small one costs no more to look at.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.times import EPOCH, MICROSECOND
from holdfast.features.health.statistics import MINUTE, SPAN, Due, Hour, Minute, Spread, filled
from holdfast.stores.flow import Rows, Steps, flow, side_by_side
from holdfast.stores.job_reads import Reader
from holdfast.stores.reader import within
from holdfast.stores.reads.health import _NOT_HELD

TAIL = 10_000
SAMPLES, SAMPLE = 40, 250
NEWEST = 500

# A first event made the job; a success ends it; a failure is one of an attempt.
_HAPPENED = (
    "coalesce(sum(case when e.from_state is null then 1 else 0 end), 0),"
    " coalesce(sum(case when e.to_state = 'succeeded' then 1 else 0 end), 0),"
    " coalesce(sum(case when e.from_state = 'in_progress' and e.to_state = 'failed' then 1 else 0 end), 0)"
)
_IN_RANGE = " from {event} e where e.seq > :low and e.seq <= :high"


AHEAD = 60
"""Minutes that the clock of a program may be ahead of the database."""
LONGEST = timedelta(hours=3)
"""After the beginning of the hour that is shown."""


class HourReads(Reader):
    @flow(writes=False)
    def hour(self, tenant: str) -> Steps[Hour]:
        rows = yield self.dialect.read("select now from {present}")
        now = self.dialect.codec.time(rows[0][0])
        (since, minutes, estimated), (wait, run), due = yield from side_by_side(
            self._minutes(tenant, now), self._spreads(tenant), self._due(tenant)
        )
        return Hour(now, since, minutes, wait, run, due, estimated)

    def _minutes(self, tenant: str, now: datetime) -> Steps[tuple[datetime, list[Minute], bool]]:
        number = "select last_value from {event_seq}" if self.dialect.percent else "select max(seq) from {event}"
        rows = yield from self._ask(tenant, number)
        last, since = int(rows[0][0] or 0), now - SPAN
        if last > TAIL:  # of many, a few tell whether all of them are of this hour
            first = yield from self._first_at(tenant, last - TAIL, last - TAIL + SAMPLE)
            if first is not None and first > since:
                return (yield from self._reckoned(tenant, last, since, first))
        text = (
            f"select {self.dialect.minute('e.at')}, min(e.at), {_HAPPENED}{_IN_RANGE}"
            f" and {within(tenant, 'e.tenant')} group by 1 order by 1"
        )
        rows = yield from self._ask(tenant, text, low=last - TAIL, high=last)
        begun = self.dialect.codec.time(rows[0][1]) if rows else since
        if last > TAIL and begun > since:
            return (yield from self._reckoned(tenant, last, since, begun))
        # An event with a time far ahead or before 1970 is in no minute of this hour.
        latest = (now - EPOCH) // MINUTE + AHEAD
        hour = [row for row in rows if 0 <= int(row[0]) <= latest]
        minutes = [Minute(EPOCH + int(at) * MINUTE, *map(int, counts)) for at, _, *counts in hour]
        return since, filled(minutes, since, now), False

    def _reckoned(
        self, tenant: str, last: int, since: datetime, begun: datetime
    ) -> Steps[tuple[datetime, list[Minute], bool]]:
        sampled = yield from self._sampled(tenant, last, since)
        return sampled[0].at if sampled else begun, sampled, True

    def _first_at(self, tenant: str, low: int, high: int) -> Steps[datetime | None]:
        text = f"select min(e.at){_IN_RANGE} and {within(tenant, 'e.tenant')}"
        rows = yield from self._ask(tenant, text, low=low, high=high)
        return None if rows[0][0] is None else self.dialect.codec.time(rows[0][0])

    def _sampled(self, tenant: str, last: int, since: datetime) -> Steps[list[Minute]]:
        """First how far the hour goes back, by ever longer leaps, then looks at even distances."""
        reach = TAIL
        while reach < last:
            reach = min(reach * 2, last)
            at = yield from self._first_at(tenant, last - reach, last - reach + SAMPLE)
            if at is not None and at <= since:
                break
        step = reach / SAMPLES
        looks = yield from self._looks(tenant, [last - round((SAMPLES - n) * step) for n in range(SAMPLES + 1)])
        seen: list[tuple[datetime, Sequence[float]]] = []
        for at, *counts in looks:
            if at is None:
                continue
            when = self.dialect.codec.time(at)
            if since - 2 * MINUTE <= when <= since + LONGEST:
                seen.append((when, [int(count) * step / SAMPLE for count in counts]))
        return _spread_out(seen, since)

    def _looks(self, tenant: str, highs: Sequence[int]) -> Steps[Rows]:
        """What happened in the numbers up to each of these: one question where each is a way there and back."""
        own = within(tenant, "e.tenant")
        if self.dialect.percent:
            text = (
                f"select l.* from unnest(:highs::bigint[]) n(high) cross join lateral (select max(e.at), {_HAPPENED}"
                f" from {{event}} e where e.seq > n.high - {SAMPLE} and e.seq <= n.high and {own}) l order by n.high"
            )
            return (yield from self._ask(tenant, text, highs=list(highs)))
        looks: Rows = []
        for high in highs:
            text = f"select max(e.at), {_HAPPENED}{_IN_RANGE} and {own}"
            looks += yield from self._ask(tenant, text, low=high - SAMPLE, high=high)
        return looks

    def _spreads(self, tenant: str) -> Steps[tuple[Spread | None, Spread | None]]:
        """How long the newest that succeeded had waited and have run; a wait only of those that ran at once."""
        # The number is written out: of one it does not know, a planner would think that it is a tenth of all jobs.
        if tenant == EVERY_TENANT:
            newest = f"select s.id from {{job_state}} s order by s.id desc limit {NEWEST}"
        else:
            newest = (
                "select s.id from {job_state} s where s.tenant = :tenant and s.state = 'succeeded'"
                f" and {_NOT_HELD} order by s.id desc limit {NEWEST}"
            )
        text = (
            "select s.attempt, s.started_at, s.finished_at, j.created_at, j.process_after"
            f" from ({newest}) n join {{job_state}} s on s.id = n.id join {{job}} j on j.id = n.id"
            " where s.state = 'succeeded' and s.started_at is not null"
        )
        rows = yield from self._ask(tenant, text)
        time = self.dialect.codec.time
        runs, waits = [], []
        for attempt, started, finished, created, after in rows:
            runs.append((time(finished) - time(started)).total_seconds())
            if attempt == 1:
                ready = time(created) if after is None else max(time(created), time(after))
                waits.append((time(started) - ready).total_seconds())
        return Spread.over([max(0.0, each) for each in waits]), Spread.over([max(0.0, each) for each in runs])

    def _due(self, tenant: str) -> Steps[list[Due]]:
        text = (
            "select c.tenant, c.name, c.kind, c.next_fire_at from {schedule} c where c.state = 'active'"
            f" and c.next_fire_at is not null and {within(tenant, 'c.tenant')} order by c.next_fire_at, c.name limit 6"
        )
        rows = yield from self._ask(tenant, text)
        return [Due(whose, name, kind, self.dialect.codec.time(at)) for whose, name, kind, at in rows]


def _spread_out(seen: Sequence[tuple[datetime, Sequence[float]]], since: datetime) -> list[Minute]:
    """What was reckoned between two looks, shared out over the minutes between them."""
    sums: dict[datetime, list[float]] = {}
    for (start, _), (end, counts) in pairwise(seen):
        start = min(start, end - MICROSECOND)  # much may happen at one moment
        length = (end - start).total_seconds()
        at = start.replace(second=0, microsecond=0)
        while at <= end:
            part = (min(end, at + MINUTE) - max(start, at)).total_seconds() / length
            if at >= since - MINUTE and part > 0:
                old = sums.setdefault(at, [0.0] * len(counts))
                sums[at] = [was + count * part for was, count in zip(old, counts, strict=True)]
            at += MINUTE
    return [Minute(at, *(round(count, 1) for count in counts)) for at, counts in sorted(sums.items())]
