"""Shared reads of jobs, events, attempts, counts; pages by key.

A page of jobs, newest first: one table finds the ids by its index, the rest of each job is looked up by key.

A planner that is given the join of two tables of a million rows likes to walk both of them by id until enough rows
fit together. So one table leads and is read alone; what only another table knows is asked row by row, and the
limit is part of the text, since a prepared statement would have to guess it.
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
from holdfast.engine.steps import Step
from holdfast.features.payloads.model import HIDDEN, WITHHELD
from holdfast.stores.codecs import Record, micros
from holdfast.stores.flow import Row, Rows, Steps, flow
from holdfast.stores.reader import Dialect, within
from holdfast.stores.requests import Counted, JobFilter

MOST = 1000
HELD_MOST = 100_000

FACTS = frozenset({"kind", "queue", "agent", "executor", "correlation_id", "parent_id"})
OWN = {
    "job": FACTS,
    "job_state": frozenset({"state", "kind", "queue"}),
    "job_tag": frozenset({"tag"}),
    "dead_letter": frozenset({"fingerprint", "kind", "queue"}),
}


def page(columns: str, wanted: JobFilter) -> tuple[str, dict[str, Any]]:
    """The text and its parameters; ``columns`` are those of ``{job} j`` and ``{job_state} s``."""
    found, params = ids(wanted)
    text = (
        f"select {columns} from ({found}) page"
        f" join {{job}} j on j.id = page.id join {{job_state}} s on s.id = page.id order by page.id desc"
    )
    return text, params


def ids(wanted: JobFilter, most: int = MOST) -> tuple[str, dict[str, Any]]:
    """Only which jobs they are."""
    equal = _equal(wanted)
    if not equal and wanted.tenant != EVERY_TENANT:
        return _of_every_state(wanted, most)
    lead = _lead(equal)
    id_ = "p.id" if lead in ("job", "job_state") else "p.job_id"
    conditions = [within(wanted.tenant, "p.tenant")]
    conditions += [f"p.{name} = :{name}" for name in equal if name in OWN[lead]]
    if lead == "job_state":
        # Each state is in one of two indexes, that of held jobs or that of the rest; this says in which.
        conditions.append(f"p.state {'in' if wanted.state in HELD else 'not in'} ('leased', 'in_progress')")
    elsewhere = [name for name in equal if name not in OWN[lead]]
    if lead == "dead_letter" and wanted.state is State.DEAD_LETTER:
        elsewhere.remove("state")  # there are no others in it
    if "tag" in elsewhere:
        conditions.append(
            f"exists (select 1 from {{job_tag}} x where x.tenant = p.tenant and x.tag = :tag and x.job_id = {id_})"
        )
    for table in ("job", "job_state"):
        asked = [name for name in elsewhere if name in (FACTS if table == "job" else ("state",))]
        if asked:
            fits = " and ".join(f"x.{name} = :{name}" for name in asked)
            conditions.append(f"(select 1 from {{{table}}} x where x.id = {id_} and {fits}) = 1")
    bounds = _bounds(wanted)
    conditions += [f"{id_} {sign} :{name}" for name, (sign, _) in bounds.items()]
    text = (
        f"select {id_} as id from {{{lead}}} p where {' and '.join(conditions)}"
        f" order by {id_} desc limit {max(1, min(wanted.limit, most)):d}"
    )
    return text, equal | {name: value for name, (_, value) in bounds.items()}


def _of_every_state(wanted: JobFilter, most: int) -> tuple[str, dict[str, Any]]:
    """All of a tenant's: the newest of each state, and of these the newest. An index of its own for this would cost
    every enqueue a twelfth. Jobs that are held are as many as the workers run, and are all looked at."""
    bounds = _bounds(wanted)
    own, newest = within(wanted.tenant, "p.tenant"), f"order by id desc limit {max(1, min(wanted.limit, most)):d}"
    spans = [f"id {sign} :{name}" for name, (sign, _) in bounds.items()]
    fits = " and ".join([own, *(f"p.{span}" for span in spans)])
    # The limit keeps both stores from walking all jobs by their ids in search of the few that are held.
    held = f"select p.id from {{job_state}} p where {own} and p.state in ('leased', 'in_progress') limit {HELD_MOST}"
    parts = [f"select id from ({held}) held where {' and '.join(spans) or '1 = 1'}"]
    parts += [
        f"select id from (select p.id from {{job_state}} p where {fits} and p.state = '{state}'"
        f" and p.state not in ('leased', 'in_progress') {newest}) {state}"
        for state in State
        if state not in HELD
    ]
    text = f"select u.id from ({' union all '.join(parts)}) u {newest}"
    return text, {name: value for name, (_, value) in bounds.items()}


def _equal(wanted: JobFilter) -> dict[str, Any]:
    asked = {
        "state": None if wanted.state is None else wanted.state.value,
        "kind": wanted.kind,
        "queue": wanted.queue,
        "agent": wanted.agent,
        "executor": wanted.executor,
        "correlation_id": wanted.correlation_id,
        "parent_id": None if wanted.parent_id is None else parse_id(wanted.parent_id),
        "tag": wanted.tag,
        "fingerprint": wanted.fingerprint,
    }
    return {name: value for name, value in asked.items() if value is not None}


def _lead(equal: dict[str, Any]) -> str:
    """The table with the index that narrows most."""
    if "fingerprint" in equal:
        return "dead_letter"
    if "tag" in equal:
        return "job_tag"
    if "state" in equal and equal.keys() <= OWN["job_state"]:
        return "job_state"
    return "job"


def _bounds(wanted: JobFilter) -> dict[str, tuple[str, str]]:
    """Ids sort by creation, so a span of time is a span of ids, and needs no index of its own."""
    bounds = {}
    if wanted.before is not None:
        bounds["before"] = ("<", parse_id(wanted.before))
    if wanted.since is not None:
        bounds["since"] = (">=", _first_id(wanted.since))
    if wanted.until is not None:
        bounds["until"] = ("<", _first_id(wanted.until))
    return bounds


def _first_id(moment: datetime) -> str:
    return str(uuid7(max(0, micros(moment) // 1000), bytes(10)))


_KEPT = "'" + WITHHELD.replace("'", "''") + "'"


def spoken(message: str, job: str) -> str:
    """``message`` is the column, ``job`` what has the tenant and the kind. Where nothing was said, no rule is read."""
    return (
        f"case when {message} <> {_KEPT} and exists (select 1 from {{payload_rule}} u"
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
# A parked job is due never, which is no time.
LISTED_COLUMNS = ", ".join(
    f"s.{name}" if name in STATE_COLUMNS else f"j.{name}" for name in Record.columns(Job).split(", ")
).replace("s.due_at", "nullif(s.due_at, :never)")
LISTED_COLUMNS = LISTED_COLUMNS.replace("s.error_message", spoken("s.error_message", "j"))
# From the ledger, as in the view `jobs`: no write pays for them.
LISTED_COLUMNS = LISTED_COLUMNS.replace(
    "j.updated_at", "(select e.at from {event} e where e.job_id = j.id order by e.seq desc limit 1)"
).replace(
    "j.last_error_at",
    "(select e.at from {event} e where e.job_id = j.id and e.from_state = 'in_progress'"
    " and e.type in ('fail', 'lapse', 'crash') order by e.seq desc limit 1)",
)
# What is restricted is not shown, which is for the view to say.
BARE_COLUMNS = LISTED_COLUMNS.replace("j.payload", "null")
LISTED_COLUMNS = LISTED_COLUMNS.replace("j.payload", "(select v.payload from {jobs} v where v.id = j.id)")


class Reader(ABC):
    """Base of the shared reads. It binds the tenant, then runs a query. What differs by store is an abstract method."""

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
    def beginning_with(self, low: str, high: str, tenant: str, limit: int = 5) -> Steps[list[str]]:
        text = (
            f"select j.id from {{job}} j where j.id >= :low and j.id <= :high and {within(tenant, 'j.tenant')}"
            f" order by j.id limit {int(limit)}"
        )
        rows = yield from self._ask(tenant, text, low=low, high=high)
        return [self.dialect.codec.id(row[0]) for row in rows]

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

    @flow(writes=False)
    def references(self, job_id: str, tenant: str) -> Steps[References]:
        text = (
            f"select r.source_ref, r.target_ref, r.payload_ref from {{reference}} r"
            f" where r.job_id = :id and {within(tenant, 'r.tenant')}"
        )
        rows = yield from self._ask(tenant, text, id=parse_id(job_id))
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
        rows = yield from self._ask(tenant, text, id=parse_id(job_id))
        return [self._event(row) for row in rows]

    @flow(writes=False)
    def attempts(self, job_id: str, tenant: str) -> Steps[list[Attempt]]:
        text = (
            f"select {Record.columns(Attempt, 'a.', skip=('payload',))} from {{attempts}} a"
            f" where a.job_id = :id and {within(tenant, 'a.tenant')} order by a.attempt"
        )
        rows = yield from self._ask(tenant, text, id=parse_id(job_id))
        decode = Record.decoder(Attempt, self.dialect.codec, skip=("payload",))
        return [decode(row) for row in rows]

    @flow(writes=False)
    def counts(self, tenant: str) -> Steps[dict[State, int]]:
        text = f"select s.state, count(*) from {{job_state}} s where {within(tenant, 's.tenant')} group by s.state"
        rows = yield from self._ask(tenant, text)
        return {state_of(state): count for state, count in rows}

    @flow(writes=False)
    def capped_counts(self, wanted: JobFilter, most: int) -> Steps[Counted]:
        """By an index, and never more rows than the cap in each state: it costs the same beside millions."""
        every = dataclasses.replace(wanted, state=None, before=None, payloads=True)
        if every == JobFilter(tenant=wanted.tenant, limit=wanted.limit):
            parts, params = [], {}
            for state in State:
                found, given = ids(JobFilter(tenant=wanted.tenant, state=state, limit=most), most)
                name = f"state_{state}"
                parts.append(f"select '{state}', count(*) from ({found.replace(':state', f':{name}')}) {name}")
                params[name] = given["state"]
            rows = yield from self._ask(wanted.tenant, " union all ".join(parts), **params)
            counts = {state_of(state): int(count) for state, count in rows}
            return Counted(counts, most, None)
        found, params = ids(dataclasses.replace(every, limit=WINDOW), WINDOW)
        text = f"select s.state, count(*) from ({found}) c join {{job_state}} s on s.id = c.id group by s.state"
        rows = yield from self._ask(wanted.tenant, text, **params)
        seen = {state_of(state): int(count) for state, count in rows}
        looked_at = sum(seen.values())
        counts = {state: min(most, seen.get(state, 0)) for state in State}
        return Counted(counts, most, WINDOW if looked_at >= WINDOW else None)

    @flow(writes=False)
    def list(self, wanted: JobFilter) -> Steps[list[Job]]:
        text, params = page(f"{LISTED_COLUMNS if wanted.payloads else BARE_COLUMNS}, {_WHY}", wanted)
        rows = yield from self._ask(wanted.tenant, text, **params)
        return [self._told(row) for row in rows]


def index_name(path: Sequence[str]) -> str:
    """Of the index over a key of payloads. The keys are checked (features/jobs/search.py): they need no quotes."""
    return f"payload_{hashlib.md5('.'.join(path).encode(), usedforsecurity=False).hexdigest()[:20]}"


EVENT_COLUMNS = Record.columns(Event, "e.", skip=("cursor",))


class LedgerReads(Reader):
    @flow(writes=False)
    def cursor(self, consumer: str, tenant: str) -> Steps[str | None]:
        # A consumer of every tenant's events keeps its place under '*', so this compares even then.
        text = "select c.cursor from {consumer} c where c.name = :name and c.tenant = :scope"
        rows = yield from self._ask(tenant, text, name=consumer, scope=tenant)
        return str(rows[0][0]) if rows else None


WINDOW = 10_000
"""Of jobs that are chosen by more than their state, so many of the newest are looked at."""


_NONE = References()


class StepReads(Reader):
    @flow(writes=False)
    def asks_first(self, agent: str, tenant: str) -> Steps[bool]:
        text = f"select 1 from {{agent}} a where a.id = :agent and {within(tenant, 'a.tenant')} and a.requires_approval"
        rows = yield from self._ask(tenant, text, agent=agent)
        return bool(rows)

    @flow(writes=False)
    def list(self, job_id: str, tenant: str) -> Steps[list[Step]]:
        columns = Record.columns(Step, "t.", skip=("now",))
        text = (
            f"select {columns}, p.now from {{step}} t, {{present}} p"
            f" where t.job_id = :id and {within(tenant, 't.tenant')} order by t.n"
        )
        rows = yield from self._ask(tenant, text, id=parse_id(job_id))
        decode = Record.decoder(Step, self.dialect.codec)
        return [decode(row) for row in rows]
