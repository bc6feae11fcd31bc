"""What waits and runs now, who works, and how the last hour went.

How the last hour went (features/health/statistics.py), at a bounded cost for any number of jobs and events (JF-16).

The ledger has no index by time, so its end is read: up to ``TAIL`` rows by their numbers. Where more has happened
within the hour, samples are read instead, each a run of numbers, and what lies before each is reckoned to be like it:
numbers are given in order, so their distance is how much it was. Rows are counted by number and never by how many of
them a tenant has, so that a small one costs no more to look at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.times import EPOCH, MICROSECOND
from holdfast.features.health.model import CAP
from holdfast.features.health.statistics import (
    FAILURES,
    LATELY,
    MINUTE,
    MOST_FAILURES,
    MOST_QUEUES,
    MOST_WORKERS,
    SPAN,
    Due,
    Failure,
    Hour,
    Minute,
    Pulse,
    QueuePulse,
    Rates,
    Spread,
    Standing,
    WorkerPulse,
    filled,
    rates_of,
)
from holdfast.features.health.store import _NOT_HELD, _QUEUES, _READY_SINCE, HealthReads
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Rows, Statement, Steps, flow, read_together
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reader import within
from holdfast.stores.sqlite.base import SqlitePart, any_tenant
from holdfast.stores.sqlite.codec import SqliteCodec

if TYPE_CHECKING:
    from holdfast.features.events.store import ConsumerStore, SubscriptionStore
    from holdfast.features.limits.store import PauseStore

# Those at the head of a queue, and the first of its lowest priority, which waits longest where others overtake it.
_HERE = "s.queue = q.queue and s.state = 'queued' and s.due_at is null"
_EVERYWHERE = (
    f"{_QUEUES} select q.queue,"
    f" (select count(*) from (select 1 from {{job_state}} s where {_HERE} limit :cap) a),"
    f" (select min({_READY_SINCE}) from (select s.id, s.attempt from {{job_state}} s where {_HERE}"
    "  order by s.priority desc, s.position limit :head) w),"
    f" (select min({_READY_SINCE}) from (select s.id, s.attempt from {{job_state}} s where {_HERE} and s.priority ="
    f"  (select min(s.priority) from {{job_state}} s where {_HERE}) order by s.position limit 1) w)"
    " from q where q.queue is not null limit :most"
)
_OWN = f"s.tenant = :tenant and s.state = 'queued' and {_NOT_HELD}"
# Of one tenant, those that wait for their turn and for their time at once: the first of them by id, up to the cap.
_OF_ONE = (
    "select w.queue, w.later, count(*) from (select s.queue,"
    f" case when s.due_at is null then 0 else 1 end as later from {{job_state}} s where {_OWN}"
    " order by s.id limit :cap) w"
    " group by w.queue, w.later order by w.queue, w.later limit :most"
)
# Of each queue the first that came: one that was tried before is among them, and waits since it came back.
_OLDEST = (
    f"select w.queue, min({_READY_SINCE}) from (select o.id, o.queue, o.attempt, row_number() over"
    " (partition by o.queue order by o.id) as place from (select s.id, s.queue, s.attempt, s.due_at"
    f" from {{job_state}} s where {_OWN} order by s.id limit :walk) o where o.due_at is null) w"
    " where w.place <= :head group by w.queue"
)
_RETRYING = (
    "select w.queue, count(*) from (select s.queue from {job_state} s where s.tenant = :tenant"
    f" and s.state = 'retry_waiting' and {_NOT_HELD} order by s.id limit :cap) w group by w.queue"
)
_LATER = (
    "select w.queue, w.state, count(*) from (select s.queue, s.state from {job_state} s where s.due_at is not null"
    " and s.state in ('queued', 'retry_waiting') limit :cap) w group by w.queue, w.state"
)
_RUNNING = (
    "select w.queue, count(*) from (select s.queue from {job_state} s"
    " where s.state in ('leased', 'in_progress') and MINE limit :cap) w group by w.queue"
)

HEAD, WALK = 20, 1_000  # of so many at the head of a queue it is looked up since when they wait, among so many

Waiting = dict[str, tuple[int, float | None]]


class PulseReads(HealthReads):
    def _workers(self, tenant: str) -> Steps[list[WorkerPulse]]:
        """Each store's own: on a server the tokens by which workers hold their jobs are nobody's to read."""
        raise NotImplementedError

    @flow(writes=False)
    def workers(self, tenant: str) -> Steps[Standing]:
        return (yield from self._standing(tenant, (yield from self._present())))

    @flow(writes=False)
    def statistics(self, tenant: str) -> Steps[Pulse]:
        present = yield from self._present()
        stands = yield from self._standing(tenant, present)
        dead = yield from self._dead(tenant)
        gates, first_asked, *_ = yield from self._smaller(tenant, present)
        late, latest = yield from self._lateness(tenant, present)
        rates, failures = yield from self._lately(tenant, stands.at)
        return Pulse(
            stands.at,
            stands.queues,
            stands.workers,
            gates,
            self._age(present, first_asked),
            dead,
            late,
            latest,
            rates,
            failures,
            capped=stands.capped or max(dead, gates) >= CAP,
        )

    def _standing(self, tenant: str, present: Any) -> Steps[Standing]:
        (waiting, later), running, seen = yield from read_together(
            self._queued(tenant, present), self._held(tenant), self._workers(tenant)
        )
        names = sorted({*waiting, *(queue for queue, _ in later), *running})[:MOST_QUEUES]
        queues = tuple(
            QueuePulse(
                name,
                waiting.get(name, (0, None))[0],
                later[name, "queued"],
                later[name, "retry_waiting"],
                running[name],
                waiting.get(name, (0, None))[1],
            )
            for name in names
        )
        workers = tuple(seen)
        most = max([0, *later.values(), *running.values(), *(count for count, _ in waiting.values())])
        at = self.dialect.codec.time(present)
        return Standing(at, queues, workers, capped=most >= CAP or len(names) == MOST_QUEUES)

    def _queued(self, tenant: str, now: Any) -> Steps[tuple[Waiting, Counter[tuple[str, str]]]]:
        """How many may be begun in each queue and since when the oldest waits; how many wait for a time."""
        waiting: Waiting = {}
        later = Counter[tuple[str, str]]()
        if tenant == EVERY_TENANT:
            rows = yield from self._ask(tenant, _EVERYWHERE, cap=CAP, head=HEAD, most=MOST_QUEUES)
            for queue, count, first, lowest in rows:
                waiting[queue] = count, self._age(now, min(filter(None, (first, lowest)), default=None))
            rows = yield from self._ask(tenant, _LATER, cap=CAP)
            later.update({(queue, str(state)): count for queue, state, count in rows})
            return waiting, later
        rows, oldest, retrying = yield from read_together(
            self._ask(tenant, _OF_ONE, cap=CAP, most=2 * MOST_QUEUES),
            self._ask(tenant, _OLDEST, walk=WALK, head=HEAD),
            self._ask(tenant, _RETRYING, cap=CAP),
        )
        since = {row[0]: row[1] for row in oldest}
        if any(queue not in since for queue, is_later, _ in rows if not is_later):  # all of it is younger than that
            oldest = yield from self._ask(tenant, _OLDEST, walk=CAP, head=1)
            since = {row[0]: row[1] for row in oldest} | since
        for queue, is_later, count in rows:
            if is_later:
                later[queue, "queued"] = count
            else:
                waiting[queue] = count, self._age(now, since.get(queue))
        later.update({(queue, "retry_waiting"): count for queue, count in retrying})
        return waiting, later

    def _held(self, tenant: str) -> Steps[Counter[str]]:
        rows = yield from self._ask(tenant, _RUNNING.replace("MINE", within(tenant, "s.tenant")), cap=CAP)
        return Counter({row[0]: row[1] for row in rows})

    def _lateness(self, tenant: str, now: Any) -> Steps[tuple[int, float]]:
        """How many schedules are past their time, and by how much at most."""
        text = (
            "select count(*), min(c.next_fire_at) from (select c.next_fire_at from {schedule} c"
            f" where c.state = 'active' and c.attend_at is not null and c.next_fire_at < :now"
            f" and {within(tenant, 'c.tenant')} limit :cap) c"
        )
        rows = yield from self._ask(tenant, text, now=now, cap=CAP)
        count, first = rows[0]
        return count, max(0.0, self._age(now, first) or 0.0)

    def _lately(self, tenant: str, now: datetime) -> Steps[tuple[Rates, tuple[Failure, ...]]]:
        """What the last events of the ledger tell. Its end is known without looking for the tenant's own."""
        end = "select last_value from {event_seq}" if self.dialect.percent else "select max(seq) from {event}"
        heads = yield from self._ask(tenant, end)
        last = int(heads[0][0] or 0)
        text = (
            "select e.verb, e.at, e.kind, e.job_id, e.tenant, e.attempt, e.seq from {event} e"
            f" where e.seq > :past and {within(tenant, 'e.tenant')} order by e.seq desc limit :most"
        )
        rows = yield from self._ask(tenant, text, past=last - LATELY, most=LATELY)
        codec = self.dialect.codec
        rates = rates_of(((str(row[0]), codec.time(row[1])) for row in rows), now, whole=last <= LATELY)
        failures = []
        for verb, at, kind, job, whose, attempt, seq in [row for row in rows if row[0] in FAILURES][:MOST_FAILURES]:
            # As it was put down then: the job may have failed otherwise since, or have succeeded.
            said = yield from self._ask(tenant, "select e.meta from {event} e where e.seq = :seq", seq=seq)
            note = codec.json(said[0][0]) if said and said[0][0] is not None else {}
            code = note.get("error_code")
            failures.append(Failure(codec.id(job), whose, kind, str(verb), attempt, codec.time(at), code))
        return rates, tuple(failures)


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
    def last_hour(self, tenant: str) -> Steps[Hour]:
        rows = yield self.dialect.read("select now from {present}")
        now = self.dialect.codec.time(rows[0][0])
        (since, minutes, estimated), (wait, run), due = yield from read_together(
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


class PostgresHealth(Calls, PulseReads, HourReads):
    def __init__(
        self, schema: str, pauses: PauseStore, consumers: ConsumerStore, subscriptions: SubscriptionStore
    ) -> None:
        super().__init__(schema)
        self._pauses, self._consumers, self._subscriptions = pauses, consumers, subscriptions

    def _workers(self, tenant: str) -> Steps[list[WorkerPulse]]:
        rows = yield self._look("worker_standings", "%s, %s", MOST_WORKERS, tenant)
        decode = Record.decoder(WorkerPulse, self.dialect.codec)
        return [decode(row) for row in rows]


class SqliteHealth(SqlitePart, PulseReads, HourReads):
    def __init__(self, pauses: PauseStore, consumers: ConsumerStore, subscriptions: SubscriptionStore) -> None:
        self._pauses, self._consumers, self._subscriptions = pauses, consumers, subscriptions

    def _workers(self, tenant: str) -> Steps[list[WorkerPulse]]:
        scope = {"any": any_tenant(tenant), "tenant": tenant, "most": MOST_WORKERS}
        rows = yield Statement(_STANDINGS, scope)
        decode = Record.decoder(WorkerPulse, SqliteCodec())
        return [decode(row) for row in rows]


_STANDINGS = (
    "SELECT l.name, l.holder, l.tenant, l.kinds, l.queues, l.slots, (SELECT count(*) FROM job_state s"
    " WHERE s.lease = l.id AND s.state IN ('leased', 'in_progress')), l.opened_at, l.renewed_at, l.until"
    " FROM lease l, present p WHERE l.ended_at IS NULL AND l.until > p.now"
    " AND (:any OR l.tenant = :tenant OR l.tenant = '*') ORDER BY l.renewed_at DESC LIMIT :most"
)
