"""How a worker is to work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.order import check_weights
from holdfast.runtime.duties import Duty, standard_duties


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """``burst`` ends the worker when there is nothing left to take; ``max_jobs`` after that many.

    ``notify`` has the store tell when there is something to do; without it the worker looks every ``poll`` seconds.
    With ``weights`` each look begins with a queue drawn by its weight, without them with the first in the list.
    ``executor`` is the label it works under. Without ``sealing`` it leaves the audit trail to others.
    """

    queues: tuple[str, ...] = ("default",)
    weights: Mapping[str, int] | None = None
    concurrency: int = 16
    tenant: str = EVERY_TENANT
    executor: str = "worker"
    lease_ttl: float = 30.0
    poll: float = 0.2
    notify: bool = True
    promote_every: float = 0.5
    sweep_every: float = 5.0
    recall_every: float = 1.0
    grace: float = 30.0
    burst: bool = False
    max_jobs: int | None = None
    sealing: bool = True
    extra_duties: tuple[Duty, ...] = field(default=())

    def __post_init__(self) -> None:
        check_weights(self.weights)

    def duties(self) -> tuple[Duty, ...]:
        """What is to be done as often as promoting is done after it, on its connection: of those a worker has few."""
        first, *others = standard_duties(
            self.tenant, promote_every=self.promote_every, sweep_every=self.sweep_every, sealing=self.sealing
        )
        for duty in self.extra_duties:
            if duty.every == first.every:
                first = first.followed_by(duty)
            else:
                others.append(duty)
        return (first, *others)
