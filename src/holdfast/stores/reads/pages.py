"""A page of jobs, newest first: one table finds the ids by its index, the rest of each job is looked up by key.

A planner that is given the join of two tables of a million rows likes to walk both of them by id until enough rows
fit together. So one table leads and is read alone; what only another table knows is asked row by row, and the
limit is part of the text, since a prepared statement would have to guess it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from holdfast.engine.ids import parse_id, uuid7
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.states import HELD, State
from holdfast.stores.base import JobFilter
from holdfast.stores.codecs import micros
from holdfast.stores.reads.dialect import within

MOST = 1000
HELD_MOST = 100_000

FACTS = frozenset({"kind", "queue", "agent", "correlation_id", "parent_id"})
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
