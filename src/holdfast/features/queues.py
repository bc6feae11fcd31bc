"""How queues are kept, as ``app.queues``: whether waiting counts in them (SC-2)."""

from __future__ import annotations

from holdfast.domain.reservations import QueueSetting
from holdfast.engine.names import check_name
from holdfast.engine.order import check_priority
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting
from holdfast.stores.base import Caller
from holdfast.stores.flow import Flow

SHORTEST, LONGEST = 0.001, 366 * 86_400.0

_Settings = list[QueueSetting]


class Queues:
    """Each call has two colours: the one that begins with ``a`` is awaited."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def age(self, queue: str, *, every: Duration | None, step: int = 1, most: int = 100) -> QueueSetting | None:
        """Raise the priority of jobs in a queue by ``step`` for each ``every`` that they wait for their turn, up to
        ``most``; ``every=None`` ends that. What was raised stays so."""
        return self._caller.run(self._age(queue, every, step, most))

    async def aage(self, queue: str, *, every: Duration | None, step: int = 1, most: int = 100) -> QueueSetting | None:
        return await self._caller.arun(self._age(queue, every, step, most))

    def list(self) -> _Settings:
        return self._caller.run(self._caller.verbs.queue_settings(self._caller.tenant))

    async def alist(self) -> _Settings:
        return await self._caller.arun(self._caller.verbs.queue_settings(self._caller.tenant))

    def _age(self, queue: str, every: Duration | None, step: int, most: int) -> Flow[QueueSetting | None]:
        name = check_name(queue, "queue")
        span = None if every is None else seconds(every, "span of aging")
        if span is not None and not SHORTEST <= span <= LONGEST:
            raise InvalidSetting(f"jobs age in {SHORTEST} s to a year, not {span:g} s", code="invalid_duration")
        if not 1 <= check_priority(step) <= 32_767:
            raise InvalidSetting(f"a step of aging is from 1 to 32,767, not {step!r}", code="invalid_priority")
        caller = self._caller
        return caller.verbs.set_aging(name, span, step, check_priority(most), caller.actor, caller.tenant)
