"""Enqueuing; the functions are in ``code/40_*``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from holdfast.engine.job import Enqueued, JobSpec
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.postgres.calls import Calls
from holdfast.stores.postgres.codec import alike, enqueue_document, enqueued, is_bare, is_plain


class EnqueueVerb(Calls):
    @cached_property
    def _enqueue_one(self) -> str:
        """Not put together anew for each call: a connection knows again what it was asked before by the text itself."""
        numbers = "%s::smallint, %s::smallint, %s::smallint"
        return f"select {self._s}enqueue_one(%s, %s, %s, %s, {numbers}, %s, %s, %s)"

    def _enqueue_again(self, specs: Sequence[JobSpec], tenant: str) -> Steps[list[Enqueued]]:
        """Ids are ours, so a job that has one of them is the very job: the batch came through, and was not answered."""
        there = yield from self._ids_there([spec.id for spec in specs], tenant)
        missing = [spec for spec in specs if spec.id not in there]
        answers = (yield from self.enqueue(missing, tenant).start()) if missing else []
        # Under a key the first try may come through only now; then the job that stands for this one is itself.
        there |= {spec.id for spec, answer in zip(missing, answers, strict=True) if answer.id == spec.id}
        others = iter(answer for spec, answer in zip(missing, answers, strict=True) if spec.id not in there)
        return [Enqueued(spec.id, True) if spec.id in there else next(others) for spec in specs]

    def _ids_there(self, ids: Sequence[str], tenant: str) -> Steps[set[str]]:
        yield Statement(f"select {self._s}enter(%s)", (tenant,))
        found = yield Statement(
            f"select id from {self._s}job where id = any(%s::uuid[]) and tenant = %s", (list(ids), tenant)
        )
        return {str(row[0]) for row in found}

    @flow(single=True, repeat=_enqueue_again)
    def enqueue(self, specs: Sequence[JobSpec], tenant: str) -> Steps[list[Enqueued]]:
        if len(specs) == 1 and is_bare(specs[0]):
            spec = specs[0]
            place = (spec.priority, spec.retry.max_retries, spec.retry.max_crashes)
            facts = (spec.id, spec.kind, spec.queue, spec.payload, *place, spec.enqueued_by, spec.source_system, tenant)
            yield Statement(self._enqueue_one, facts)
            return [Enqueued(spec.id, True)]
        together = alike(specs)
        if together is not None:
            # Without a column there is nothing to describe, to fetch and to decode; only an agent has something to say.
            said = "" if specs[0].agent is None else "n, reason, detail"
            call = f"select {said} from {self._s}enqueue_alike(%s::json, %s::uuid[], %s::json, %s)"
            rows = yield Statement(call, (*together, tenant))
            answers = [Enqueued(spec.id, True) for spec in specs]
            for number, reason, detail in rows if said else ():
                answers[number - 1] = Enqueued(None, False, reason, None, detail)
            return answers
        plain = is_plain(specs)
        rows = yield self._call("enqueue_many", "%s::json, %s, null, %s", enqueue_document(specs), tenant, plain)
        if plain:
            return [Enqueued(spec.id, True) for spec in specs]
        return enqueued(rows)
