"""Leases and the claim: open, renew and end a lease; pick, claim, start and release jobs under it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from holdfast.engine.job import Claim, Holding, Lease, Renewal, StopMode
from holdfast.engine.requirement import UNKNOWN_CODE, Code
from holdfast.errors import Refused, StaleLease
from holdfast.stores.codecs import Record, from_micros, in_micros
from holdfast.stores.flow import Row, Statement, Steps, flow
from holdfast.stores.requests import ClaimRequest
from holdfast.stores.sqlite.admission import (
    QueueCapacity,
    admit,
    candidate,
    capacity_of_queue,
    dispatch,
    is_limited,
    next_in,
    park_paused,
    postpone_disabled,
    wake_queue_later,
)
from holdfast.stores.sqlite.base import NOT_QUARANTINED, act_under, any_tenant, begin_write, end_write, ids_json
from holdfast.stores.sqlite.codec import SqliteCodec
from holdfast.stores.sqlite.fair_shares import Share, advance, pick_fairly, share_of, share_when_needed
from holdfast.stores.sqlite.requirements import MET, PIN

_OPEN = (
    "INSERT INTO holdfast_lease (id, tenant, name, holder, until, opened_at, renewed_at, kinds, queues, slots, version,"
    " app_version, code, pins) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_RENEW = (
    # After the clock was set back, the old end of the lease is too far in the future.
    "UPDATE holdfast_lease SET until = CASE WHEN renewed_at > :now + 5000000 THEN :until ELSE max(until, :until) END,"
    " renewed_at = :now, renewals = renewals + 1"
    " WHERE id = :lease AND tenant = :tenant AND ended_at IS NULL RETURNING coalesce(stop_request, 'kept')"
)
_REQUEST_STOP = (
    "UPDATE holdfast_lease SET stop_request = :mode, stop_requested_at = :now, stop_requested_by = (SELECT actor FROM"
    " holdfast_present) WHERE holder = :worker AND ended_at IS NULL AND until > :now AND (:any OR tenant = :tenant)"
    " RETURNING 1"
)
_END = (
    "UPDATE holdfast_lease SET ended_at = :now, ended_why = :why"
    " WHERE id = :lease AND tenant = :tenant AND ended_at IS NULL RETURNING 1"
)
_LIVE = (
    "SELECT name, NOT EXISTS (SELECT 1 FROM holdfast_executor WHERE label > '')"
    " AND NOT (SELECT listed_only FROM holdfast_dispatch WHERE id = 1)"
    " OR EXISTS (SELECT 1 FROM holdfast_executor e WHERE e.label = holdfast_lease.name AND e.role = 'executor'),"
    " app_version, pins FROM holdfast_lease WHERE id = ? AND tenant = ? AND ended_at IS NULL AND until > ?"
)

_CLAIMABLE = (
    "s.queue = :queue AND s.state = 'queued' AND s.due_at IS NULL"
    " AND (s.deadline_at IS NULL OR s.deadline_at > :now)"
    " AND (:kinds IS NULL OR s.kind IN (SELECT value FROM json_each(:kinds)))"
    f" AND {MET}"
    " AND (:any OR s.tenant = :tenant)"
    " AND (:barred IS NULL OR s.tenant NOT IN (SELECT value FROM json_each(:barred)))"
    f" AND s.id {NOT_QUARANTINED}"
)
# Queue order is the order of the index `claimable`; the row number breaks ties.
_COLUMNS = (
    "SELECT s.n, j.id, :lease, s.attempt + :begun, j.tenant, j.kind, j.queue, j.payload, s.retries, s.crashes,"
    " s.max_attempts, s.max_crashes, j.backoff, s.priority, s.position, j.deadline_at, j.created_at, j.correlation_id,"
    " j.parent_id, j.workflow_id, j.agent, j.tags"
)
_PICK = (
    f"{_COLUMNS} FROM holdfast_job_state s INDEXED BY holdfast_claimable CROSS JOIN holdfast_job j ON j.n = s.n"
    f" WHERE {_CLAIMABLE} ORDER BY s.priority DESC, s.position LIMIT :want"
)
# The first jobs of some tenants, as many of each as its quota.
_PICK_FAIRLY = (
    f"{_COLUMNS} FROM json_each(:whom) w CROSS JOIN holdfast_job_state s ON s.n IN (SELECT s.n FROM"
    f" holdfast_job_state s INDEXED BY holdfast_fair WHERE s.tenant = w.value AND {_CLAIMABLE} ORDER BY s.priority"
    " DESC, s.position LIMIT :quota) CROSS JOIN holdfast_job j ON j.n = s.n"
)
TENANT, AGENT = 4, 20
IN_ORDER = (0, TENANT, 13, 14)  # number, tenant, priority, position
UNLIMITED = QueueCapacity(None, [])
ROUNDS = 8
EXTRA = 50
_PEEK = f"SELECT 1 FROM holdfast_job_state s INDEXED BY holdfast_claimable WHERE {_CLAIMABLE} LIMIT 1"
_ANY_PAUSE = Statement("SELECT 1 FROM holdfast_pause LIMIT 1")
_CANCELLATIONS = (
    "SELECT coalesce(r.times, 0) FROM holdfast_lease l LEFT JOIN holdfast_cancellation r ON r.lease = l.id"
    " WHERE l.id = ? AND l.tenant = ?"
)
_HOLDINGS = (
    "SELECT s.id, s.attempt, s.state = 'in_progress' FROM holdfast_job_state s JOIN holdfast_lease l ON l.id = s.lease"
    " WHERE s.lease = ? AND l.tenant = ? AND s.state IN ('leased', 'in_progress')"
)
_TAKE = (
    "UPDATE holdfast_job_state SET state = 'in_progress', lease = ?, settled_by = NULL, note = ?, held_by = NULL,"
    " attempt = attempt + 1, started_at = ? WHERE n IN (SELECT value FROM json_each(?))"
)
_CLAIM = (
    "UPDATE holdfast_job_state SET state = 'leased', lease = ?, settled_by = NULL, note = NULL, held_by = NULL"
    " WHERE n IN (SELECT value FROM json_each(?))"
)
_START = (
    "UPDATE holdfast_job_state SET state = 'in_progress', attempt = attempt + 1, started_at = :now, note = :note"
    " WHERE id IN (SELECT value FROM json_each(:ids)) AND +lease = :lease AND +state = 'leased'"
    " AND (deadline_at IS NULL OR deadline_at > :now) RETURNING id, attempt, n"
)
_RELEASE = (
    "UPDATE holdfast_job_state SET state = 'queued', lease = NULL, note = NULL"
    " WHERE id IN (SELECT value FROM json_each(:ids)) AND +lease = :lease AND +state = 'leased' RETURNING id"
)


class LeaseState(NamedTuple):
    """Whether a lease is live, whether its executor label is (still) on the allowlist, and what its worker runs."""

    live: bool = False
    may_claim: bool = False
    version: str | None = None
    pins: str | None = None

    @property
    def note(self) -> str | None:
        """What the event of a start records."""
        return None if self.version is None else json.dumps({"version": self.version})

    def pin(self, numbers: str) -> Steps[None]:
        """Pin jobs that start to the version, if their kinds say so."""
        if self.pins is not None:
            yield Statement(PIN, {"version": self.version, "numbers": numbers, "pins": self.pins})


def lease_state(lease: str, tenant: str, now: int) -> Steps[LeaseState]:
    rows = yield Statement(_LIVE, (lease, tenant, now))
    return LeaseState(True, bool(rows[0][1]), *rows[0][2:]) if rows else LeaseState()


def executor_refused() -> Refused:
    return Refused(
        "the executor label of this lease is not on the allowlist",
        code="executor_refused",
        fix="Add it: holdfast executors set LABEL",
    )


def has_work(request: ClaimRequest, now: int) -> Steps[tuple[bool, float | None]]:
    """Whether a claim would find a job; if not, the seconds until a rate limit with waiting jobs has capacity again."""
    limited = yield from is_limited()
    for queue in request.queues:
        capacity = (yield from capacity_of_queue(queue, request.tenant, now)) if limited else UNLIMITED
        if capacity.jobs is not None and capacity.jobs <= 0:
            continue
        rows = yield Statement(_PEEK, _pick_params(request, queue, now, capacity.excluded))
        if rows:
            return True, None
    return False, (yield from next_in(now)) if limited else None


def _pick_params(request: ClaimRequest, queue: str, now: int, excluded: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "queue": queue,
        "lease": request.lease,
        "begun": int(request.begin),
        "now": now,
        "kinds": None if request.kinds is None else ids_json(request.kinds),
        "any": any_tenant(request.tenant),
        "tenant": request.tenant,
        "barred": ids_json(excluded) if excluded else None,
    }


def _next(
    request: ClaimRequest, queue: str, now: int, want: int, share: Share | None, excluded: Sequence[str] = ()
) -> Steps[list[Row]]:
    """The next jobs of a queue, in order."""
    params = _pick_params(request, queue, now, excluded)
    if share is None:
        rows = yield Statement(_PICK, params | {"want": want})
    else:
        rows = yield from pick_fairly(share, _PICK_FAIRLY, params, want, IN_ORDER)
    return rows


def _pick_limited(request: ClaimRequest, queue: str, now: int, want: int, share: Share | None) -> Steps[list[Row]]:
    """``_pick`` where there are limits, pauses or reservations: jobs without capacity are parked, and the next ones are
    picked instead."""
    capacity = yield from capacity_of_queue(queue, request.tenant, now)
    want = want if capacity.jobs is None else min(want, capacity.jobs)
    paused = bool((yield _ANY_PAUSE))
    picked: dict[int, Row] = {}
    extra = 0
    for _ in range(ROUNDS if want > 0 else 0):
        rows = yield from _next(request, queue, now, want + extra, share, capacity.excluded)
        if paused and (yield from park_paused([row[0] for row in rows], queue, now)):
            continue
        enabled = yield from postpone_disabled(rows, [(row[TENANT], row[AGENT]) for row in rows], now)
        new = [row for row in enabled if row[0] not in picked]
        admitted = (yield from admit([candidate(row) for row in new], now, want - len(picked))) if new else set()
        picked |= {row[0]: row for row in new if row[0] in admitted}
        if len(picked) >= want or len(picked) == len(rows):
            break
        extra = EXTRA  # some jobs were parked or postponed, and more of them may follow
    if capacity.jobs is not None and len(picked) >= capacity.jobs:  # used up, and more jobs may wait
        yield from wake_queue_later(capacity.rates, now)
    return list(picked.values())


def _pick(request: ClaimRequest, queue: str, now: int, want: int, share: Share | None) -> Steps[list[Row]]:
    """The next jobs of a queue. If some were postponed because their agents are disabled, it picks again."""
    enabled: list[Row] = []
    for _ in range(ROUNDS):
        rows = yield from _next(request, queue, now, want, share)
        if all(row[AGENT] is None for row in rows):
            return rows
        enabled = yield from postpone_disabled(rows, [(row[TENANT], row[AGENT]) for row in rows], now)
        if len(enabled) == len(rows):
            break
    return enabled


def _claim(row: Row) -> Claim:
    """A claim from ``_COLUMNS``. Written out because of its speed: there are thousands per second."""
    _, *values = row
    values[_CREATED] = from_micros(values[_CREATED])
    values[_TAGS] = _CODEC.tags(values[_TAGS])
    if values[_BACKOFF] is not None:
        values[_BACKOFF] = backoff = _CODEC.json(values[_BACKOFF])
        if type(backoff) is not dict:
            raise ValueError("not a backoff")
    if values[_DEADLINE] is not None:
        values[_DEADLINE] = from_micros(values[_DEADLINE])
    return Claim(*values)


def claims_of(picked: Sequence[Row]) -> list[Claim]:
    """The claims of picked rows; with the slower decoder if one of them cannot be read."""
    try:
        return list(map(_claim, picked))
    except Exception:
        decode = Record.decoder(Claim, _CODEC, raw=("payload",))
        return [decode(row[1:]) for row in picked]


_CODEC = SqliteCodec()
_FIELDS = [field.name for field in fields(Claim)]
_BACKOFF, _DEADLINE, _CREATED, _TAGS = map(_FIELDS.index, ("backoff", "deadline_at", "created_at", "tags"))


class SqliteLeaseRows:
    """The part of ``store.leases`` without settlement and maintenance."""

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
        code: Code = UNKNOWN_CODE,
    ) -> Steps[Lease]:
        now = yield from begin_write(None)
        lease, until = str(uuid.uuid4()), now + in_micros(ttl)
        kind_names, queue_names = (None if names is None else ids_json(names) for names in (kinds, queues))
        yield from share_when_needed(tenant)
        pins = ids_json(code.pins) if code.pins and code.version is not None else None
        facts = (kind_names, queue_names, slots, version, code.version, code.fingerprint, pins)
        yield Statement(_OPEN, (lease, tenant, name, holder, until, now, now, *facts))
        yield from end_write()
        return Lease(lease, from_micros(until))

    @flow()
    def renew(self, lease: str, ttl: float, tenant: str) -> Steps[Renewal]:
        now = yield from begin_write(None)
        params = {"until": now + in_micros(ttl), "now": now, "lease": lease, "tenant": tenant}
        rows = yield Statement(_RENEW, params)
        yield from end_write()
        renewal: Renewal = rows[0][0] if rows else False
        return renewal

    @flow()
    def request_stop(self, worker: str, mode: StopMode, actor: str | None, tenant: str) -> Steps[bool]:
        now = yield from begin_write(actor)
        params = {"mode": mode, "now": now, "worker": worker, "any": any_tenant(tenant), "tenant": tenant}
        rows = yield Statement(_REQUEST_STOP, params)
        yield from end_write()
        return bool(rows)

    @flow()
    def end(self, lease: str, why: str, tenant: str) -> Steps[bool]:
        now = yield from begin_write(None)
        rows = yield Statement(_END, {"now": now, "why": why, "lease": lease, "tenant": tenant})
        yield from end_write()
        return bool(rows)

    @flow()
    def claim(self, request: ClaimRequest) -> Steps[list[Claim]]:
        now = yield from act_under(request.lease, request.tenant)
        lease = yield from lease_state(request.lease, request.tenant, now)
        if not lease.live:
            raise StaleLease(f"lease {request.lease} is not live")
        if not lease.may_claim:
            raise executor_refused()
        claims, _ = yield from self.take(request, now, lease)
        yield from end_write()
        return claims

    def take(self, request: ClaimRequest, now: int, lease: LeaseState) -> Steps[tuple[list[Claim], float | None]]:
        """Claim jobs, within a signed write that has checked the lease. Also returns the seconds until a rate limit
        with waiting jobs has capacity again."""
        picked: list[Row] = []
        limited, fair = yield from dispatch()
        pick = _pick_limited if limited else _pick
        for queue in dict.fromkeys(request.queues):  # once each: no job is claimed before all are picked
            if len(picked) >= request.want:
                break
            share = (yield from share_of(request, queue, fair)) if fair else None
            rows = yield from pick(request, queue, now, request.want - len(picked), share)
            if share is not None and rows:
                yield from advance(share, [row[TENANT] for row in rows])
            picked += rows
        if picked:
            numbers = ids_json(row[0] for row in picked)
            if request.begin:
                yield from lease.pin(numbers)
                yield Statement(_TAKE, (request.lease, lease.note, now, numbers))
            else:
                yield Statement(_CLAIM, (request.lease, numbers))
        return claims_of(picked), (yield from next_in(now)) if limited else None

    @flow(writes=False)
    def cancellations(self, lease: str, tenant: str) -> Steps[int | None]:
        rows = yield Statement(_CANCELLATIONS, (lease, tenant))
        return rows[0][0] if rows else None

    @flow(writes=False)
    def holdings(self, lease: str, tenant: str) -> Steps[list[Holding]]:
        rows = yield Statement(_HOLDINGS, (lease, tenant))
        return [Holding(job_id, attempt, bool(begun)) for job_id, attempt, begun in rows]

    @flow()
    def start(self, lease: str, ids: Sequence[str], tenant: str) -> Steps[dict[str, int]]:
        now = yield from act_under(lease, tenant)
        held = yield from lease_state(lease, tenant, now)
        rows = yield Statement(_START, {"now": now, "ids": ids_json(ids), "lease": lease, "note": held.note})
        yield from held.pin(ids_json(row[2] for row in rows))
        yield from end_write()
        return {job_id: attempt for job_id, attempt, _ in rows}

    @flow()
    def release(self, lease: str, ids: Sequence[str], tenant: str) -> Steps[list[str]]:
        yield from act_under(lease, tenant)
        rows = yield Statement(_RELEASE, {"ids": ids_json(ids), "lease": lease})
        yield from end_write()
        return [row[0] for row in rows]
