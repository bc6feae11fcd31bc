"""The options of a worker and of a tick, and the summary that a tick returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self, TypedDict, Unpack

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import check_name, check_names
from holdfast.engine.order import check_weights
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting
from holdfast.worker.maintenance import MaintenanceTask, standard_tasks

LEASE, SHORTEST = 30.0, 0.01
SHORT_LOOK = 2.0
"""Seconds that a worker stays awake which woke up and found no job."""


class WorkerKeywords(TypedDict, total=False):
    """Options of ``app.run_worker`` and ``app.worker``."""

    queues: Sequence[str]
    """The queues to serve. By default every queue that the app declares, each with the same share."""
    weights: Mapping[str, int] | None
    """The weight of each queue: a claim starts with a queue drawn by its weight, without weights with the first."""
    concurrency: int
    """The number of jobs to run at once. By default 16."""
    tenant: str
    """The tenant to serve. By default every tenant."""
    executor: str
    """The label of the worker."""
    lease_ttl: float
    """Seconds after which another worker takes over the jobs, if this one is lost."""
    poll: float
    """Seconds between polls, where the database does not notify of new jobs."""
    notify: bool
    """Whether the database notifies the worker of new jobs."""
    promote_every: float
    """Seconds between the checks for jobs that are due."""
    sweep_every: float
    """Seconds between other maintenance."""
    check_cancelled_every: float
    """Seconds between the checks for cancelled jobs."""
    grace: float
    """Seconds that running jobs have to end when the worker is stopped."""
    burst: bool
    """End when no job is left."""
    max_jobs: int | None
    """End after this many jobs."""
    idle_after: float | None
    """Seconds without work after which the worker closes its connections, so that the database can sleep."""
    wake_every: float
    """Seconds after which a sleeping worker looks for work at the latest. By default 15 minutes."""
    sealing: bool
    """Whether it seals the audit trail. False leaves that to other workers."""
    extra_tasks: tuple[MaintenanceTask, ...]


class TickKeywords(TypedDict, total=False):
    """The keywords of ``app.tick``."""

    queues: Sequence[str]
    concurrency: int
    timeout: Duration | None
    tenant: str
    lease: Duration
    executor: str
    weights: Mapping[str, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TickOptions:
    """Run at most ``limit`` jobs, ``concurrency`` at a time. Jobs that still run after ``timeout`` seconds return to
    the queue."""

    limit: int
    queues: tuple[str, ...]
    concurrency: int
    timeout: float | None
    tenant: str
    lease_ttl: float
    executor: str
    weights: Mapping[str, int] | None

    @classmethod
    def of(cls, limit: int, **given: Unpack[TickKeywords]) -> Self:
        concurrency = given.get("concurrency", 16)
        if limit < 1 or concurrency < 1:
            raise InvalidSetting("a tick needs a limit and a concurrency of at least 1", code="invalid_limit")
        queues = check_names(given.get("queues", ()), "queue")
        if not queues:
            raise InvalidSetting(
                "a tick needs at least one queue", code="invalid_name", fix='Write queues=["default"].'
            )
        lease = seconds(given.get("lease", LEASE), "lease")
        if lease < SHORTEST:
            raise InvalidSetting("the lease must be at least 10 ms", code="invalid_duration")
        weights = given.get("weights")
        check_weights(weights)
        timeout = given.get("timeout")
        return cls(
            limit=limit,
            queues=queues,
            concurrency=min(limit, concurrency),
            timeout=None if timeout is None else seconds(timeout, "timeout"),
            tenant=given.get("tenant", EVERY_TENANT),
            lease_ttl=lease,
            executor=check_name(given.get("executor", "worker"), "executor"),
            weights=weights,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TickSummary:
    """What a tick did. ``ids`` are the jobs it claimed, in order.

    ``paused`` jobs wait for a time, an event or an approval; ``retried`` jobs will be retried later; ``dead`` jobs are
    dead letters; ``crashed`` jobs lost their child process, and are retried or dead letters; ``handed_back`` jobs ran
    out of time; ``cancelled`` jobs were cancelled while they ran; ``lost`` jobs were claimed by another worker.
    ``more``: there is more work, call again at once. ``ok``: none of its jobs is dead, failed, crashed or lost.
    """

    taken: int
    ids: tuple[str, ...]
    duration: float
    more: bool
    succeeded: int = 0
    retried: int = 0
    dead: int = 0
    failed: int = 0
    crashed: int = 0
    snoozed: int = 0
    paused: int = 0
    handed_back: int = 0
    cancelled: int = 0
    lost: int = 0
    ok: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The options of a worker, checked. ``WorkerKeywords`` explains them."""

    queues: Sequence[str] = ()
    weights: Mapping[str, int] | None = None
    concurrency: int = 16
    tenant: str = EVERY_TENANT
    executor: str = "worker"
    lease_ttl: float = 30.0
    poll: float = 0.2
    notify: bool = True
    promote_every: float = 0.5
    sweep_every: float = 5.0
    check_cancelled_every: float = 1.0
    grace: float = 30.0
    burst: bool = False
    max_jobs: int | None = None
    idle_after: float | None = None
    wake_every: float = 900.0
    sealing: bool = True
    extra_tasks: tuple[MaintenanceTask, ...] = field(default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "queues", check_names(self.queues, "queue"))
        check_weights(self.weights)
        if self.concurrency < 1:
            raise InvalidSetting("a worker needs a concurrency of at least 1", code="invalid_limit")
        if self.idle_after is not None and (self.idle_after <= 0 or self.wake_every <= 0 or self.burst):
            raise InvalidSetting(
                "idle_after and wake_every must be positive, and a burst ends by itself",
                code="conflicting_options",
                fix="Omit idle_after, or burst.",
            )

    def maintenance_tasks(self) -> tuple[MaintenanceTask, ...]:
        """All maintenance tasks. Extra tasks with the pace of promotion follow it on its connection, because a worker
        has few connections."""
        first, *others = standard_tasks(
            self.tenant, promote_every=self.promote_every, sweep_every=self.sweep_every, sealing=self.sealing
        )
        for task in self.extra_tasks:
            if task.every == first.every:
                first = first.followed_by(task)
            else:
                others.append(task)
        return (first, *others)
