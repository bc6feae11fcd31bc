"""Groups of dead letters and bulk operations in the database: ports, shared reads and PostgreSQL.

A bulk operation is executed in batches: read the next matching jobs, change them, advance the operation's position. A
batch is one transaction, so a process that is killed has done all of it or nothing. Positions only descend, so each
job is processed once. Many processes may work at the same time: one holds the operation's row, and the others take
another operation.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property

from holdfast.engine.ids import parse_id
from holdfast.engine.job import EVERY_TENANT, Enqueued
from holdfast.engine.states import ACTIVE, State, state_of
from holdfast.errors import InvalidSetting
from holdfast.features.dead_letters.model import (
    COUNTED,
    WINDOW,
    DeadLetterGroup,
    GroupFilter,
    NewOperation,
    Operation,
    Replacement,
)
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Row, Statement, Steps, flow
from holdfast.stores.job_filters import BY_NAME
from holdfast.stores.job_pages import MOST, ids, page
from holdfast.stores.job_reads import Reader, visible_message
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reader import within
from holdfast.stores.requests import JobFilter, all_of

GROUP_COLUMNS = Record.columns(DeadLetterGroup, "g.").replace(
    "g.error_message", visible_message("g.error_message", "g")
)
OPERATION_COLUMNS = Record.columns(Operation, "o.")
# A case-insensitive search for literal text. It reads a few hundred groups, not the dead letters.
_CONTAINS_TEXT = " or ".join(
    f"lower({column}) like :part escape '!'" for column in ("g.error_code", "g.error_message", "g.frame", "g.note")
)


class DeadLetterReads(Reader):
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
            in_queue = "l.tenant = g.tenant and l.queue = :queue and l.fingerprint = g.fingerprint"
            conditions.append(f"exists (select 1 from {{dead_letter}} l where {in_queue})")
            params["queue"] = wanted.queue
        if wanted.text is not None:
            conditions.append(f"({_CONTAINS_TEXT})")
            params["part"] = _like_pattern(wanted.text)
        if wanted.since is not None:
            conditions.append("g.last_at >= :since")
            params["since"] = moment(wanted.since)
        by = "g.last_at" if wanted.order == "last" else "g.open"
        position = wanted.position()
        if position is not None:
            conditions.append(f"({by}, g.fingerprint) < (:place, :name)")
            last_at, open_count, params["name"] = position
            params["place"] = moment(datetime.fromtimestamp(last_at, UTC)) if wanted.order == "last" else open_count
        index = "largest" if wanted.order == "count" else "all" if wanted.resolved else "newest"
        hint = "" if wanted.tenant == EVERY_TENANT else self.dialect.by_index(f"dead_letter_group_{index}")
        text = (
            f"select {GROUP_COLUMNS} from {{dead_letter_group}} g{hint} where {' and '.join(conditions)}"
            f" order by {by} desc, g.fingerprint desc limit {max(1, min(wanted.limit, MOST)):d}"
        )
        return (yield from self._records(DeadLetterGroup, wanted.tenant, text, **params))

    @flow(writes=False)
    def group(self, fingerprint: str, tenant: str) -> Steps[DeadLetterGroup | None]:
        text = (
            f"select {GROUP_COLUMNS} from {{dead_letter_group}} g"
            f" where {within(tenant, 'g.tenant')} and g.fingerprint = :name order by g.tenant limit 1"
        )
        return (yield from self._record(DeadLetterGroup, tenant, text, name=fingerprint))

    @flow(writes=False)
    def group_of(self, job_id: str, tenant: str) -> Steps[DeadLetterGroup | None]:
        """The group of an open dead letter."""
        text = (
            f"select {GROUP_COLUMNS} from {{dead_letter}} l join {{dead_letter_group}} g on g.tenant = l.tenant"
            f" and g.fingerprint = l.fingerprint where l.job_id = :id and {within(tenant, 'l.tenant')}"
        )
        return (yield from self._record(DeadLetterGroup, tenant, text, id=parse_id(job_id)))

    @flow(writes=False)
    def remade(self, job_id: str, tenant: str) -> Steps[list[Replacement]]:
        """The job that this job replaced, and the job that replaced it."""
        text = (
            f"select {Record.columns(Replacement, 'r.')} from {{redriven_as}} r"
            f" where (r.job_id = :id or r.new_id = :id) and {within(tenant, 'r.tenant')} order by r.at"
        )
        return (yield from self._records(Replacement, tenant, text, id=parse_id(job_id)))


class OperationReads(Reader):
    @cached_property
    def _operation(self) -> Callable[[Row], Operation]:
        return Record.decoder(Operation, self.dialect.codec)

    @flow(writes=False)
    def get(self, operation_id: str, tenant: str) -> Steps[Operation | None]:
        text = f"select {OPERATION_COLUMNS} from {{operation}} o where o.id = :id and {within(tenant, 'o.tenant')}"
        return (yield from self._record(Operation, tenant, text, id=parse_id(operation_id)))

    @flow(writes=False)
    def list(
        self, tenant: str, running: bool = False, before: str | None = None, limit: int = 50
    ) -> Steps[list[Operation]]:
        """Newest first; ``before`` is the id of the last operation of the previous page."""
        conditions = [within(tenant, "o.tenant")]
        conditions += ["o.state = 'running'"] if running else []
        conditions += ["o.id < :before"] if before is not None else []
        text = (
            f"select {OPERATION_COLUMNS} from {{operation}} o where {' and '.join(conditions)}"
            f" order by o.id desc limit {max(1, min(limit, MOST)):d}"
        )
        return (
            yield from self._records(
                Operation, tenant, text, **({} if before is None else {"before": parse_id(before)})
            )
        )


def _like_pattern(text: str) -> str:
    """A pattern for ``like`` that matches the literal text anywhere."""
    literal = text.lower()
    for character in "!%_":
        literal = literal.replace(character, f"!{character}")
    return f"%{literal}%"


log = logging.getLogger("holdfast.store")


def filter_json(wanted: JobFilter) -> str:
    """A filter as it is stored with an operation: the conditions that are set, with times as text."""
    checked = all_of(wanted.tenant, wanted.given).given
    return json.dumps(checked, default=lambda moment: moment.isoformat(), sort_keys=True)


def for_action(action: str, wanted: JobFilter) -> JobFilter:
    """The filter with the state that the action applies to."""
    if wanted.worker is not None:
        raise InvalidSetting(
            "an operation cannot select jobs by worker: only the newest jobs are compared", code="unknown_option"
        )
    if action == "cancel":
        if wanted.state is not None and wanted.state not in ACTIVE:
            raise InvalidSetting(f"{wanted.state} jobs have finished and cannot be cancelled", code="not_active")
        return wanted
    if wanted.state not in (None, State.DEAD_LETTER):
        raise InvalidSetting(f"{action} applies to dead letters, not to {wanted.state} jobs", code="only_dead_letters")
    return dataclasses.replace(wanted, state=State.DEAD_LETTER)


class OperationBatches(OperationReads):
    """Executes batches of bulk operations. A store provides the lock and the update."""

    def _work(self, tenant: str, only: str | None) -> Steps[int | None]:
        operation = yield from self._hold_operation(only, tenant)
        if operation is None:
            return None
        try:
            limit = operation.batch
            _stored_filter(operation, limit)
        except Exception:
            # The filter is unreadable, so the matching jobs are unknown. End the operation, because the next call
            # would take it again and never reach the other operations.
            log.error("Operation %s of tenant %s cannot be read; ending it", operation.id, operation.tenant)
            yield from self._do_operation(operation, [], None, True)
            return 0
        rows = yield from self._next_jobs(operation, limit)
        jobs = [job_id for job_id, state in rows if operation.action != "cancel" or state in ACTIVE][:limit]
        full = len(rows) == (limit if _has_state(operation) else WINDOW)
        # If the window had more jobs than fit into a batch, the next batch starts after the last job of this one.
        last = jobs[-1] if len(jobs) == limit else rows[-1][0] if rows else None
        over = not full and (not jobs or last == rows[-1][0])
        yield from self._do_operation(operation, jobs, last, over)
        return len(jobs)

    def _next_jobs(self, operation: Operation, limit: int) -> Steps[list[tuple[str, State]]]:
        """Matching jobs by id, newest first, from the operation's position on."""
        wanted = yield from self._resolved(_stored_filter(operation, limit if _has_state(operation) else WINDOW))
        text, params = page(self.dialect, "page.id, s.state", wanted)
        rows = yield from self._query(operation.tenant, text, **params)
        return [(self.dialect.codec.id(row[0]), state_of(row[1])) for row in rows]

    def _count(self, wanted: JobFilter) -> Steps[int]:
        """The number of matching jobs, up to ``COUNTED`` + 1."""
        wanted = yield from self._resolved(wanted)
        matching, params = ids(self.dialect, dataclasses.replace(wanted, limit=COUNTED + 1), COUNTED + 1)
        text = f"select count(*) from ({matching}) c"
        if wanted.state is None:
            active = ", ".join(f"'{state}'" for state in sorted(ACTIVE))
            text += f" join {{job_state}} s on s.id = c.id where s.state in ({active})"
        rows = yield from self._query(wanted.tenant, text, **params)
        return int(rows[0][0])

    @abstractmethod
    def _hold_operation(self, only: str | None, tenant: str) -> Steps[Operation | None]:
        """Lock a due operation; None if none is due, or other processes hold them."""

    @abstractmethod
    def _do_operation(self, operation: Operation, jobs: Sequence[str], last: str | None, over: bool) -> Steps[None]:
        """Apply the action to the jobs and advance the position to ``last``; ``over`` ends the operation."""


def _has_state(operation: Operation) -> bool:
    """Whether the filter names a state: then the action applies to every job that matches."""
    return "state" in operation.wanted


def _stored_filter(operation: Operation, limit: int) -> JobFilter:
    """The filter of an operation, from its position on."""
    values = {
        name: datetime.fromisoformat(value) if BY_NAME[name].values == "time" else value
        for name, value in operation.wanted.items()
    }
    return dataclasses.replace(all_of(operation.tenant, values), before=operation.place, limit=limit)


class PostgresDeadLetters(Calls, DeadLetterReads):
    @flow(single=True)
    def note(self, fingerprint: str, note: str | None, actor: str, tenant: str) -> Steps[bool]:
        """Set the note of a group; None removes it. False if there is no such group."""
        return (yield from self._flag("note_dead_letters", "%s, %s, %s, %s", fingerprint, note, actor, tenant))

    @flow(single=True)
    def redrive_as(
        self, job_id: str, new_id: str, payload: str, reason: str | None, actor: str, tenant: str
    ) -> Steps[Enqueued]:
        """Discard a dead letter and enqueue a job with another payload (JSON text) in its place. A repeated call
        returns the same job with ``created`` False. If the id is None, ``reason`` is the refusal."""
        params = (parse_id(job_id), new_id, payload, reason, actor, tenant)
        rows = yield self._call("redrive_as", "%s, %s, %s::json, %s, %s, %s", *params)
        replacement, created, refusal = rows[0]
        return Enqueued(None if replacement is None else str(replacement), created, refusal)


class PostgresOperations(Calls, OperationBatches):
    @flow()
    def start(self, new: NewOperation, wanted: JobFilter, actor: str, tenant: str) -> Steps[Operation]:
        """Start an operation on all matching jobs. They are counted now; workers execute the operation."""
        wanted = for_action(new.action, wanted)
        total = yield from self._count(wanted)
        yield self._call(
            "start_operation",
            "%s, %s, %s, %s, %s, %s, %s::integer, %s::float8, %s, %s, %s::timestamptz, %s::interval",
            new.id,
            new.action,
            filter_json(wanted),
            min(total, COUNTED),
            total > COUNTED,
            new.reason,
            new.max_attempts,
            new.rate,
            actor,
            tenant,
            new.at,
            None if new.delay is None else timedelta(seconds=new.delay),
        )
        started = yield from self.get(new.id, tenant).start()
        assert started is not None
        return started

    @flow(single=True, writes=False)
    def next(self, tenant: str = EVERY_TENANT) -> Steps[float | None]:
        """One statement without a transaction: every worker polls this twice a second."""
        rows = yield self._call("next_operation", "%s", tenant)
        return None if rows[0][0] is None else float(rows[0][0])

    @flow()
    def work(self, tenant: str = EVERY_TENANT, only: str | None = None) -> Steps[int | None]:
        """Execute the next due batch of this operation, or of any. Returns the number of jobs; None if none was due."""
        return (yield from self._work(tenant, only))

    @flow(single=True)
    def cancel(self, operation_id: str, reason: str | None, actor: str, tenant: str) -> Steps[bool]:
        """Start no further batch. False if the operation has ended or does not exist."""
        params = (parse_id(operation_id), reason, actor, tenant)
        return (yield from self._flag("cancel_operation", "%s, %s, %s, %s", *params))

    def _hold_operation(self, only: str | None, tenant: str) -> Steps[Operation | None]:
        text = f"select {Record.columns(Operation)} from {self.dialect.schema}hold_operation(%s::uuid, %s)"
        rows = yield Statement(text, (only, tenant))
        return self._operation(rows[0]) if rows else None

    def _do_operation(self, operation: Operation, jobs: Sequence[str], last: str | None, over: bool) -> Steps[None]:
        params = (operation.id, list(jobs), last, over, operation.tenant)
        yield self._call("do_operation", "%s, %s::uuid[], %s::uuid, %s, %s", *params)
