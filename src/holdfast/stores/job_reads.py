"""Reads of jobs, events, attempts, steps and counts, shared by both stores.

A page of jobs is listed newest first. One leading table finds the ids by its index; the rest of each job is read by
key. Given a join of two tables with a million rows, a planner tends to walk both by id until enough rows match. So one
table leads, conditions on other tables are subqueries per row, and the limit is part of the text, because for a
prepared statement the planner would have to guess it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any

from holdfast.engine.ids import parse_id, uuid7
from holdfast.engine.job import EVERY_TENANT, Artifact, Attempt, Event, Job, References, Result
from holdfast.engine.states import HELD, State, state_of
from holdfast.engine.steps import RUNNING, Step
from holdfast.features.payloads.model import HIDDEN, WITHHELD
from holdfast.stores.codecs import Record, micros
from holdfast.stores.flow import Row, Rows, Steps, flow
from holdfast.stores.reader import Dialect, within
from holdfast.stores.requests import Counted, JobFilter

MOST = 1000
HELD_MOST = 100_000

JOB_FILTERS = frozenset({"kind", "queue", "agent", "executor", "correlation_id", "parent_id"})
# The filters that each leading table can answer from its own columns.
FILTERS_OF = {
    "job": JOB_FILTERS,
    "job_state": frozenset({"state", "kind", "queue"}),
    "job_tag": frozenset({"tag"}),
    "dead_letter": frozenset({"fingerprint", "kind", "queue"}),
}


def page(columns: str, job_filter: JobFilter) -> tuple[str, dict[str, Any]]:
    """The query of a page and its parameters; ``columns`` are those of ``{job} j`` and ``{job_state} s``."""
    id_query, params = ids(job_filter)
    text = (
        f"select {columns} from ({id_query}) page"
        f" join {{job}} j on j.id = page.id join {{job_state}} s on s.id = page.id order by page.id desc"
    )
    return text, params


def ids(job_filter: JobFilter, most: int = MOST) -> tuple[str, dict[str, Any]]:
    """The query of the ids of a page, and its parameters."""
    equal = _equal(job_filter)
    if not equal and job_filter.tenant != EVERY_TENANT:
        return _of_every_state(job_filter, most)
    lead = _lead(equal)
    id_ = "p.id" if lead in ("job", "job_state") else "p.job_id"
    conditions = [within(job_filter.tenant, "p.tenant")]
    conditions += [f"p.{name} = :{name}" for name in equal if name in FILTERS_OF[lead]]
    if lead == "job_state":
        # There are two partial indexes, one of held jobs and one of the rest. This condition selects the index.
        conditions.append(f"p.state {'in' if job_filter.state in HELD else 'not in'} ('leased', 'in_progress')")
    elsewhere = [name for name in equal if name not in FILTERS_OF[lead]]
    if lead == "dead_letter" and job_filter.state is State.DEAD_LETTER:
        elsewhere.remove("state")  # the table has no other jobs
    if "tag" in elsewhere:
        conditions.append(
            f"exists (select 1 from {{job_tag}} x where x.tenant = p.tenant and x.tag = :tag and x.job_id = {id_})"
        )
    for table in ("job", "job_state"):
        columns = [name for name in elsewhere if name in (JOB_FILTERS if table == "job" else ("state",))]
        if columns:
            matches = " and ".join(f"x.{name} = :{name}" for name in columns)
            conditions.append(f"(select 1 from {{{table}}} x where x.id = {id_} and {matches}) = 1")
    bounds = _bounds(job_filter)
    conditions += [f"{id_} {sign} :{name}" for name, (sign, _) in bounds.items()]
    text = (
        f"select {id_} as id from {{{lead}}} p where {' and '.join(conditions)}"
        f" order by {id_} desc limit {max(1, min(job_filter.limit, most)):d}"
    )
    return text, equal | {name: value for name, (_, value) in bounds.items()}


def _of_every_state(job_filter: JobFilter, most: int) -> tuple[str, dict[str, Any]]:
    """The ids of a tenant's jobs in any state: the newest of each state, and of these the newest. A dedicated index
    would make every enqueue one twelfth slower. Held jobs are all read: there are only as many as the workers run."""
    bounds = _bounds(job_filter)
    own = within(job_filter.tenant, "p.tenant")
    newest = f"order by id desc limit {max(1, min(job_filter.limit, most)):d}"
    spans = [f"id {sign} :{name}" for name, (sign, _) in bounds.items()]
    matches = " and ".join([own, *(f"p.{span}" for span in spans)])
    # The limit keeps both planners from walking all jobs by id in search of the few held ones.
    held = f"select p.id from {{job_state}} p where {own} and p.state in ('leased', 'in_progress') limit {HELD_MOST}"
    parts = [f"select id from ({held}) held where {' and '.join(spans) or '1 = 1'}"]
    parts += [
        f"select id from (select p.id from {{job_state}} p where {matches} and p.state = '{state}'"
        f" and p.state not in ('leased', 'in_progress') {newest}) {state}"
        for state in State
        if state not in HELD
    ]
    text = f"select u.id from ({' union all '.join(parts)}) u {newest}"
    return text, {name: value for name, (_, value) in bounds.items()}


def _equal(job_filter: JobFilter) -> dict[str, Any]:
    filters = {
        "state": None if job_filter.state is None else job_filter.state.value,
        "kind": job_filter.kind,
        "queue": job_filter.queue,
        "agent": job_filter.agent,
        "executor": job_filter.executor,
        "correlation_id": job_filter.correlation_id,
        "parent_id": None if job_filter.parent_id is None else parse_id(job_filter.parent_id),
        "tag": job_filter.tag,
        "fingerprint": job_filter.fingerprint,
    }
    return {name: value for name, value in filters.items() if value is not None}


def _lead(equal: dict[str, Any]) -> str:
    """The table with the most selective index."""
    if "fingerprint" in equal:
        return "dead_letter"
    if "tag" in equal:
        return "job_tag"
    if "state" in equal and equal.keys() <= FILTERS_OF["job_state"]:
        return "job_state"
    return "job"


def _bounds(job_filter: JobFilter) -> dict[str, tuple[str, str]]:
    """Ids sort by creation time, so a range of times is a range of ids and needs no index."""
    bounds = {}
    if job_filter.before is not None:
        bounds["before"] = ("<", parse_id(job_filter.before))
    if job_filter.since is not None:
        bounds["since"] = (">=", _first_id(job_filter.since))
    if job_filter.until is not None:
        bounds["until"] = ("<", _first_id(job_filter.until))
    return bounds


def _first_id(moment: datetime) -> str:
    return str(uuid7(max(0, micros(moment) // 1000), bytes(10)))


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
# A parked job has the due time "never", which is shown as null.
LISTED_COLUMNS = ", ".join(
    f"s.{name}" if name in STATE_COLUMNS else f"j.{name}" for name in Record.columns(Job).split(", ")
).replace("s.due_at", "nullif(s.due_at, :never)")
LISTED_COLUMNS = LISTED_COLUMNS.replace("s.error_message", visible_message("s.error_message", "j"))
# Read from the ledger, as in the view `jobs`: maintaining these columns would cost every write.
LISTED_COLUMNS = LISTED_COLUMNS.replace(
    "j.updated_at", "(select e.at from {event} e where e.job_id = j.id order by e.seq desc limit 1)"
).replace(
    "j.last_error_at",
    "(select e.at from {event} e where e.job_id = j.id and e.from_state = 'in_progress'"
    " and e.type in ('fail', 'lapse', 'crash') order by e.seq desc limit 1)",
)
# The view hides restricted payloads.
BARE_COLUMNS = LISTED_COLUMNS.replace("j.payload", "null")
LISTED_COLUMNS = LISTED_COLUMNS.replace("j.payload", "(select v.payload from {jobs} v where v.id = j.id)")


class Reader(ABC):
    """Base of the shared reads: binds the transaction to the tenant, then runs a query."""

    dialect: Dialect

    def _query(self, tenant: str, text: str, /, **params: object) -> Steps[Rows]:
        binding = self.dialect.bind(tenant)
        if binding is not None:
            yield binding
        rows = yield self.dialect.read(text, tenant=tenant, **params)
        return rows


class JobReads(Reader):
    @cached_property
    def _job(self) -> Callable[[Row], Job]:
        return Record.decoder(Job, self.dialect.codec)

    def _job_of(self, row: Row) -> Job:
        """A job, from a row whose last column is the reason why claims skip the job (``set_aside``), or null."""
        *columns, why = row
        job = self._job(columns)
        if why is None:
            return job
        return replace(job, unreadable="; ".join(filter(None, (job.unreadable, f"passed over: {why}"))))

    @flow(writes=False)
    def get(self, job_id: str, tenant: str) -> Steps[Job | None]:
        text = f"select {JOB_COLUMNS}, {_WHY} from {{jobs}} j where j.id = :id and {within(tenant, 'j.tenant')}"
        rows = yield from self._query(tenant, text, id=parse_id(job_id))
        return self._job_of(rows[0]) if rows else None

    @flow(writes=False)
    def beginning_with(self, low: str, high: str, tenant: str, limit: int = 5) -> Steps[list[str]]:
        text = (
            f"select j.id from {{job}} j where j.id >= :low and j.id <= :high and {within(tenant, 'j.tenant')}"
            f" order by j.id limit {int(limit)}"
        )
        rows = yield from self._query(tenant, text, low=low, high=high)
        return [self.dialect.codec.id(row[0]) for row in rows]

    @flow(writes=False)
    def notes(self, job_filter: JobFilter) -> Steps[dict[str, dict[str, Any]]]:
        text, params = page("s.id, s.note", job_filter)
        rows = yield from self._query(job_filter.tenant, text, **params)
        codec = self.dialect.codec
        return {codec.id(job_id): codec.json(note) for job_id, note in rows if note is not None}

    @flow(writes=False)
    def result(self, job_id: str, tenant: str) -> Steps[Result | None]:
        text = f"select r.value, r.ref from {{result}} r where r.job_id = :id and {within(tenant, 'r.tenant')}"
        rows = yield from self._query(tenant, text, id=parse_id(job_id))
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
        rows = yield from self._query(tenant, text, id=parse_id(job_id))
        return {name: self.dialect.codec.json(value) for name, value in rows}

    @flow(writes=False)
    def artifacts(self, job_id: str, tenant: str) -> Steps[list[Artifact]]:
        text = (
            f"select {Record.columns(Artifact, 'a.')} from {{artifact}} a"
            f" where a.job_id = :id and {within(tenant, 'a.tenant')} order by a.attempt, a.name"
        )
        rows = yield from self._query(tenant, text, id=parse_id(job_id))
        decode = Record.decoder(Artifact, self.dialect.codec)
        return [decode(row) for row in rows]

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
    def attempts(self, job_id: str, tenant: str) -> Steps[list[Attempt]]:
        """The attempts, with a payload only if it was replaced since."""
        columns = Record.columns(Attempt, "a.").replace(
            "a.payload",
            "case when exists (select 1 from {replaced_payload} r where r.job_id = a.job_id and r.attempt >= a.attempt)"
            " then a.payload end",
        )
        text = (
            f"select {columns} from {{attempts}} a"
            f" where a.job_id = :id and {within(tenant, 'a.tenant')} order by a.attempt"
        )
        rows = yield from self._query(tenant, text, id=parse_id(job_id))
        decode = Record.decoder(Attempt, self.dialect.codec)
        return [decode(row) for row in rows]

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
                id_query, given = ids(JobFilter(tenant=job_filter.tenant, state=state, limit=most), most)
                name = f"state_{state}"
                parts.append(f"select '{state}', count(*) from ({id_query.replace(':state', f':{name}')}) {name}")
                params[name] = given["state"]
            rows = yield from self._query(job_filter.tenant, " union all ".join(parts), **params)
            counts = {state_of(state): int(count) for state, count in rows}
            return Counted(counts, most, None)
        id_query, params = ids(dataclasses.replace(every, limit=WINDOW), WINDOW)
        text = f"select s.state, count(*) from ({id_query}) c join {{job_state}} s on s.id = c.id group by s.state"
        rows = yield from self._query(job_filter.tenant, text, **params)
        in_window = {state_of(state): int(count) for state, count in rows}
        counts = {state: min(most, in_window.get(state, 0)) for state in State}
        return Counted(counts, most, WINDOW if sum(in_window.values()) >= WINDOW else None)

    @flow(writes=False)
    def list(self, job_filter: JobFilter) -> Steps[list[Job]]:
        text, params = page(f"{LISTED_COLUMNS if job_filter.payloads else BARE_COLUMNS}, {_WHY}", job_filter)
        rows = yield from self._query(job_filter.tenant, text, **params)
        return [self._job_of(row) for row in rows]


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


WINDOW = 10_000
"""How many of the newest jobs are counted when a filter has more than a state."""


_NONE = References()


class StepReads(Reader):
    @flow(writes=False)
    def unfinished(self, job_id: str, tenant: str) -> Steps[dict[int, int]]:
        text = (
            "select c.value from {checkpoint} c"
            f" where c.job_id = :id and c.name = '{RUNNING}' and {within(tenant, 'c.tenant')}"
        )
        rows = yield from self._query(tenant, text, id=parse_id(job_id))
        value = self.dialect.codec.json(rows[0][0]) if rows else None
        return {step["n"]: step["tries"] for step in value["steps"]} if isinstance(value, dict) else {}

    @flow(writes=False)
    def requires_approval(self, agent: str, tenant: str) -> Steps[bool]:
        text = f"select 1 from {{agent}} a where a.id = :agent and {within(tenant, 'a.tenant')} and a.requires_approval"
        rows = yield from self._query(tenant, text, agent=agent)
        return bool(rows)

    @flow(writes=False)
    def list(self, job_id: str, tenant: str) -> Steps[list[Step]]:
        columns = Record.columns(Step, "t.", skip=("now",))
        text = (
            f"select {columns}, p.now from {{step}} t, {{present}} p"
            f" where t.job_id = :id and {within(tenant, 't.tenant')} order by t.n"
        )
        rows = yield from self._query(tenant, text, id=parse_id(job_id))
        decode = Record.decoder(Step, self.dialect.codec)
        return [decode(row) for row in rows]
