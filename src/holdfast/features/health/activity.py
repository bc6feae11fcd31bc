"""Read what waits and runs now, and the running workers. Counts are bounded, see ``statistics.py``."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Any

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.health.model import CAP
from holdfast.features.health.statistics import (
    FAILURES,
    LATELY,
    MOST_FAILURES,
    MOST_QUEUES,
    MOST_WORKERS,
    Failure,
    Pulse,
    QueuePulse,
    Rates,
    Standing,
    WorkerPulse,
    rates_of,
)
from holdfast.features.health.store import _NOT_HELD, _QUEUES, _READY_SINCE, HealthReads
from holdfast.features.health.throughput import ActivityReads
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Statement, Steps, flow, read_together
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
        approvals, first_asked, *_ = yield from self._smaller(tenant, present)
        late, latest = yield from self._lateness(tenant, present)
        rates, failures = yield from self._lately(tenant, stands.at)
        return Pulse(
            stands.at,
            stands.queues,
            stands.workers,
            approvals,
            self._age(present, first_asked),
            dead,
            late,
            latest,
            rates,
            failures,
            capped=stands.capped or max(dead, approvals) >= CAP,
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
            "select e.type, e.at, e.kind, e.job_id, e.tenant, e.attempt, e.seq from {event} e"
            f" where e.seq > :past and {within(tenant, 'e.tenant')} order by e.seq desc limit :most"
        )
        rows = yield from self._ask(tenant, text, past=last - LATELY, most=LATELY)
        codec = self.dialect.codec
        rates = rates_of(((str(row[0]), codec.time(row[1])) for row in rows), now, whole=last <= LATELY)
        failures = []
        for event_type, at, kind, job, whose, attempt, seq in [row for row in rows if row[0] in FAILURES][
            :MOST_FAILURES
        ]:
            # As it was put down then: the job may have failed otherwise since, or have succeeded.
            said = yield from self._ask(tenant, "select e.meta from {event} e where e.seq = :seq", seq=seq)
            note = codec.json(said[0][0]) if said and said[0][0] is not None else {}
            code = note.get("error_code")
            failures.append(Failure(codec.id(job), whose, kind, str(event_type), attempt, codec.time(at), code))
        return rates, tuple(failures)


class PostgresHealth(Calls, PulseReads, ActivityReads):
    def __init__(
        self, schema: str, pauses: PauseStore, consumers: ConsumerStore, subscriptions: SubscriptionStore
    ) -> None:
        super().__init__(schema)
        self._pauses, self._consumers, self._subscriptions = pauses, consumers, subscriptions

    def _workers(self, tenant: str) -> Steps[list[WorkerPulse]]:
        rows = yield self._look("worker_standings", "%s, %s", MOST_WORKERS, tenant)
        decode = Record.decoder(WorkerPulse, self.dialect.codec)
        return [decode(row) for row in rows]


class SqliteHealth(SqlitePart, PulseReads, ActivityReads):
    def __init__(self, pauses: PauseStore, consumers: ConsumerStore, subscriptions: SubscriptionStore) -> None:
        self._pauses, self._consumers, self._subscriptions = pauses, consumers, subscriptions

    def _workers(self, tenant: str) -> Steps[list[WorkerPulse]]:
        scope = {"any": any_tenant(tenant), "tenant": tenant, "most": MOST_WORKERS}
        rows = yield Statement(_STANDINGS, scope)
        decode = Record.decoder(WorkerPulse, SqliteCodec())
        return [decode(row) for row in rows]


_STANDINGS = (
    "SELECT l.name, l.holder, l.tenant, l.kinds, l.queues, l.slots, (SELECT count(*) FROM job_state s"
    " WHERE s.lease = l.id AND s.state IN ('leased', 'in_progress')), l.opened_at, l.renewed_at, l.until,"
    " l.version, l.stop_request, l.stop_requested_at, l.stop_requested_by, (SELECT json_group_array(h.id) FROM"
    " (SELECT s.id FROM job_state s WHERE s.lease = l.id AND s.state IN ('leased', 'in_progress')"
    " AND (:any OR s.tenant = :tenant) ORDER BY s.id LIMIT 20) h)"
    " FROM lease l, present p WHERE l.ended_at IS NULL AND l.until > p.now AND l.name <> 'reservation'"
    " AND (:any OR l.tenant = :tenant OR l.tenant = '*') ORDER BY l.renewed_at DESC LIMIT :most"
)
