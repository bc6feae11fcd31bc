"""The verbs of dead letters and bulk operations (``code/27_dead_letters``, ``46_operations``, ``51_redrive_as``)."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.engine.ids import parse_id
from holdfast.engine.job import EVERY_TENANT, Enqueued
from holdfast.features.dead_letters.model import COUNTED, Operation, Starting
from holdfast.stores.bulk import Operating, as_wanted, for_verb
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.postgres.base import Calls
from holdfast.stores.requests import JobFilter


class DeadLetterVerbs(Calls, Operating):
    @flow(single=True)
    def note_dead_letters(self, fingerprint: str, note: str | None, actor: str, tenant: str) -> Steps[bool]:
        rows = yield self._call("note_dead_letters", "%s, %s, %s, %s", fingerprint, note, actor, tenant)
        return bool(rows[0][0])

    @flow(single=True)
    def redrive_as(
        self, job_id: str, new_id: str, payload: str, reason: str | None, actor: str, tenant: str
    ) -> Steps[Enqueued]:
        given = (parse_id(job_id), new_id, payload, reason, actor, tenant)
        rows = yield self._call("redrive_as", "%s, %s, %s::json, %s, %s, %s", *given)
        made, created, refusal = rows[0]
        return Enqueued(None if made is None else str(made), created, refusal)

    @flow()
    def start_operation(self, new: Starting, wanted: JobFilter, actor: str, tenant: str) -> Steps[Operation]:
        chosen = for_verb(new.verb, wanted)
        total = yield from self._count(chosen)
        yield self._call(
            "start_operation",
            "%s, %s, %s, %s, %s, %s, %s::integer, %s::float8, %s, %s",
            new.id,
            new.verb,
            as_wanted(chosen),
            min(total, COUNTED),
            total > COUNTED,
            new.reason,
            new.max_retries,
            new.rate,
            actor,
            tenant,
        )
        started = yield from self.operation(new.id, tenant).start()
        assert started is not None
        return started

    @flow(single=True, writes=False)
    def next_operation(self, tenant: str = EVERY_TENANT) -> Steps[float | None]:
        """One statement, and no transaction around it: every worker asks this twice a second."""
        rows = yield self._call("next_operation", "%s", tenant)
        return None if rows[0][0] is None else float(rows[0][0])

    @flow()
    def work_operation(self, tenant: str = EVERY_TENANT, only: str | None = None) -> Steps[int | None]:
        return (yield from self._work(tenant, only))

    @flow(single=True)
    def cancel_operation(self, operation_id: str, reason: str | None, actor: str, tenant: str) -> Steps[bool]:
        rows = yield self._call("cancel_operation", "%s, %s, %s, %s", parse_id(operation_id), reason, actor, tenant)
        return bool(rows[0][0])

    # --- what working on one asks for ---

    def _hold_operation(self, only: str | None, tenant: str) -> Steps[Operation | None]:
        text = f"select {Record.columns(Operation)} from {self.dialect.schema}hold_operation(%s::uuid, %s)"
        rows = yield Statement(text, (only, tenant))
        return self._operation(rows[0]) if rows else None

    def _do_operation(self, found: Operation, jobs: Sequence[str], last: str | None, over: bool) -> Steps[None]:
        given = (found.id, list(jobs), last, over, found.tenant)
        yield self._call("do_operation", "%s, %s::uuid[], %s::uuid, %s, %s", *given)
