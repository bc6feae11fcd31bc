"""The port of health, and the reads behind its verdict, at a bounded cost for any number of jobs.

Every count stops at ``CAP``, and the rows that a read skips are bounded, too: if a tenant has more queued jobs, the
rest is not read and the result is marked as capped. For all tenants together, small indexes are read from their
beginning; where there is none (dead letters), each tenant is read separately.
"""

from __future__ import annotations

from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING, Any

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.requirement import Requirement
from holdfast.features.health.model import (
    CAP,
    DEFAULT_THRESHOLDS,
    MIN_LONG,
    MIN_RUNS,
    Health,
    LongRunning,
    Thresholds,
    assess,
    is_long,
)
from holdfast.features.limits.model import Pause
from holdfast.stores.flow import Steps, flow, read_together
from holdfast.stores.job_reads import Reader
from holdfast.stores.reader import within

if TYPE_CHECKING:
    from holdfast.features.events.store import ConsumerStore, SubscriptionStore
    from holdfast.features.limits.sqlite import SqlitePauses
    from holdfast.features.limits.store import PostgresPauses
    from holdfast.features.versions.store import PostgresVersions, SqliteVersions


SECOND = timedelta(seconds=1)
LEASES, NAMES, HEAD = 1_000, 20, 1_000
BATCH = 50
"""Queues that are read together."""

# This condition selects one of two partial indexes of states (see job_reads.py).
_NOT_HELD = "s.state not in ('leased', 'in_progress')"
# A job that has run before waits since it returned to the queue, not since its creation. Read in subqueries: a join
# might read all jobs, including finished ones.
_READY_SINCE = (
    "case when w.attempt > 0 then (select e.at from {event} e where e.job_id = w.id order by e.seq desc limit 1)"
    " else (select case when j.run_at > j.created_at then j.run_at else j.created_at end"
    " from {job} j where j.id = w.id) end"
)
# A skip scan of the first column of the index: one probe per tenant.
_TENANTS = (
    "with recursive t(tenant) as (select min(s.tenant) from {job_state} s where " + _NOT_HELD + " union all"
    " select (select min(s.tenant) from {job_state} s where s.tenant > t.tenant and " + _NOT_HELD + ")"
    " from t where t.tenant is not null)"
)
_QUEUES = (
    "with recursive q(queue) as (select min(s.queue) from {job_state} s where s.state = 'queued' and s.due_at is null"
    " union all select (select min(s.queue) from {job_state} s where s.queue > q.queue and s.state = 'queued'"
    " and s.due_at is null) from q where q.queue is not null)"
)

_CLAIMABLE_FOR = "s.executor is not null and s.state = 'queued' and s.due_at is null"
_EXECUTORS = (
    f"with recursive x(label) as (select min(s.executor) from {{job_state}} s where {_CLAIMABLE_FOR} union all"
    f" select (select min(s.executor) from {{job_state}} s where s.executor > x.label and {_CLAIMABLE_FOR})"
    " from x where x.label is not null)"
)

_DEAD = (
    "(select count(*) from (select 1 from {job_state} s where s.tenant = WHOSE and s.state = 'dead_letter'"
    f" and {_NOT_HELD} limit :cap) d)"
)
# Jobs that wait for a time are skipped, up to a limit.
_OLDEST = (
    f"(select min({_READY_SINCE}) from (select a.id, a.attempt from (select s.id, s.attempt, s.due_at, s.queue, s.kind"
    " from {job_state} s where s.tenant = WHOSE and s.state = 'queued'"
    f" and {_NOT_HELD} order by s.id limit :walk) a where a.due_at is null and not (IS_SHUT) limit :head) w)"
)


_OF_DOMAIN = "a.kind in (select k.name from {registered_kind} k where k.domain = :domain)"
WALK = 10 * CAP
"""Jobs of a tenant in a state whose kind is compared with a domain."""


class HealthReads(Reader):
    """The stores it reads from are set by the constructors of the subclasses."""

    _pauses: PostgresPauses | SqlitePauses
    _consumers: ConsumerStore
    _subscriptions: SubscriptionStore
    _versions: PostgresVersions | SqliteVersions

    @flow(writes=False)
    def get(self, tenant: str, when: Thresholds = DEFAULT_THRESHOLDS, domain: str | None = None) -> Steps[Health]:
        """Counts and their concerns. The concerns of the database itself are in ``Store.conditions``."""
        now = yield from self._present()
        if domain is not None:
            return (yield from self._of_domain(tenant, now, when, domain))
        rows = yield from read_together(
            *(self._waiting(tenant), self._dead(tenant), self._other_counts(tenant, now)),
            *(self._pauses.list(tenant).start(), self._leases(tenant, now), self._late(tenant, now, when)),
            *(self._behind(tenant, when), self._ledger(tenant), self._executors(tenant)),
            *(self._expired(tenant, now), self._long_running(tenant, now, when)),
            self._versions.unserved(tenant).start(),
        )
        (backlog, scheduled), dead, (approvals, first_opened, overdue, parked, running) = rows[:3]
        pauses, (serving, labels), late, behind, (unsealed, holders), executors, expired, long = rows[3:11]
        unserved, held = rows[11]
        paused = paused_queues(pauses, tenant)
        oldest: Any = None
        pairs: list[tuple[str, str]] = []
        due, first_due = 0, None
        if paused is not None:
            oldest, pairs, (due, first_due) = yield from read_together(
                self._oldest(tenant, paused), self._heads(tenant, paused), self._overdue(tenant, now, paused)
            )
        health = Health(
            backlog,
            scheduled,
            running,
            dead,
            self._age(now, oldest),
            len(serving),
            tuple(sorted({kind for _, kind in pairs})),
            "ok",
            approvals_open=approvals,
            oldest_approval_age_s=self._age(now, first_opened),
            workers=sum(kinds is not None or queues is not None for kinds, queues in serving),
            unserved=tuple(pair for pair in pairs if not any(_serves(worker, *pair) for worker in serving)),
            unserved_queues=tuple(
                sorted({queue for queue, _ in pairs if not any(_serves(worker, queue) for worker in serving)})
            ),
            unserved_executors=tuple(label for label in executors if label not in labels),
            unserved_versions=tuple(f"{version} ({_jobs(count)})" for version, count in sorted(unserved.items())),
            held=held,
            parked=parked,
            paused=tuple(pause.says for pause in pauses),
            approvals_overdue=overdue,
            schedules_late=late,
            behind=behind,
            unsealed_age_s=self._age(now, unsealed),
            retention_held=holders,
            due=due,
            oldest_due_age_s=self._age(now, first_due),
            expired_lease_age_s=self._age(now, expired),
            long_running=long,
            capped=max(backlog, scheduled, dead, parked, running) >= CAP,
        )
        return assess(health, when)

    def _of_domain(self, tenant: str, now: Any, when: Thresholds, domain: str) -> Steps[Health]:
        """The figures of the jobs of one domain; approvals, schedules, consumers and the ledger belong to none."""
        pauses = yield from self._pauses.list(tenant).start()
        paused = paused_queues(pauses, tenant)
        own = within(tenant, "s.tenant")
        sources = (
            "{job_state} s where s.state = 'queued' and s.due_at is null",
            "{job_state} s where s.due_at is not null and s.held_by is null and s.state in ('queued', 'retry_waiting')",
            "{job_state} s where s.state in ('leased', 'in_progress')",
            "{dead_letter} s where 1 = 1",
            "{job_state} s where s.held_by is not null and s.due_at is not null and s.state = 'queued'",
        )
        counts = ", ".join(
            f"(select count(*) from (select 1 from (select s.kind from {source} and {own} limit {WALK}) a"
            f" where {_OF_DOMAIN} limit :cap) b)"
            for source in sources
        )
        rows = yield from self._query(tenant, f"select {counts}", cap=CAP, domain=domain)
        backlog, scheduled, running, dead, parked = (int(count) for count in rows[0])
        oldest: Any = None
        pairs: list[tuple[str, str]] = []
        if paused is not None:
            oldest = yield from self._oldest(tenant, paused, domain)
            pairs = yield from self._heads(tenant, paused)
        rows = yield from self._query(
            tenant, "select k.name from {registered_kind} k where k.domain = :domain", domain=domain
        )
        kinds = {row[0] for row in rows}
        pairs = [pair for pair in pairs if pair[1] in kinds]
        serving, _ = yield from self._leases(tenant, now)
        health = Health(
            *(backlog, scheduled, running, dead, self._age(now, oldest), len(serving)),
            tuple(sorted({kind for _, kind in pairs})),
            "ok",
            workers=sum(kinds is not None or queues is not None for kinds, queues in serving),
            unserved=tuple(pair for pair in pairs if not any(_serves(worker, *pair) for worker in serving)),
            parked=parked,
            paused=tuple(pause.says for pause in pauses),
            capped=max(backlog, scheduled, dead, parked, running) >= CAP,
        )
        return assess(health, when)

    def _present(self) -> Steps[Any]:
        rows = yield self.dialect.read("select now from {present}")
        return rows[0][0]

    def _age(self, now: Any, then: Any) -> float | None:
        codec = self.dialect.codec
        return None if then is None else (codec.time(now) - codec.time(then)) / SECOND

    def _waiting(self, tenant: str) -> Steps[tuple[int, int]]:
        """The number of jobs that may start, and of those that wait for a time or for other jobs. Jobs that a limit or
        a pause holds back are counted apart."""
        if tenant == EVERY_TENANT:
            text = (
                "select (select count(*) from (select 1 from {job_state} s where s.state = 'queued'"
                " and s.due_at is null limit :cap) a),"
                " (select count(*) from (select 1 from {job_state} s where s.due_at is not null and s.held_by is null"
                " and s.state in ('queued', 'retry_waiting') limit :cap) b)"
            )
        else:
            queued = f"s.state = 'queued' and {_NOT_HELD} and s.tenant = :tenant"
            text = (
                "select coalesce(sum(case when w.due_at is null then 1 else 0 end), 0),"
                " coalesce(sum(case when w.due_at is null or w.held_by is not null then 0 else 1 end), 0)"
                " + (select count(*) from (select 1"
                f" from {{job_state}} s where s.state = 'retry_waiting' and {_NOT_HELD} and s.tenant = :tenant"
                f" limit :cap) r) from (select s.due_at, s.held_by from {{job_state}} s where {queued} limit :cap) w"
            )
        rows = yield from self._query(tenant, text, cap=CAP)
        return int(rows[0][0]), min(int(rows[0][1]), CAP)

    def _dead(self, tenant: str) -> Steps[int]:
        if tenant == EVERY_TENANT:
            each = _DEAD.replace("WHOSE", "t.tenant")
            text = f"{_TENANTS} select coalesce(sum({each}), 0) from t where t.tenant is not null"
        else:
            text = "select " + _DEAD.replace("WHOSE", ":tenant")
        rows = yield from self._query(tenant, text, cap=CAP)
        return min(int(rows[0][0]), CAP)

    def _oldest(self, tenant: str, paused: frozenset[str], domain: str | None = None) -> Steps[Any]:
        """When the longest wait began. Ids grow with time, so that job is among the first of its tenant."""
        names = self.dialect.listed(sorted(paused))
        others = "" if domain is None else f" or not ({_OF_DOMAIN})"
        query = _OLDEST.replace("IS_SHUT", self.dialect.has(":shut", "a.queue") + others)
        if tenant == EVERY_TENANT:
            each = query.replace("WHOSE", "t.tenant")
            text = f"{_TENANTS} select min(o.since) from (select {each} as since from t where t.tenant is not null) o"
            rows = yield from self._query(tenant, text, shut=names, walk=500, head=50, domain=domain)
        else:
            text = "select " + query.replace("WHOSE", ":tenant")
            rows = yield from self._query(tenant, text, shut=names, walk=CAP, head=HEAD, domain=domain)
        return rows[0][0]

    def _heads(self, tenant: str, paused: frozenset[str]) -> Steps[list[tuple[str, str]]]:
        """Queues and kinds of the jobs at the head of each queue, where jobs stay that no worker claims."""
        rows = yield from self._query(
            tenant, f"{_QUEUES} select q.queue from q where q.queue is not null limit :most", most=HEAD
        )
        queues = [row[0] for row in rows if row[0] not in paused]
        result: list[tuple[str, str]] = []
        for first in range(0, len(queues), BATCH):
            heads = yield from read_together(*(self._head_of(tenant, queue) for queue in queues[first : first + BATCH]))
            result += [pair for pairs in heads for pair in pairs]
        return result

    def _head_of(self, tenant: str, queue: str) -> Steps[list[tuple[str, str]]]:
        mine = "1 = 1" if tenant == EVERY_TENANT else "h.tenant = :tenant"
        text = (
            "select distinct h.kind from (select s.kind, s.tenant from {job_state} s where s.queue = :queue"
            " and s.state = 'queued' and s.due_at is null order by s.priority desc, s.position limit :head) h"
            f" where {mine} order by h.kind"
        )
        rows = yield from self._query(tenant, text, queue=queue, head=HEAD)
        return [(queue, str(row[0])) for row in rows]

    def _executors(self, tenant: str) -> Steps[list[str]]:
        """The labels that claimable jobs name."""
        theirs = f"s.executor = x.label and s.tenant = :tenant and {_CLAIMABLE_FOR}"
        own = "1 = 1" if tenant == EVERY_TENANT else f"exists (select 1 from {{job_state}} s where {theirs})"
        text = f"{_EXECUTORS} select x.label from x where x.label is not null and {own} limit :most"
        rows = yield from self._query(tenant, text, most=HEAD)
        found = (Requirement.of(row[0]).executor for row in rows)
        return list(dict.fromkeys(label for label in found if label is not None))

    def _leases(self, tenant: str, now: Any) -> Steps[tuple[list[tuple[Any, Any]], frozenset[str]]]:
        """Kinds and queues of the live workers (None: the worker reported none and may serve any), and their labels."""
        own = "1 = 1" if tenant == EVERY_TENANT else "l.tenant in (:tenant, '*')"
        text = (
            "select l.kinds, l.queues, l.name from {lease} l where l.ended_at is null and l.until > :now"
            f" and l.name <> 'reservation' and {own} limit {LEASES}"
        )
        rows = yield from self._query(tenant, text, now=now)
        tags = self.dialect.codec.tags
        serving = [tuple(None if names is None else frozenset(tags(names)) for names in row[:2]) for row in rows]
        return serving, frozenset(row[2] for row in rows)  # type: ignore[return-value]

    def _expired(self, tenant: str, now: Any) -> Steps[Any]:
        """When the first of the leases expired that no sweep has ended yet."""
        own = "1 = 1" if tenant == EVERY_TENANT else "l.tenant in (:tenant, '*')"
        text = f"select min(l.until) from {{lease}} l where l.ended_at is null and l.until <= :now and {own}"
        rows = yield from self._query(tenant, text, now=now)
        return rows[0][0]

    def _overdue(self, tenant: str, now: Any, paused: frozenset[str]) -> Steps[tuple[int, Any]]:
        """The number of jobs that wait for a time that has come, and when the first was due."""
        text = (
            "select count(*), min(o.due_at) from (select s.due_at from {job_state} s where s.due_at is not null"
            " and s.due_at <= :now and s.state in ('queued', 'retry_waiting')"
            f" and {within(tenant, 's.tenant')} and not ({self.dialect.has(':shut', 's.queue')}) limit :cap) o"
        )
        rows = yield from self._query(tenant, text, now=now, cap=CAP, shut=self.dialect.listed(sorted(paused)))
        return int(rows[0][0]), rows[0][1]

    def _other_counts(self, tenant: str, now: Any) -> Steps[tuple[int, Any, int, int, int]]:
        """Open approvals, when the first was opened, overdue approvals, jobs held back, running jobs."""
        approvals = (
            f"{{approval}} g where g.state = 'open' and {within(tenant, 'g.tenant')} order by g.tenant, g.id limit :cap"
        )
        own = within(tenant, "s.tenant")
        text = (
            f"select (select count(*) from (select 1 from {approvals}) a),"
            f" (select min(a.opened_at) from (select g.opened_at from {approvals}) a),"
            f" (select count(*) from (select g.escalated_at, g.expires_at from {approvals}) a"
            "  where a.escalated_at is not null or a.expires_at <= :now),"
            " (select count(*) from (select s.tenant from {job_state} s where s.held_by is not null"
            f"  and s.due_at is not null and s.state = 'queued' limit :cap) k where {within(tenant, 'k.tenant')}),"
            " (select count(*) from (select 1 from {job_state} s where s.state in ('leased', 'in_progress')"
            f"  and {own} limit :cap) a)"
        )
        rows = yield from self._query(tenant, text, now=now, cap=CAP)
        return tuple(rows[0])

    def _long_running(self, tenant: str, now: Any, when: Thresholds) -> Steps[tuple[LongRunning, ...]]:
        """The jobs that have run longest, up to three of each kind, compared with earlier jobs of the kind."""
        codec = self.dialect.codec
        least = min(each for each in (MIN_LONG, when.long_running_warn) if each is not None)
        text = (
            "select x.id, x.tenant, x.kind, x.started_at from (select r.id, r.tenant, r.kind, r.started_at,"
            " row_number() over (partition by r.tenant, r.kind order by r.started_at) as n from"
            " (select s.id, s.tenant, s.kind, s.started_at from {job_state} s"
            f" where s.state in ('leased', 'in_progress') and s.state = 'in_progress' and {within(tenant, 's.tenant')}"
            " limit :cap) r"
            f" where r.started_at < :limit) x where x.n <= 3 order by x.started_at limit {3 * NAMES}"
        )
        limit = codec.moment(codec.time(now) - least * SECOND)
        rows = yield from self._query(tenant, text, cap=CAP, limit=limit)
        first = {(row[1], row[2]): row[0] for row in reversed(rows)}
        usual = yield from read_together(*(self._usual(tenant, *kind, before) for kind, before in first.items()))
        usual_of = dict(zip(first, usual, strict=True))
        jobs = [
            LongRunning(str(row[0]), row[2], row[1], self._age(now, row[3]) or 0.0, usual_of[row[1], row[2]])
            for row in rows
        ]
        return tuple(job for job in jobs if is_long(job.seconds, job.usual_s, when))

    def _usual(self, tenant: str, owner: str, kind: str, before: Any) -> Steps[float | None]:
        """The median run time of the last jobs of a kind that were enqueued before another one."""
        text = (
            "select s.started_at, s.finished_at from (select j.id from {job} j where j.tenant = :owner"
            " and j.kind = :kind and j.id < :before order by j.id desc limit 50) p"
            " join {job_state} s on s.id = p.id where s.state = 'succeeded' and s.started_at is not null"
        )
        rows = yield from self._query(tenant, text, owner=owner, kind=kind, before=before)
        return None if len(rows) < MIN_RUNS else median(self._age(end, start) or 0.0 for start, end in rows)

    def _late(self, tenant: str, now: Any, when: Thresholds) -> Steps[tuple[str, ...]]:
        if when.schedule_late_warn is None:
            return ()
        codec = self.dialect.codec
        limit = codec.moment(codec.time(now) - when.schedule_late_warn * SECOND)
        text = (
            "select c.name from {schedule} c where c.state = 'active' and c.next_fire_at < :limit"
            f" and c.attend_at is not null and {within(tenant, 'c.tenant')} order by c.name limit {NAMES}"
        )
        rows = yield from self._query(tenant, text, limit=limit)
        return tuple(str(row[0]) for row in rows)

    def _behind(self, tenant: str, when: Thresholds) -> Steps[tuple[str, ...]]:
        if when.behind_warn is None:
            return ()
        consumers = yield from self._consumers.list(tenant).start()
        names = [f"consumer {consumer.name}" for consumer in consumers if consumer.behind >= when.behind_warn]
        for subscription in (yield from self._subscriptions.list(tenant).start()):
            if subscription.paused_at is not None:
                continue
            behind = yield from self._subscriptions.behind(
                subscription.cursor, subscription.of_ledger, subscription.tenant
            ).start()
            if behind >= when.behind_warn or subscription.failure is not None:
                names.append(f"subscription {subscription.name}")
        return tuple(names)

    def _ledger(self, tenant: str) -> Steps[tuple[Any, tuple[str, ...]]]:
        """The time of the oldest unsealed event, and the consumers that delay a purge, except the usage count, which
        catches up by itself."""
        first = None
        if tenant == EVERY_TENANT:
            text = (
                "select e.at from {event} e where e.seq > coalesce((select s.floor from {seal} s"
                " order by s.number desc limit 1), 0) order by e.seq limit 1"
            )
            rows = yield from self._query(tenant, text)
            first = rows[0][0] if rows else None
        text = (
            "select distinct p.held_by from {retention_pass} p where p.held > 0 and p.held_by is not null"
            f" and p.held_by <> 'usage' and {within(tenant, 'p.tenant')} order by p.held_by limit {NAMES}"
        )
        rows = yield from self._query(tenant, text)
        return first, tuple(str(row[0]) for row in rows)


def paused_queues(pauses: list[Pause], tenant: str) -> frozenset[str] | None:
    """The queues that are paused for all of the tenant; None if everything is paused."""
    matching = [pause for pause in pauses if pause.tenant in (EVERY_TENANT, tenant)]
    if any(pause.scope == "all" for pause in matching):
        return None
    return frozenset(pause.name for pause in matching if pause.scope == "queue")


def _serves(worker: tuple[Any, Any], queue: str, kind: str | None = None) -> bool:
    """Whether the worker serves the queue, and has a handler for the kind if one is given."""
    kinds, queues = worker
    return (kinds is None or kind is None or kind in kinds) and (queues is None or queue in queues)


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"
