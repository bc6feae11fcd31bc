"""``Client``: the operations of ``App`` over HTTP, and its namespaces that send more than one request at a time."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack, cast

from holdfast import config
from holdfast.engine.declared import http
from holdfast.engine.job_options import EnqueueOptions
from holdfast.engine.operation import Items, awaited, awaited_stream, operation, stream
from holdfast.engine.units import Duration, seconds
from holdfast.features.agents.operations import Agents, Executors
from holdfast.features.approvals import operations as approvals
from holdfast.features.approvals.model import Approval, approval_of_token
from holdfast.features.approvals.operations import ApprovalsWanted
from holdfast.features.archives.operations import Archives
from holdfast.features.audit import operations as audit
from holdfast.features.audit.model import Anchor, Report
from holdfast.features.connectors.operations import Connectors
from holdfast.features.dead_letters import operations as dead_letters
from holdfast.features.dead_letters.model import Operation
from holdfast.features.dead_letters.operations import DeadLetters, not_finished
from holdfast.features.events.operations import Consumers, Subscriptions
from holdfast.features.health.operations import HealthChecks
from holdfast.features.limits.operations import Limits, Pauses, Queues, Reservations
from holdfast.features.payloads.operations import PayloadRules
from holdfast.features.registry.operations import DeploymentPolicies, EventTypes, Kinds
from holdfast.features.retention.operations import RetentionPolicies, UsageReport
from holdfast.features.schedules.operations import Schedules
from holdfast.features.tenants.operations import Tenants
from holdfast.features.tokens.operations import Tokens
from holdfast.features.versions.operations import Versions
from holdfast.features.webhooks.operations import Webhooks
from holdfast.features.workers.operations import Workers
from holdfast.features.workflows.model import OnFailure
from holdfast.remote.derived import Call, OverHttp, over_http, prepare_call, sent_inputs
from holdfast.remote.events import Events, send_event
from holdfast.remote.http_requests import Pause, Steps, post, segment, without_none
from holdfast.remote.jobs import EnqueueResponse, JobHandle, Jobs, Templates, WorkflowPlan, Workflows, new_plan
from holdfast.remote.leases import Leases
from holdfast.remote.responses import read, unreadable
from holdfast.remote.runners import Base, Link, RemoteNamespace, Retrying, Runner
from holdfast.remote.transport import AsyncTransport, Transport, httpx
from holdfast.stores.requests import SentResult
from holdfast.worker.options import TickSummary

POLL_EVERY = 0.5


class Operations(OverHttp, dead_letters.Operations):
    """Bulk operations on all matching jobs, which workers run in small batches."""

    @operation
    def wait(
        self, id: str, *, timeout: Duration | None = None, watch: Callable[[Operation], None] | None = None
    ) -> Steps[Operation]:
        """Wait until the operation has ended; ``watch`` is called with it at each poll."""
        until = None if timeout is None else time.monotonic() + seconds(timeout, "timeout")
        while not (operation := (yield from self._begin(Operations.get.program, (id,), {}))).over:
            if watch is not None:
                watch(operation)
            if until is not None and time.monotonic() >= until:
                raise not_finished(operation)
            yield Pause(POLL_EVERY)
        return cast(Operation, operation)

    await_end = awaited(wait)


class Approvals(OverHttp, approvals.Approvals):
    """Approvals that jobs request from people. The client decides in the name of its API token, or with a token of the
    approval in place of its id."""

    @stream
    def every(self, **wanted: Unpack[ApprovalsWanted]) -> Items[Approval]:
        """All matching approvals, read page by page."""
        yield from self._stream(Approval, "/approvals", **sent_inputs(Approvals.list.program, wanted))

    aevery = awaited_stream(every)

    def _send(self, program: Callable[..., Any], declared: http, values: dict[str, Any]) -> Steps[Any]:
        if declared.scope != "decide" or approval_of_token(values["approval"]) is None:
            return (yield from super()._send(program, declared, values))
        token = segment(values.pop("approval"))
        decide = post(f"/approvals/by-token/{token}", {"verdict": program.__name__, **values})
        return read(Approval, (yield from self._request(decide))["approval"]).state


class Audit(OverHttp, audit.Audit):
    @operation
    def verify(
        self, *, begin: int = 1, anchors: Sequence[Anchor | str] = (), progress: audit.Progress | None = None
    ) -> Steps[Report]:
        texts = [str(anchor) for anchor in anchors]
        report: Report | None = None
        following: int | None = begin
        while following is not None:
            part = yield from self._begin(audit.Audit.verify_some.program, (), {"begin": following, "anchors": texts})
            report = part.report if report is None else report.followed_by(part.report)
            following = part.next
            if progress is not None:
                progress(report.seals, report.events)
        assert report is not None
        return report

    averify = awaited(verify)

    @operation
    def export(
        self,
        to: str | Path,
        *,
        since: datetime | Duration | None = None,
        progress: audit.Progress | None = None,
    ) -> Steps[int]:
        seals, events = 0, 0
        with audit.export_file(to) as file:
            begin: int | None = None
            while True:
                part: audit.ExportPart = yield from self._begin(
                    audit.Audit.export_some.program, (), {"since": since, "begin": begin}
                )
                file.write(part.text)
                seals, events, begin = seals + part.seals, events + part.events, part.next
                if progress is not None:
                    progress(seals, events)
                if begin is None:
                    return seals

    aexport = awaited(export)


class Ticking(TypedDict, total=False):
    """Options of a tick. After ``timeout`` seconds, unfinished jobs are released."""

    queues: list[str]
    concurrency: int
    timeout: float


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
        self.schedules = over_http(Schedules, runner)
        self.templates = Templates(runner)
        self.workflows = Workflows(runner)
        self.dead_letters = over_http(DeadLetters, runner)
        self.operations = Operations(runner)
        self.events, self.consumers = Events(runner), over_http(Consumers, runner)
        self.leases = Leases(runner)
        self.pauses = over_http(Pauses, runner)
        self.queues = over_http(Queues, runner)
        self.reservations = over_http(Reservations, runner)
        self.agents = over_http(Agents, runner)
        self.limits = over_http(Limits, runner)
        self.tenants = over_http(Tenants, runner)
        self.executors = over_http(Executors, runner)
        self.kinds = over_http(Kinds, runner)
        self.event_types = over_http(EventTypes, runner)
        self.policies = over_http(DeploymentPolicies, runner)
        self.tokens = over_http(Tokens, runner)
        self.payload_rules = over_http(PayloadRules, runner)
        self.retention = over_http(RetentionPolicies, runner)
        self.archives = over_http(Archives, runner)
        self.subscriptions = over_http(Subscriptions, runner)
        self.audit = Audit(runner)
        self.health = over_http(HealthChecks, runner)
        self.usage = over_http(UsageReport, runner)
        self.workers = over_http(Workers, runner)
        self.versions = over_http(Versions, runner)
        self.webhooks = over_http(Webhooks, runner)
        self.connectors = over_http(Connectors, runner)

    @operation
    def enqueue(self, kind: str, payload: Any = None, **options: Unpack[EnqueueOptions]) -> Steps[JobHandle]:
        """Enqueue by name. A request that is sent again after a lost connection has the same key, so it is one job."""
        call = prepare_call(kind, payload, options)
        response = yield from self._read(EnqueueResponse, post("/jobs", call.body, key=call.key))
        return _handle(self._runner, call, response)

    aenqueue = awaited(enqueue)

    def prepare(self, kind: str, payload: Any = None, **options: Unpack[EnqueueOptions]) -> Call:
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
        request = dataclasses.replace(post("/jobs/tick", body), extra_timeout=seconds(wait, "timeout"))
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
