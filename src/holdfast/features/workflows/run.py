"""``WorkflowRun``, start, extend, results of parents."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from holdfast.engine.names import check_name
from holdfast.engine.states import State
from holdfast.engine.units import Duration, seconds
from holdfast.errors import Conflict, InvalidSetting, JobFailed, NotFound, WaitTimeout
from holdfast.features.jobs.facts import Facts
from holdfast.features.jobs.handle import Handle
from holdfast.features.workflows.model import (
    EdgeSpec,
    NodeSpec,
    OnFailure,
    ParentResult,
    Started,
    Workflow,
    WorkflowSpec,
    WorkflowStatus,
    check_on_failure,
    plan_hash,
)
from holdfast.features.workflows.operations import Workflows, found
from holdfast.features.workflows.plan import Plan, Planned
from holdfast.stores.flow import Flow
from holdfast.stores.ids import new_id
from holdfast.stores.session import Session
from holdfast.telemetry import observers

if TYPE_CHECKING:
    from holdfast.kind import Kind, Prepared


R = TypeVar("R")

FIRST_LOOK, LONGEST_PAUSE = 0.05, 0.5


@dataclass(frozen=True, slots=True)
class WorkflowRun:
    """A workflow that was started; ``created`` is False when one started before under the same key stands for it."""

    id: str
    tenant: str
    created: bool
    reason: str | None
    client: Session = field(repr=False, compare=False)
    planned: dict[str, Planned[Any]] = field(default_factory=dict, repr=False, compare=False)

    def __getitem__(self, job: Planned[R]) -> Handle[R]:
        """The handle on a job that was planned: ``run[a].result()``."""
        if not self.created:
            raise Conflict(
                f"workflow {self.id} was started before, with jobs of its own",
                code="duplicate_key",
                fix="app.workflows.show(run.id) has them, by name.",
            )
        return Handle(self.planned[job.name].spec.id, self.tenant, True, None, self.client, job.decode)

    @property
    def _workflows(self) -> Workflows:
        return Workflows(self.client, self.tenant)

    def workflow(self) -> Workflow:
        return found(self.id, self._workflows.get(self.id))

    async def aworkflow(self) -> Workflow:
        return found(self.id, await self._workflows.aget(self.id))

    def status(self) -> WorkflowStatus:
        return self.workflow().status

    async def astatus(self) -> WorkflowStatus:
        return (await self.aworkflow()).status

    def wait(self, timeout: Duration | None = None) -> Workflow:
        """Block until all its jobs have ended or are held back by a failure, or raise ``WaitTimeout``."""
        told = threading.Event()
        with self._listening(told.set):
            for pause in _pauses(timeout):
                told.clear()
                workflow = self.workflow()
                if workflow.over:
                    return workflow
                told.wait(pause)
        raise self._too_late(timeout)

    async def await_end(self, timeout: Duration | None = None) -> Workflow:
        """``wait`` for async code."""
        told, loop = asyncio.Event(), asyncio.get_running_loop()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
                loop.call_soon_threadsafe(told.set)

        with self._listening(tell):
            for pause in _pauses(timeout):
                told.clear()
                workflow = await self.aworkflow()
                if workflow.over:
                    return workflow
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await told.wait()
        raise self._too_late(timeout)

    @contextlib.contextmanager
    def _listening(self, tell: Callable[[], None]) -> Iterator[None]:
        stop = self.client.store.listen(lambda _: tell(), lambda: ())
        try:
            yield
        finally:
            stop()

    def _too_late(self, timeout: Duration | None) -> WaitTimeout:
        return WaitTimeout(f"workflow {self.id} had not ended after {timeout}")


def _pauses(timeout: Duration | None) -> Iterator[float]:
    end = None if timeout is None else time.monotonic() + seconds(timeout, "timeout")
    pause = FIRST_LOOK
    while True:
        left = LONGEST_PAUSE if end is None else end - time.monotonic()
        yield max(0.0, min(pause, left))
        if left <= 0:
            return
        pause = min(LONGEST_PAUSE, pause * 2)


class WorkflowOptions(TypedDict, total=False):
    """What ``app.workflow`` takes. ``connection`` is the caller's own: it exists if the transaction there commits."""

    on_failure: OnFailure
    key: str
    tenant: str
    generator: str
    correlation_id: str
    connection: object


class WorkflowPlan(Plan):
    """A workflow to be started. With a ``key`` it is started once, however often this is done."""

    def __init__(
        self,
        client: Session,
        tenant: str,
        prepare: Callable[..., Prepared[Any]],
        kind: str,
        *,
        on_failure: OnFailure | None = None,
        key: str | None = None,
        generator: str | None = None,
        correlation_id: str | None = None,
        parent_id: str | None = None,
        connection: object | None = None,
    ) -> None:
        super().__init__(client, tenant, prepare, check_name(kind, "kind of the workflow"), on_failure)
        self.key = None if key is None else check_name(key, "key", limit=255)
        self.generator = check_name(generator or client.name, "generator", limit=255)
        self.correlation_id = (
            None if correlation_id is None else check_name(correlation_id, "correlation_id", limit=255)
        )
        self._parent_id = parent_id
        self._connection = connection

    def start(self) -> WorkflowRun:
        """Store all of it in one transaction; jobs that wait for others are claimed when those have ended."""
        spec = self._spec()
        with observers.sending([node.job for node in spec.nodes], self.tenant):
            if self._connection is None:
                return self._started(self.client.run(self.client.store.workflows.start(spec, self.tenant)))
            store = self.client.store
            return self._started(store.run_borrowed(self._connection, store.borrowed.start_workflow(spec, self.tenant)))

    async def astart(self) -> WorkflowRun:
        spec = self._spec()
        with observers.sending([node.job for node in spec.nodes], self.tenant):
            if self._connection is None:
                return self._started(await self.client.arun(self.client.store.workflows.start(spec, self.tenant)))
            store = self.client.store
            flow = store.borrowed.start_workflow(spec, self.tenant)
            return self._started(await store.arun_borrowed(self._connection, flow))

    def _spec(self) -> WorkflowSpec:
        if missing := self.names_used():
            raise InvalidSetting(f"there is no job {missing[0]!r} in this workflow", code="unknown_parent")
        flow_id = new_id()
        nodes, edges = self.compiled(flow_id, self.correlation_id, {})
        on_failure = self.on_failure or "skip"
        return WorkflowSpec(
            id=flow_id,
            kind=self.kind,
            generator=self.generator,
            enqueued_by=nodes[0].job.enqueued_by,
            source_system=self.client.name,
            nodes=nodes,
            edges=edges,
            on_failure=on_failure,
            key=self.key,
            plan_hash=plan_hash(nodes, edges, on_failure),
            correlation_id=self.correlation_id,
            parent_id=self._parent_id,
        )

    def _started(self, answer: Started) -> WorkflowRun:
        if answer.reason == "idempotency_conflict":
            raise Conflict(
                f"workflow {answer.id} was started under this key with other jobs",
                code="idempotency_conflict",
                fix="Use another key, or plan the same.",
            )
        planned = {job.name: job for job in self.walk()}
        return WorkflowRun(answer.id, self.tenant, answer.created, answer.reason, self.client, planned)


class Extension(Plan):
    """More jobs for a running workflow: ``more = await ctx.workflow(); more.add(resize, page); await more.astart()``.

    ``after`` also takes names of jobs that are in it. Refused when the workflow is over.
    """

    def __init__(self, client: Session, tenant: str, prepare: Callable[..., Prepared[Any]], workflow: Workflow) -> None:
        super().__init__(client, tenant, prepare, workflow.kind, workflow.on_failure)
        self.workflow = workflow

    def start(self) -> WorkflowRun:
        known = self.client.run(self._named())
        nodes, edges = self._more(known)
        with observers.sending([node.job for node in nodes], self.tenant):
            return self._added(self.client.run(self._add(nodes, edges)))

    async def astart(self) -> WorkflowRun:
        known = await self.client.arun(self._named())
        nodes, edges = self._more(known)
        with observers.sending([node.job for node in nodes], self.tenant):
            return self._added(await self.client.arun(self._add(nodes, edges)))

    def _named(self) -> Flow[dict[str, str]]:
        return self.client.store.workflows.named(self.workflow.id, self.names_used(), self.tenant)

    def _more(self, known: dict[str, str]) -> tuple[tuple[NodeSpec, ...], tuple[EdgeSpec, ...]]:
        return self.compiled(self.workflow.id, self.workflow.correlation_id, known)

    def _add(self, nodes: tuple[NodeSpec, ...], edges: tuple[EdgeSpec, ...]) -> Flow[Started]:
        actor = nodes[0].job.enqueued_by
        return self.client.store.workflows.extend(self.workflow.id, nodes, edges, actor, self.tenant)

    def _added(self, answer: Started) -> WorkflowRun:
        if answer.reason == "not_found":
            raise NotFound(f"there is no workflow {answer.id} in this tenant", code="workflow_not_found")
        if answer.reason is not None:
            words = {"workflow_over": "is over", "name_taken": "has a job of one of these names already"}
            raise Conflict(f"workflow {answer.id} {words[answer.reason]}", code=answer.reason)
        planned = {job.name: job for job in self.walk()}
        return WorkflowRun(answer.id, self.tenant, True, None, self.client, planned)


def plan_workflow(
    client: Session,
    prepare: Callable[..., Prepared[Any]],
    kind: str,
    options: WorkflowOptions,
    running: Facts | None = None,
) -> WorkflowPlan:
    """``running`` is the job that plans it, if one does: its parent (DP-10)."""
    unknown = options.keys() - WorkflowOptions.__annotations__.keys()
    if unknown:
        raise InvalidSetting(f"unknown options: {', '.join(sorted(unknown))}", code="unknown_option")
    given: dict[str, Any] = {**options}
    tenant = check_name(given.pop("tenant", running.tenant if running else client.tenant), "tenant")
    if given.get("on_failure") is not None:
        check_on_failure(given["on_failure"])
    if running is not None and running.tenant == tenant:
        given["parent_id"] = running.job_id
        given.setdefault("correlation_id", running.correlation_id or running.job_id)
    return WorkflowPlan(client, tenant, prepare, kind, **given)


def extend_workflow(client: Session, prepare: Callable[..., Prepared[Any]], workflow_id: str, tenant: str) -> Extension:
    return Extension(client, tenant, prepare, found(workflow_id, Workflows(client, tenant).get(workflow_id)))


async def aextend_workflow(
    client: Session, prepare: Callable[..., Prepared[Any]], workflow_id: str, tenant: str
) -> Extension:
    return Extension(client, tenant, prepare, found(workflow_id, await Workflows(client, tenant).aget(workflow_id)))


class Results(Mapping[str, Any]):
    """By the name of the parent: ``results["fetch"]``, as it was stored; ``results.of(fetch)`` has the kind's own type.

    A parent that did not succeed is among them (where a failure lets its children go on): to ask for its result raises
    ``JobFailed``, and ``states`` tells beforehand.
    """

    def __init__(self, parents: Sequence[ParentResult]) -> None:
        self._parents = {parent.name or parent.job_id: parent for parent in parents}

    def __getitem__(self, name: str) -> Any:
        return _value(self._parents[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._parents)

    def __len__(self) -> int:
        return len(self._parents)

    @property
    def states(self) -> dict[str, State]:
        return {name: parent.state for name, parent in self._parents.items()}

    @property
    def succeeded(self) -> dict[str, Any]:
        """Of those that did."""
        return {name: p.value for name, p in self._parents.items() if p.state is State.SUCCEEDED}

    def of(self, kind: Kind[..., R]) -> list[R]:
        """What the parents of this kind returned, in the order in which they were added."""
        decode, name = kind._signature.unpack_result, kind.name
        return [decode(_value(parent)) for parent in self._parents.values() if parent.kind == name]

    def one(self, kind: Kind[..., R]) -> R:
        """What the only parent of this kind returned."""
        (found,) = self.of(kind)
        return found


def _value(parent: ParentResult) -> Any:
    if parent.state is not State.SUCCEEDED:
        raise JobFailed(f"parent {parent.name or parent.job_id} is {parent.state}: there is no result")
    return parent.value
