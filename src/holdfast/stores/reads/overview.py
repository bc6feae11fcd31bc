"""Looking at the whole: how much there is of what, and whether somebody should look closer."""

from __future__ import annotations

from datetime import timedelta

from holdfast.domain.states import State
from holdfast.stores.base import Health
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.reads.dialect import within
from holdfast.stores.reads.jobs import Reader

SECOND = timedelta(seconds=1)

# The second half says in which of two indexes a state is looked for (see pages.py).
_NOT_HELD = "s.state not in ('leased', 'in_progress')"
_CLAIMABLE = f"s.state = 'queued' and s.due_at is null and {_NOT_HELD}"
# A job that has run before waits since it came back, not since it was made. Looked up one by one: for a join all jobs
# might be read, the finished ones too.
_READY_SINCE = (
    "case when s.attempt > 0 then (select e.at from {event} e where e.job_id = s.id order by e.seq desc limit 1)"
    " else (select case when j.process_after > j.created_at then j.process_after else j.created_at end"
    " from {job} j where j.id = s.id) end"
)


class OverviewReads(Reader):
    @flow(writes=False)
    def counts(self, tenant: str) -> Steps[dict[State, int]]:
        text = f"select s.state, count(*) from {{job_state}} s where {within(tenant, 's.tenant')} group by s.state"
        rows = yield from self._ask(tenant, text)
        return {State(state): count for state, count in rows}

    @flow(writes=False)
    def health(self, tenant: str, stale_after: float = 300.0) -> Steps[Health]:
        own = within(tenant, "s.tenant")
        leases = "1 = 1" if own == "1 = 1" else "l.tenant in (:tenant, '*')"
        text = (
            f"select (select count(*) from {{job_state}} s where {_CLAIMABLE} and {own}),"
            f" (select count(*) from {{job_state}} s where s.due_at is not null"
            f"   and s.state in ('queued', 'retry_waiting') and {own}),"
            f" (select count(*) from {{job_state}} s where s.state in ('leased', 'in_progress') and {own}),"
            f" (select count(*) from {{job_state}} s where s.state = 'dead_letter'"
            f"   and {_NOT_HELD} and {own}),"
            f" (select min({_READY_SINCE}) from {{job_state}} s where {_CLAIMABLE} and {own}),"
            f" (select count(*) from {{lease}} l where l.ended_at is null and l.until > :now and {leases}),"
            f" (select count(*) from {{gate}} g where g.state = 'open' and {within(tenant, 'g.tenant')}),"
            f" (select min(g.opened_at) from {{gate}} g where g.state = 'open' and {within(tenant, 'g.tenant')})"
        )
        now = yield from self._now()
        rows = yield from self._ask(tenant, text, now=now)
        backlog, scheduled, running, dead, oldest, alive, gates, first_asked = rows[0]
        kinds = yield from self._ask(
            tenant,
            f"select distinct s.kind from {{job_state}} s where {_CLAIMABLE} and {own} order by s.kind",
        )
        serving = yield from self._ask(
            tenant, f"select l.kinds from {{lease}} l where l.ended_at is null and l.until > :now and {leases}", now=now
        )
        weak = yield from self._weak_settings()
        codec = self.dialect.codec
        served: set[str] = set()
        for (known,) in serving:
            served.update(codec.tags(known) if known is not None else (row[0] for row in kinds))
        unserved = [str(row[0]) for row in kinds if row[0] not in served]
        age = None if oldest is None else (codec.time(now) - codec.time(oldest)) / SECOND
        asked = None if first_asked is None else (codec.time(now) - codec.time(first_asked)) / SECOND
        reasons = []
        if backlog and not alive:
            reasons.append(f"{backlog} jobs wait and no worker is alive")
        elif age is not None and age > stale_after:
            reasons.append(f"the oldest waiting job has waited {age:.0f} s")
        if unserved and alive:
            reasons.append(f"no living worker has a handler for {', '.join(unserved)}")
        if dead:
            reasons.append(f"{dead} dead letters wait for somebody to redrive or discard them")
        reasons += [f"{setting}: what was accepted can be lost when the machine fails" for setting in weak]
        return Health(
            backlog,
            scheduled,
            running,
            dead,
            age,
            alive,
            tuple(str(row[0]) for row in kinds),
            "attention" if reasons else "ok",
            tuple(reasons),
            gates,
            asked,
        )

    def _weak_settings(self) -> Steps[list[str]]:
        """Settings with which a commit that was acknowledged need not last, in words."""
        if self.dialect.weak_settings is None:
            return []
        rows = yield Statement(self.dialect.weak_settings)
        return [str(row[0]) for row in rows]

    def _now(self) -> Steps[object]:
        """The store's present, in the store's own form."""
        rows = yield self.dialect.read("select now from {present}")
        return rows[0][0]
