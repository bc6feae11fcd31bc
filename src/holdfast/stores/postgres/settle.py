"""Settling what has ended; the function is in ``code/43_settle_many.sql``."""

from __future__ import annotations

import json
from collections.abc import Sequence

from holdfast.engine.settlement import Settlement
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.postgres.arrays import Ids, Numbers, Words, ids, numbers, words
from holdfast.stores.postgres.calls import Calls

VERB_OF = {"succeeded": "succeed", "snooze": "snooze", "cancel": "cancel", "pause": "snooze", "ask": "ask"}


class SettleVerb(Calls):
    def _settle_again(self, lease: str, settlements: Sequence[Settlement], tenant: str) -> Steps[list[str]]:
        """What is stale now may be so because our first try came through. The ledger knows: nobody but the holder of
        an attempt can make it succeed, fail or snooze."""
        stale = yield from self.settle(lease, settlements, tenant).start()
        if not stale:
            return []
        rows = yield Statement(
            f"select job_id, attempt, verb from {self._s}event"
            " where job_id = any(%s::uuid[]) and from_state = 'in_progress'",
            (list(stale),),
        )
        ended = {(str(job_id), attempt, verb) for job_id, attempt, verb in rows}
        ours = {item.id for item in settlements if (item.id, item.attempt, VERB_OF.get(item.ending, "fail")) in ended}
        return [job_id for job_id in stale if job_id not in ours]

    @flow(single=True, repeat=_settle_again)
    def settle(self, lease: str, settlements: Sequence[Settlement], tenant: str) -> Steps[list[str]]:
        rows = yield self._call(
            "settle_many",
            "%s, %s::uuid[], %s::int[], %s::text[], %s::json[], %s",
            lease,
            *endings(settlements),
            tenant,
        )
        return [str(row[0]) for row in rows]


def endings(settlements: Sequence[Settlement]) -> tuple[Ids, Numbers, Words, list[str | None] | None]:
    """The arrays of ``settle_many``."""
    telling = [
        item
        for item in settlements
        if item.ending != "succeeded" or not (item.result is None and item.note is None and item.ref is None)
    ]
    return (
        ids([item.id for item in settlements]),
        numbers([item.attempt for item in settlements]),
        words([item.ending for item in settlements]),
        [detail_of(item) for item in settlements] if telling else None,
    )


def detail_of(item: Settlement) -> str | None:
    """What goes with an ending, as JSON text; nothing for a plain success."""
    if item.ending == "succeeded":
        if item.result is None and item.ref is None and item.note is None:
            return None
        parts = [] if item.result is None else [f'"result":{item.result}']
        parts += [] if item.ref is None else [f'"result_ref":{json.dumps(item.ref)}']
        parts += [] if item.note is None else [f'"note":{json.dumps(item.note)}']
        return f"{{{','.join(parts)}}}"
    detail = {
        "delay": item.delay,
        "code": item.code,
        "message": item.message,
        "note": item.note,
        "pause": item.pause,
        "steps": item.steps,
    }
    return json.dumps({name: value for name, value in detail.items() if value is not None})
