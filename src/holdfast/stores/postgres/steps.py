"""Durable steps and application events; the functions are in ``code/48_steps.sql``."""

from __future__ import annotations

import json
from collections.abc import Sequence

from holdfast.engine.ids import parse_id
from holdfast.engine.steps import Saved, StepEntry
from holdfast.stores.flow import Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.postgres.codec import text_of
from holdfast.stores.requests import Sent, Telling


class PostgresSteps(Calls, Reader):
    @flow(single=True)
    def save_steps(self, lease: str, entries: Sequence[tuple[str, int, StepEntry]], tenant: str) -> Steps[list[Saved]]:
        document = f"[{','.join(_entry(*entry) for entry in entries)}]"
        rows = yield self._call("save_steps", "%s, %s::json, %s", lease, document, tenant)
        read = self.dialect.codec.json
        return [Saved(str(job_id), n, fate, None if value is None else read(value)) for job_id, n, fate, value in rows]

    @flow(single=True)
    def rewind(self, job_id: str, to: int, actor: str, tenant: str) -> Steps[int | None]:
        rows = yield self._call("rewind", "%s, %s, %s, %s", parse_id(job_id), to, actor, tenant)
        return rows[0][0]  # type: ignore[no-any-return]

    def _send_again(self, event: Telling, actor: str, tenant: str) -> Steps[Sent]:
        """The id is ours: if the first try came through, it is found by it."""
        sent = yield from self.send_event(event, actor, tenant).start()
        return sent

    @flow(single=True, repeat=_send_again)
    def send_event(self, event: Telling, actor: str, tenant: str) -> Steps[Sent]:
        job = None if event.job_id is None else parse_id(event.job_id)
        facts = (event.name, event.data, event.key, job, actor, tenant, event.id, event.cause_id)
        rows = yield self._call("send_event", "%s, %s::json, %s, %s::uuid, %s, %s, %s::uuid, %s::uuid", *facts)
        return Sent(str(rows[0][0]), rows[0][1], rows[0][2])


def _entry(job_id: str, attempt: int, entry: StepEntry) -> str:
    """As JSON, put together by hand, since there are thousands a second; the value is JSON text already."""
    error = "" if entry.error is None else f',"error":{json.dumps(entry.error)}'
    value = "" if entry.value is None else f',"value":{entry.value}'
    return (
        f'{{"job":"{job_id}","attempt":{attempt},"n":{entry.n},"name":{text_of(entry.name)},"kind":"{entry.kind}",'
        f'"tries":{entry.tries},"took":{entry.took:.6f}{error}{value}}}'
    )
