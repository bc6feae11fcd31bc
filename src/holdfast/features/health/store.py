"""Health: the port, and the reads its verdict is made of.

What the verdict of health is made of (DP-19), at a bounded cost however many jobs there are.

Everything is counted up to ``CAP``, and what is walked past is bounded too: where a tenant has more than so many queued
jobs, the rest is not looked at and the answer says so. Of all tenants together the small indexes are read from their
beginning; where there is none (dead letters), each tenant is a look of its own.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.health.model import CAP, DEFAULT_THRESHOLDS, Health, Thresholds, judged
from holdfast.features.health.statistics import Activity, Pulse, QueueFigures, Recent, Standing
from holdfast.features.limits.model import Pause
from holdfast.stores.flow import Flow, Steps, flow, read_together
from holdfast.stores.job_reads import Reader
from holdfast.stores.reader import within

if TYPE_CHECKING:
    from holdfast.features.events.store import ConsumerStore, SubscriptionStore
    from holdfast.features.limits.store import PauseStore


class HealthStore(Protocol):
    def statistics(self, tenant: str) -> Flow[Pulse]:
        """How the work stands now: queue by queue what waits and runs, who works, what failed of late."""
        ...

    def workers(self, tenant: str) -> Flow[Standing]:
        """Of that only what waits and runs queue by queue, and who works: all that a page shows of it."""
        ...

    def activity(self, tenant: str, range: str = "1h", by: str | None = None) -> Flow[Activity]:
        """Jobs enqueued, succeeded and failed over a range (``RANGES``), and the schedules due next. With ``by``
        (``queue`` or ``kind``) also one series for each."""
        ...

    def latest(self, tenant: str) -> Flow[str]:
        """The range that shows what happened last."""
        ...

    def queues(self, tenant: str) -> Flow[list[QueueFigures]]:
        """Queues with a job of the last day, and how each did in the last hour."""
        ...

    def recent(self, tenant: str, of: str, name: str, range: str | None = None) -> Flow[Recent]:
        """The newest jobs of one queue or one kind (``of``), drawn over a range."""
        ...

    def get(self, tenant: str, when: Thresholds = DEFAULT_THRESHOLDS) -> Flow[Health]:
        """What was counted and what is to be said of it; of the database itself, see ``Store.conditions``."""
        ...


SECOND = timedelta(seconds=1)
LEASES, NAMES, HEAD = 1_000, 20, 1_000
AT_ONCE = 50
"""So many queues are looked at side by side."""

# The second half says in which of two indexes a state is looked for (see job_reads.py).
_NOT_HELD = "s.state not in ('leased', 'in_progress')"
# A job that has run before waits since it came back, not since it was made. Looked up one by one: for a join all jobs
# might be read, the finished ones too.
_READY_SINCE = (
    "case when w.attempt > 0 then (select e.at from {event} e where e.job_id = w.id order by e.seq desc limit 1)"
    " else (select case when j.run_at > j.created_at then j.run_at else j.created_at end"
    " from {job} j where j.id = w.id) end"
)
# One after the other, by the first column of the index: as many looks as there are tenants.
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
# Those that wait for a time are walked past, but not for ever.
_OLDEST = (
    f"(select min({_READY_SINCE}) from (select a.id, a.attempt from (select s.id, s.attempt, s.due_at, s.queue"
    " from {job_state} s where s.tenant = WHOSE and s.state = 'queued'"
    f" and {_NOT_HELD} order by s.id limit :walk) a where a.due_at is null and not (IS_SHUT) limit :head) w)"
)


class HealthReads(Reader):
    """The parts of the store that it reads with are given to it."""

    _pauses: PauseStore
    _consumers: ConsumerStore
    _subscriptions: SubscriptionStore

    @flow(writes=False)
    def get(self, tenant: str, when: Thresholds = DEFAULT_THRESHOLDS) -> Steps[Health]:
        now = yield from self._present()
        counted = (self._waiting(tenant), self._dead(tenant), self._smaller(tenant, now))
        seen = (self._pauses.list(tenant).start(), self._leases(tenant, now), self._late(tenant, now, when))
        more = (self._laggards(tenant, when), self._kept(tenant), self._executors(tenant))
        told = yield from read_together(*counted, *seen, *more)
        (backlog, scheduled), dead, (approvals, first_asked, overdue, parked, running) = told[:3]
        pauses, (serving, labels), late, behind, (unsealed, holders), wanted = told[3:]
        shut = closed_queues(pauses, tenant)
        oldest: Any = None
        pairs: list[tuple[str, str]] = []
        if shut is not None:
            oldest, pairs = yield from read_together(self._oldest(tenant, shut), self._heads(tenant, shut))
        found = Health(
            backlog,
            scheduled,
            running,
            dead,
            self._age(now, oldest),
            len(serving),
            tuple(sorted({kind for _, kind in pairs})),
            "ok",
            approvals_open=approvals,
            oldest_approval_age_s=self._age(now, first_asked),
            workers=sum(kinds is not None or queues is not None for kinds, queues in serving),
            unserved=tuple(pair for pair in pairs if not any(_serves(each, *pair) for each in serving)),
            unserved_queues=tuple(
                sorted({queue for queue, _ in pairs if not any(_serves(each, queue) for each in serving)})
            ),
            unserved_executors=tuple(label for label in wanted if label not in labels),
            parked=parked,
            paused=tuple(pause.says for pause in pauses),
            approvals_overdue=overdue,
            schedules_late=late,
            behind=behind,
            unsealed_age_s=self._age(now, unsealed),
            retention_held=holders,
            capped=max(backlog, scheduled, dead, parked, running) >= CAP,
        )
        return judged(found, when)

    def _present(self) -> Steps[Any]:
        rows = yield self.dialect.read("select now from {present}")
        return rows[0][0]

    def _age(self, now: Any, then: Any) -> float | None:
        codec = self.dialect.codec
        return None if then is None else (codec.time(now) - codec.time(then)) / SECOND

    def _waiting(self, tenant: str) -> Steps[tuple[int, int]]:
        """How many may be begun, and how many wait for a time or are held back."""
        if tenant == EVERY_TENANT:
            text = (
                "select (select count(*) from (select 1 from {job_state} s where s.state = 'queued'"
                " and s.due_at is null limit :cap) a),"
                " (select count(*) from (select 1 from {job_state} s where s.due_at is not null"
                " and s.state in ('queued', 'retry_waiting') limit :cap) b)"
            )
        else:
            queued = f"s.state = 'queued' and {_NOT_HELD} and s.tenant = :tenant"
            text = (
                "select coalesce(sum(case when w.due_at is null then 1 else 0 end), 0),"
                " coalesce(sum(case when w.due_at is null then 0 else 1 end), 0) + (select count(*) from (select 1"
                f" from {{job_state}} s where s.state = 'retry_waiting' and {_NOT_HELD} and s.tenant = :tenant"
                f" limit :cap) r) from (select s.due_at from {{job_state}} s where {queued} limit :cap) w"
            )
        rows = yield from self._ask(tenant, text, cap=CAP)
        return int(rows[0][0]), min(int(rows[0][1]), CAP)

    def _dead(self, tenant: str) -> Steps[int]:
        if tenant == EVERY_TENANT:
            each = _DEAD.replace("WHOSE", "t.tenant")
            text = f"{_TENANTS} select coalesce(sum({each}), 0) from t where t.tenant is not null"
        else:
            text = "select " + _DEAD.replace("WHOSE", ":tenant")
        rows = yield from self._ask(tenant, text, cap=CAP)
        return min(int(rows[0][0]), CAP)

    def _oldest(self, tenant: str, shut: frozenset[str]) -> Steps[Any]:
        """Since when the one waits that has waited longest: ids grow with time, so it is among the first of each."""
        names = self.dialect.listed(sorted(shut))
        look = _OLDEST.replace("IS_SHUT", self.dialect.has(":shut", "a.queue"))
        if tenant == EVERY_TENANT:
            each = look.replace("WHOSE", "t.tenant")
            text = f"{_TENANTS} select min(o.since) from (select {each} as since from t where t.tenant is not null) o"
            rows = yield from self._ask(tenant, text, shut=names, walk=500, head=50)
        else:
            text = "select " + look.replace("WHOSE", ":tenant")
            rows = yield from self._ask(tenant, text, shut=names, walk=CAP, head=HEAD)
        return rows[0][0]

    def _heads(self, tenant: str, shut: frozenset[str]) -> Steps[list[tuple[str, str]]]:
        """Queues and kinds of what stands at the head of each queue: what nobody takes stays there."""
        rows = yield from self._ask(
            tenant, f"{_QUEUES} select q.queue from q where q.queue is not null limit :most", most=HEAD
        )
        queues = [row[0] for row in rows if row[0] not in shut]
        found: list[tuple[str, str]] = []
        for first in range(0, len(queues), AT_ONCE):
            heads = yield from read_together(
                *(self._head_of(tenant, queue) for queue in queues[first : first + AT_ONCE])
            )
            found += [pair for pairs in heads for pair in pairs]
        return found

    def _head_of(self, tenant: str, queue: str) -> Steps[list[tuple[str, str]]]:
        mine = "1 = 1" if tenant == EVERY_TENANT else "h.tenant = :tenant"
        text = (
            "select distinct h.kind from (select s.kind, s.tenant from {job_state} s where s.queue = :queue"
            " and s.state = 'queued' and s.due_at is null order by s.priority desc, s.position limit :head) h"
            f" where {mine} order by h.kind"
        )
        rows = yield from self._ask(tenant, text, queue=queue, head=HEAD)
        return [(queue, str(row[0])) for row in rows]

    def _executors(self, tenant: str) -> Steps[list[str]]:
        """The labels that claimable jobs name."""
        theirs = f"s.executor = x.label and s.tenant = :tenant and {_CLAIMABLE_FOR}"
        own = "1 = 1" if tenant == EVERY_TENANT else f"exists (select 1 from {{job_state}} s where {theirs})"
        text = f"{_EXECUTORS} select x.label from x where x.label is not null and {own} limit :most"
        rows = yield from self._ask(tenant, text, most=HEAD)
        return [str(row[0]) for row in rows]

    def _leases(self, tenant: str, now: Any) -> Steps[tuple[list[tuple[Any, Any]], frozenset[str]]]:
        """What the live ones take, if they said so (one that did not may take anything), and their labels."""
        own = "1 = 1" if tenant == EVERY_TENANT else "l.tenant in (:tenant, '*')"
        text = (
            "select l.kinds, l.queues, l.name from {lease} l where l.ended_at is null and l.until > :now"
            f" and {own} limit {LEASES}"
        )
        rows = yield from self._ask(tenant, text, now=now)
        tags = self.dialect.codec.tags
        serving = [tuple(None if names is None else frozenset(tags(names)) for names in row[:2]) for row in rows]
        return serving, frozenset(row[2] for row in rows)  # type: ignore[return-value]

    def _smaller(self, tenant: str, now: Any) -> Steps[tuple[int, Any, int, int, int]]:
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
        rows = yield from self._ask(tenant, text, now=now, cap=CAP)
        return tuple(rows[0])

    def _late(self, tenant: str, now: Any, when: Thresholds) -> Steps[tuple[str, ...]]:
        if when.schedule_late_warn is None:
            return ()
        codec = self.dialect.codec
        limit = codec.moment(codec.time(now) - when.schedule_late_warn * SECOND)
        text = (
            "select c.name from {schedule} c where c.state = 'active' and c.next_fire_at < :limit"
            f" and c.attend_at is not null and {within(tenant, 'c.tenant')} order by c.name limit {NAMES}"
        )
        rows = yield from self._ask(tenant, text, limit=limit)
        return tuple(str(row[0]) for row in rows)

    def _laggards(self, tenant: str, when: Thresholds) -> Steps[tuple[str, ...]]:
        if when.behind_warn is None:
            return ()
        consumers = yield from self._consumers.list(tenant).start()
        found = [f"consumer {each.name}" for each in consumers if each.behind >= when.behind_warn]
        for each in (yield from self._subscriptions.list(tenant).start()):
            if each.paused_at is not None:
                continue
            past = yield from self._subscriptions.behind(each.cursor, each.of_ledger, each.tenant).start()
            if past >= when.behind_warn or each.failure is not None:
                found.append(f"subscription {each.name}")
        return tuple(found)

    def _kept(self, tenant: str) -> Steps[tuple[Any, tuple[str, ...]]]:
        """Since when an event is not sealed, and who holds back a purge. (The counting catches up by itself.)"""
        first = None
        if tenant == EVERY_TENANT:
            text = (
                "select e.at from {event} e where e.seq > coalesce((select s.floor from {seal} s"
                " order by s.number desc limit 1), 0) order by e.seq limit 1"
            )
            rows = yield from self._ask(tenant, text)
            first = rows[0][0] if rows else None
        text = (
            "select distinct p.held_by from {retention_pass} p where p.held > 0 and p.held_by is not null"
            f" and p.held_by <> 'usage' and {within(tenant, 'p.tenant')} order by p.held_by limit {NAMES}"
        )
        rows = yield from self._ask(tenant, text)
        return first, tuple(str(row[0]) for row in rows)


def closed_queues(pauses: list[Pause], tenant: str) -> frozenset[str] | None:
    """Queues that are paused as a whole, for all that is looked at; None: everything is."""
    wide = [pause for pause in pauses if pause.tenant in (EVERY_TENANT, tenant)]
    if any(pause.scope == "all" for pause in wide):
        return None
    return frozenset(pause.name for pause in wide if pause.scope == "queue")


def _serves(worker: tuple[Any, Any], queue: str, kind: str | None = None) -> bool:
    """Whether it serves the queue, and has a handler for the kind if one is given."""
    kinds, queues = worker
    return (kinds is None or kind is None or kind in kinds) and (queues is None or queue in queues)
