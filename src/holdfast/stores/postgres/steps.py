"""``store.steps`` on PostgreSQL: durable steps, checkpoints and artifacts; the functions are in ``sql/steps.sql``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.engine.ids import parse_id
from holdfast.engine.steps import Saved, StepEntry
from holdfast.stores.flow import Steps, flow
from holdfast.stores.job_reads import StepReads
from holdfast.stores.postgres.base import Calls
from holdfast.stores.postgres.codec import text_of


class PostgresSteps(Calls, StepReads):
    @flow(single=True)
    def save(self, lease: str, entries: Sequence[tuple[str, int, StepEntry]], tenant: str) -> Steps[list[Saved]]:
        """Save finished steps, each with its job and attempt. Returns only the entries that were not simply saved."""
        document = f"[{','.join(_entry(*entry) for entry in entries)}]"
        rows = yield self._call("save_steps", "%s, %s::json, %s", lease, document, tenant)
        read = self.dialect.codec.json
        return [Saved(str(job_id), n, fate, None if value is None else read(value)) for job_id, n, fate, value in rows]

    @flow(single=True)
    def rewind(self, job_id: str, to: int, actor: str, tenant: str) -> Steps[int | None]:
        """Delete the steps of a dead letter from number ``to`` on; None when there is no such dead letter."""
        rows = yield self._call("rewind", "%s, %s, %s, %s", parse_id(job_id), to, actor, tenant)
        return rows[0][0]  # type: ignore[no-any-return]

    @flow(single=True)
    def fork(
        self,
        job_id: str,
        new_id: str,
        before: int,
        step: str,
        parts: Mapping[int, str],
        reason: str | None,
        actor: str,
        tenant: str,
    ) -> Steps[int]:
        """Copy the finished steps before a position to a new job. ``parts`` has values that need another form there."""
        document = ",".join(f'{{"n":{n},"value":{value}}}' for n, value in parts.items())
        params = (parse_id(job_id), parse_id(new_id), before, step, f"[{document}]", reason, actor, tenant)
        rows = yield self._call("fork_steps", "%s, %s, %s, %s, %s::json, %s, %s, %s", *params)
        return rows[0][0]  # type: ignore[no-any-return]

    @flow(single=True)
    def save_checkpoint(
        self, claim_id: str, lease: str, attempt: int, name: str, value: str, tenant: str
    ) -> Steps[bool]:
        params = (claim_id, lease, attempt, name, value, tenant)
        return (yield from self._flag("save_checkpoint", "%s, %s, %s, %s, %s::json, %s", *params))

    @flow(single=True)
    def note_upload(self, claim_id: str, lease: str, attempt: int, ref: str, tenant: str) -> Steps[bool]:
        """Announce an object that is about to be stored for a step or a checkpoint. It is deleted if no step or
        checkpoint records it within a day. False when the lease no longer holds this attempt."""
        return (yield from self._flag("note_upload", "%s, %s, %s, %s, %s", claim_id, lease, attempt, ref, tenant))

    @flow(single=True)
    def add_artifact(
        self,
        claim_id: str,
        lease: str,
        attempt: int,
        name: str,
        ref: str,
        tenant: str,
        meta: dict[str, Any] | None = None,
    ) -> Steps[bool]:
        document = None if meta is None else json.dumps(meta)
        params = (claim_id, lease, attempt, name, ref, document, tenant)
        return (yield from self._flag("add_artifact", "%s, %s, %s, %s, %s, %s::jsonb, %s", *params))


def _entry(job_id: str, attempt: int, entry: StepEntry) -> str:
    """An entry as JSON, formatted directly because there are thousands per second; the value is JSON text already."""
    error = "" if entry.error is None else f',"error":{json.dumps(entry.error)}'
    value = "" if entry.value is None else f',"value":{entry.value}'
    return (
        f'{{"job":"{job_id}","attempt":{attempt},"n":{entry.n},"name":{text_of(entry.name)},"kind":"{entry.kind}",'
        f'"tries":{entry.tries},"took":{entry.took:.6f}{error}{value}}}'
    )
