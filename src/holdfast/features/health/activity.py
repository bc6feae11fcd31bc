"""Read the recent activity of queues and kinds, at a bounded cost for any number of jobs and events.

The ledger has no index by time, so its end is read: up to ``TAIL`` rows by sequence number. If more has happened in the
range, samples of consecutive numbers are read instead, and the events before each sample are estimated from it: numbers
are assigned in order, so the distance of two is the number of events between them. Limits apply to sequence numbers and
not to rows of the tenant, so that a small tenant costs no more than a large one (docs/adr/0023).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import groupby, pairwise
from typing import Any

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.times import EPOCH, MICROSECOND
from holdfast.features.health.statistics import (
    LATELY,
    MAX_QUEUES,
    MAX_SERIES,
    MINUTE,
    OTHER,
    RANGES,
    Activity,
    Due,
    Point,
    QueueFigures,
    Recent,
    Spread,
    filled,
    range_of,
    start_of,
)
from holdfast.features.health.store import _NOT_HELD
from holdfast.stores.flow import Rows, Steps, flow, read_together
from holdfast.stores.job_reads import Reader
from holdfast.stores.reader import within

TAIL = 10_000
SAMPLES, SAMPLE = 40, 250
NEWEST = 500
NEWEST_JOBS = 2_000
"""Maximum number of jobs that the page of a queue or a kind reads."""
NEWEST_OF_ALL = 20_000
"""Newest jobs of all tenants that are searched for a queue or a kind, since no index has them by queue."""
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
AHEAD = 60
"""Minutes that the clock of a program may be ahead of the database."""

# An event without a previous state is an enqueue. Failures are counted per attempt, successes per job.
_FAILED = "e.from_state = 'in_progress' and e.to_state = 'failed'"
_HAPPENED = (
    "coalesce(sum(case when e.from_state is null then 1 else 0 end), 0),"
    " coalesce(sum(case when e.to_state = 'succeeded' then 1 else 0 end), 0),"
    f" coalesce(sum(case when {_FAILED} then 1 else 0 end), 0)"
)
_COUNTED = f" and (e.from_state is null or e.to_state = 'succeeded' or ({_FAILED}))"
_IN_RANGE = " from {event} e where e.seq > :low and e.seq <= :high"
LABELS = {"queue": "(select j.queue from {job} j where j.id = e.job_id)", "kind": "e.kind"}

_NEWEST = (
    "with recursive q(queue) as (select min(j.queue) from {job} j where j.tenant = :tenant union all"
    " select (select min(j.queue) from {job} j where j.tenant = :tenant and j.queue > q.queue) from q"
    " where q.queue is not null)"
    " select q.queue, (select j.created_at from {job} j where j.tenant = :tenant and j.queue = q.queue"
    " order by j.id desc limit 1) from q where q.queue is not null limit :most"
)
_NEWEST_OF_ALL = (
    "select n.queue, max(n.created_at) from (select j.queue, j.created_at from {job} j order by j.id desc limit :of) n"
    " group by n.queue order by n.queue limit :most"
)

Counts = tuple[datetime, str, list[float]]
"""Time, label, and the numbers of enqueued, succeeded and failed."""


class ActivityReads(Reader):
    @flow(writes=False)
    def activity(self, tenant: str, range: str = "1h", by: str | None = None) -> Steps[Activity]:
        """Jobs enqueued, succeeded and failed over a range (``RANGES``), and the schedules due next. With ``by``
        (``queue`` or ``kind``) also one series for each."""
        now = yield from self._database_now()
        activity, (wait, run), due = yield from read_together(
            self._points(tenant, now, range, by), self._spreads(tenant), self._due(tenant)
        )
        return replace(activity, wait=wait, run=run, due=due)

    @flow(writes=False)
    def latest(self, tenant: str) -> Steps[str]:
        """The range that includes the newest activity, if there was none in the last hour."""
        now = yield from self._database_now()
        week = yield from self._points(tenant, now, "7d", None)
        return range_of(now - point.at for point in week.points if point.enqueued or point.succeeded or point.failed)

    def _database_now(self) -> Steps[datetime]:
        rows = yield self.dialect.read("select now from {present}")
        return self.dialect.codec.time(rows[0][0])

    # --- the ledger ---

    def _points(self, tenant: str, now: datetime, range: str, by: str | None) -> Steps[Activity]:
        span, step = RANGES[range]
        last, since = (yield from self._last(tenant)), start_of(now - span, step)
        if last > TAIL:  # a few rows show whether more than TAIL events are in the range
            first = yield from self._first_at(tenant, last - TAIL, last - TAIL + SAMPLE)
            if first is not None and first > since:
                return (yield from self._estimated(tenant, last, now, range, by))
        grouped, label, only = _labelled(by)
        text = (
            f"select {self.dialect.minute('e.at')}, min(e.at), {label}, {_HAPPENED}{_IN_RANGE}{only}"
            f" and {within(tenant, 'e.tenant')} group by {'1, 3' if grouped else '1'} order by 1"
        )
        rows = yield from self._query(tenant, text, low=last - TAIL, high=last)
        if last > TAIL and rows and self.dialect.codec.time(rows[0][1]) > since:
            return (yield from self._estimated(tenant, last, now, range, by))
        # Events with a time far ahead or before 1970 are left out.
        latest = (now - EPOCH) // MINUTE + AHEAD
        counts: list[Counts] = [
            (start_of(EPOCH + int(at) * MINUTE, step), str(name or ""), [float(number) for number in numbers])
            for at, _, name, *numbers in rows
            if 0 <= int(at) <= latest
        ]
        return _activity([count for count in counts if count[0] >= since], now, since, range, by, estimated=False)

    def _estimated(self, tenant: str, last: int, now: datetime, range: str, by: str | None) -> Steps[Activity]:
        """Find the start of the range by doubling the distance, then read samples at even distances."""
        span, step = RANGES[range]
        since = start_of(now - span, step)
        reach = TAIL
        while reach < last:
            reach = min(reach * 2, last)
            at = yield from self._first_at(tenant, last - reach, last - reach + SAMPLE)
            if at is not None and at <= since:
                break
        distance = reach / SAMPLES
        highs = [last - round((SAMPLES - n) * distance) for n in _upto(SAMPLES)]
        rows = yield from self._samples(tenant, highs, by)
        samples: list[tuple[datetime, dict[str, list[float]]]] = []
        for _, group in groupby(rows, key=lambda row: row[0]):
            sample = [row for row in group if row[1] is not None]
            if not sample:
                continue
            at = max(self.dialect.codec.time(row[1]) for row in sample)
            if since - 2 * step <= at <= now + HOUR:
                numbers = {str(row[2] or ""): [int(count) * distance / SAMPLE for count in row[3:]] for row in sample}
                samples.append((at, numbers))
        counts = _interpolated(samples, since, step)
        first = min((count[0] for count in counts), default=since)
        return _activity(counts, now, max(first, since), range, by, estimated=True)

    def _samples(self, tenant: str, highs: Sequence[int], by: str | None) -> Steps[Rows]:
        """Counts of the sample that ends at each of these numbers: one statement where each would be a round trip."""
        own = within(tenant, "e.tenant")
        grouped, label, only = _labelled(by)
        group = " group by 2" if grouped else ""
        if self.dialect.percent:
            text = (
                "select n.high, l.* from unnest(:highs::bigint[]) n(high) cross join lateral"
                f" (select max(e.at), {label}, {_HAPPENED} from {{event}} e where e.seq > n.high - {SAMPLE}"
                f" and e.seq <= n.high{only} and {own}{group}) l order by n.high"
            )
            return (yield from self._query(tenant, text, highs=list(highs)))
        counts = f"select max(e.at), {label}, {_HAPPENED}{_IN_RANGE}{only} and {own}{group}"
        text = f"select :high, l.* from ({counts}) l"
        rows: Rows = []
        for high in highs:
            rows += yield from self._query(tenant, text, low=high - SAMPLE, high=high)
        return rows

    def _last(self, tenant: str) -> Steps[int]:
        number = "select last_value from {event_seq}" if self.dialect.percent else "select max(seq) from {event}"
        rows = yield from self._query(tenant, number)
        return int(rows[0][0] or 0)

    def _first_at(self, tenant: str, low: int, high: int) -> Steps[datetime | None]:
        text = f"select min(e.at){_IN_RANGE} and {within(tenant, 'e.tenant')}"
        rows = yield from self._query(tenant, text, low=low, high=high)
        return None if rows[0][0] is None else self.dialect.codec.time(rows[0][0])

    # --- durations, schedules ---

    def _spreads(self, tenant: str) -> Steps[tuple[Spread | None, Spread | None]]:
        """Wait and run times of the newest jobs that succeeded; waits only of jobs that ran without a retry."""
        # The limit is a literal: for a parameter, the planner would assume a tenth of all jobs.
        if tenant == EVERY_TENANT:
            newest = f"select s.id from {{job_state}} s order by s.id desc limit {NEWEST}"
        else:
            newest = (
                "select s.id from {job_state} s where s.tenant = :tenant and s.state = 'succeeded'"
                f" and {_NOT_HELD} order by s.id desc limit {NEWEST}"
            )
        text = (
            "select s.attempt, s.started_at, s.finished_at, j.created_at, j.run_at"
            f" from ({newest}) n join {{job_state}} s on s.id = n.id join {{job}} j on j.id = n.id"
            " where s.state = 'succeeded' and s.started_at is not null"
        )
        rows = yield from self._query(tenant, text)
        return self._durations(rows)

    def _durations(self, rows: Iterable[Sequence[Any]]) -> tuple[Spread | None, Spread | None]:
        """Wait and run times of rows of attempt, start, end, creation and earliest start."""
        time = self.dialect.codec.time
        runs, waits = [], []
        for attempt, started, finished, created, after in rows:
            runs.append(max(0.0, (time(finished) - time(started)).total_seconds()))
            if attempt == 1:
                ready = time(created) if after is None else max(time(created), time(after))
                waits.append(max(0.0, (time(started) - ready).total_seconds()))
        return Spread.over(waits), Spread.over(runs)

    def _due(self, tenant: str) -> Steps[list[Due]]:
        text = (
            "select c.tenant, c.name, c.kind, c.next_fire_at from {schedule} c where c.state = 'active'"
            f" and c.next_fire_at is not null and {within(tenant, 'c.tenant')} order by c.next_fire_at, c.name limit 6"
        )
        rows = yield from self._query(tenant, text)
        return [Due(owner, name, kind, self.dialect.codec.time(at)) for owner, name, kind, at in rows]

    # --- queues and kinds ---

    @flow(writes=False)
    def queues(self, tenant: str) -> Steps[list[QueueFigures]]:
        """Queues with a job in the last day, with their figures of the last hour."""
        now = yield from self._database_now()
        newest = _NEWEST_OF_ALL if tenant == EVERY_TENANT else _NEWEST
        queues, last = yield from read_together(
            self._query(tenant, newest, of=TAIL, most=MAX_QUEUES), self._last(tenant)
        )
        time = self.dialect.codec.time
        used = {str(queue): time(at) for queue, at in queues if at is not None}
        text = (
            "select j.queue, e.at, e.to_state, s.attempt, s.started_at, s.finished_at, j.created_at, j.run_at"
            " from {event} e join {job} j on j.id = e.job_id join {job_state} s on s.id = e.job_id"
            f" where e.seq > :past and (e.to_state = 'succeeded' or ({_FAILED}))"
            f" and {within(tenant, 'e.tenant')} order by e.seq desc limit :most"
        )
        rows = yield from self._query(tenant, text, past=last - LATELY, most=LATELY)
        rows = [row for row in rows if now - time(row[1]) <= HOUR]
        window = HOUR if last <= LATELY or not rows else min(HOUR, max(MINUTE, now - time(rows[-1][1])))
        ended: dict[str, list[Any]] = {}
        for row in rows:
            ended.setdefault(str(row[0]), []).append(row)
        names = {name for name, at in used.items() if now - at <= DAY} | ended.keys()
        return [self._figures(name, used.get(name), ended.get(name, []), window) for name in sorted(names)]

    def _figures(self, name: str, used: datetime | None, ended: list[Any], window: timedelta) -> QueueFigures:
        if not ended:
            return QueueFigures(name, used)
        done = [row for row in ended if row[2] == "succeeded"]
        wait, run = self._durations(row[3:] for row in done if row[4] is not None and row[5] is not None)
        return QueueFigures(name, used, len(done) / (window / MINUTE), 1 - len(done) / len(ended), wait, run)

    @flow(writes=False)
    def recent(self, tenant: str, of: str, name: str, range: str | None = None) -> Steps[Recent]:
        """The newest jobs of one queue or kind (``of``) as points over a range; by default the range that has data."""
        now = yield from self._database_now()
        other = "kind" if of == "queue" else "queue"
        if tenant == EVERY_TENANT:
            newest = (
                f"select a.id from (select j.id, j.{of} from {{job}} j order by j.id desc limit {NEWEST_OF_ALL}) a"
                f" where a.{of} = :name limit {NEWEST_JOBS}"
            )
        else:
            newest = (
                f"select j.id from {{job}} j where j.tenant = :tenant and j.{of} = :name"
                f" order by j.id desc limit {NEWEST_JOBS}"
            )
        text = (
            f"select j.{other}, s.state, s.attempt, s.started_at, s.finished_at, j.created_at, j.run_at"
            f" from ({newest}) n join {{job_state}} s on s.id = n.id join {{job}} j on j.id = n.id"
        )
        rows = yield from self._query(tenant, text, name=name)
        return self._recent(rows, now, range)

    def _recent(self, rows: Rows, now: datetime, range: str | None) -> Recent:
        time = self.dialect.codec.time
        times = [(time(row[5]), None if row[4] is None else time(row[4])) for row in rows]
        chosen = range or range_of(max(now - (end or made), timedelta(0)) for made, end in times)
        span, step = RANGES[chosen]
        start = start_of(now - span, step)
        whole = len(rows) < NEWEST_JOBS
        since = start if whole or not times else max(start, min(made for made, _ in times))
        counts: list[Counts] = []
        runs: dict[datetime, list[float]] = {}
        for row, (made, end) in zip(rows, times, strict=True):
            if start <= made:
                counts.append((start_of(made, step), "", [1.0, 0.0, 0.0]))
            if end is None or end < start:
                continue
            at = start_of(end, step)
            if row[1] == "succeeded":
                counts.append((at, "", [0.0, 1.0, 0.0]))
                if row[3] is not None:
                    runs.setdefault(at, []).append(max(0.0, (end - time(row[3])).total_seconds()))
            elif row[1] in ("failed", "dead_letter"):
                counts.append((at, "", [0.0, 0.0, 1.0]))
        activity = _activity(counts, now, since, chosen, None, estimated=False)
        done = [row[2:] for row in rows if row[1] == "succeeded" and row[3] is not None and row[4] is not None]
        wait, run = self._durations(done)
        spreads = [(point.at, Spread.over(runs.get(point.at, []))) for point in activity.points]
        return Recent(
            replace(activity, wait=wait, run=run),
            [(at, spread.p50, spread.p95) if spread else (at, None, None) for at, spread in spreads],
            Counter(str(row[1]) for row in rows),
            Counter(str(row[0]) for row in rows),
            len(rows),
            whole,
        )


def _upto(last: int) -> range:
    return range(last + 1)


def _labelled(by: str | None) -> tuple[bool, str, str]:
    """Whether rows are grouped by a label, its expression, and the events that count."""
    return (False, "''", "") if by is None else (True, LABELS[by], _COUNTED)


def _activity(
    counts: Sequence[Counts], now: datetime, since: datetime, range: str, by: str | None, *, estimated: bool
) -> Activity:
    step = RANGES[range][1]
    sums: dict[datetime, list[float]] = {}
    totals: dict[str, float] = {}
    succeeded: dict[tuple[str, datetime], float] = {}
    for at, label, numbers in counts:
        sums[at] = [was + new for was, new in zip(sums.get(at, [0.0] * 3), numbers, strict=True)]
        totals[label] = totals.get(label, 0.0) + numbers[1]
        succeeded[label, at] = succeeded.get((label, at), 0.0) + numbers[1]
    points = filled([Point(at, *(round(number, 1) for number in row)) for at, row in sums.items()], since, now, step)
    series: dict[str, list[float]] = {}
    if by is not None:
        ranked = sorted((label for label, total in totals.items() if total and label), key=lambda label: -totals[label])
        for label in ranked[:MAX_SERIES]:
            series[label] = [succeeded.get((label, point.at), 0.0) for point in points]
        if rest := ranked[MAX_SERIES:]:
            series[OTHER] = [sum(succeeded.get((label, point.at), 0.0) for label in rest) for point in points]
    return Activity(now, since, range, points, estimated=estimated, series=series)


def _interpolated(
    samples: Sequence[tuple[datetime, dict[str, list[float]]]], since: datetime, step: timedelta
) -> list[Counts]:
    """The estimated counts between each two samples, distributed over the points between them."""
    counts: list[Counts] = []
    for (start, _), (end, labels) in pairwise(samples):
        start = min(start, end - MICROSECOND)  # both samples may have the same time
        length = (end - start).total_seconds()
        at = start_of(start, step)
        while at <= end:
            part = (min(end, at + step) - max(start, at)).total_seconds() / length
            if at >= since and part > 0:
                counts += [(at, label, [count * part for count in numbers]) for label, numbers in labels.items()]
            at += step
    return counts
