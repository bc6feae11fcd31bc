"""The clients: what the local app can do, asked of a service, in either colour."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from datetime import date
from types import TracebackType
from typing import Any, Generic, Self, TypedDict, TypeVar, Unpack
from uuid import uuid4

from holdfast import config
from holdfast.engine.units import Duration, seconds
from holdfast.features.approvals.model import ApprovalState
from holdfast.features.health.model import Health
from holdfast.features.limits.model import TTL
from holdfast.features.retention.model import By, Usage
from holdfast.features.workflows.model import OnFailure
from holdfast.remote.admin import (
    Agents,
    Audit,
    Consumers,
    Executors,
    Limits,
    PayloadRules,
    Retentions,
    Subscriptions,
    Tenants,
    Tokens,
)
from holdfast.remote.approvals import Approvals, DeadLetters, Operations, decided
from holdfast.remote.events import Events, told
from holdfast.remote.jobs import Jobs
from holdfast.remote.leases import Leases
from holdfast.remote.limits import Asked, AsyncReserving, Queues, Reservations, Reserving, Switches
from holdfast.remote.link import Base, Link, Retrying
from holdfast.remote.requests import Steps, get, given, post
from holdfast.remote.runners import AsyncRunner, Runner, SyncRunner, verb
from holdfast.remote.schedules import Schedules, Templates, WorkflowPlan, Workflows, more_of, new_plan
from holdfast.remote.transport import AsyncHttpxTransport, AsyncTransport, HttpxTransport, Transport
from holdfast.stores.requests import SentResult
from holdfast.worker.options import TickSummary

C = TypeVar("C", bound=Runner)


class Ticking(TypedDict, total=False):
    """What a tick may be asked for; ``timeout`` is in seconds, and what runs then is handed back."""

    queues: list[str]
    concurrency: int
    timeout: float


class _Everything(Jobs[C], Generic[C]):
    """What both clients have, beside the verbs of jobs."""

    @property
    def approvals(self) -> Approvals[C]:
        return Approvals(self._runner)

    @verb
    def approve(self, gate: str, *, comment: str | None = None, data: Any = None) -> Steps[ApprovalState]:
        """Say yes, as whom the token names: ``client.approve(gate, comment="fine", data={…})``."""
        return (yield from decided(self, "approve", gate, comment, data)).state

    @verb
    def deny(self, gate: str, *, comment: str | None = None, data: Any = None) -> Steps[ApprovalState]:
        return (yield from decided(self, "deny", gate, comment, data)).state

    @property
    def schedules(self) -> Schedules[C]:
        return Schedules(self._runner)

    @property
    def templates(self) -> Templates[C]:
        return Templates(self._runner)

    def workflow(
        self,
        kind: str,
        *,
        key: str | None = None,
        on_failure: OnFailure | None = None,
        correlation_id: str | None = None,
    ) -> WorkflowPlan[C]:
        """Plan jobs that wait for one another; with a ``key`` it is started once."""
        return new_plan(self._runner, kind, key, on_failure=on_failure, correlation_id=correlation_id)

    def extend(self, workflow_id: str) -> WorkflowPlan[C]:
        """More jobs for a workflow that is not over: ``more = client.extend(id); more.add(…); more.start()``."""
        return more_of(self._runner, workflow_id)

    @property
    def workflows(self) -> Workflows[C]:
        return Workflows(self._runner)

    @property
    def dead_letters(self) -> DeadLetters[C]:
        return DeadLetters(self._runner)

    @property
    def operations(self) -> Operations[C]:
        return Operations(self._runner)

    @property
    def events(self) -> Events[C]:
        return Events(self._runner)

    @verb
    def send_event(
        self, name: str, data: dict[str, Any] | None = None, *, key: str | None = None, job: str | None = None
    ) -> Steps[SentResult]:
        """Tell of something that happened: jobs that wait for it go on. With a ``key`` it is told once."""
        return (yield from told(self, name, data, key, job))

    @property
    def leases(self) -> Leases[C]:
        return Leases(self._runner)

    @property
    def switches(self) -> Switches[C]:
        return Switches(self._runner)

    @property
    def queues(self) -> Queues[C]:
        return Queues(self._runner)

    @property
    def reservations(self) -> Reservations[C]:
        return Reservations(self._runner)

    @property
    def agents(self) -> Agents[C]:
        return Agents(self._runner)

    @property
    def limits(self) -> Limits[C]:
        return Limits(self._runner)

    @property
    def tenants(self) -> Tenants[C]:
        return Tenants(self._runner)

    @property
    def executors(self) -> Executors[C]:
        return Executors(self._runner)

    @property
    def tokens(self) -> Tokens[C]:
        return Tokens(self._runner)

    @property
    def payload_rules(self) -> PayloadRules[C]:
        return PayloadRules(self._runner)

    @property
    def retention(self) -> Retentions[C]:
        return Retentions(self._runner)

    @property
    def subscriptions(self) -> Subscriptions[C]:
        return Subscriptions(self._runner)

    @property
    def consumers(self) -> Consumers[C]:
        return Consumers(self._runner)

    @property
    def audit(self) -> Audit[C]:
        return Audit(self._runner)

    @verb
    def health(self) -> Steps[Health]:
        """How the work of this tenant stands, with a verdict (ok, warn, critical) and its reasons."""
        return (yield from self._read(Health, get("/health")))

    @verb
    def usage(
        self,
        *,
        by: By | Collection[By] = ("kind", "day"),
        since: date | None = None,
        until: date | None = None,
        kind: str | None = None,
    ) -> Steps[list[Usage]]:
        """What ran, for how long and at what cost, as far as it was counted; workers go on with that."""
        groups = [by] if isinstance(by, str) else [*by]
        return (yield from self._items(Usage, get("/usage", by=groups, since=since, until=until, kind=kind)))

    @verb
    def count_usage(self) -> Steps[None]:
        """Count what has not been counted yet; the first time begins it."""
        yield from self._ask(post("/usage/count"))

    @verb
    def tick(self, limit: int = 10, **options: Unpack[Ticking]) -> Steps[TickSummary]:
        """Have the service run at most ``limit`` jobs itself, here and now, and say what happened."""
        body = given(limit=limit, **options)
        wait = options.get("timeout", 60.0)
        request = dataclasses.replace(post("/jobs/tick", body), patience=seconds(wait, "timeout"))
        return (yield from self._read(TickSummary, request))


class Client(_Everything[SyncRunner]):
    """``Client("https://jobs.example.com", token="hf_…")``. Threads may share one; close it, or use it in a ``with``.

    Without arguments HOLDFAST_API_URL and HOLDFAST_API_TOKEN are used. ``tenant`` is for tokens of every tenant, and
    says whose jobs it is about. ``timeout`` is how long one answer may take, ``retrying`` how often and when what is
    safe is sent again.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        tenant: str | None = None,
        timeout: Duration = 30.0,
        retrying: Retrying | None = None,
        transport: Transport | None = None,
    ) -> None:
        super().__init__(SyncRunner(_link(url, token, tenant, timeout, retrying), transport or HttpxTransport()))

    def reserve(
        self,
        resource: str | None = None,
        *,
        queue: str | None = None,
        wait: Duration | None = None,
        ttl: Duration = TTL,
        at_once: bool = False,
        reason: str | None = None,
    ) -> Reserving:
        """Use something directly while no job is begun there: ``with client.reserve("gpu-0", wait="30s"):``. That is a
        resource, a queue, or (with neither) everything. The block begins when its turn has come and the jobs that run
        there have ended, or ``at_once`` while they go on; after ``wait`` it is refused as busy."""
        asked = Asked(resource, queue, seconds(ttl, "ttl"), reason, str(uuid4()))
        return Reserving(self._runner, asked, wait, at_once)

    def close(self) -> None:
        self._runner.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(_Everything[AsyncRunner]):
    """The same with ``await``, ``async for`` and ``async with``."""

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        tenant: str | None = None,
        timeout: Duration = 30.0,
        retrying: Retrying | None = None,
        transport: AsyncTransport | None = None,
    ) -> None:
        super().__init__(AsyncRunner(_link(url, token, tenant, timeout, retrying), transport or AsyncHttpxTransport()))

    def reserve(
        self,
        resource: str | None = None,
        *,
        queue: str | None = None,
        wait: Duration | None = None,
        ttl: Duration = TTL,
        at_once: bool = False,
        reason: str | None = None,
    ) -> AsyncReserving:
        """``async with client.reserve("gpu-0", wait="30s"):``, as ``Client.reserve``."""
        asked = Asked(resource, queue, seconds(ttl, "ttl"), reason, str(uuid4()))
        return AsyncReserving(self._runner, asked, wait, at_once)

    async def aclose(self) -> None:
        await self._runner.transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _link(url: str | None, token: str | None, tenant: str | None, timeout: Duration, retrying: Retrying | None) -> Link:
    where, known = Base.of(config.service_url(url)), config.service_token(token)
    return Link(where, known, tenant, seconds(timeout, "timeout"), retrying or Retrying())
