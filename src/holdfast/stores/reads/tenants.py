"""Looking at tenants: what is set for them, and what their jobs use of it."""

from __future__ import annotations

import dataclasses

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.tenants.model import Tenant, with_shares
from holdfast.stores.flow import Flow, Steps, flow, side_by_side
from holdfast.stores.job_reads import Reader
from holdfast.stores.reader import within

# One look at an index for each tenant, not one a job.
_NAMES = (
    "with recursive named(name) as ("
    "select min(j.tenant) from {{job}} j where {whose} union all"
    " select (select min(j.tenant) from {{job}} j where j.tenant > n.name and {whose}) from named n"
    " where n.name is not null)"
    " select n.name from named n where n.name is not null"
    " union select t.tenant from {{tenant}} t where {set} order by 1"
)
_SET = (
    "select t.tenant, t.title, t.max_pending, coalesce(t.weight, 1), t.set_by, t.created_at, t.updated_at"
    " from {{tenant}} t where {set}"
)
_LIMITS = (
    "select l.tenant, l.concurrency, l.rate, l.per, l.burst from {{job_limit}} l"
    " where l.scope = 'tenant' and l.name = l.tenant and {limited}"
)
_WAITING = (
    "select s.tenant, count(*) from {{job_state}} s where s.state in ('queued', 'retry_waiting')"
    " and s.state not in ('leased', 'in_progress') and {states}"
    " group by s.tenant"
)
_RUNNING = (
    "select s.tenant, count(*) from {{job_state}} s where s.state in ('leased', 'in_progress') and {states}"
    " group by s.tenant"
)
# The same up to a limit: for each name its own ranges of the index.
_CAPPED = (
    "select n.name, (select count(*) from (select 1 from {job_state} s where s.tenant = n.name and s.state = 'queued'"
    " and s.state not in ('leased', 'in_progress') limit :most) a) + (select count(*) from (select 1 from {job_state} s"
    " where s.tenant = n.name and s.state = 'retry_waiting' and s.state not in ('leased', 'in_progress')"
    " limit :most) b),"
    " (select count(*) from (select 1 from {job_state} s where s.tenant = n.name"
    " and s.state in ('leased', 'in_progress') limit :most) c) from (NAMES limit :names) n"
)


class TenantReads(Reader):
    @flow(writes=False)
    def tenants(self, tenant: str, most: int | None = None, names: int | None = None) -> Steps[list[Tenant]]:
        whose = {
            "whose": within(tenant, "j.tenant"),
            "set": within(tenant, "t.tenant"),
            "limited": within(tenant, "l.tenant"),
            "states": within(tenant, "s.tenant"),
        }
        counted, terms_of, limits_of = yield from side_by_side(
            self._counted(tenant, whose, most, names),
            self._ask(tenant, _SET.format(**whose)),
            self._ask(tenant, _LIMITS.format(**whose)),
        )
        known = {row[0]: row for row in terms_of}
        limits = {row[0]: row[1:] for row in limits_of}
        shared = bool((yield from self.fair_queues().start()))
        time = self.dialect.codec.time
        found = []
        for name, (waiting, running) in counted.items():
            each = Tenant(name, pending=waiting, running=running)
            if name in known:
                _, title, cap, weight, by, created, updated = known[name]
                terms = {"title": title, "max_pending": cap, "weight": weight, "set_by": by}
                each = dataclasses.replace(each, **terms, created_at=time(created), updated_at=time(updated))
            if name in limits:
                limit = dict(zip(("max_running", "rate", "per", "burst"), limits[name], strict=True))
                each = dataclasses.replace(each, **limit)
            found.append(each)
        shares = with_shares(found, shared)
        return [dataclasses.replace(each, share=shares.get(each.name)) for each in found]

    def _counted(
        self, tenant: str, whose: dict[str, str], most: int | None, names: int | None
    ) -> Steps[dict[str, tuple[int, int]]]:
        """By the name: how many wait and how many run."""
        every = _NAMES.format(**whose)
        if most is not None:
            if tenant != EVERY_TENANT:
                every = "select cast(:tenant as text) as name"  # one that is known by its name is not looked for
            rows = yield from self._ask(tenant, _CAPPED.replace("NAMES", every), most=most, names=names or 2**31)
            return {name: (min(most, waiting), running) for name, waiting, running in rows}
        found = yield from self._ask(tenant, every)
        waiting = {row[0]: row[1] for row in (yield from self._ask(tenant, _WAITING.format(**whose)))}
        running = {row[0]: row[1] for row in (yield from self._ask(tenant, _RUNNING.format(**whose)))}
        return {name: (waiting.get(name, 0), running.get(name, 0)) for (name,) in found}

    def fair_queues(self) -> Flow[list[str]]:
        raise NotImplementedError
