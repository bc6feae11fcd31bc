"""The clients: what the local app can do, asked of a service, in either colour."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from holdfast import config
from holdfast.domain.durations import Duration, seconds
from holdfast.domain.gates import GateState
from holdfast.domain.workflows import OnFailure
from holdfast.http.approvals import Approvals, decided
from holdfast.http.colours import Awaiting, Blocking, Runner, verb
from holdfast.http.events import Events
from holdfast.http.jobs import Jobs
from holdfast.http.leases import Leases
from holdfast.http.link import Link
from holdfast.http.resolving import DeadLetters, Operations
from holdfast.http.scheduling import Schedules, Templates
from holdfast.http.sending import Base, Retrying
from holdfast.http.transport import AsyncHttpxTransport, AsyncTransport, HttpxTransport, Transport
from holdfast.http.wire import Steps
from holdfast.http.workflows import WorkflowPlan, Workflows, more_of, new_plan

C = TypeVar("C", bound=Runner)


class _Everything(Jobs[C], Generic[C]):
    """What both clients have, beside the verbs of jobs."""

    @property
    def approvals(self) -> Approvals[C]:
        return Approvals(self._runner)

    @verb
    def approve(self, gate: str, *, comment: str | None = None, data: Any = None) -> Steps[GateState]:
        """Say yes, as whom the token names: ``client.approve(gate, comment="fine", data={…})``."""
        return (yield from decided(self, "approve", gate, comment, data)).state

    @verb
    def deny(self, gate: str, *, comment: str | None = None, data: Any = None) -> Steps[GateState]:
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

    @property
    def leases(self) -> Leases[C]:
        return Leases(self._runner)


class Client(_Everything[Blocking]):
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
        super().__init__(Blocking(_link(url, token, tenant, timeout, retrying), transport or HttpxTransport()))

    def close(self) -> None:
        self._runner.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(_Everything[Awaiting]):
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
        super().__init__(Awaiting(_link(url, token, tenant, timeout, retrying), transport or AsyncHttpxTransport()))

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
