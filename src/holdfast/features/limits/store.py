"""Limits, reservations, queue settings and pauses in the database: the ports, the shared reads, and PostgreSQL."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

from holdfast.engine.ids import parse_id
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.outcome import Failed
from holdfast.features.limits.model import (
    OTHER_TENANTS,
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
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Flow, Statement, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls


class LimitStore(Protocol):
    def remove(self, scope: str, name: str, actor: str, tenant: str) -> Flow[bool]: ...

    def attend(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Flow[int]:
        """Expire reservations that were not renewed, and requeue parked jobs that their limits now allow."""
        ...

    def wake(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Flow[int]:
        """Requeue jobs that waited for tokens of a rate limit which are now available."""
        ...

    def set(self, rule: Rule, actor: str, tenant: str) -> Flow[Limit]:
        """Set or replace a limit. Running jobs count."""
        ...

    def list(self, tenant: str) -> Flow[list[Limit]]: ...


class QueueStore(Protocol):
    def set_aging(
        self, queue: str, every: float | None, step: int, most: int, actor: str, tenant: str
    ) -> Flow[QueueSetting | None]:
        """Set the aging of a queue; ``every=None`` ends it."""
        ...

    def age(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Flow[int]: ...

    def list(self, tenant: str) -> Flow[list[QueueSetting]]: ...


class ReservationStore(Protocol):
    def release(self, reservation_id: str, why: str, actor: str, tenant: str, end: RunEnd | None = None) -> Flow[bool]:
        """End a reservation, and the run that was recorded under it."""
        ...

    def record(self, reservation_id: str, kind: str, actor: str, tenant: str) -> Flow[str | None]:
        """Record the work of the holder as a running job of this kind; None if the reservation is not active. A
        repeated call returns the same job."""
        ...

    def get(self, reservation_id: str, tenant: str) -> Flow[Reservation | None]: ...

    def set(self, ask: ReservationRequest, actor: str, tenant: str) -> Flow[ReservationStatus]:
        """Request a reservation, or renew the one with this id."""
        ...

    def list(self, tenant: str, ended: bool = False, limit: int = 50) -> Flow[list[Reservation]]:
        """Waiting and active reservations in order; with ``ended`` the rest too, newest first."""
        ...


class PauseStore(Protocol):
    def remove(self, scope: str, name: str, actor: str, tenant: str) -> Flow[bool]:
        """False if it is not paused. Jobs that were held back are requeued."""
        ...

    def set(self, what: PauseDraft, actor: str) -> Flow[Pause]:
        """Set or replace a pause. After this returns, no claim takes its jobs."""
        ...

    def list(self, tenant: str) -> Flow[list[Pause]]:
        """Pauses of this tenant and of all tenants, widest first."""
        ...


_OWN = "(:tenant = '*' or r.tenant = :tenant or r.tenant = '*')"


class QueueReads(Reader):
    @flow(writes=False)
    def list(self, tenant: str) -> Steps[list[QueueSetting]]:
        columns = Record.columns(QueueSetting, "r.")
        text = f"select {columns} from {{queue_setting}} r where {_OWN} order by r.queue, r.tenant"
        rows = yield from self._query(tenant, text)
        decode = Record.decoder(QueueSetting, self.dialect.codec)
        return [decode(row) for row in rows]


class ReservationReads(Reader):
    @flow(writes=False)
    def get(self, reservation_id: str, tenant: str) -> Steps[Reservation | None]:
        text = f"select {Record.columns(Reservation, 'r.')} from {{reservation}} r where r.id = :id and {_OWN}"
        rows = yield from self._query(tenant, text, id=parse_id(reservation_id))
        return Record.decoder(Reservation, self.dialect.codec)(rows[0]) if rows else None

    @flow(writes=False)
    def list(self, tenant: str, ended: bool = False, limit: int = 50) -> Steps[list[Reservation]]:
        which = "1 = 1" if ended else "r.state in ('waiting', 'active')"
        order = "desc" if ended else "asc"
        text = (
            f"select {Record.columns(Reservation, 'r.')} from {{reservation}} r where {which} and {_OWN}"
            f" order by r.asked_at {order}, r.id {order} limit {max(1, min(limit, 1000)):d}"
        )
        rows = yield from self._query(tenant, text)
        decode = Record.decoder(Reservation, self.dialect.codec)
        return [decode(row) for row in rows]


class PauseReads(Reader):
    @flow(writes=False)
    def list(self, tenant: str) -> Steps[list[Pause]]:
        text = (
            f"select {Record.columns(Pause, 'w.')} from {{pause}} w, {{present}} p"
            " where (w.until is null or w.until > p.now) and (:tenant = '*' or w.tenant = :tenant or w.tenant = '*')"
            " order by case w.scope when 'all' then 0 when 'queue' then 1 when 'kind' then 2 else 3 end,"
            " w.name, w.tenant"
        )
        rows = yield from self._query(tenant, text)
        decode = Record.decoder(Pause, self.dialect.codec)
        return [decode(row) for row in rows]


class PostgresLimits(Calls):
    @flow(single=True)
    def remove(self, scope: str, name: str, actor: str, tenant: str) -> Steps[bool]:
        rows = yield self._call("remove_limit", "%s, %s, %s, %s", scope, name, actor, tenant)
        return bool(rows[0][0])

    @flow(single=True)
    def attend(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int]:
        rows = yield self._call("attend_limits", "%s, %s", want, tenant)
        return int(rows[0][0])

    @flow(single=True)
    def wake(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int]:
        rows = yield self._call("wake_limited", "%s, %s", want, tenant)
        return int(rows[0][0])

    @flow(single=True)
    def set(self, rule: Rule, actor: str, tenant: str) -> Steps[Limit]:
        rows = yield self._call(
            "set_limit",
            "%s, %s, %s::integer, %s::integer, %s::float8, %s::integer, %s, %s",
            rule.scope,
            rule.name,
            rule.concurrency,
            rule.rate,
            rule.per,
            rule.burst,
            actor,
            tenant,
        )
        return Record.decoder(Limit, self.dialect.codec, skip=("running", "waiting"))(rows[0])

    @flow(single=True)
    def list(self, tenant: str) -> Steps[list[Limit]]:
        rows = yield self._look("list_limits", "%s", tenant)
        decode = Record.decoder(Limit, self.dialect.codec)
        return [decode(row) for row in rows]


class PostgresQueues(Calls, QueueReads):
    @flow(single=True)
    def set_aging(
        self, queue: str, every: float | None, step: int, most: int, actor: str, tenant: str
    ) -> Steps[QueueSetting | None]:
        rows = yield self._call("set_aging", "%s, %s::float8, %s, %s, %s, %s", queue, every, step, most, actor, tenant)
        return Record.decoder(QueueSetting, self.dialect.codec)(rows[0]) if rows else None

    @flow(single=True)
    def age(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int]:
        rows = yield self._call("age_queues", "%s, %s", want, tenant)
        return int(rows[0][0])


class PostgresReservations(Calls, ReservationReads):
    @flow(single=True)
    def release(self, reservation_id: str, why: str, actor: str, tenant: str, end: RunEnd | None = None) -> Steps[bool]:
        outcome: tuple[str | None, ...] = (None, None, None)
        if end is not None:
            outcome = ("failed", end.code, end.message) if isinstance(end, Failed) else ("succeeded", None, None)
        params = (reservation_id, why, actor, tenant, *outcome)
        rows = yield self._call("release_reservation", "%s::uuid, %s, %s, %s, %s, %s, %s", *params)
        return bool(rows[0][0])

    @flow(single=True)
    def record(self, reservation_id: str, kind: str, actor: str, tenant: str) -> Steps[str | None]:
        rows = yield self._call("record_reservation", "%s::uuid, %s, %s, %s", reservation_id, kind, actor, tenant)
        return None if rows[0][0] is None else str(rows[0][0])

    @flow(single=True)
    def set(self, ask: ReservationRequest, actor: str, tenant: str) -> Steps[ReservationStatus]:
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
        rows = yield Statement(f"select {self.dialect.schema}resume(%s, %s, %s, %s)", (scope, name, actor, tenant))
        return bool(rows[0][0])

    @flow(single=True)
    def set(self, what: PauseDraft, actor: str) -> Steps[Pause]:
        schema = self.dialect.schema
        until = f"coalesce(%s::timestamptz, {schema}clock_now() + %s::interval)"
        text = f"select {Record.columns(Pause)} from {schema}pause(%s, %s, %s, {until}, %s::boolean, %s, %s)"
        lasting = None if what.lasting is None else timedelta(seconds=what.lasting)
        params = (what.scope, what.name, what.reason, what.until, lasting, what.refuse_enqueue, actor, what.tenant)
        rows = yield Statement(text, params)
        return Record.decoder(Pause, self.dialect.codec)(rows[0])
