"""Leases, and what is done under one short of ending an attempt: claim, start, release, checkpoint, artifact."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from holdfast.engine.job import Claim, Holding, Lease, Renewal, StopMode
from holdfast.engine.payload import MARK
from holdfast.errors import Refused, StaleLease
from holdfast.stores.codecs import Record, from_micros, in_micros
from holdfast.stores.flow import Row, Statement, Steps, flow
from holdfast.stores.requests import ClaimRequest
from holdfast.stores.sqlite.admission import (
    Opening,
    admit,
    candidate,
    dispatch,
    hold_back,
    is_limited,
    next_in,
    opening,
    park_paused,
    wake_queue_later,
)
from holdfast.stores.sqlite.base import PASSED_OVER, act_under, any_tenant, ids_json, sign, unsign
from holdfast.stores.sqlite.codec import SqliteCodec
from holdfast.stores.sqlite.fair_shares import Share, move_on, pick_fairly, share_of, share_when_needed

_OPEN = (
    "INSERT INTO lease (id, tenant, name, holder, until, opened_at, renewed_at, kinds, queues, slots, version)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_RENEW = (
    # A clock that was set back leaves an end that is too far away.
    "UPDATE lease SET until = CASE WHEN renewed_at > :now + 5000000 THEN :until ELSE max(until, :until) END,"
    " renewed_at = :now, renewals = renewals + 1"
    " WHERE id = :lease AND tenant = :tenant AND ended_at IS NULL RETURNING coalesce(stop_request, 'kept')"
)
_REQUEST_STOP = (
    "UPDATE lease SET stop_request = :mode, stop_requested_at = :now, stop_requested_by = (SELECT actor FROM present)"
    " WHERE holder = :worker AND ended_at IS NULL AND until > :now AND (:any OR tenant = :tenant) RETURNING 1"
)
_END = (
    "UPDATE lease SET ended_at = :now, ended_why = :why"
    " WHERE id = :lease AND tenant = :tenant AND ended_at IS NULL RETURNING 1"
)
_LIVE = (
    "SELECT name, NOT EXISTS (SELECT 1 FROM executor WHERE label > '')"
    " AND NOT (SELECT listed_only FROM dispatch WHERE id = 1)"
    " OR EXISTS (SELECT 1 FROM executor e WHERE e.label = lease.name AND e.role = 'executor')"
    " FROM lease WHERE id = ? AND tenant = ? AND ended_at IS NULL AND until > ?"
)

_CLAIMABLE = (
    "s.queue = :queue AND s.state = 'queued' AND s.due_at IS NULL"
    " AND (s.deadline_at IS NULL OR s.deadline_at > :now)"
    " AND (:kinds IS NULL OR s.kind IN (SELECT value FROM json_each(:kinds)))"
    # Read once a statement, and only if a job names an executor.
    " AND (s.executor IS NULL OR s.executor = (SELECT l.name FROM lease l WHERE l.id = :lease))"
    " AND (:any OR s.tenant = :tenant)"
    " AND (:barred IS NULL OR s.tenant NOT IN (SELECT value FROM json_each(:barred)))"
    f" AND s.id {PASSED_OVER}"
)
# Queue order is the order of the index `claimable`; the row's number settles what is left of ties.
_COLUMNS = (
    "SELECT s.n, j.id, :lease, s.attempt + :begun, j.tenant, j.kind, j.queue, j.payload, s.retries, s.crashes,"
    " s.max_attempts, s.max_crashes, j.backoff, s.priority, s.position, j.deadline_at, j.created_at, j.correlation_id,"
    " j.parent_id, j.workflow_id, j.agent, j.tags"
)
_PICK = (
    f"{_COLUMNS} FROM job_state s INDEXED BY claimable CROSS JOIN job j ON j.n = s.n"
    f" WHERE {_CLAIMABLE} ORDER BY s.priority DESC, s.position LIMIT :want"
)
# The first of each of some tenants, as many as its share.
_PICK_FAIRLY = (
    f"{_COLUMNS} FROM json_each(:whom) w CROSS JOIN job_state s ON s.n IN (SELECT s.n FROM job_state s"
    f" INDEXED BY fair WHERE s.tenant = w.value AND {_CLAIMABLE} ORDER BY s.priority DESC, s.position LIMIT :quota)"
    " CROSS JOIN job j ON j.n = s.n"
)
TENANT, AGENT = 4, 20
IN_ORDER = (0, TENANT, 13, 14)  # number, tenant, priority, position
OPEN = Opening(None, [])
ROUNDS = 8
EXTRA = 50
_PEEK = f"SELECT 1 FROM job_state s INDEXED BY claimable WHERE {_CLAIMABLE} LIMIT 1"
_ANY_PAUSE = Statement("SELECT 1 FROM pause LIMIT 1")
_RECALLS = (
    "SELECT coalesce(r.times, 0) FROM lease l LEFT JOIN recall r ON r.lease = l.id WHERE l.id = ? AND l.tenant = ?"
)
_HOLDINGS = (
    "SELECT s.id, s.attempt, s.state = 'in_progress' FROM job_state s JOIN lease l ON l.id = s.lease"
    " WHERE s.lease = ? AND l.tenant = ? AND s.state IN ('leased', 'in_progress')"
)
_TAKE = (
    "UPDATE job_state SET state = 'in_progress', lease = ?, settled_by = NULL, note = NULL, held_by = NULL,"
    " attempt = attempt + 1, started_at = ? WHERE n IN (SELECT value FROM json_each(?))"
)
_CLAIM = (
    "UPDATE job_state SET state = 'leased', lease = ?, settled_by = NULL, note = NULL, held_by = NULL"
    " WHERE n IN (SELECT value FROM json_each(?))"
)
_START = (
    "UPDATE job_state SET state = 'in_progress', attempt = attempt + 1, started_at = :now, note = NULL"
    " WHERE id IN (SELECT value FROM json_each(:ids)) AND +lease = :lease AND +state = 'leased' RETURNING id, attempt"
)
_RELEASE = (
    "UPDATE job_state SET state = 'queued', lease = NULL, note = NULL"
    " WHERE id IN (SELECT value FROM json_each(:ids)) AND +lease = :lease AND +state = 'leased' RETURNING id"
)
_SAVE = (
    "INSERT INTO checkpoint (job_id, tenant, name, value, attempt, saved_at)"
    " SELECT id, tenant, :name, :value, attempt, :now FROM job_state"
    " WHERE id = :id AND lease = :lease AND attempt = :attempt AND state = 'in_progress'"
    " ON CONFLICT (job_id, name) DO UPDATE"
    " SET value = excluded.value, attempt = excluded.attempt, saved_at = excluded.saved_at,"
    " saves = CASE WHEN attempt = excluded.attempt THEN saves + 1 ELSE 1 END RETURNING 1"
)
_UPLOAD = (
    "INSERT INTO leftover (tenant, ref, job_id, at, again_at)"
    " SELECT tenant, :ref, id, :now, :now + 86400000000 FROM job_state"
    " WHERE id = :id AND lease = :lease AND attempt = :attempt AND state = 'in_progress'"
    " ON CONFLICT DO NOTHING"
)
_HELD = "SELECT 1 FROM job_state WHERE id = :id AND lease = :lease AND attempt = :attempt AND state = 'in_progress'"
_ADD_ARTIFACT = (
    "INSERT INTO artifact (job_id, tenant, attempt, name, ref, meta, at)"
    " SELECT id, tenant, attempt, :name, :ref, :meta, :now FROM job_state"
    " WHERE id = :id AND attempt = :attempt AND :lease IN (lease, settled_by) RETURNING 1"
)


def live(request: ClaimRequest, now: int) -> Steps[tuple[bool, bool]]:
    """Whether the lease is live, and whether its label may execute: it can have been taken off the list meanwhile."""
    rows = yield Statement(_LIVE, (request.lease, request.tenant, now))
    return bool(rows), bool(rows) and bool(rows[0][1])


def refused() -> Refused:
    return Refused(
        "the executor label of this lease is not on the allowlist",
        code="executor_refused",
        fix="Add it: holdfast executors add LABEL",
    )


def anything_for(request: ClaimRequest, now: int) -> Steps[tuple[bool, float | None]]:
    """Whether a claim would find something, and when a rate limit that holds jobs back has room again."""
    limited = yield from is_limited()
    for queue in request.queues:
        open_to = (yield from opening(queue, request.tenant, now)) if limited else OPEN
        if open_to.room is not None and open_to.room <= 0:
            continue
        rows = yield Statement(_PEEK, _picking(request, queue, now, open_to.barred))
        if rows:
            return True, None
    return False, (yield from next_in(now)) if limited else None


def _picking(request: ClaimRequest, queue: str, now: int, barred: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "queue": queue,
        "lease": request.lease,
        "begun": int(request.begin),
        "now": now,
        "kinds": None if request.kinds is None else ids_json(request.kinds),
        "any": any_tenant(request.tenant),
        "tenant": request.tenant,
        "barred": ids_json(barred) if barred else None,
    }


def _next(
    request: ClaimRequest, queue: str, now: int, want: int, share: Share | None, barred: Sequence[str] = ()
) -> Steps[list[Row]]:
    params = _picking(request, queue, now, barred)
    if share is None:
        found = yield Statement(_PICK, params | {"want": want})
    else:
        found = yield from pick_fairly(share, _PICK_FAIRLY, params, want, IN_ORDER)
    return found


def _pick_within(request: ClaimRequest, queue: str, now: int, want: int, share: Share | None) -> Steps[list[Row]]:
    """The same where something is limited or reserved: what has no room is parked, and the rest is looked for again."""
    open_to = yield from opening(queue, request.tenant, now)
    want = want if open_to.room is None else min(want, open_to.room)
    paused = bool((yield _ANY_PAUSE))
    got: dict[int, Row] = {}
    extra = 0
    for _ in range(ROUNDS if want > 0 else 0):
        found = yield from _next(request, queue, now, want + extra, share, open_to.barred)
        if paused and (yield from park_paused([row[0] for row in found], queue, now)):
            continue
        able = yield from hold_back(found, [(row[TENANT], row[AGENT]) for row in found], now)
        new = [row for row in able if row[0] not in got]
        admitted = (yield from admit([candidate(row) for row in new], now, want - len(got))) if new else set()
        got |= {row[0]: row for row in new if row[0] in admitted}
        if len(got) >= want or len(got) == len(found):
            break
        extra = EXTRA  # somebody was in the way, and more of the same may be
    if open_to.room is not None and len(got) >= open_to.room:  # used up, and more may wait
        yield from wake_queue_later(open_to.rates, now)
    return list(got.values())


def _pick(request: ClaimRequest, queue: str, now: int, want: int, share: Share | None) -> Steps[list[Row]]:
    """What is next in a queue. Where jobs of disabled agents were in the way, and put off, it is looked for again."""
    rows: list[Row] = []
    for _ in range(ROUNDS):
        found = yield from _next(request, queue, now, want, share)
        if all(row[AGENT] is None for row in found):
            return found
        rows = yield from hold_back(found, [(row[TENANT], row[AGENT]) for row in found], now)
        if len(rows) == len(found):
            break
    return rows


def _claim(row: Row) -> Claim:
    """By hand, since there are thousands a second: the columns are ``_COLUMNS``, and of most a plain job has none."""
    _, *facts = row
    facts[_CREATED] = from_micros(facts[_CREATED])
    facts[_TAGS] = _CODEC.tags(facts[_TAGS])
    if facts[_BACKOFF] is not None:
        facts[_BACKOFF] = found = _CODEC.json(facts[_BACKOFF])
        if type(found) is not dict:
            raise ValueError("not a backoff")
    if facts[_DEADLINE] is not None:
        facts[_DEADLINE] = from_micros(facts[_DEADLINE])
    return Claim(*facts)


def claims_of(picked: Sequence[Row]) -> list[Claim]:
    """All at once; row by row where one of them cannot be read."""
    try:
        return list(map(_claim, picked))
    except Exception:
        decode = Record.decoder(Claim, _CODEC, raw=("payload",))
        return [decode(row[1:]) for row in picked]


_CODEC = SqliteCodec()
_FIELDS = [field.name for field in fields(Claim)]
_BACKOFF, _DEADLINE, _CREATED, _TAGS = map(_FIELDS.index, ("backoff", "deadline_at", "created_at", "tags"))


class SqliteLeaseRows:
    @flow()
    def open(
        self,
        holder: str,
        ttl: float,
        tenant: str,
        name: str = "worker",
        kinds: Sequence[str] | None = None,
        queues: Sequence[str] | None = None,
        slots: int | None = None,
        version: str | None = None,
    ) -> Steps[Lease]:
        now = yield from sign(None)
        lease, until = str(uuid.uuid4()), now + in_micros(ttl)
        known, served = (None if names is None else ids_json(names) for names in (kinds, queues))
        yield from share_when_needed(tenant)
        yield Statement(_OPEN, (lease, tenant, name, holder, until, now, now, known, served, slots, version))
        yield from unsign()
        return Lease(lease, from_micros(until))

    @flow()
    def renew(self, lease: str, ttl: float, tenant: str) -> Steps[Renewal]:
        now = yield from sign(None)
        params = {"until": now + in_micros(ttl), "now": now, "lease": lease, "tenant": tenant}
        rows = yield Statement(_RENEW, params)
        yield from unsign()
        answer: Renewal = rows[0][0] if rows else False
        return answer

    @flow()
    def request_stop(self, worker: str, mode: StopMode, actor: str | None, tenant: str) -> Steps[bool]:
        now = yield from sign(actor)
        params = {"mode": mode, "now": now, "worker": worker, "any": any_tenant(tenant), "tenant": tenant}
        rows = yield Statement(_REQUEST_STOP, params)
        yield from unsign()
        return bool(rows)

    @flow()
    def end(self, lease: str, why: str, tenant: str) -> Steps[bool]:
        now = yield from sign(None)
        rows = yield Statement(_END, {"now": now, "why": why, "lease": lease, "tenant": tenant})
        yield from unsign()
        return bool(rows)

    @flow()
    def claim(self, request: ClaimRequest) -> Steps[list[Claim]]:
        now = yield from act_under(request.lease, request.tenant)
        alive, may = yield from live(request, now)
        if not alive:
            raise StaleLease(f"lease {request.lease} is not live")
        if not may:
            raise refused()
        claims, _ = yield from self.take(request, now)
        yield from unsign()
        return claims

    def take(self, request: ClaimRequest, now: int) -> Steps[tuple[list[Claim], float | None]]:
        """The claim itself, inside a flow that has signed and that saw the lease to be live; and after how many seconds
        a rate limit that holds jobs back has room again."""
        picked: list[Row] = []
        limited, fair = yield from dispatch()
        pick = _pick_within if limited else _pick
        for queue in dict.fromkeys(request.queues):  # once each: nothing is taken before all are picked
            if len(picked) >= request.want:
                break
            share = (yield from share_of(request, queue, fair)) if fair else None
            rows = yield from pick(request, queue, now, request.want - len(picked), share)
            if share is not None and rows:
                yield from move_on(share, [row[TENANT] for row in rows])
            picked += rows
        if picked:
            numbers = ids_json(row[0] for row in picked)
            if request.begin:
                yield Statement(_TAKE, (request.lease, now, numbers))
            else:
                yield Statement(_CLAIM, (request.lease, numbers))
        return claims_of(picked), (yield from next_in(now)) if limited else None

    @flow(writes=False)
    def cancellations(self, lease: str, tenant: str) -> Steps[int | None]:
        rows = yield Statement(_RECALLS, (lease, tenant))
        return rows[0][0] if rows else None

    @flow(writes=False)
    def holdings(self, lease: str, tenant: str) -> Steps[list[Holding]]:
        rows = yield Statement(_HOLDINGS, (lease, tenant))
        return [Holding(job_id, attempt, bool(begun)) for job_id, attempt, begun in rows]

    @flow()
    def start(self, lease: str, ids: Sequence[str], tenant: str) -> Steps[dict[str, int]]:
        now = yield from act_under(lease, tenant)
        rows = yield Statement(_START, {"now": now, "ids": ids_json(ids), "lease": lease})
        yield from unsign()
        return dict(rows)  # type: ignore[arg-type]

    @flow()
    def release(self, lease: str, ids: Sequence[str], tenant: str) -> Steps[list[str]]:
        yield from act_under(lease, tenant)
        rows = yield Statement(_RELEASE, {"ids": ids_json(ids), "lease": lease})
        yield from unsign()
        return [row[0] for row in rows]


_UPLOADED = (
    "DELETE FROM leftover WHERE job_id = ?1 AND ref = json_extract(?2, '$.\"$holdfast\".stored')"
    " AND tenant = (SELECT tenant FROM job_state WHERE id = ?1)"
)


def uploaded(values: Sequence[tuple[str, str]]) -> Steps[None]:
    """These values of jobs are recorded, and the objects that they name are no longer to be deleted."""
    yield Statement(_UPLOADED, list(values), many=True)


class SqliteProgress:
    @flow()
    def save_checkpoint(
        self, claim_id: str, lease: str, attempt: int, name: str, value: str, tenant: str
    ) -> Steps[bool]:
        now = yield from act_under(lease, tenant)
        params = {
            "id": claim_id,
            "lease": lease,
            "attempt": attempt,
            "name": name,
            "value": value,
            "now": now,
        }
        rows = yield Statement(_SAVE, params)
        if rows and value.startswith(MARK):
            yield from uploaded([(claim_id, value)])
        yield from unsign()
        return bool(rows)

    @flow()
    def note_upload(self, claim_id: str, lease: str, attempt: int, ref: str, tenant: str) -> Steps[bool]:
        now = yield from act_under(lease, tenant)
        params = {"id": claim_id, "lease": lease, "attempt": attempt, "ref": ref, "now": now}
        held = yield Statement(_HELD, params)
        if held:
            yield Statement(_UPLOAD, params)
        yield from unsign()
        return bool(held)

    @flow()
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
        now = yield from act_under(lease, tenant)
        params = {
            "id": claim_id,
            "lease": lease,
            "attempt": attempt,
            "name": name,
            "ref": ref,
            "meta": None if meta is None else json.dumps(meta),
            "now": now,
        }
        rows = yield Statement(_ADD_ARTIFACT, params)
        yield from unsign()
        return bool(rows)
