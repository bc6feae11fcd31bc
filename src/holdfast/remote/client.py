"""``Client``: the operations of ``App``, over HTTP."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from datetime import date
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

from holdfast import config
from holdfast.engine.operation import awaited, operation
from holdfast.engine.units import Duration, seconds
from holdfast.features.agents.operations import Agents, Executors
from holdfast.features.health.model import Health
from holdfast.features.limits.operations import Limits
from holdfast.features.retention.model import By, Usage
from holdfast.features.workflows.model import OnFailure
from holdfast.remote.admin import (
    Archives,
    Audit,
    PayloadRules,
    RetentionPolicies,
    Subscriptions,
    Tenants,
    Tokens,
)
from holdfast.remote.approvals import Approvals, DeadLetters, Operations
from holdfast.remote.derived import over_http
from holdfast.remote.events import Events, send_event
from holdfast.remote.handle import Call, EnqueueResponse, JobHandle, JobOptions, prepare_call
from holdfast.remote.http_requests import Steps, get, post, without_none
from holdfast.remote.jobs import Jobs
from holdfast.remote.leases import Leases
from holdfast.remote.limits import Pauses, Queues, Reservations
from holdfast.remote.link import Base, Link, Retrying
from holdfast.remote.registry import DeploymentPolicies, EventTypes, Kinds
from holdfast.remote.responses import unreadable
from holdfast.remote.runners import RemoteNamespace, Runner
from holdfast.remote.schedules import Schedules, Templates, WorkflowPlan, Workflows, new_plan
from holdfast.remote.transport import AsyncTransport, Transport, httpx
from holdfast.remote.webhooks import Connectors, Webhooks
from holdfast.stores.requests import SentResult
from holdfast.worker.options import TickSummary


class Ticking(TypedDict, total=False):
    """Options of a tick. After ``timeout`` seconds, unfinished jobs are released."""

    queues: list[str]
    concurrency: int
    timeout: float


class HealthChecks(RemoteNamespace):
    @operation
    def get(self, *, domain: str | None = None) -> Steps[Health]:
        """Report the health of this tenant, or of the jobs of a domain: ok, warn or critical, with reasons."""
        return (yield from self._read(Health, get("/health", domain=domain)))

    aget = awaited(get)


class UsageReport(RemoteNamespace):
    @operation
    def list(
        self,
        *,
        by: By | Collection[By] = ("kind", "day"),
        since: date | None = None,
        until: date | None = None,
        kind: str | None = None,
    ) -> Steps[list[Usage]]:
        """Attempts, run time and cost, as far as they are counted. Workers continue the count."""
        groups = [by] if isinstance(by, str) else [*by]
        return (yield from self._items(Usage, get("/usage", by=groups, since=since, until=until, kind=kind)))

    alist = awaited(list)

    @operation
    def count(self) -> Steps[None]:
        """Count what has not been counted yet. The first call starts counting."""
        yield from self._request(post("/usage/count"))

    acount = awaited(count)


class Client(RemoteNamespace):
    """``Client("https://jobs.example.com", token="hf_…")``. Every operation has a sync and an async form: ``enqueue``,
    ``await aenqueue``. Threads and event loops may share one client. Close it, or use it in ``with`` or ``async with``.

    Without arguments HOLDFAST_API_URL and HOLDFAST_API_TOKEN are used. ``tenant`` is for tokens of every tenant.
    ``timeout`` limits one response, ``retrying`` defines how often and when a safe request is sent again.
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
        async_transport: AsyncTransport | None = None,
    ) -> None:
        link = _link(url, token, tenant, timeout, retrying)
        if transport is None and async_transport is None:
            httpx()  # raises if the extra is missing
        runner = Runner(link, transport, async_transport)
        super().__init__(runner)
        self.jobs = Jobs(runner)
        self.approvals = Approvals(runner)
        self.schedules = Schedules(runner)
        self.templates = Templates(runner)
        self.workflows = Workflows(runner)
        self.dead_letters = DeadLetters(runner)
        self.operations = Operations(runner)
        self.events = Events(runner)
        self.leases = Leases(runner)
        self.pauses = Pauses(runner)
        self.queues = Queues(runner)
        self.reservations = Reservations(runner)
        self.agents = over_http(Agents, runner)
        self.limits = over_http(Limits, runner)
        self.tenants = Tenants(runner)
        self.executors = over_http(Executors, runner)
        self.kinds, self.event_types = Kinds(runner), EventTypes(runner)
        self.policies = DeploymentPolicies(runner)
        self.tokens = Tokens(runner)
        self.payload_rules = PayloadRules(runner)
        self.retention = RetentionPolicies(runner)
        self.archives = Archives(runner)
        self.subscriptions = Subscriptions(runner)
        self.audit = Audit(runner)
        self.health = HealthChecks(runner)
        self.usage = UsageReport(runner)
        self.webhooks = Webhooks(runner)
        self.connectors = Connectors(runner)

    @operation
    def enqueue(self, kind: str, payload: Any = None, **options: Unpack[JobOptions]) -> Steps[JobHandle]:
        """Enqueue by name. A request that is sent again after a lost connection has the same key, so it is one job."""
        call = prepare_call(kind, payload, options)
        response = yield from self._read(EnqueueResponse, post("/jobs", call.body, key=call.key))
        return _handle(self._runner, call, response)

    aenqueue = awaited(enqueue)

    def prepare(self, kind: str, payload: Any = None, **options: Unpack[JobOptions]) -> Call:
        """Check a job without enqueueing it, for ``enqueue_many``."""
        return prepare_call(kind, payload, options)

    @operation
    def enqueue_many(self, calls: Iterable[Call]) -> Steps[list[JobHandle]]:
        """Enqueue up to 1,000 jobs in one transaction: ``client.enqueue_many(client.prepare("send", {"to": x}) for x in
        …)``. The handles are in the same order; a refused job has ``created`` False and a ``reason``."""
        batch = list(calls)
        if not batch:
            return []
        # Each job has its own key, so that the request may be sent again.
        jobs = [{**call.body, "key": call.key} for call in batch]
        request = post("/jobs/batch", {"jobs": jobs}, key=batch[0].key)
        responses = yield from self._items(EnqueueResponse, request)
        if len(responses) != len(batch):
            raise unreadable("batch", "it has another length")
        return [_handle(self._runner, call, response) for call, response in zip(batch, responses, strict=True)]

    aenqueue_many = awaited(enqueue_many)

    @operation
    def send_event(
        self, name: str, data: dict[str, Any] | None = None, *, key: str | None = None, job: str | None = None
    ) -> Steps[SentResult]:
        """Send an event: jobs that wait for it continue. With a ``key`` it is sent once."""
        return (yield from send_event(self, name, data, key, job))

    asend_event = awaited(send_event)

    def workflow(
        self,
        kind: str,
        *,
        key: str | None = None,
        on_failure: OnFailure | None = None,
        correlation_id: str | None = None,
    ) -> WorkflowPlan:
        """Plan jobs with dependencies. With a ``key`` the workflow is started once."""
        return new_plan(self._runner, kind, key, on_failure=on_failure, correlation_id=correlation_id)

    @operation
    def tick(self, limit: int = 10, **options: Unpack[Ticking]) -> Steps[TickSummary]:
        """Let the service itself run at most ``limit`` jobs now, and return a summary."""
        body = without_none(limit=limit, **options)
        wait = options.get("timeout", 60.0)
        request = dataclasses.replace(post("/jobs/tick", body), patience=seconds(wait, "timeout"))
        return (yield from self._read(TickSummary, request))

    atick = awaited(tick)

    def close(self) -> None:
        """Close the connections of the sync forms. If async forms were used, ``await client.aclose()`` instead."""
        self._runner.close()

    async def aclose(self) -> None:
        await self._runner.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _handle(runner: Runner, call: Call, response: EnqueueResponse) -> JobHandle:
    return JobHandle(runner, response.as_created() if call.own else response)


def _link(url: str | None, token: str | None, tenant: str | None, timeout: Duration, retrying: Retrying | None) -> Link:
    base, token = Base.of(config.service_url(url)), config.service_token(token)
    return Link(base, token, tenant, seconds(timeout, "timeout"), retrying or Retrying())
