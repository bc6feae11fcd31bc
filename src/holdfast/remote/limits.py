"""``client.pauses``, ``queues``, ``reservations``."""

from __future__ import annotations

from datetime import datetime
from typing import Unpack
from uuid import uuid4

from holdfast.engine.operation import awaited, operation
from holdfast.engine.units import Duration, seconds
from holdfast.features.limits.hold import HeldReservation, Reserver
from holdfast.features.limits.model import (
    TTL,
    Pause,
    QueueSetting,
    Reservation,
    ReservationOptions,
    Reserved,
)
from holdfast.remote.handle import check_aware
from holdfast.remote.http_requests import Steps, delete, get, post, put, segment, without_none
from holdfast.remote.responses import read
from holdfast.remote.runners import RemoteNamespace

_Pauses = list[Pause]  # inside the classes, ``list`` is a method
_Settings = list[QueueSetting]


class Pauses(RemoteNamespace):
    """Pauses of queues, kinds, agents or everything. ``every_tenant`` is for operators of all tenants."""

    @operation
    def set(
        self,
        *,
        reason: str,
        until: datetime | Duration | None = None,
        refuse_enqueue: bool | None = None,
        queue: str | None = None,
        kind: str | None = None,
        agent: str | None = None,
        everything: bool = False,
        every_tenant: bool = False,
    ) -> Steps[Pause]:
        """Start no more jobs of a ``queue``, a ``kind``, an ``agent``, or of ``everything``, until it is resumed.
        Running jobs continue."""
        if isinstance(until, datetime):
            check_aware(until, "until")
        end = until if until is None or isinstance(until, datetime) else seconds(until, "until")
        target = without_none(queue=queue, kind=kind, agent=agent, everything=everything, every_tenant=every_tenant)
        body = target | without_none(reason=reason, until=end, refuse_enqueue=refuse_enqueue)
        return (yield from self._read(Pause, post("/pauses", body)))

    aset = awaited(set)

    @operation
    def remove(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        agent: str | None = None,
        everything: bool = False,
        every_tenant: bool = False,
    ) -> Steps[None]:
        """Resume what was paused with the same arguments."""
        target = without_none(queue=queue, kind=kind, agent=agent, everything=everything, every_tenant=every_tenant)
        yield from self._request(post("/pauses/resume", target))

    aremove = awaited(remove)

    @operation
    def list(self) -> Steps[_Pauses]:
        return (yield from self._all(Pause, "/pauses"))

    alist = awaited(list)


class Queues(RemoteNamespace):
    @operation
    def list(self) -> Steps[_Settings]:
        """The queues with aging."""
        return (yield from self._all(QueueSetting, "/queues"))

    alist = awaited(list)

    @operation
    def set_aging(
        self, queue: str, *, every: Duration | None, step: int = 1, most: int = 100
    ) -> Steps[QueueSetting | None]:
        """Raise the priority of waiting jobs of a queue by ``step`` every ``every``, by at most ``most``; None removes
        aging."""
        span = None if every is None else seconds(every, "span of aging")
        request = put(f"/queues/{segment(queue)}/aging", {"every": span, "step": step, "most": most})
        response = yield from self._request(request)
        return None if response is None else read(QueueSetting, response)

    aset_aging = awaited(set_aging)


class Reservations(RemoteNamespace):
    @operation
    def list(self, *, ended: bool = False, limit: int = 50) -> Steps[list[Reservation]]:
        return (yield from self._items(Reservation, get("/reservations", ended=ended, limit=limit)))

    alist = awaited(list)

    @operation
    def get(self, id: str) -> Steps[Reservation]:
        return (yield from self._read(Reservation, get(f"/reservations/{segment(id)}")))

    aget = awaited(get)

    @operation
    def set(self, reservation_id: str, **what: Unpack[ReservationOptions]) -> Steps[Reserved]:
        """Queue a reservation, or renew it under the same id (a UUID): ``client.reservations.set(id,
        resource="gpu-0")``. Renew it every third of ``ttl``, or it expires. It holds while it is ``active``."""
        body = without_none(**{**what, "ttl": seconds(what.get("ttl", TTL), "ttl")})
        return (yield from self._read(Reserved, put(f"/reservations/{segment(reservation_id)}", body)))

    aset = awaited(set)

    @operation
    def record(self, reservation_id: str, kind: str) -> Steps[str]:
        """Record the work of the holder of an active reservation as a job of this kind; returns its id."""
        response = yield from self._request(post(f"/reservations/{segment(reservation_id)}/record", {"kind": kind}))
        return str(response["job_id"])

    arecord = awaited(record)

    @operation
    def release(
        self,
        id: str,
        *,
        reason: str | None = None,
        outcome: str | None = None,
        error_code: str | None = None,
        error_message: str | None = None,
    ) -> Steps[None]:
        """End a reservation; ``outcome`` and the error are those of a recorded run."""
        end = without_none(reason=reason, outcome=outcome, error_code=error_code, error_message=error_message)
        yield from self._request(delete(f"/reservations/{segment(id)}", **end))

    arelease = awaited(release)

    def hold(
        self,
        resource: str | None = None,
        *,
        queue: str | None = None,
        wait: Duration | None = None,
        ttl: Duration = TTL,
        at_once: bool = False,
        reason: str | None = None,
        record: str | None = None,
    ) -> HeldReservation:
        """Use a resource, a queue, or (with neither) everything directly while no job is started there:
        ``with client.reservations.hold("gpu-0", wait="30s"):``, or ``async with``. The block starts when earlier
        reservations and the jobs running there have ended, or with ``at_once`` while jobs still run; after ``wait`` it
        is refused as busy. ``record`` records the block as a job of that kind: ``held.job_id``."""
        id, what = str(uuid4()), ReservationOptions(resource=resource, queue=queue, ttl=ttl, reason=reason)
        reserver = Reserver(
            lambda: self.set(id, **what),
            lambda: self.aset(id, **what),
            lambda why, **end: self.release(id, reason=why, **end),
            lambda why, **end: self.arelease(id, reason=why, **end),
            in_thread=False,  # a client may have an async transport only
            record=None if record is None else lambda: self.record(id, record),
            arecord=None if record is None else lambda: self.arecord(id, record),
        )
        return HeldReservation(id, seconds(ttl, "ttl"), wait, at_once, reserver)
