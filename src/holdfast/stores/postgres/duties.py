"""What falls due by itself; the functions are in ``code/45_duties.sql``."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.engine.job import EVERY_TENANT, Sweep
from holdfast.stores.flow import Steps, flow
from holdfast.stores.postgres.calls import Calls


class DutyVerbs(Calls):
    @flow(single=True)
    def promote_due(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int]:
        rows = yield self._call("promote_due", "%s, %s", want, tenant)
        return int(rows[0][0])

    @flow(single=True)
    def expire_overdue(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int]:
        rows = yield self._call("expire_overdue", "%s, %s", want, tenant)
        return int(rows[0][0])

    @flow(single=True)
    def reap_lapsed(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[Sweep]:
        rows = yield self._call("reap_lapsed", "%s, %s", want, tenant)
        return Sweep(*rows[0])

    @flow()
    def set_aside(
        self,
        lease: str | None,
        queues: Sequence[str],
        kinds: Sequence[str] | None = None,
        want: int = 1000,
        tenant: str = EVERY_TENANT,
    ) -> Steps[list[str]]:
        known = None if kinds is None else list(kinds)
        call = "%s::uuid, %s::text[], %s::text[], %s, %s"
        rows = yield self._call("set_aside", call, lease, list(queues), known, want, tenant)
        return [str(row[0]) for row in rows]
