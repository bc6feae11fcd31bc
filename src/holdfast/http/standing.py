"""What is paused, how queues age, and what is reserved."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar
from uuid import uuid4

from holdfast.engine.units import Duration, seconds
from holdfast.errors import NotFound
from holdfast.features.limits.model import QueueSetting, Reservation, Reserved, Switch
from holdfast.http.calls import aware
from holdfast.http.colours import Noun, verb
from holdfast.http.reading import read
from holdfast.http.runners import Runner
from holdfast.http.wire import Steps, delete, get, given, post, put, segment

C = TypeVar("C", bound=Runner)

_Switches = list[Switch]  # inside the classes the word is a method
_Settings = list[QueueSetting]


class Switches(Noun[C], Generic[C]):
    """What is paused. A tenant's token pauses what is the tenant's; ``every_tenant`` is for those who run the whole."""

    @verb
    def pause(
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
    ) -> Steps[Switch]:
        """Begin nothing more of a ``queue``, a ``kind``, an ``agent``, or of ``everything``, until it is resumed. What
        runs may end."""
        if isinstance(until, datetime):
            aware(until, "until")
        end = until if until is None or isinstance(until, datetime) else seconds(until, "until")
        named = given(queue=queue, kind=kind, agent=agent, everything=everything, every_tenant=every_tenant)
        body = named | given(reason=reason, until=end, refuse_enqueue=refuse_enqueue)
        return (yield from self._read(Switch, post("/switches/pause", body)))

    @verb
    def resume(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        agent: str | None = None,
        everything: bool = False,
        every_tenant: bool = False,
    ) -> Steps[None]:
        """Go on with what was paused; named as it was then."""
        named = given(queue=queue, kind=kind, agent=agent, everything=everything, every_tenant=every_tenant)
        yield from self._ask(post("/switches/resume", named))

    @verb
    def list(self) -> Steps[_Switches]:
        return (yield from self._pages(Switch, "/switches"))


class Queues(Noun[C], Generic[C]):
    @verb
    def list(self) -> Steps[_Settings]:
        """The queues in which waiting counts."""
        return (yield from self._pages(QueueSetting, "/queues"))

    @verb
    def age(self, queue: str, *, every: Duration | None, step: int = 1, most: int = 100) -> Steps[QueueSetting | None]:
        """Raise the priority of jobs in a queue by ``step`` for each ``every`` that they wait; None ends that."""
        span = None if every is None else seconds(every, "span of aging")
        request = put(f"/queues/{segment(queue)}/aging", {"every": span, "step": step, "most": most})
        answer = yield from self._ask(request)
        return None if answer is None else read(QueueSetting, answer)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked for, again and again under one id."""

    resource: str | None
    queue: str | None
    ttl: float
    reason: str | None
    id: str

    @property
    def options(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class Reservations(Noun[C], Generic[C]):
    @verb
    def list(self, *, ended: bool = False, limit: int = 50) -> Steps[list[Reservation]]:
        return (yield from self._items(Reservation, get("/reservations", ended=ended, limit=limit)))

    @verb
    def get(self, id: str) -> Steps[Reservation | None]:
        try:
            return (yield from self._read(Reservation, get(f"/reservations/{segment(id)}")))
        except NotFound:
            return None

    @verb
    def ask(
        self,
        resource: str | None = None,
        *,
        queue: str | None = None,
        ttl: Duration = 30.0,
        reason: str | None = None,
        id: str | None = None,
    ) -> Steps[Reserved]:
        """Stand in line for a resource, a queue, or (with neither) everything:
        ``mine = client.reservations.ask("gpu-0")``. Ask again with its ``id`` every third of ``ttl``, or it runs out.
        It is yours while its state is ``active``."""
        known = str(uuid4()) if id is None else id
        body = given(resource=resource, queue=queue, ttl=seconds(ttl, "ttl"), reason=reason)
        request = dataclasses.replace(put(f"/reservations/{segment(known)}", body), repeatable=True)
        return (yield from self._read(Reserved, request))

    @verb
    def release(self, id: str, *, reason: str | None = None) -> Steps[None]:
        yield from self._ask(delete(f"/reservations/{segment(id)}", reason=reason))
