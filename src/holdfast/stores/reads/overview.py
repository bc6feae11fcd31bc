"""How many jobs there are in each state: all of them, or no more than a page needs to say."""

from __future__ import annotations

import dataclasses

from holdfast.engine.states import State, state_of
from holdfast.stores.base import Counted, JobFilter
from holdfast.stores.flow import Steps, flow
from holdfast.stores.reads.dialect import within
from holdfast.stores.reads.jobs import Reader
from holdfast.stores.reads.pages import ids

WINDOW = 10_000
"""Of jobs that are chosen by more than their state, so many of the newest are looked at."""


class OverviewReads(Reader):
    @flow(writes=False)
    def counts(self, tenant: str) -> Steps[dict[State, int]]:
        text = f"select s.state, count(*) from {{job_state}} s where {within(tenant, 's.tenant')} group by s.state"
        rows = yield from self._ask(tenant, text)
        return {state_of(state): count for state, count in rows}

    @flow(writes=False)
    def capped_counts(self, wanted: JobFilter, most: int) -> Steps[Counted]:
        """By an index, and never more rows than the cap in each state: it costs the same beside millions."""
        every = dataclasses.replace(wanted, state=None, before=None, payloads=True)
        if every == JobFilter(tenant=wanted.tenant, limit=wanted.limit):
            parts, params = [], {}
            for state in State:
                found, given = ids(JobFilter(tenant=wanted.tenant, state=state, limit=most), most)
                name = f"state_{state}"
                parts.append(f"select '{state}', count(*) from ({found.replace(':state', f':{name}')}) {name}")
                params[name] = given["state"]
            rows = yield from self._ask(wanted.tenant, " union all ".join(parts), **params)
            counts = {state_of(state): int(count) for state, count in rows}
            return Counted(counts, most, None)
        found, params = ids(dataclasses.replace(every, limit=WINDOW), WINDOW)
        text = f"select s.state, count(*) from ({found}) c join {{job_state}} s on s.id = c.id group by s.state"
        rows = yield from self._ask(wanted.tenant, text, **params)
        seen = {state_of(state): int(count) for state, count in rows}
        looked_at = sum(seen.values())
        counts = {state: min(most, seen.get(state, 0)) for state in State}
        return Counted(counts, most, WINDOW if looked_at >= WINDOW else None)
