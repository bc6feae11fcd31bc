"""Read the current figures: waiting and running jobs of each queue, workers, recent failures. Counts are bounded, see
``statistics.py``."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Any

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.health.activity import ActivityReads
from holdfast.features.health.model import CAP
from holdfast.features.health.statistics import (
    FAILURES,
    LATELY,
    MAX_FAILURES,
    MAX_QUEUES,
    MAX_WORKERS,
    Failure,
    QueuesAndWorkers,
    QueueStatus,
    Rates,
    Statistics,
    WorkerStatus,
    rates_of,
)
from holdfast.features.health.store import _NOT_HELD, _QUEUES, _READY_SINCE, HealthReads
from holdfast.stores.flow import Statement, Steps, flow, read_together
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reader import within
from holdfast.stores.sqlite.base import SqlitePart, any_tenant

if TYPE_CHECKING:
    from holdfast.features.events.store import ConsumerStore, SubscriptionStore
    from holdfast.features.limits.sqlite import SqlitePauses
    from holdfast.features.limits.store import PostgresPauses
    from holdfast.features.versions.store import PostgresVersions, SqliteVersions

# The jobs at the head of each queue, and the first of its lowest priority, which waits longest if others overtake it.
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
# For one tenant, jobs that may start and jobs that wait for a time in one read: the first by id, up to the cap.
_OF_ONE = (
    "select w.queue, w.later, count(*) from (select s.queue,"
    f" case when s.due_at is null then 0 else 1 end as later from {{job_state}} s where {_OWN}"
    " order by s.id limit :cap) w"
    " group by w.queue, w.later order by w.queue, w.later limit :most"
)
# The first jobs of each queue by id. A job that was attempted before waits since it returned to the queue.
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

HEAD, WALK = 20, 1_000  # jobs at the head of each queue whose wait is read, and rows that are read to find them

Waiting = dict[str, tuple[int, float | None]]


class SnapshotReads(HealthReads):
    @abstractmethod
    def _workers(self, tenant: str) -> Steps[list[WorkerStatus]]:
        """Different in each store: on PostgreSQL the ids of leases may not be read, so a function counts their jobs."""

    @flow(writes=False)
    def workers(self, tenant: str) -> Steps[QueuesAndWorkers]:
        """Only the queues and workers of ``statistics``."""
        return (yield from self._queues_and_workers(tenant, (yield from self._present())))

    @flow(writes=False)
    def statistics(self, tenant: str) -> Steps[Statistics]:
        """Waiting and running jobs per queue, workers, rates and recent failures."""
        present = yield from self._present()
        current = yield from self._queues_and_workers(tenant, present)
        dead = yield from self._dead(tenant)
        approvals, first_opened, *_ = yield from self._other_counts(tenant, present)
        late, latest = yield from self._lateness(tenant, present)
        rates, failures = yield from self._recent_events(tenant, current.at)
        return Statistics(
            current.at,
            current.queues,
            current.workers,
            approvals,
            self._age(present, first_opened),
            dead,
            late,
            latest,
            rates,
            failures,
            capped=current.capped or max(dead, approvals) >= CAP,
        )

    def _queues_and_workers(self, tenant: str, present: Any) -> Steps[QueuesAndWorkers]:
        (waiting, later), running, workers = yield from read_together(
            self._queued(tenant, present), self._held(tenant), self._workers(tenant)
        )
        names = sorted({*waiting, *(queue for queue, _ in later), *running})[:MAX_QUEUES]
        queues = tuple(
            QueueStatus(
                name,
                waiting.get(name, (0, None))[0],
                later[name, "queued"],
                later[name, "retry_waiting"],
                running[name],
                waiting.get(name, (0, None))[1],
            )
            for name in names
        )
        largest = max([0, *later.values(), *running.values(), *(count for count, _ in waiting.values())])
        at = self.dialect.codec.time(present)
        return QueuesAndWorkers(at, queues, tuple(workers), capped=largest >= CAP or len(names) == MAX_QUEUES)

    def _queued(self, tenant: str, now: Any) -> Steps[tuple[Waiting, Counter[tuple[str, str]]]]:
        """For each queue, the number of jobs that may start with the wait of the oldest, and those that wait for a
        time."""
        waiting: Waiting = {}
        later = Counter[tuple[str, str]]()
        if tenant == EVERY_TENANT:
            rows = yield from self._query(tenant, _EVERYWHERE, cap=CAP, head=HEAD, most=MAX_QUEUES)
            for queue, count, first, lowest in rows:
                waiting[queue] = count, self._age(now, min(filter(None, (first, lowest)), default=None))
            rows = yield from self._query(tenant, _LATER, cap=CAP)
            later.update({(queue, str(state)): count for queue, state, count in rows})
            return waiting, later
        rows, oldest, retrying = yield from read_together(
            self._query(tenant, _OF_ONE, cap=CAP, most=2 * MAX_QUEUES),
            self._query(tenant, _OLDEST, walk=WALK, head=HEAD),
            self._query(tenant, _RETRYING, cap=CAP),
        )
        since = {row[0]: row[1] for row in oldest}
        if any(queue not in since for queue, is_later, _ in rows if not is_later):  # its jobs are beyond the first rows
            oldest = yield from self._query(tenant, _OLDEST, walk=CAP, head=1)
            since = {row[0]: row[1] for row in oldest} | since
        for queue, is_later, count in rows:
            if is_later:
                later[queue, "queued"] = count
            else:
                waiting[queue] = count, self._age(now, since.get(queue))
        later.update({(queue, "retry_waiting"): count for queue, count in retrying})
        return waiting, later

    def _held(self, tenant: str) -> Steps[Counter[str]]:
        rows = yield from self._query(tenant, _RUNNING.replace("MINE", within(tenant, "s.tenant")), cap=CAP)
        return Counter({row[0]: row[1] for row in rows})

    def _lateness(self, tenant: str, now: Any) -> Steps[tuple[int, float]]:
        """The number of late schedules, and the longest delay in seconds."""
        text = (
            "select count(*), min(c.next_fire_at) from (select c.next_fire_at from {schedule} c"
            f" where c.state = 'active' and c.attend_at is not null and c.next_fire_at < :now"
            f" and {within(tenant, 'c.tenant')} limit :cap) c"
        )
        rows = yield from self._query(tenant, text, now=now, cap=CAP)
        count, first = rows[0]
        return count, max(0.0, self._age(now, first) or 0.0)

    def _recent_events(self, tenant: str, now: datetime) -> Steps[tuple[Rates, tuple[Failure, ...]]]:
        """Rates and failures from the last events of the ledger. Its end is known without a search for the tenant's."""
        end = "select last_value from {event_seq}" if self.dialect.percent else "select max(seq) from {event}"
        rows = yield from self._query(tenant, end)
        last = int(rows[0][0] or 0)
        text = (
            "select e.type, e.at, e.kind, e.job_id, e.tenant, e.attempt, e.seq from {event} e"
            f" where e.seq > :past and {within(tenant, 'e.tenant')} order by e.seq desc limit :most"
        )
        rows = yield from self._query(tenant, text, past=last - LATELY, most=LATELY)
        codec = self.dialect.codec
        rates = rates_of(((str(row[0]), codec.time(row[1])) for row in rows), now, whole=last <= LATELY)
        failures = []
        failed = [row for row in rows if row[0] in FAILURES][:MAX_FAILURES]
        for event_type, at, kind, job, owner, attempt, seq in failed:
            # The error code of the event: the job may have failed differently since, or have succeeded.
            details = yield from self._query(tenant, "select e.meta from {event} e where e.seq = :seq", seq=seq)
            meta = codec.json(details[0][0]) if details and details[0][0] is not None else {}
            code = meta.get("error_code")
            failures.append(Failure(codec.id(job), owner, kind, str(event_type), attempt, codec.time(at), code))
        return rates, tuple(failures)


class PostgresHealth(Calls, SnapshotReads, ActivityReads):
    def __init__(
        self,
        schema: str,
        pauses: PostgresPauses,
        consumers: ConsumerStore,
        subscriptions: SubscriptionStore,
        versions: PostgresVersions,
    ) -> None:
        super().__init__(schema)
        self._pauses, self._consumers, self._subscriptions = pauses, consumers, subscriptions
        self._versions = versions

    def _workers(self, tenant: str) -> Steps[list[WorkerStatus]]:
        # A join, because the function returns what earlier releases read.
        text = (
            f"select w.*, (select l.app_version from {self._s}lease l where l.holder = w.holder and l.ended_at is null"
            f" order by l.until desc limit 1) from {self._s}list_workers(%s, %s) w"
        )
        return (yield from self._rows_as(WorkerStatus, Statement(text, (MAX_WORKERS, tenant))))


class SqliteHealth(SqlitePart, SnapshotReads, ActivityReads):
    def __init__(
        self,
        pauses: SqlitePauses,
        consumers: ConsumerStore,
        subscriptions: SubscriptionStore,
        versions: SqliteVersions,
    ) -> None:
        self._pauses, self._consumers, self._subscriptions = pauses, consumers, subscriptions
        self._versions = versions

    def _workers(self, tenant: str) -> Steps[list[WorkerStatus]]:
        scope = {"any": any_tenant(tenant), "tenant": tenant, "most": MAX_WORKERS}
        return (yield from self._rows_as(WorkerStatus, Statement(_WORKERS, scope)))


_WORKERS = (
    "SELECT l.name, l.holder, l.tenant, l.kinds, l.queues, l.slots, (SELECT count(*) FROM holdfast_job_state s"
    " WHERE s.lease = l.id AND s.state IN ('leased', 'in_progress')), l.opened_at, l.renewed_at, l.until,"
    " l.version, l.stop_request, l.stop_requested_at, l.stop_requested_by, (SELECT json_group_array(h.id) FROM"
    " (SELECT s.id FROM holdfast_job_state s WHERE s.lease = l.id AND s.state IN ('leased', 'in_progress')"
    " AND (:any OR s.tenant = :tenant) ORDER BY s.id LIMIT 20) h), l.app_version"
    " FROM holdfast_lease l, holdfast_present p WHERE l.ended_at IS NULL AND l.until > p.now AND l.name <>"
    " 'reservation' AND (:any OR l.tenant = :tenant OR l.tenant = '*') ORDER BY l.renewed_at DESC LIMIT :most"
)
