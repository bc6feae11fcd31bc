"""Limits, reservations, queue settings and pauses in the database: the shared reads, PostgreSQL, and
reservations on SQLite.

On SQLite there is one writer at a time: the first reservation in line stays first until the end of the transaction.

There, the job of a holder is enqueued and started in one transaction, under its own lease, so no worker ever sees it in
a queue. It ends with the reservation: as its holder reports, or as crashed when the reservation was not renewed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Final
from uuid import uuid4

from holdfast.engine.ids import parse_id
from holdfast.engine.job import EVERY_TENANT, JobSpec
from holdfast.engine.outcome import Failed, Succeeded
from holdfast.engine.retry import AT_MOST_ONCE
from holdfast.errors import InvalidInput
from holdfast.features.limits.model import (
    COUNTS,
    OTHER_TENANTS,
    Bucket,
    Limit,
    Pause,
    PauseDraft,
    QueueSetting,
    Reservation,
    ReservationRequest,
    ReservationStatus,
    Rule,
    RunEnd,
)
from holdfast.stores.codecs import Record, in_micros
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.requests import new_id
from holdfast.stores.sqlite.admission import release_parked
from holdfast.stores.sqlite.base import SqlitePart, any_tenant, begin_write, end_write
from holdfast.stores.sqlite.enqueue import add

_OWN = "(:tenant = '*' or r.tenant = :tenant or r.tenant = '*')"


class QueueReads(Reader):
    @flow(writes=False)
    def list(self, tenant: str) -> Steps[list[QueueSetting]]:
        columns = Record.columns(QueueSetting, "r.")
        text = f"select {columns} from {{queue_setting}} r where {_OWN} order by r.queue, r.tenant"
        return (yield from self._records(QueueSetting, tenant, text))


class ReservationReads(Reader):
    @flow(writes=False)
    def get(self, reservation_id: str, tenant: str) -> Steps[Reservation | None]:
        text = f"select {Record.columns(Reservation, 'r.')} from {{reservation}} r where r.id = :id and {_OWN}"
        return (yield from self._record(Reservation, tenant, text, id=parse_id(reservation_id)))

    @flow(writes=False)
    def list(self, tenant: str, ended: bool = False, limit: int = 50) -> Steps[list[Reservation]]:
        """Waiting and active reservations in order; with ``ended`` the rest too, newest first."""
        which = "1 = 1" if ended else "r.state in ('waiting', 'active')"
        order = "desc" if ended else "asc"
        text = (
            f"select {Record.columns(Reservation, 'r.')} from {{reservation}} r where {which} and {_OWN}"
            f" order by r.asked_at {order}, r.id {order} limit {max(1, min(limit, 1000)):d}"
        )
        return (yield from self._records(Reservation, tenant, text))


class PauseReads(Reader):
    @flow(writes=False)
    def list(self, tenant: str) -> Steps[list[Pause]]:
        """Pauses of this tenant and of all tenants, widest first."""
        text = (
            f"select {Record.columns(Pause, 'w.')} from {{pause}} w, {{present}} p"
            " where (w.until is null or w.until > p.now) and (:tenant = '*' or w.tenant = :tenant or w.tenant = '*')"
            " order by case w.scope when 'all' then 0 when 'queue' then 1 when 'kind' then 2 else 3 end,"
            " w.name, w.tenant"
        )
        return (yield from self._records(Pause, tenant, text))


class PostgresLimits(Calls):
    @flow(single=True)
    def remove(self, scope: str, name: str, actor: str, tenant: str) -> Steps[bool]:
        return (yield from self._flag("remove_limit", "%s, %s, %s, %s", scope, name, actor, tenant))

    @flow(single=True)
    def attend(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int]:
        """Expire reservations that were not renewed, and requeue parked jobs that their limits now allow."""
        return (yield from self._number("attend_limits", "%s, %s", want, tenant))

    @flow(single=True)
    def wake(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int]:
        """Requeue jobs that waited for tokens of a rate limit which are now available."""
        return (yield from self._number("wake_limited", "%s, %s", want, tenant))

    @flow(single=True)
    def set(self, rule: Rule, actor: str, tenant: str) -> Steps[Limit]:
        """Set or replace a limit. Running jobs count."""
        columns = Record.columns(Limit, skip=COUNTS)
        rows = yield self._call_with("set_limit", asdict(rule) | {"actor": actor, "for_tenant": tenant}, columns)
        return Record.decoder(Limit, self.dialect.codec, skip=COUNTS)(rows[0])

    @flow(single=True)
    def list(self, tenant: str) -> Steps[list[Limit]]:
        call = replace(self._call_with("list_limits", {"for_tenant": tenant}, Record.columns(Limit)), alone=True)
        return (yield from self._rows_as(Limit, call))


class PostgresQueues(Calls, QueueReads):
    @flow(single=True)
    def set_aging(
        self, queue: str, every: float | None, step: int, most: int, actor: str, tenant: str
    ) -> Steps[QueueSetting | None]:
        """Set the aging of a queue; ``every=None`` ends it."""
        rows = yield self._call("set_aging", "%s, %s::float8, %s, %s, %s, %s", queue, every, step, most, actor, tenant)
        return Record.decoder(QueueSetting, self.dialect.codec)(rows[0]) if rows else None

    @flow(single=True)
    def age(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int]:
        return (yield from self._number("age_queues", "%s, %s", want, tenant))


class PostgresReservations(Calls, ReservationReads):
    @flow(single=True)
    def release(self, reservation_id: str, why: str, actor: str, tenant: str, end: RunEnd | None = None) -> Steps[bool]:
        """End a reservation, and the run that was recorded under it."""
        outcome: tuple[str | None, ...] = (None, None, None)
        if end is not None:
            outcome = ("failed", end.code, end.message) if isinstance(end, Failed) else ("succeeded", None, None)
        params = (reservation_id, why, actor, tenant, *outcome)
        return (yield from self._flag("release_reservation", "%s::uuid, %s, %s, %s, %s, %s, %s", *params))

    @flow(single=True)
    def record(self, reservation_id: str, kind: str, actor: str, tenant: str) -> Steps[str | None]:
        """Record the work of the holder as a running job of this kind; None if the reservation is not active. A
        repeated call returns the same job."""
        rows = yield self._call("record_reservation", "%s::uuid, %s, %s, %s", reservation_id, kind, actor, tenant)
        return None if rows[0][0] is None else str(rows[0][0])

    @flow(single=True)
    def set(self, ask: ReservationRequest, actor: str, tenant: str) -> Steps[ReservationStatus]:
        """Request a reservation, or renew the one with this id."""
        rows = yield self._call(
            "reserve",
            "%s, %s, %s, make_interval(secs => %s), %s, %s, %s",
            ask.id,
            ask.scope,
            ask.name,
            ask.ttl,
            ask.reason,
            actor,
            tenant,
        )
        _, state, _, running, ahead = rows[0]
        return OTHER_TENANTS if state is None else ReservationStatus(state, running, ahead)


class PostgresPauses(Calls, PauseReads):
    @flow(single=True)
    def remove(self, scope: str, name: str, actor: str, tenant: str) -> Steps[bool]:
        """False if it is not paused. Jobs that were held back are requeued."""
        return (yield from self._flag("resume", "%s, %s, %s, %s", scope, name, actor, tenant))

    @flow(single=True)
    def set(self, what: PauseDraft, actor: str) -> Steps[Pause]:
        """Set or replace a pause. After this returns, no claim takes its jobs."""
        given = asdict(what) | {"actor": actor, "for_tenant": what.tenant}
        del given["tenant"]
        until, lasting = given.pop("until"), given.pop("lasting")
        schema, named = self.dialect.schema, ", ".join(f"{name} => %s" for name in given)
        end = f"coalesce(%s::timestamptz, {schema}clock_now() + make_interval(secs => %s))"
        text = f"select {Record.columns(Pause)} from {schema}pause({named}, until => {end})"
        return (yield from self._rows_as(Pause, Statement(text, (*given.values(), until, lasting))))[0]


_REQUEST = (
    "INSERT INTO holdfast_reservation (id, tenant, scope, name, holder, reason, asked_at, expires_at)"
    " VALUES (:id, :tenant, :scope, :name, :actor, :reason, :now, :until)"
)
_RENEW = (
    "UPDATE holdfast_reservation SET expires_at = max(expires_at, :until)"
    " WHERE id = :id AND tenant = :tenant AND state IN ('waiting', 'active') AND expires_at > :now"
)
_STATE = (
    "SELECT CASE WHEN state IN ('waiting', 'active') AND expires_at <= :now THEN 'expired' ELSE state END"
    " FROM holdfast_reservation WHERE id = :id AND tenant = :tenant"
)
# Conflicting reservations: those that are active or ahead in line. Everything conflicts with anything.
_AHEAD = (
    "SELECT count(*) FROM holdfast_reservation r JOIN holdfast_reservation o ON o.id = :id"
    " WHERE r.id <> o.id AND r.expires_at > :now AND (r.tenant = o.tenant OR '*' IN (r.tenant, o.tenant))"
    " AND ('all' IN (r.scope, o.scope) OR (r.scope = o.scope AND r.name = o.name))"
    " AND (r.state = 'active' OR (r.state = 'waiting' AND (r.asked_at, r.id) < (o.asked_at, o.id)))"
)
_BEGIN = "UPDATE holdfast_reservation SET state = 'active', reserved_at = :now, expires_at = :until WHERE id = :id"
_LIMITED_ON = Statement("UPDATE holdfast_dispatch SET limited = 1 WHERE NOT limited")
_RUNNING = (
    "SELECT count(*) FROM holdfast_job_state s WHERE s.state IN ('leased', 'in_progress')"
    " AND (:tenant = '*' OR s.tenant = :tenant) AND CASE :scope WHEN 'all' THEN 1 WHEN 'queue' THEN s.queue = :name"
    " ELSE EXISTS (SELECT 1 FROM holdfast_job j, json_each(j.uses) u WHERE j.n = s.n AND u.value = 'resource:' ||"
    " :name) END"
)
_RELEASE = (
    "UPDATE holdfast_reservation SET ended_at = :now, ended_by = :actor,"
    " state = CASE WHEN state = 'waiting' THEN 'withdrawn' WHEN expires_at <= :now THEN 'expired' ELSE 'released' END,"
    " ended_why = CASE WHEN state = 'active' AND expires_at <= :now THEN 'expired' ELSE :why END"
    " WHERE id = :id AND state IN ('waiting', 'active') AND (:any OR tenant = :tenant)"
    " RETURNING tenant, scope, name, state, job_id"
)
_EXPIRE = (
    "UPDATE holdfast_reservation SET state = CASE state WHEN 'waiting' THEN 'withdrawn' ELSE 'expired' END, ended_at"
    " = :now, ended_by = (SELECT actor FROM holdfast_present), ended_why = 'the reservation was not renewed'"
    " WHERE state IN ('waiting', 'active') AND expires_at <= :now RETURNING tenant, scope, name, job_id"
)
HOUR: Final = 3_600_000_000
_ACTIVE = (
    "SELECT job_id, scope, name, expires_at FROM holdfast_reservation"
    " WHERE id = :id AND tenant = :tenant AND state = 'active' AND expires_at > :now"
)
_LEASE = (
    "INSERT INTO holdfast_lease (id, tenant, name, holder, until, opened_at, renewed_at)"
    " VALUES (:lease, :tenant, 'reservation', :actor, :until, :now, :now)"
)
_START = (
    "UPDATE holdfast_job_state SET state = 'in_progress', lease = :lease, attempt = attempt + 1, started_at = :now,"
    " note = NULL WHERE id = :job"
)
_RENEW_LEASE = (
    "UPDATE holdfast_lease SET until = max(until, :until), renewed_at = :now, renewals = renewals + 1 WHERE ended_at"
    " IS NULL AND id = (SELECT s.lease FROM holdfast_reservation r JOIN holdfast_job_state s ON s.id = r.job_id WHERE"
    " r.id = :id AND r.tenant = :tenant AND r.state = 'active' AND r.expires_at > :now)"
)
_RUN = "SELECT lease FROM holdfast_job_state WHERE id = ? AND state = 'in_progress'"
_END_LEASE = "UPDATE holdfast_lease SET ended_at = :now, ended_why = :why WHERE id = :lease AND ended_at IS NULL"
_END_RUN = (
    "UPDATE holdfast_job_state SET state = :state, lease = NULL, settled_by = CASE WHEN :lost THEN settled_by ELSE"
    " lease END, crashes = crashes + :lost, finished_at = :now, note = NULL, error_code = :code, error_message ="
    " :message WHERE id = :job"
)


class SqliteReservations(SqlitePart, ReservationReads):
    @flow(notifies=True)
    def release(self, reservation_id: str, why: str, actor: str, tenant: str, end: RunEnd | None = None) -> Steps[bool]:
        now = yield from begin_write(actor)
        params = {"id": reservation_id, "why": why, "actor": actor, "now": now}
        rows = yield Statement(_RELEASE, {**params, "any": any_tenant(tenant), "tenant": tenant})
        for owner, scope, name, state, job_id in rows:
            yield from _requeue(owner, scope, name, now)
            if job_id is not None:
                yield from _end_run(job_id, end, actor, now, lost=state == "expired")
        yield from end_write()
        return bool(rows) and rows[0][3] != "expired"

    @flow(notifies=True)
    def record(self, reservation_id: str, kind: str, actor: str, tenant: str) -> Steps[str | None]:
        now = yield from begin_write(actor)
        params = {"id": reservation_id, "tenant": tenant, "now": now, "actor": actor}
        rows = yield Statement(_ACTIVE, params)
        if not rows or rows[0][0] is not None:
            yield from end_write()
            return rows[0][0] if rows else None
        if tenant == EVERY_TENANT:
            raise InvalidInput("a recorded run belongs to one tenant")
        _, scope, name, expires = rows[0]
        payload = json.dumps({"reservation": reservation_id, "scope": scope, "name": name})
        spec = JobSpec(
            id=new_id(),
            kind=kind,
            payload=payload,
            enqueued_by=actor,
            source_system="reservation",
            queue="reservation",
            retry=AT_MOST_ONCE,
            external_ref=f"reservation/{reservation_id}",
        )
        yield from add([spec], tenant, now)
        yield from end_write()  # gives the job its state
        yield from begin_write(actor)
        params |= {"job": spec.id, "lease": str(uuid4()), "until": expires + HOUR}
        for text in (_LEASE, _START, "UPDATE holdfast_reservation SET job_id = :job WHERE id = :id"):
            yield Statement(text, params)
        yield from end_write()
        return spec.id

    @flow(notifies=True)
    def set(self, ask: ReservationRequest, actor: str, tenant: str) -> Steps[ReservationStatus]:
        now = yield from begin_write(actor)
        params = {"id": ask.id, "tenant": tenant, "now": now, "until": now + in_micros(ask.ttl)}
        what = {"tenant": tenant, "scope": ask.scope, "name": ask.name}
        if (yield Statement(_STATE, params)):
            yield Statement(_RENEW, params)
            yield from _renew_run(ask.id, tenant, now + in_micros(ask.ttl), now)
        elif (yield Statement("SELECT 1 FROM holdfast_reservation WHERE id = ?", (ask.id,))):
            yield from end_write()
            return OTHER_TENANTS
        else:
            yield Statement(_REQUEST, {**params, **what, "actor": actor, "reason": ask.reason or None})
        ((state,),) = yield Statement(_STATE, params)
        ((ahead,),) = yield Statement(_AHEAD, params)
        if state == "waiting" and ahead == 0:
            yield from expire_reservations(now)
            yield Statement(_BEGIN, params)
            yield _LIMITED_ON
            state = "active"
        ((running,),) = yield Statement(_RUNNING, what)
        yield from end_write()
        return ReservationStatus(state, running, ahead)


def expire_reservations(now: int) -> Steps[int]:
    """Record the reservations that have expired because they were not renewed."""
    rows = yield Statement(_EXPIRE, {"now": now})
    for tenant, scope, name, job_id in rows:
        yield from _requeue(tenant, scope, name, now)
        if job_id is not None:
            yield from _end_run(job_id, None, None, now, lost=True)
    return len(rows)


def _requeue(tenant: str, scope: str, name: str, now: int) -> Steps[None]:
    """Requeue the jobs parked for a resource. Queues need nothing: workers are notified of every commit."""
    if scope == "resource":
        yield from release_parked(Bucket(tenant, scope, name), 1000, now)


def _renew_run(reservation_id: str, tenant: str, until: int, now: int) -> Steps[None]:
    """Extend the lease of the run beyond the reservation, whose end closes it."""
    yield Statement(_RENEW_LEASE, {"id": reservation_id, "tenant": tenant, "until": until + HOUR, "now": now})


def _end_run(job_id: str, end: RunEnd | None, actor: str | None, now: int, *, lost: bool) -> Steps[None]:
    """End the run of a reservation that has ended. Without an ``end`` the run was lost, or another caller released the
    reservation."""
    rows = yield Statement(_RUN, (job_id,))
    if not rows:
        return  # an operator has cancelled it
    lease = {"lease": rows[0][0], "now": now}
    if lost:
        code, message = "worker_lost", "the holder of the reservation stopped renewing it"
        # First: a job can fail as worker_lost only if its lease has ended.
        yield Statement(_END_LEASE, {**lease, "why": "expired"})
    elif end is None:
        code, message = "reservation_released", f"the reservation was released by {actor}"
    else:
        code, message = (end.code, end.message) if isinstance(end, Failed) else ("", "")
    succeeded = isinstance(end, Succeeded) and not lost
    error = {"code": None, "message": None} if succeeded else {"code": code, "message": message}
    state = "succeeded" if succeeded else "failed"
    yield Statement(_END_RUN, {"job": job_id, "state": state, "lost": int(lost), "now": now, **error})
    if not lost:
        yield Statement(_END_LEASE, {**lease, "why": "released"})
