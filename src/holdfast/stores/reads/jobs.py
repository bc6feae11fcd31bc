"""Looking at jobs: one, a page of them, what they returned and saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

from holdfast.engine.ids import parse_id
from holdfast.engine.job import Artifact, Job, Result
from holdfast.stores.base import JobFilter
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Row, Rows, Steps, flow
from holdfast.stores.reads.dialect import Dialect, within
from holdfast.stores.reads.pages import page
from holdfast.stores.reads.spoken import spoken

_WHY = "(select q.why from {quarantine} q, {present} p where q.job_id = j.id and q.until > p.now)"
JOB_COLUMNS = Record.columns(Job, "j.")
STATE_COLUMNS = frozenset(
    {
        *("state", "attempt", "retries", "crashes", "max_retries", "max_crashes", "priority", "position"),
        *("due_at", "started_at", "finished_at", "error_code", "error_message"),
    }
)
# A parked job is due never, which is no time.
LISTED_COLUMNS = ", ".join(
    f"s.{name}" if name in STATE_COLUMNS else f"j.{name}" for name in Record.columns(Job).split(", ")
).replace("s.due_at", "nullif(s.due_at, :never)")
LISTED_COLUMNS = LISTED_COLUMNS.replace("s.error_message", spoken("s.error_message", "j"))
# What is restricted is not shown, which is for the view to say.
BARE_COLUMNS = LISTED_COLUMNS.replace("j.payload", "null")
LISTED_COLUMNS = LISTED_COLUMNS.replace("j.payload", "(select v.payload from {jobs} v where v.id = j.id)")


class Reader:
    """Common ground of the reads: bind the tenant, then ask."""

    dialect: Dialect

    def _ask(self, tenant: str, text: str, /, **params: object) -> Steps[Rows]:
        binding = self.dialect.bind(tenant)
        if binding is not None:
            yield binding
        rows = yield self.dialect.read(text, tenant=tenant, **params)
        return rows


class JobReads(Reader):
    @cached_property
    def _job(self) -> Callable[[Row], Job]:
        return Record.decoder(Job, self.dialect.codec)

    def _told(self, row: Row) -> Job:
        """A row whose last column says why the job is passed over, if it is (``set_aside``)."""
        *facts, why = row
        job = self._job(facts)
        if why is None:
            return job
        return replace(job, unreadable="; ".join(filter(None, (job.unreadable, f"passed over: {why}"))))

    @flow(writes=False)
    def get(self, job_id: str, tenant: str) -> Steps[Job | None]:
        text = f"select {JOB_COLUMNS}, {_WHY} from {{jobs}} j where j.id = :id and {within(tenant, 'j.tenant')}"
        rows = yield from self._ask(tenant, text, id=parse_id(job_id))
        return self._told(rows[0]) if rows else None

    @flow(writes=False)
    def list_jobs(self, wanted: JobFilter) -> Steps[list[Job]]:
        text, params = page(f"{LISTED_COLUMNS if wanted.payloads else BARE_COLUMNS}, {_WHY}", wanted)
        rows = yield from self._ask(wanted.tenant, text, **params)
        return [self._told(row) for row in rows]

    @flow(writes=False)
    def notes(self, wanted: JobFilter) -> Steps[dict[str, dict[str, Any]]]:
        text, params = page("s.id, s.note", wanted)
        rows = yield from self._ask(wanted.tenant, text, **params)
        codec = self.dialect.codec
        return {codec.id(job_id): codec.json(note) for job_id, note in rows if note is not None}

    @flow(writes=False)
    def result(self, job_id: str, tenant: str) -> Steps[Result | None]:
        text = f"select r.value, r.ref from {{result}} r where r.job_id = :id and {within(tenant, 'r.tenant')}"
        rows = yield from self._ask(tenant, text, id=parse_id(job_id))
        if not rows:
            return None
        value, ref = rows[0]
        return Result(None if value is None else self.dialect.codec.json(value), ref)

    @flow(writes=False)
    def checkpoints(self, job_id: str, tenant: str) -> Steps[dict[str, Any]]:
        text = (
            f"select c.name, c.value from {{checkpoint}} c"
            f" where c.job_id = :id and {within(tenant, 'c.tenant')} order by c.saved_at, c.name"
        )
        rows = yield from self._ask(tenant, text, id=parse_id(job_id))
        return {name: self.dialect.codec.json(value) for name, value in rows}

    @flow(writes=False)
    def artifacts(self, job_id: str, tenant: str) -> Steps[list[Artifact]]:
        text = (
            f"select {Record.columns(Artifact, 'a.')} from {{artifact}} a"
            f" where a.job_id = :id and {within(tenant, 'a.tenant')} order by a.attempt, a.name"
        )
        rows = yield from self._ask(tenant, text, id=parse_id(job_id))
        decode = Record.decoder(Artifact, self.dialect.codec)
        return [decode(row) for row in rows]
