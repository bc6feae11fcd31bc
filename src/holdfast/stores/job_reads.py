"""Reads of jobs, events, attempts, steps and counts, shared by both stores. ``stores/job_pages.py`` has the queries of
pages."""

from __future__ import annotations

import dataclasses
import hashlib
from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

from holdfast.engine.ids import parse_id
from holdfast.engine.job import Artifact, Attempt, Event, Job, References, Result
from holdfast.engine.states import State, state_of
from holdfast.engine.steps import RUNNING, Step
from holdfast.features.payloads.model import HIDDEN, WITHHELD
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Row, Rows, Statement, Steps, flow, read_budget
from holdfast.stores.job_pages import KINDS_OF_DOMAIN, WINDOW, ids, page, with_kinds, worker_of
from holdfast.stores.reader import Dialect, within
from holdfast.stores.requests import Counted, JobFilter

R = TypeVar("R")

_WITHHELD = "'" + WITHHELD.replace("'", "''") + "'"


def visible_message(message: str, job: str) -> str:
    """The expression for an error message, hidden for restricted jobs. ``message`` is its column, ``job`` the alias of
    the table with the tenant and the kind. For jobs without a message no rule is read."""
    return (
        f"case when {message} <> {_WITHHELD} and exists (select 1 from {{payload_rule}} u"
        f" where u.classification = 'restricted' and u.tenant in ({job}.tenant, '*') and u.kind in ({job}.kind, '*'))"
        f" then '{HIDDEN}' else {message} end"
    )


_WHY = "(select q.why from {quarantine} q, {present} p where q.job_id = j.id and q.until > p.now)"
JOB_COLUMNS = Record.columns(Job, "j.")
STATE_COLUMNS = frozenset(
    {
        *("state", "attempt", "retries", "crashes", "max_attempts", "max_crashes", "priority", "position"),
        *("due_at", "started_at", "finished_at", "error_code", "error_message"),
    }
)


def _of_ledger(column: str, condition: str) -> str:
    """A column of the newest event of a job that fulfils a condition. As in the view `jobs`: maintaining such a column
    in the job's row would cost every write."""
    return f"(select e.{column} from {{event}} e where e.job_id = j.id{condition} order by e.seq desc limit 1)"


DERIVED = {
    # A parked job has the due time "never", which is shown as null.
    "due_at": "nullif(s.due_at, :never)",
    "error_message": visible_message("s.error_message", "j"),
    # The view hides restricted payloads.
    "payload": "(select v.payload from {jobs} v where v.id = j.id)",
    "updated_at": _of_ledger("at", ""),
    "last_error_at": _of_ledger(
        "at", " and e.from_state = 'in_progress' and e.type in ('fail', 'lease_expired', 'crash')"
    ),
    "queued_at": _of_ledger("at", " and e.to_state = 'queued' and coalesce(e.from_state, '') <> 'queued'"),
    "worker": worker_of("j.id"),
    "domain": "(select k.domain from {registered_kind} k where k.name = j.kind)",
    "part": "(select n.part from {node} n where n.job_id = j.id)",
    "scheduled_for": "m.due_at",
    **{name: f"m.{name}" for name in ("template", "template_version", "schedule_id", "schedule")},
}
LISTED_COLUMNS = ", ".join(
    DERIVED.get(name, f"s.{name}" if name in STATE_COLUMNS else f"j.{name}") for name in Record.columns(Job).split(", ")
)
BARE_COLUMNS = LISTED_COLUMNS.replace(DERIVED["payload"], "null")


class Reader(ABC):
    """Base of the shared reads: binds the transaction to the tenant, then runs a query."""

    dialect: Dialect

    def _query(self, tenant: str, text: str, /, **params: object) -> Steps[Rows]:
        binding = self.dialect.bind(tenant)
        if binding is not None:
            yield binding
        rows = yield self.dialect.read(text, tenant=tenant, **params)
        return rows

    def _records(self, record: type[R], tenant: str, text: str, /, **params: object) -> Steps[list[R]]:
        """The records of a query whose columns are those of the record."""
        rows = yield from self._query(tenant, text, **params)
        return list(map(Record.decoder(record, self.dialect.codec), rows))

    def _rows_as(self, record: type[R], statement: Statement) -> Steps[list[R]]:
        """The same for a statement of one store, which does not bind the transaction."""
        rows = yield statement
        return list(map(Record.decoder(record, self.dialect.codec), rows))

    def _record(self, record: type[R], tenant: str, text: str, /, **params: object) -> Steps[R | None]:
        """The first record of such a query."""
        records = yield from self._records(record, tenant, text, **params)
        return records[0] if records else None

    def _resolved(self, job_filter: JobFilter) -> Steps[JobFilter]:
        """The filter with the kinds of its domain."""
        if job_filter.domain is None:
            return job_filter
        rows = yield from self._query(job_filter.tenant, KINDS_OF_DOMAIN, domain=job_filter.domain)
        return with_kinds(job_filter, [row[0] for row in rows])


class JobReads(Reader):
    @cached_property
    def _job(self) -> Callable[[Row], Job]:
        return Record.decoder(Job, self.dialect.codec)

    def _job_of(self, row: Row) -> Job:
        """A job, from a row whose last column is the reason why claims skip the job (``quarantine``), or null."""
        *columns, why = row
        job = self._job(columns)
        if why is None:
            return job
        return replace(job, unreadable="; ".join(filter(None, (job.unreadable, f"passed over: {why}"))))

    @flow(writes=False)
    def get(self, job_id: str, tenant: str) -> Steps[Job | None]:
        columns = self.dialect.bounded(JOB_COLUMNS, "j.id", "j.payload")
        text = f"select {columns}, {_WHY} from {{jobs}} j where j.id = :id and {within(tenant, 'j.tenant')}"
        rows = yield from self._query(tenant, text, id=parse_id(job_id))
        return self._job_of(rows[0]) if rows else None

    @flow(writes=False)
    def beginning_with(self, low: str, high: str, tenant: str, limit: int = 5) -> Steps[list[str]]:
        """Ids from ``low`` to ``high``, to resolve an id from its first characters."""
        text = (
            f"select j.id from {{job}} j where j.id >= :low and j.id <= :high and {within(tenant, 'j.tenant')}"
            f" order by j.id limit {int(limit)}"
        )
        rows = yield from self._query(tenant, text, low=low, high=high)
        return [self.dialect.codec.id(row[0]) for row in rows]

    @flow(writes=False)
    def notes(self, job_filter: JobFilter) -> Steps[dict[str, dict[str, Any]]]:
        """The notes of the jobs of a page, by id: details of the last transition, for jobs that have any."""
        job_filter = yield from self._resolved(job_filter)
        text, params = page(self.dialect, "s.id, s.note", job_filter)
        rows = yield from self._query(job_filter.tenant, text, **params)
        codec = self.dialect.codec
        return {codec.id(job_id): codec.json(note) for job_id, note in rows if note is not None}

    @flow(writes=False)
    def result(self, job_id: str, tenant: str) -> Steps[Result | None]:
        columns = self.dialect.bounded("r.value, r.ref", "r.job_id", "r.value")
        text = f"select {columns} from {{result}} r where r.job_id = :id and {within(tenant, 'r.tenant')}"
        rows = yield from self._query(tenant, text, id=parse_id(job_id))
        if not rows:
            return None
        value, ref = rows[0]
        return Result(None if value is None else self.dialect.codec.json(value), ref)

    @flow(writes=False)
    def checkpoints(self, job_id: str, tenant: str) -> Steps[dict[str, Any]]:
        text = (
            f"select c.name, {self.dialect.bounded('c.value', 'c.saved_at, c.name', 'c.value')} from {{checkpoint}} c"
            f" where c.job_id = :id and {within(tenant, 'c.tenant')} order by c.saved_at, c.name"
        )
        rows = yield from self._query(tenant, text, id=parse_id(job_id))
        return {name: self.dialect.codec.json(value) for name, value in rows}

    @flow(writes=False)
    def artifacts(self, job_id: str, tenant: str) -> Steps[list[Artifact]]:
        text = (
            f"select {Record.columns(Artifact, 'a.')} from {{artifact}} a"
            f" where a.job_id = :id and {within(tenant, 'a.tenant')} order by a.attempt, a.name"
        )
        return (yield from self._records(Artifact, tenant, text, id=parse_id(job_id)))

    @flow(writes=False)
    def references(self, job_id: str, tenant: str) -> Steps[References]:
        text = (
            f"select r.source_ref, r.target_ref, r.payload_ref from {{reference}} r"
            f" where r.job_id = :id and {within(tenant, 'r.tenant')}"
        )
        rows = yield from self._query(tenant, text, id=parse_id(job_id))
        return References(*rows[0]) if rows else _NONE

    @cached_property
    def _event(self) -> Callable[[Row], Event]:
        return Record.decoder(Event, self.dialect.codec, skip=("cursor",))

    @flow(writes=False)
    def history(self, job_id: str, tenant: str) -> Steps[list[Event]]:
        text = (
            f"select {EVENT_COLUMNS} from {{event}} e"
            f" where e.job_id = :id and {within(tenant, 'e.tenant')} order by e.seq"
        )
        rows = yield from self._query(tenant, text, id=parse_id(job_id))
        return [self._event(row) for row in rows]

    @flow(writes=False)
    def attempts(self, job_id: str, tenant: str, after: int = -1, limit: int | None = None) -> Steps[list[Attempt]]:
        """The attempts, with a payload only if it was replaced since; one more than the limit, without its payload.
        ``read_budget`` keeps the newest payloads."""
        wanted = "exists (select 1 from {replaced_payload} r where r.job_id = a.job_id and r.attempt >= a.attempt)"
        last = ""
        if limit is not None:
            wanted += f" and row_number() over (order by a.attempt) <= {limit:d}"
            last = f" order by a.attempt limit {limit + 1:d}"
        columns = Record.columns(Attempt, "a.")
        text = (
            f"select {self.dialect.bounded(columns, 'a.attempt desc', 'a.payload')} from (select"
            f" {columns.replace('a.payload', f'case when {wanted} then a.payload end as payload')} from {{attempts}} a"
            f" where a.job_id = :id and a.attempt > :after and {within(tenant, 'a.tenant')}{last}) a order by a.attempt"
        )
        return (yield from self._records(Attempt, tenant, text, id=parse_id(job_id), after=after))

    @flow(writes=False)
    def counts(self, tenant: str) -> Steps[dict[State, int]]:
        text = f"select s.state, count(*) from {{job_state}} s where {within(tenant, 's.tenant')} group by s.state"
        rows = yield from self._query(tenant, text)
        return {state_of(state): count for state, count in rows}

    @flow(writes=False)
    def capped_counts(self, job_filter: JobFilter, most: int) -> Steps[Counted]:
        """Reads an index, and at most the cap of rows per state, so that the cost does not grow with the table."""
        every = dataclasses.replace(job_filter, state=None, before=None, payloads=True)
        if every == JobFilter(tenant=job_filter.tenant, limit=job_filter.limit):
            parts, params = [], {}
            for state in State:
                id_query, given = ids(self.dialect, JobFilter(tenant=job_filter.tenant, state=state, limit=most), most)
                name = f"state_{state}"
                parts.append(f"select '{state}', count(*) from ({id_query.replace(':state', f':{name}')}) {name}")
                params[name] = given["state"]
            rows = yield from self._query(job_filter.tenant, " union all ".join(parts), **params)
            counts = {state_of(state): int(count) for state, count in rows}
            return Counted(counts, most, None)
        every = yield from self._resolved(dataclasses.replace(every, limit=WINDOW))
        id_query, params = ids(self.dialect, every, WINDOW)
        text = f"select s.state, count(*) from ({id_query}) c join {{job_state}} s on s.id = c.id group by s.state"
        rows = yield from self._query(job_filter.tenant, text, **params)
        in_window = {state_of(state): int(count) for state, count in rows}
        counts = {state: min(most, in_window.get(state, 0)) for state in State}
        return Counted(counts, most, WINDOW if sum(in_window.values()) >= WINDOW else None)

    @flow(writes=False)
    def list(self, job_filter: JobFilter) -> Steps[list[Job]]:
        job_filter = yield from self._resolved(job_filter)
        whole = job_filter.payloads and read_budget.get() is None
        text, params = page(self.dialect, f"{LISTED_COLUMNS if whole else BARE_COLUMNS}, {_WHY}", job_filter)
        rows = yield from self._query(job_filter.tenant, text, **params)
        return [self._job_of(row) for row in rows]

    @flow(writes=False)
    def with_keys(
        self, job_filter: JobFilter, paths: Sequence[Sequence[str]], of_ids: Sequence[str] | None = None
    ) -> Steps[Sequence[tuple[Job, Sequence[str | None]]]]:
        """A page of jobs without payloads, or the jobs of these ids, each with the scalars at these paths of its
        payload, as JSON text. The database reads the payloads, one row at a time. What is hidden is null."""
        shown = self.dialect.searchable.format(DERIVED["payload"])
        values = [self.dialect.under(path, "x.d", f"key_{chr(97 + n)}") for n, path in enumerate(paths)]
        keys = {name: key for _, names in values for name, key in names.items()}
        if of_ids is None:
            job_filter = yield from self._resolved(job_filter)
            text, params = page(self.dialect, BARE_COLUMNS, job_filter)
        else:
            text, params = _of_ids(job_filter.tenant, of_ids)
        # One expression per job, so that the payload is read once.
        texts = self.dialect.texts.format(", ".join(value for value, _ in values))
        columns = f"{BARE_COLUMNS}, {_WHY}, (select {texts} from (select {shown} as d) x)"
        text = text.replace(BARE_COLUMNS, columns, 1)
        rows = yield from self._query(job_filter.tenant, text, **params, **keys)
        return [(self._job_of(row[:-1]), self.dialect.codec.json(row[-1])) for row in rows]


def _of_ids(tenant: str, job_ids: Sequence[str]) -> tuple[str, dict[str, Any]]:
    params = {f"id_{''.join(chr(97 + int(digit)) for digit in str(n))}": job_id for n, job_id in enumerate(job_ids)}
    text = (
        f"select {BARE_COLUMNS} from {{job}} j join {{job_state}} s on s.id = j.id left join {{made_from}} m"
        f" on m.job_id = j.id where {within(tenant, 'j.tenant')}"
        f" and j.id in ({', '.join(f':{name}' for name in params) or 'null'}) order by j.id desc"
    )
    return text, params


def index_name(path: Sequence[str]) -> str:
    """The name of the index of a payload key. The keys are checked (features/jobs/search.py) and need no quotes."""
    return f"payload_{hashlib.md5('.'.join(path).encode(), usedforsecurity=False).hexdigest()[:20]}"


EVENT_COLUMNS = Record.columns(Event, "e.", skip=("cursor",))


class LedgerReads(Reader):
    @flow(writes=False)
    def cursor(self, consumer: str, tenant: str) -> Steps[str | None]:
        # Always compared: a consumer of every tenant's events stores its cursor under the tenant '*'.
        text = "select c.cursor from {consumer} c where c.name = :name and c.tenant = :scope"
        rows = yield from self._query(tenant, text, name=consumer, scope=tenant)
        return str(rows[0][0]) if rows else None


_NONE = References()


class StepReads(Reader):
    @flow(writes=False)
    def unfinished(self, job_id: str, tenant: str) -> Steps[dict[int, int]]:
        """How often each step that an earlier attempt began and did not record was started."""
        text = (
            "select c.value from {checkpoint} c"
            f" where c.job_id = :id and c.name = '{RUNNING}' and {within(tenant, 'c.tenant')}"
        )
        rows = yield from self._query(tenant, text, id=parse_id(job_id))
        value = self.dialect.codec.json(rows[0][0]) if rows else None
        return {step["n"]: step["tries"] for step in value["steps"]} if isinstance(value, dict) else {}

    @flow(writes=False)
    def requires_approval(self, agent: str, tenant: str) -> Steps[bool]:
        """Whether jobs of this agent need an approval before they run."""
        text = f"select 1 from {{agent}} a where a.id = :agent and {within(tenant, 'a.tenant')} and a.requires_approval"
        rows = yield from self._query(tenant, text, agent=agent)
        return bool(rows)

    @flow(writes=False)
    def list(self, job_id: str, tenant: str) -> Steps[list[Step]]:
        columns = self.dialect.bounded(Record.columns(Step, "t.", skip=("now",)), "t.n", "t.value")
        text = (
            f"select {columns}, p.now from {{step}} t, {{present}} p"
            f" where t.job_id = :id and {within(tenant, 't.tenant')} order by t.n"
        )
        return (yield from self._records(Step, tenant, text, id=parse_id(job_id)))
