"""Each verb is one call of one function; the functions are in ``code/``."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from holdfast.domain.errors import InvalidInput
from holdfast.domain.job import EVERY_TENANT, Claim, Enqueued, Event, Holding, JobSpec, Lease, Sweep, Turn, Verdict
from holdfast.domain.order import Move
from holdfast.domain.settlement import Settlement
from holdfast.domain.states import State
from holdfast.stores.base import ClaimRequest, OperatorVerb, Reschedule
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Row, Statement, Steps, flow
from holdfast.stores.postgres.agents import AgentVerbs
from holdfast.stores.postgres.arrays import Ids, Numbers, Words, ids, numbers, words
from holdfast.stores.postgres.audit import AuditVerbs
from holdfast.stores.postgres.circumstances import CircumstanceVerbs
from holdfast.stores.postgres.codec import PostgresCodec, alike, enqueue_document, is_bare, is_plain
from holdfast.stores.postgres.connectors import ConnectorVerbs
from holdfast.stores.postgres.dead_letters import DeadLetterVerbs
from holdfast.stores.postgres.endpoints import EndpointVerbs
from holdfast.stores.postgres.gates import GateVerbs
from holdfast.stores.postgres.limits import LimitVerbs
from holdfast.stores.postgres.payloads import PayloadVerbs
from holdfast.stores.postgres.retention import RetentionVerbs
from holdfast.stores.postgres.schedules import ScheduleVerbs
from holdfast.stores.postgres.steps import StepVerbs
from holdfast.stores.postgres.subscriptions import SubscriptionVerbs
from holdfast.stores.postgres.switches import SwitchVerbs
from holdfast.stores.postgres.tenants import TenantVerbs
from holdfast.stores.postgres.tokens import TokenVerbs
from holdfast.stores.postgres.workflows import WorkflowVerbs
from holdfast.stores.reads import Dialect, Reads

VERB_OF = {"succeeded": "succeed", "snooze": "snooze", "cancel": "cancel", "pause": "snooze", "ask": "ask"}
CLAIM_COLUMNS = Record.columns(Claim, "c.", skip=("lease",))

# floor, snapshot, next snapshot, place: what is between them only the server can read.
_CURSOR = re.compile(r"[0-9]{1,18}(;[0-9:,]*){0,2}(;[0-9]{0,18})?")


class PostgresVerbs(
    StepVerbs,
    GateVerbs,
    AgentVerbs,
    ScheduleVerbs,
    WorkflowVerbs,
    LimitVerbs,
    SwitchVerbs,
    SubscriptionVerbs,
    CircumstanceVerbs,
    PayloadVerbs,
    TenantVerbs,
    RetentionVerbs,
    DeadLetterVerbs,
    AuditVerbs,
    TokenVerbs,
    ConnectorVerbs,
    EndpointVerbs,
    Reads,
):
    def __init__(self, schema: str) -> None:
        self._s = f'"{schema}".'
        # Not put together anew for each call: a connection knows again what it was asked before by the text itself.
        numbers = "%s::smallint, %s::smallint, %s::smallint"
        self._enqueue_one = f"select {self._s}enqueue_one(%s, %s, %s, %s, {numbers}, %s, %s, %s)"
        self._turn_text = (
            f"select {CLAIM_COLUMNS}, c.stale, c.live, c.pick_us from {self._s}turn("
            "%s, %s::uuid[], %s::int[], %s::text[], %s::json[], %s, %s, %s, %s, %s::smallint[], %s::bigint[], %s) c"
        )
        self.dialect = Dialect(
            PostgresCodec(),
            self._s,
            percent=True,
            bind=lambda tenant: Statement(f"select {self._s}enter(%s)", (tenant,), binds=True),
            has=lambda column, parameter: f"{parameter} = any ({column})",
            nobody="{}",
            never="infinity",
            minute=lambda column: f"floor(date_part('epoch', {column}) / 60)::bigint",
        )

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
        return [
            Enqueued(str(job_id) if job_id else None, created, reason, State(state) if state else None, detail)
            for job_id, state, created, reason, detail in rows
        ]

    def _settle_again(self, lease: str, settlements: Sequence[Settlement], tenant: str) -> Steps[list[str]]:
        """What is stale now may be so because our first try came through. The ledger knows: nobody but the holder of
        an attempt can make it succeed, fail or snooze."""
        stale = yield from self.settle(lease, settlements, tenant).start()
        if not stale:
            return []
        rows = yield Statement(
            f"select job_id, attempt, verb from {self._s}event"
            " where job_id = any(%s::uuid[]) and from_state = 'in_progress'",
            (list(stale),),
        )
        ended = {(str(job_id), attempt, verb) for job_id, attempt, verb in rows}
        ours = {item.id for item in settlements if (item.id, item.attempt, VERB_OF.get(item.ending, "fail")) in ended}
        return [job_id for job_id in stale if job_id not in ours]

    @flow(single=True)
    def open_lease(
        self,
        holder: str,
        ttl: float,
        tenant: str,
        name: str = "worker",
        kinds: Sequence[str] | None = None,
        queues: Sequence[str] | None = None,
        slots: int | None = None,
    ) -> Steps[Lease]:
        known, served = (None if names is None else list(names) for names in (kinds, queues))
        facts = (holder, ttl, name, tenant, known, served, slots)
        rows = yield self._call(
            "open_lease", "%s, make_interval(secs => %s), %s, %s, null, %s::text[], %s::text[], %s", *facts
        )
        return Lease(str(rows[0][0]), self.dialect.codec.time(rows[0][1]))

    @flow(single=True)
    def renew_lease(self, lease: str, ttl: float, tenant: str) -> Steps[bool]:
        rows = yield self._call("renew_lease", "%s, make_interval(secs => %s), %s", lease, ttl, tenant)
        return bool(rows[0][0])

    @flow(single=True)
    def end_lease(self, lease: str, why: str, tenant: str) -> Steps[bool]:
        rows = yield self._call("end_lease", "%s, %s, %s", lease, why, tenant)
        return bool(rows[0][0])

    @flow(single=True, hot=True)
    def turn(self, settlements: Sequence[Settlement], request: ClaimRequest) -> Steps[Turn]:
        places = [request.after.get(queue) for queue in request.queues] if request.after else []
        rows = yield Statement(
            self._turn_text,
            (
                request.lease,
                *_endings(settlements),
                list(request.queues),
                request.want,
                request.begin,
                None if request.kinds is None else list(request.kinds),
                [place and place[0] for place in places] or None,
                [place and place[1] for place in places] or None,
                request.tenant,
            ),
        )
        stale, live, pick_us = rows.pop()[-3:]
        lease = request.lease
        claims: list[Any] = rows
        # In its place: each row goes as its claim comes, so the collector has half as many to look at.
        for place, row in enumerate(rows):
            claims[place] = _claim(row, lease, -4)
        return Turn(claims, [str(job_id) for job_id in stale or ()], live, pick_us)

    @flow(single=True)
    def recalls(self, lease: str, tenant: str) -> Steps[int | None]:
        rows = yield self._call("recalls", "%s, %s", lease, tenant)
        return rows[0][0]  # type: ignore[no-any-return]

    @flow(single=True)
    def holdings(self, lease: str, tenant: str) -> Steps[list[Holding]]:
        rows = yield self._call("holdings", "%s, %s", lease, tenant)
        return [Holding(str(job_id), attempt, begun) for job_id, attempt, begun in rows]

    @flow(single=True)
    def watch(self, job_id: str, tenant: str, seconds: float) -> Steps[None]:
        yield self._call("watch_job", "%s, %s, %s", job_id, seconds, tenant)

    @flow(single=True)
    def claim(self, request: ClaimRequest) -> Steps[list[Claim]]:
        kinds = None if request.kinds is None else list(request.kinds)
        rows = yield Statement(
            f"select {CLAIM_COLUMNS} from {self._s}claim_many(%s, %s, %s, %s, %s, %s) c",
            (request.lease, list(request.queues), request.want, request.begin, kinds, request.tenant),
        )
        return [_claim(row, request.lease) for row in rows]

    @flow(single=True)
    def start(self, lease: str, ids: Sequence[str], tenant: str) -> Steps[dict[str, int]]:
        rows = yield self._call("start_many", "%s, %s::uuid[], %s", lease, list(ids), tenant)
        return {str(job_id): attempt for job_id, attempt in rows}

    @flow(single=True)
    def release(self, lease: str, ids: Sequence[str], tenant: str) -> Steps[list[str]]:
        rows = yield self._call("release_many", "%s, %s::uuid[], %s", lease, list(ids), tenant)
        return [str(row[0]) for row in rows]

    @flow(single=True, repeat=_settle_again)
    def settle(self, lease: str, settlements: Sequence[Settlement], tenant: str) -> Steps[list[str]]:
        rows = yield self._call(
            "settle_many",
            "%s, %s::uuid[], %s::int[], %s::text[], %s::json[], %s",
            lease,
            *_endings(settlements),
            tenant,
        )
        return [str(row[0]) for row in rows]

    @flow(single=True)
    def save_checkpoint(
        self, claim_id: str, lease: str, attempt: int, name: str, value: str, tenant: str
    ) -> Steps[bool]:
        rows = yield self._call(
            "save_checkpoint", "%s, %s, %s, %s, %s::json, %s", claim_id, lease, attempt, name, value, tenant
        )
        return bool(rows[0][0])

    @flow(single=True)
    def add_artifact(
        self,
        claim_id: str,
        lease: str,
        attempt: int,
        name: str,
        ref: str,
        tenant: str,
        meta: dict[str, Any] | None = None,
    ) -> Steps[bool]:
        about = None if meta is None else json.dumps(meta)
        rows = yield self._call(
            "add_artifact", "%s, %s, %s, %s, %s, %s::jsonb, %s", claim_id, lease, attempt, name, ref, about, tenant
        )
        return bool(rows[0][0])

    @flow(single=True)
    def promote_due(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int]:
        rows = yield self._call("promote_due", "%s, %s", want, tenant)
        return int(rows[0][0])

    @flow(single=True)
    def expire_overdue(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int]:
        rows = yield self._call("expire_overdue", "%s, %s", want, tenant)
        return int(rows[0][0])

    @flow(single=True)
    def reap_lapsed(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[Sweep]:
        rows = yield self._call("reap_lapsed", "%s, %s", want, tenant)
        return Sweep(*rows[0])

    @flow(single=True)
    def operate(
        self,
        verb: OperatorVerb,
        ids: Sequence[str],
        reason: str | None,
        actor: str,
        tenant: str,
        max_retries: int | None = None,
    ) -> Steps[list[Verdict]]:
        if max_retries is None:
            rows = yield self._call(
                f"{verb}_many", "%s::uuid[], %s, %s, for_tenant => %s", list(ids), reason, actor, tenant
            )
        else:
            rows = yield self._call(
                "redrive_many", "%s::uuid[], %s, %s, %s, %s", list(ids), reason, actor, max_retries, tenant
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
            when.max_retries,
            reason,
            actor,
            tenant,
        )
        return [_verdict(row) for row in rows]

    @flow(single=True)
    def move(self, job_id: str, move: Move, reason: str | None, actor: str, tenant: str) -> Steps[Verdict]:
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
    def events_after(self, cursor: str | None, want: int, tenant: str) -> Steps[list[Event]]:
        if cursor and not _CURSOR.fullmatch(cursor):
            raise InvalidInput(f"{cursor[:50]!r} is not a cursor of this ledger", code="invalid_cursor")
        decode = Record.decoder(Event, self.dialect.codec)
        rows = yield self._call("events_after", "%s, %s, %s", cursor, want, tenant)
        return [decode(row) for row in rows]

    @flow(writes=False)
    def ledger_end(self, tenant: str) -> Steps[str]:
        text = "select s.last_value || ';' || pg_current_snapshot()::text from {event_seq} s"
        rows = yield from self._ask(tenant, text)
        return str(rows[0][0])

    @flow(single=True)
    def save_cursor(self, consumer: str, cursor: str, was: str | None, tenant: str) -> Steps[bool]:
        rows = yield self._call("save_cursor", "%s, %s, %s, %s", consumer, cursor, was, tenant)
        return bool(rows[0][0])

    @flow(single=True)
    def set_clock(self, shift: timedelta, stopped: datetime | None) -> Steps[None]:
        yield Statement(f"update {self._s}clock set shift = %s, stopped = %s", (shift, stopped))

    @flow(writes=False, single=True)
    def now(self) -> Steps[datetime]:
        rows = yield replace(self._call("clock_now", ""), reads=True)
        return self.dialect.codec.time(rows[0][0])


def _claim(row: Row, lease: str, tags: int = -1) -> Claim:
    """By hand, since there are thousands a second: the columns are ``CLAIM_COLUMNS``, the last one the tags."""
    facts: Any = (row[0], lease, *row[1:tags], tuple(row[tags]))
    return Claim(*facts)


def _endings(settlements: Sequence[Settlement]) -> tuple[Ids, Numbers, Words, list[str | None] | None]:
    """The arrays of ``settle_many``."""
    telling = [
        item
        for item in settlements
        if item.ending != "succeeded" or not (item.result is None and item.note is None and item.ref is None)
    ]
    return (
        ids([item.id for item in settlements]),
        numbers([item.attempt for item in settlements]),
        words([item.ending for item in settlements]),
        [detail_of(item) for item in settlements] if telling else None,
    )


def _verdict(row: Row) -> Verdict:
    job_id, state, refused, why = row
    return Verdict(str(job_id), State(state) if state else None, refused, why)


def detail_of(item: Settlement) -> str | None:
    """What goes with an ending, as JSON text; nothing for a plain success."""
    if item.ending == "succeeded":
        if item.result is None and item.ref is None and item.note is None:
            return None
        parts = [] if item.result is None else [f'"result":{item.result}']
        parts += [] if item.ref is None else [f'"result_ref":{json.dumps(item.ref)}']
        parts += [] if item.note is None else [f'"note":{json.dumps(item.note)}']
        return f"{{{','.join(parts)}}}"
    detail = {
        "delay": item.delay,
        "code": item.code,
        "message": item.message,
        "note": item.note,
        "pause": item.pause,
        "steps": item.steps,
    }
    return json.dumps({name: value for name, value in detail.items() if value is not None})
