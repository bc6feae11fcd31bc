"""The query of a page of jobs, newest first, for both stores.

One leading table finds the ids by its index; the rest of each job is read by key. Given a join of two tables with a
million rows, a planner tends to walk both by id until enough rows match. So one table leads, conditions on other tables
are subqueries per row, and the limit is part of the text, because for a prepared statement the planner would have to
guess it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from holdfast.engine.ids import parse_id, uuid7
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.states import HELD, State
from holdfast.stores.codecs import micros
from holdfast.stores.job_filters import BY_NAME, ID_PREFIX
from holdfast.stores.reader import Dialect, within
from holdfast.stores.requests import JobFilter

MOST = 1000
HELD_MOST = 100_000
WINDOW = 10_000
"""How many of the newest jobs are counted when a filter has more than a state, and compared with a worker: no index has
the jobs that a worker ran."""

IS_HELD: Final = "state in ('leased', 'in_progress')"
NOT_HELD: Final = "state not in ('leased', 'in_progress')"
# The tables that can lead, the most selective first, and the filters that each answers from its own columns.
_TABLES: Final[Mapping[str, frozenset[str]]] = {
    "idempotency": frozenset({"key", "kind"}),
    "dead_letter": frozenset({"fingerprint", "kind", "queue"}),
    "made_from": frozenset({"template", "template_version", "schedule", "scheduled_for"}),
    "node": frozenset({"part", "workflow_id"}),
    "job_tag": frozenset({"tag"}),
    "job_state": frozenset({"state", "kind", "queue", "workflow_id"}),
    "job": frozenset(name for name, each in BY_NAME.items() if each.table == "job") - {"since", "until"},
}
_OWN: Final = ("key", "fingerprint", "template", "schedule", "scheduled_for", "part", "tag")
"""Filters whose table leads whenever they are given."""


def page(dialect: Dialect, columns: str, job_filter: JobFilter) -> tuple[str, dict[str, Any]]:
    """The query of a page and its parameters; ``columns`` are those of ``{job} j``, ``{job_state} s`` and
    ``{made_from} m``, which nearly no job has."""
    id_query, params = ids(dialect, job_filter)
    text = (
        f"select {columns} from ({id_query}) page join {{job}} j on j.id = page.id join {{job_state}} s"
        " on s.id = page.id left join {made_from} m on m.job_id = page.id order by page.id desc"
    )
    return text, params


def ids(dialect: Dialect, job_filter: JobFilter, most: int = MOST) -> tuple[str, dict[str, Any]]:
    """The query of the ids of a page, and its parameters."""
    query = _Query(dialect, job_filter)
    limit = max(1, min(job_filter.limit, most))
    text = query.of_worker(limit) if job_filter.worker is not None else query.newest(limit)
    return text, query.params


@dataclass
class _Query:
    dialect: Dialect
    job_filter: JobFilter

    def __post_init__(self) -> None:
        self.bounds = _bounds(self.job_filter)
        self.params: dict[str, Any] = {name: value for name, (_, value) in self.bounds.items()}
        self.given = {name: value for name, value in self.job_filter.given.items() if name not in ("since", "until")}
        self.given.pop("worker", None)
        tags = _several(self.given.pop("tag", ()))
        if "limit_key" in self.given:
            tags += (f" key:{self.given.pop('limit_key')}",)  # as `tag_entries` has it
        if tags:
            self.given["tag"] = tags
        for name, value in self.given.items():
            self._bind(name, value)

    def _bind(self, name: str, value: Any) -> None:
        if name in ("tag", "any_tag"):
            self.given[name] = values = _several(value)
            self.params |= {f"{name}_{number}": each for number, each in enumerate(values)}
        elif BY_NAME[name].values == "id":
            self.params[name] = parse_id(value)
        elif isinstance(value, datetime):
            self.params[name] = self.dialect.codec.moment(value)
        else:
            self.params[name] = str(value) if name == "state" else value

    def newest(self, limit: int) -> str:
        """The ids of the newest jobs that match."""
        if not self.given and self.job_filter.tenant != EVERY_TENANT:
            return self._of_every_state(limit)
        lead = self._lead()
        if lead == "job_tag" and "tag" not in self.given:
            tags = [f"p.tag = :any_tag_{number}" for number in range(len(self.given["any_tag"]))]
            return self._union(lead, tags, limit)
        if lead == "job" and self.job_filter.kinds is not None and self.given.keys() == {"domain"}:
            kinds = self.job_filter.kinds
            self.params |= {f"kind_{number}": kind for number, kind in enumerate(kinds)}
            return self._union(lead, [f"p.kind = :kind_{number}" for number in range(len(kinds))], limit)
        return self._select(lead, (), limit)

    def _lead(self) -> str:
        """The table with the most selective index."""
        for name in _OWN:
            if name in self.given:
                return BY_NAME[name].table
        facts = self.given.keys() & _TABLES["job"] - {"kind", "queue"}
        if "any_tag" in self.given and not facts:
            return "job_tag"
        return "job_state" if "state" in self.given and not facts else "job"

    def _union(self, lead: str, alternatives: Sequence[str], limit: int) -> str:
        """The newest jobs of each alternative, and of these the newest."""
        if not alternatives:
            return f"select p.id from {{{lead}}} p where 1 = 0"
        parts = (self._select(lead, (each,), limit) for each in alternatives)
        found = " union all ".join(f"select id from ({text}) a{number}" for number, text in enumerate(parts))
        return f"select distinct u.id from ({found}) u order by u.id desc limit {limit:d}"

    def _select(self, lead: str, more: Sequence[str], limit: int) -> str:
        id_ = "p.id" if lead in ("job", "job_state") else "p.job_id"
        conditions = [within(self.job_filter.tenant, "p.tenant"), *more, *self._conditions(lead, id_)]
        if lead == "job_state" and not more:
            # There are two partial indexes, one of held jobs and one of the rest. This condition selects the index.
            conditions.append(f"p.{IS_HELD}" if self.job_filter.state in HELD else f"p.{NOT_HELD}")
        conditions += [f"{id_} {sign} :{name}" for name, (sign, _) in self.bounds.items()]
        order = f" order by {id_} desc" if lead != "job_state" or not more else ""
        return f"select {id_} as id from {{{lead}}} p where {' and '.join(conditions)}{order} limit {limit:d}"

    def _conditions(self, lead: str, id_: str) -> list[str]:
        """The conditions: on columns of the leading table, and one subquery for each other table."""
        own = _TABLES[lead]
        conditions = [self._equal("p", name) for name in self.given if name in own and name not in ("tag", "any_tag")]
        elsewhere = [name for name in self.given if name not in own or name == "any_tag"]
        if lead == "dead_letter" and self.job_filter.state is State.DEAD_LETTER:
            elsewhere.remove("state")  # the table has no other jobs
        for table in ("job", "job_state", "made_from", "node", "dead_letter"):
            matches = [self._equal("x", name) for name in elsewhere if BY_NAME[name].table == table]
            if matches:
                key = "id" if table in ("job", "job_state") else "job_id"
                conditions.append(
                    f"(select 1 from {{{table}}} x where x.{key} = {id_} and {' and '.join(matches)}) = 1"
                )
        if "domain" in elsewhere:
            kind = (
                "p.kind"
                if lead in ("job", "job_state", "dead_letter")
                else (f"(select x.kind from {{job}} x where x.id = {id_})")
            )
            conditions.append(f"(select x.domain from {{registered_kind}} x where x.name = {kind}) = :domain")
        return conditions + self._tagged(lead, id_)

    def _tagged(self, lead: str, id_: str) -> list[str]:
        # A scalar subquery: an `exists` would be planned as a merge join over all jobs with the tag.
        has = f"(select 1 from {{job_tag}} x where x.tenant = p.tenant and x.job_id = {id_} and x.tag"
        names = [f":tag_{number}" for number in range(len(self.given.get("tag", ())))]
        conditions = [f"p.tag = {names.pop(0)}"] if lead == "job_tag" and names else []
        conditions += [f"{has} = {name}) = 1" for name in names]
        if "any_tag" in self.given and (lead != "job_tag" or "tag" in self.given):
            any_of = ", ".join(f":any_tag_{number}" for number in range(len(self.given["any_tag"])))
            conditions.append(f"{has} in ({any_of}) limit 1) = 1")
        return conditions

    def _equal(self, alias: str, name: str) -> str:
        return f"{alias}.{BY_NAME[name].column} = :{name}"

    def _of_every_state(self, limit: int) -> str:
        """The ids of a tenant's jobs in any state: the newest of each state, and of these the newest. A dedicated index
        would make every enqueue one twelfth slower. Held jobs are all read: there are only as many as the workers
        run."""
        own = within(self.job_filter.tenant, "p.tenant")
        newest = f"order by id desc limit {limit:d}"
        spans = [f"id {sign} :{name}" for name, (sign, _) in self.bounds.items()]
        matches = " and ".join([own, *(f"p.{span}" for span in spans)])
        # The limit keeps both planners from walking all jobs by id in search of the few held ones.
        held = f"select p.id from {{job_state}} p where {own} and p.{IS_HELD} limit {HELD_MOST}"
        parts = [f"select id from ({held}) held where {' and '.join(spans) or '1 = 1'}"]
        parts += [
            f"select id from (select p.id from {{job_state}} p where {matches} and p.state = '{state}'"
            f" and p.{NOT_HELD} {newest}) {state}"
            for state in State
            if state not in HELD
        ]
        return f"select u.id from ({' union all '.join(parts)}) u {newest}"

    def of_worker(self, limit: int) -> str:
        """The ids of the jobs that a worker has, and of those among the newest ``WINDOW`` that it ran last."""
        worker = self.job_filter.worker or ""
        self.params["worker"] = worker
        ran = "w.worker = :worker"
        if ID_PREFIX.fullmatch(worker):
            self.params["worker_id"] = f"worker {worker}%"
            ran = f"({ran} or w.worker like :worker_id)"
        parts = [self.newest(max(limit, WINDOW))]
        if self.job_filter.state is None or self.job_filter.state in HELD:
            parts.append(self._select("job_state", (f"p.{IS_HELD}",), HELD_MOST))
        found = " union all ".join(f"select id from ({text}) c{number}" for number, text in enumerate(parts))
        return (
            f"select w.id from (select distinct c.id, {worker_of('c.id')} as worker from ({found}) c) w"
            f" where {ran} order by w.id desc limit {limit:d}"
        )


def _several(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def worker_of(id_: str) -> str:
    """The expression for the worker that has a job or ran it last."""
    return (
        f"(select e.actor from {{event}} e where e.job_id = {id_} and e.to_{IS_HELD}"
        " and coalesce(e.from_state, '') <> e.to_state order by e.seq desc limit 1)"
    )


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


MANY_KINDS: Final = 100
"""A page of a domain is found by kind if the domain has at most this many."""
KINDS_OF_DOMAIN: Final = (
    f"select k.name from {{registered_kind}} k where k.domain = :domain order by k.name limit {MANY_KINDS + 1}"
)


def with_kinds(job_filter: JobFilter, kinds: Sequence[str]) -> JobFilter:
    return job_filter if len(kinds) > MANY_KINDS else replace(job_filter, kinds=tuple(kinds))
