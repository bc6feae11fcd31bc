"""``store.jobs`` on PostgreSQL: enqueue, get, list, cancel, redrive, reschedule, move, circumstances."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from holdfast.engine.ids import parse_id
from holdfast.engine.job import Enqueued, Job, JobSpec, Liveness, Verdict
from holdfast.engine.order import Move
from holdfast.engine.states import state_of
from holdfast.features.agents.model import MAX_AHEAD, JobSituation, WorkerSeen
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Row, Statement, Steps, flow
from holdfast.stores.job_reads import JOB_COLUMNS, JobReads, index_name
from holdfast.stores.postgres.base import Calls
from holdfast.stores.postgres.codec import alike, enqueue_document, enqueued, is_bare, is_plain
from holdfast.stores.requests import OperatorAction, Reschedule


def _verdict(row: Row) -> Verdict:
    job_id, state, refused, why = row
    return Verdict(str(job_id), state_of(state) if state else None, refused, why)


class PostgresJobs(Calls, JobReads):
    """``store.jobs``."""

    @cached_property
    def _enqueue_one(self) -> str:
        """Cached, so that it is the same string object each time: connections find prepared statements by their
        text."""
        numbers = "%s::smallint, %s::smallint, %s::smallint"
        return f"select {self._s}enqueue_one(%s, %s, %s, %s, {numbers}, %s, %s, %s)"

    def _enqueue_again(self, specs: Sequence[JobSpec], tenant: str) -> Steps[list[Enqueued]]:
        """Enqueue after a lost connection. The caller creates the ids, so a job with one of them is from the first
        attempt, which was committed."""
        stored = yield from self._stored_ids([spec.id for spec in specs], tenant)
        missing = [spec for spec in specs if spec.id not in stored]
        results = (yield from self.enqueue(missing, tenant).start()) if missing else []
        # With a key, the first attempt may commit only now; then the existing job with this key is the job itself.
        stored |= {spec.id for spec, result in zip(missing, results, strict=True) if result.id == spec.id}
        others = iter(result for spec, result in zip(missing, results, strict=True) if spec.id not in stored)
        return [Enqueued(spec.id, True) if spec.id in stored else next(others) for spec in specs]

    def _stored_ids(self, ids: Sequence[str], tenant: str) -> Steps[set[str]]:
        yield Statement(f"select {self._s}enter(%s)", (tenant,))
        rows = yield Statement(
            f"select id from {self._s}job where id = any(%s::uuid[]) and tenant = %s", (list(ids), tenant)
        )
        return {str(row[0]) for row in rows}

    @flow(single=True, repeat=_enqueue_again)
    def enqueue(self, specs: Sequence[JobSpec], tenant: str) -> Steps[list[Enqueued]]:
        if len(specs) == 1 and is_bare(specs[0]):
            spec = specs[0]
            params = (
                spec.id,
                spec.kind,
                spec.queue,
                spec.payload,
                spec.priority,
                spec.retry.max_attempts,
                spec.retry.max_crashes,
                spec.enqueued_by,
                spec.source_system,
                tenant,
            )
            yield Statement(self._enqueue_one, params)
            return [Enqueued(spec.id, True)]
        batch = alike(specs)
        if batch is not None:
            # Only an agent can refuse some of the jobs. Without columns, there is nothing to describe, fetch and
            # decode.
            columns = "" if specs[0].agent is None else "n, reason, detail"
            call = f"select {columns} from {self._s}enqueue_alike(%s::json, %s::uuid[], %s::json, %s)"
            rows = yield Statement(call, (*batch, tenant))
            results = [Enqueued(spec.id, True) for spec in specs]
            for number, reason, detail in rows if columns else ():
                results[number - 1] = Enqueued(None, False, reason, None, detail)
            return results
        plain = is_plain(specs)
        rows = yield self._call("enqueue_many", "%s::json, %s, null, %s", enqueue_document(specs), tenant, plain)
        if plain:
            return [Enqueued(spec.id, True) for spec in specs]
        return enqueued(rows)

    @flow(single=True)
    def operate(
        self,
        action: OperatorAction,
        ids: Sequence[str],
        reason: str | None,
        actor: str,
        tenant: str,
        max_attempts: int | None = None,
    ) -> Steps[list[Verdict]]:
        """``max_attempts`` is a new limit, for a redrive."""
        if max_attempts is None:
            rows = yield self._call(
                f"{action}_many", "%s::uuid[], %s, %s, for_tenant => %s", list(ids), reason, actor, tenant
            )
        else:
            rows = yield self._call(
                "redrive_many", "%s::uuid[], %s, %s, %s, %s", list(ids), reason, actor, max_attempts, tenant
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
            when.max_attempts,
            reason,
            actor,
            tenant,
        )
        return [_verdict(row) for row in rows]

    @flow(single=True)
    def move(self, job_id: str, move: Move, reason: str | None, actor: str, tenant: str) -> Steps[Verdict]:
        """Move a waiting job within its queue. Positions are those of the whole queue, across tenants."""
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

    @flow(single=True)
    def watch(self, job_id: str, tenant: str, seconds: float) -> Steps[None]:
        """Send a notification when this job ends, if it does within ``seconds``."""
        yield self._call("watch_job", "%s, %s, %s", job_id, seconds, tenant)

    @flow(single=True, writes=False)
    def chain(self, job_id: str, tenant: str) -> Steps[list[Job]]:
        """The job and the jobs that were created by retrying it as new ones, oldest first."""
        columns = self.dialect.bounded(JOB_COLUMNS, "j.id", "j.payload")
        text = f"select {columns} from {self.dialect.schema}chain(%s, %s) j"
        rows = yield Statement(text, (parse_id(job_id), tenant), alone=True)
        return [self._job(row) for row in rows]

    @flow(single=True)
    def replace_payload(self, job_id: str, payload: str, reason: str, actor: str, tenant: str) -> Steps[Verdict]:
        """Replace the payload (JSON text) of a waiting job, if a rule of its kind allows it."""
        params = (parse_id(job_id), payload, reason, actor, tenant)
        rows = yield self._call("replace_payload", "%s, %s::json, %s, %s, %s", *params)
        return _verdict(rows[0])

    @flow(single=True)
    def set_external_ref(self, job_id: str, external_ref: str | None, actor: str, tenant: str) -> Steps[Verdict]:
        """Set the external reference of a job in any state; None removes it."""
        rows = yield self._call("set_external_ref", "%s, %s, %s, %s", parse_id(job_id), external_ref, actor, tenant)
        return _verdict(rows[0])

    @flow(single=True)
    def liveness(self, job_id: str, tenant: str) -> Steps[Liveness | None]:
        """How often and when the newest attempt last renewed its lease and reported progress."""
        rows = yield self._look("liveness", "%s, %s", parse_id(job_id), tenant)
        return Record.decoder(Liveness, self.dialect.codec)(rows[0]) if rows else None

    @flow(single=True)
    def circumstances(self, job_id: str, tenant: str) -> Steps[JobSituation | None]:
        """Which worker holds the job, which workers could claim it, and how many jobs are ahead of it."""
        rows = yield self._look("circumstances", "%s, %s, %s", parse_id(job_id), MAX_AHEAD, tenant)
        if not rows:
            return None
        now, note, holder, label, until, held, ahead, documents, renewed = rows[0]
        time = self.dialect.codec.time
        workers = tuple(
            WorkerSeen(
                w["label"],
                w["holder"],
                w["tenant"],
                None if w["kinds"] is None else tuple(w["kinds"]),
                None if w["queues"] is None else tuple(w["queues"]),
                w["slots"],
                w["busy"],
            )
            for w in documents or ()
        )
        ends_at = None if until is None else time(until)
        renewed_at = None if renewed is None else time(renewed)
        return JobSituation(time(now), note or {}, holder, label, ends_at, held, ahead, workers, renewed_at)

    @flow(single=True, writes=False)
    def by_payload(
        self, path: Sequence[str], value: str, tenant: str, before: str | None, most: int
    ) -> Steps[Sequence[str]]:
        """Ids of jobs whose payload has this text under an indexed key, newest first. Restricted and sealed payloads
        never match."""
        before_id = None if before is None else parse_id(before)
        call = "%s, %s, %s::uuid, %s, %s"
        rows = yield self._look("jobs_by_payload", call, ".".join(path), value, before_id, most, tenant)
        return [str(row[0]) for row in rows]

    @flow(single=True, writes=False)
    def payload_indexes(self) -> Steps[Sequence[str]]:
        """The payload keys that are indexed: ``payload.customer.id``."""
        rows = yield self._look("payload_indexes", "")
        return [row[0] for row in rows]

    @flow(single=True)
    def fill_payload_index(self, path: Sequence[str], after: str | None) -> Steps[str | None]:
        """Build an index in batches: call it with None, then with the last result, until it returns None. Only the
        owner of the tables may do this."""
        after_id = None if after is None else parse_id(after)
        rows = yield self._call("fill_payload_index", "%s, %s, %s::uuid", index_name(path), ".".join(path), after_id)
        return None if rows[0][0] is None else str(rows[0][0])

    @flow(single=True)
    def remove_payload_index(self, path: Sequence[str]) -> Steps[None]:
        yield self._call("remove_payload_index", "%s, %s", index_name(path), ".".join(path))
