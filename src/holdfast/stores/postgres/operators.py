"""What operators do to jobs; the functions are in ``code/46_operators.sql`` and ``46_order.sql``."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.engine.job import Verdict
from holdfast.engine.order import Move
from holdfast.engine.states import state_of
from holdfast.stores.base import OperatorVerb, Reschedule
from holdfast.stores.flow import Row, Steps, flow
from holdfast.stores.postgres.calls import Calls


class OperatorVerbs(Calls):
    @flow(single=True)
    def operate(
        self,
        verb: OperatorVerb,
        ids: Sequence[str],
        reason: str | None,
        actor: str,
        tenant: str,
        max_retries: int | None = None,
    ) -> Steps[list[Verdict]]:
        if max_retries is None:
            rows = yield self._call(
                f"{verb}_many", "%s::uuid[], %s, %s, for_tenant => %s", list(ids), reason, actor, tenant
            )
        else:
            rows = yield self._call(
                "redrive_many", "%s::uuid[], %s, %s, %s, %s", list(ids), reason, actor, max_retries, tenant
            )
        return [_verdict(row) for row in rows]

    @flow(single=True)
    def reschedule(
        self, ids: Sequence[str], when: Reschedule, reason: str | None, actor: str, tenant: str
    ) -> Steps[list[Verdict]]:
        rows = yield self._call(
            "reschedule_many",
            "%s::uuid[], %s::timestamptz, make_interval(secs => %s::float8), %s, %s, %s, %s",
            list(ids),
            when.at,
            when.delay,
            when.max_retries,
            reason,
            actor,
            tenant,
        )
        return [_verdict(row) for row in rows]

    @flow(single=True)
    def move(self, job_id: str, move: Move, reason: str | None, actor: str, tenant: str) -> Steps[Verdict]:
        rows = yield self._call(
            "move",
            "%s, %s, %s::uuid, %s, %s, %s, %s",
            job_id,
            move.where,
            move.other,
            move.priority,
            reason,
            actor,
            tenant,
        )
        return _verdict(rows[0])


def _verdict(row: Row) -> Verdict:
    job_id, state, refused, why = row
    return Verdict(str(job_id), state_of(state) if state else None, refused, why)
