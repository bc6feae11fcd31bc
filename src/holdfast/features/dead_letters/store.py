"""Dead letters in groups and bulk operations in the database: port, shared reads and PostgreSQL.

Working off a bulk operation (DP-15): find the next jobs, do to them what was asked, move its place on.

One transaction a batch, so a process that is killed has done all of it or nothing, and each job has one turn: places
only go down. Many processes may work at once: one has the operation's row, the others look for another operation.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Protocol

from holdfast.engine.ids import parse_id
from holdfast.engine.job import EVERY_TENANT, Enqueued
from holdfast.engine.states import ACTIVE, State, state_of
from holdfast.errors import InvalidSetting
from holdfast.features.dead_letters.model import (
    COUNTED,
    WINDOW,
    DeadLetterGroup,
    GroupFilter,
    Operation,
    Remade,
    Starting,
)
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Flow, Row, Statement, Steps, flow
from holdfast.stores.job_reads import MOST, Reader, ids, page, spoken
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reader import within
from holdfast.stores.requests import JobFilter


class DeadLetterStore(Protocol):
    def groups(self, wanted: GroupFilter) -> Flow[list[DeadLetterGroup]]: ...
    def group(self, fingerprint: str, tenant: str) -> Flow[DeadLetterGroup | None]: ...
    def group_of(self, job_id: str, tenant: str) -> Flow[DeadLetterGroup | None]:
        """The group of an open dead letter."""
        ...

    def note(self, fingerprint: str, note: str | None, actor: str, tenant: str) -> Flow[bool]:
        """What people have found out about a group; None takes it away. False: there is no such group."""
        ...

    def redrive_as(
        self, job_id: str, new_id: str, payload: str, reason: str | None, actor: str, tenant: str
    ) -> Flow[Enqueued]:
        """Discard a dead letter, and enqueue a job in its place with another payload (JSON text). Asked again it
        answers the same job, with ``created`` False; without an id ``reason`` says why there is none."""
        ...

    def remade(self, job_id: str, tenant: str) -> Flow[list[Remade]]:
        """Of which job it took the place, and which job took its."""
        ...


class OperationStore(Protocol):
    def start(self, new: Starting, wanted: JobFilter, actor: str, tenant: str) -> Flow[Operation]:
        """Have something done to all jobs that a filter wants: they are counted now, and whoever has time does it."""
        ...

    def next(self, tenant: str = EVERY_TENANT) -> Flow[float | None]:
        """In how many seconds a batch of some operation is due; None when there is none."""
        ...

    def work(self, tenant: str = EVERY_TENANT, only: str | None = None) -> Flow[int | None]:
        """Do the next batch that is due, of this operation or any; how many jobs it was, or None for nothing to do."""
        ...

    def cancel(self, operation_id: str, reason: str | None, actor: str, tenant: str) -> Flow[bool]:
        """No further batch is begun. False when it is over already, or is not there."""
        ...

    def get(self, operation_id: str, tenant: str) -> Flow[Operation | None]: ...

    def list(
        self, tenant: str, running: bool = False, before: str | None = None, limit: int = 50
    ) -> Flow[list[Operation]]:
        """Newest first; ``before`` is the id of the last one of the page before."""
        ...


GROUP_COLUMNS = Record.columns(DeadLetterGroup, "g.").replace("g.error_message", spoken("g.error_message", "g"))
OPERATION_COLUMNS = Record.columns(Operation, "o.")
# A literal part of a text, whatever case it is in; a few hundred groups are read for it, not the dead letters.
_FITS = " or ".join(
    f"lower({column}) like :part escape '!'" for column in ("g.error_code", "g.error_message", "g.frame", "g.note")
)


class DeadLetterReads(Reader):
    @cached_property
    def _group(self) -> Callable[[Row], DeadLetterGroup]:
        return Record.decoder(DeadLetterGroup, self.dialect.codec)

    @flow(writes=False)
    def groups(self, wanted: GroupFilter) -> Steps[list[DeadLetterGroup]]:
        conditions, moment = [within(wanted.tenant, "g.tenant")], self.dialect.codec.moment
        params: dict[str, object] = {}
        if not wanted.resolved:
            conditions.append("g.open > 0")
        if wanted.kind is not None:
            conditions.append("g.kind = :kind")
            params["kind"] = wanted.kind
        if wanted.queue is not None:
            fits = "l.tenant = g.tenant and l.queue = :queue and l.fingerprint = g.fingerprint"
            conditions.append(f"exists (select 1 from {{dead_letter}} l where {fits})")
            params["queue"] = wanted.queue
        if wanted.text is not None:
            conditions.append(f"({_FITS})")
            params["part"] = _part(wanted.text)
        if wanted.since is not None:
            conditions.append("g.last_at >= :since")
            params["since"] = moment(wanted.since)
        by = "g.last_at" if wanted.order == "last" else "g.open"
        place = wanted.place()
        if place is not None:
            conditions.append(f"({by}, g.fingerprint) < (:place, :name)")
            last, opened, params["name"] = place
            params["place"] = moment(datetime.fromtimestamp(last, UTC)) if wanted.order == "last" else opened
        index = "largest" if wanted.order == "count" else "all" if wanted.resolved else "newest"
        named = "" if wanted.tenant == EVERY_TENANT else self.dialect.by_index(f"dead_letter_group_{index}")
        text = (
            f"select {GROUP_COLUMNS} from {{dead_letter_group}} g{named} where {' and '.join(conditions)}"
            f" order by {by} desc, g.fingerprint desc limit {max(1, min(wanted.limit, MOST)):d}"
        )
        rows = yield from self._ask(wanted.tenant, text, **params)
        return [self._group(row) for row in rows]

    @flow(writes=False)
    def group(self, fingerprint: str, tenant: str) -> Steps[DeadLetterGroup | None]:
        text = (
            f"select {GROUP_COLUMNS} from {{dead_letter_group}} g"
            f" where {within(tenant, 'g.tenant')} and g.fingerprint = :name order by g.tenant limit 1"
        )
        rows = yield from self._ask(tenant, text, name=fingerprint)
        return self._group(rows[0]) if rows else None

    @flow(writes=False)
    def group_of(self, job_id: str, tenant: str) -> Steps[DeadLetterGroup | None]:
        text = (
            f"select {GROUP_COLUMNS} from {{dead_letter}} l join {{dead_letter_group}} g on g.tenant = l.tenant"
            f" and g.fingerprint = l.fingerprint where l.job_id = :id and {within(tenant, 'l.tenant')}"
        )
        rows = yield from self._ask(tenant, text, id=parse_id(job_id))
        return self._group(rows[0]) if rows else None

    @flow(writes=False)
    def remade(self, job_id: str, tenant: str) -> Steps[list[Remade]]:
        text = (
            f"select {Record.columns(Remade, 'r.')} from {{redriven_as}} r"
            f" where (r.job_id = :id or r.new_id = :id) and {within(tenant, 'r.tenant')} order by r.at"
        )
        rows = yield from self._ask(tenant, text, id=parse_id(job_id))
        decode = Record.decoder(Remade, self.dialect.codec)
        return [decode(row) for row in rows]


class OperationReads(Reader):
    @cached_property
    def _operation(self) -> Callable[[Row], Operation]:
        return Record.decoder(Operation, self.dialect.codec)

    @flow(writes=False)
    def get(self, operation_id: str, tenant: str) -> Steps[Operation | None]:
        text = f"select {OPERATION_COLUMNS} from {{operation}} o where o.id = :id and {within(tenant, 'o.tenant')}"
        rows = yield from self._ask(tenant, text, id=parse_id(operation_id))
        return self._operation(rows[0]) if rows else None

    @flow(writes=False)
    def list(
        self, tenant: str, running: bool = False, before: str | None = None, limit: int = 50
    ) -> Steps[list[Operation]]:
        conditions = [within(tenant, "o.tenant")]
        conditions += ["o.state = 'running'"] if running else []
        conditions += ["o.id < :before"] if before is not None else []
        text = (
            f"select {OPERATION_COLUMNS} from {{operation}} o where {' and '.join(conditions)}"
            f" order by o.id desc limit {max(1, min(limit, MOST)):d}"
        )
        rows = yield from self._ask(tenant, text, **({} if before is None else {"before": parse_id(before)}))
        return [self._operation(row) for row in rows]


def _part(text: str) -> str:
    """For ``like``, with what means something to it taken literally."""
    literal = text.lower()
    for sign in "!%_":
        literal = literal.replace(sign, f"!{sign}")
    return f"%{literal}%"


_SPAN = ("since", "until")
_NOT_KEPT = ("tenant", "before", "limit", "payloads")


log = logging.getLogger("holdfast.store")


def as_wanted(wanted: JobFilter) -> str:
    """A filter as an operation keeps it: the names that were given, and their values."""
    given = {field.name: getattr(wanted, field.name) for field in dataclasses.fields(wanted)}
    kept = {name: value for name, value in given.items() if value is not None and name not in _NOT_KEPT}
    return json.dumps({name: _plain(value) for name, value in kept.items()}, sort_keys=True)


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def for_action(action: str, wanted: JobFilter) -> JobFilter:
    """The filter with the state that the action is about."""
    if action == "cancel":
        if wanted.state is not None and wanted.state not in ACTIVE:
            raise InvalidSetting(f"{wanted.state} jobs have finished and cannot be cancelled", code="not_active")
        return wanted
    if wanted.state not in (None, State.DEAD_LETTER):
        raise InvalidSetting(f"{action} applies to dead letters, not to {wanted.state} jobs", code="only_dead_letters")
    return dataclasses.replace(wanted, state=State.DEAD_LETTER)


class Operating(OperationReads):
    def _work(self, tenant: str, only: str | None) -> Steps[int | None]:
        found = yield from self._hold_operation(only, tenant)
        if found is None:
            return None
        try:
            most = found.batch
            _filter(found, most)
        except Exception:
            # Nobody can tell which jobs were meant: it ends with none, and the other operations have their turn.
            log.error("Operation %s of tenant %s cannot be read; ending it", found.id, found.tenant)
            yield from self._do_operation(found, [], None, True)
            return 0
        seen = yield from self._next_jobs(found, most)
        jobs = [job_id for job_id, state in seen if found.action != "cancel" or state in ACTIVE][:most]
        full = len(seen) == (most if _narrow(found) else WINDOW)
        # Of a window that had more than a batch in it, the rest is for the next one.
        last = jobs[-1] if len(jobs) == most else seen[-1][0] if seen else None
        over = not full and (not jobs or last == seen[-1][0])
        yield from self._do_operation(found, jobs, last, over)
        return len(jobs)

    def _next_jobs(self, found: Operation, most: int) -> Steps[list[tuple[str, State]]]:
        """By id, newest first, from where the last batch ended."""
        wanted = _filter(found, most if _narrow(found) else WINDOW)
        text, params = page("page.id, s.state", wanted)
        rows = yield from self._ask(found.tenant, text, **params)
        return [(self.dialect.codec.id(row[0]), state_of(row[1])) for row in rows]

    def _count(self, wanted: JobFilter) -> Steps[int]:
        """How many there are, up to one more than is counted."""
        found, params = ids(dataclasses.replace(wanted, limit=COUNTED + 1), COUNTED + 1)
        text = f"select count(*) from ({found}) c"
        if wanted.state is None:
            active = ", ".join(f"'{state}'" for state in sorted(ACTIVE))
            text += f" join {{job_state}} s on s.id = c.id where s.state in ({active})"
        rows = yield from self._ask(wanted.tenant, text, **params)
        return int(rows[0][0])

    # --- what each store does in its own way ---

    @abstractmethod
    def _hold_operation(self, only: str | None, tenant: str) -> Steps[Operation | None]:
        """The one that is due to oneself; None when there is none, or others have them."""

    @abstractmethod
    def _do_operation(self, found: Operation, jobs: Sequence[str], last: str | None, over: bool) -> Steps[None]: ...


def _narrow(found: Operation) -> bool:
    """Whether all that the filter finds are jobs to be worked on."""
    return "state" in found.wanted


def _filter(found: Operation, limit: int) -> JobFilter:
    given: dict[str, Any] = {
        name: datetime.fromisoformat(value) if name in _SPAN else State(value) if name == "state" else value
        for name, value in found.wanted.items()
    }
    return JobFilter(tenant=found.tenant, before=found.place, limit=limit, **given)


class PostgresDeadLetters(Calls, DeadLetterReads):
    @flow(single=True)
    def note(self, fingerprint: str, note: str | None, actor: str, tenant: str) -> Steps[bool]:
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


class PostgresOperations(Calls, Operating):
    @flow()
    def start(self, new: Starting, wanted: JobFilter, actor: str, tenant: str) -> Steps[Operation]:
        chosen = for_action(new.action, wanted)
        total = yield from self._count(chosen)
        yield self._call(
            "start_operation",
            "%s, %s, %s, %s, %s, %s, %s::integer, %s::float8, %s, %s",
            new.id,
            new.action,
            as_wanted(chosen),
            min(total, COUNTED),
            total > COUNTED,
            new.reason,
            new.max_attempts,
            new.rate,
            actor,
            tenant,
        )
        started = yield from self.get(new.id, tenant).start()
        assert started is not None
        return started

    @flow(single=True, writes=False)
    def next(self, tenant: str = EVERY_TENANT) -> Steps[float | None]:
        """One statement, and no transaction around it: every worker asks this twice a second."""
        rows = yield self._call("next_operation", "%s", tenant)
        return None if rows[0][0] is None else float(rows[0][0])

    @flow()
    def work(self, tenant: str = EVERY_TENANT, only: str | None = None) -> Steps[int | None]:
        return (yield from self._work(tenant, only))

    @flow(single=True)
    def cancel(self, operation_id: str, reason: str | None, actor: str, tenant: str) -> Steps[bool]:
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
