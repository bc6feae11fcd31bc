"""Starting and extending workflows, ``WorkflowRun``, and the results of parents."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, overload

from holdfast.engine.hints import check_options, unknown_attribute
from holdfast.engine.names import check_name
from holdfast.engine.operation import Program, awaited, operation
from holdfast.engine.states import State
from holdfast.engine.units import Duration, seconds
from holdfast.errors import Conflict, InvalidSetting, JobFailed, NotFound, WaitTimeout
from holdfast.features.jobs.handle import Handle
from holdfast.features.workflows.model import (
    Addition,
    OnFailure,
    ParentResult,
    Started,
    Workflow,
    WorkflowFailure,
    WorkflowSpec,
    WorkflowStatus,
    check_on_failure,
    plan_hash,
)
from holdfast.features.workflows.parts import MAP, Callback, Mapped, Part, Planned
from holdfast.features.workflows.plan import Plan, stored_before
from holdfast.steps.handler_run import Facts
from holdfast.stores.flow import run
from holdfast.stores.namespace import StoreNamespace, call
from holdfast.stores.requests import new_id
from holdfast.stores.session import Session
from holdfast.telemetry import observers

if TYPE_CHECKING:
    from holdfast.kind import Kind, Prepared


R = TypeVar("R")

# A waiting caller is notified of the end. In case a notification is lost it also polls, with growing pauses.
FIRST_PAUSE, MAX_PAUSE = 0.05, 0.5


@dataclass(frozen=True, slots=True)
class WorkflowRun(StoreNamespace):
    """A workflow that was started. ``created`` is False if one was started before with the same key."""

    id: str
    tenant: str
    created: bool
    reason: str | None
    _caller: Session = field(repr=False, compare=False)
    planned: dict[str, Planned[Any]] = field(default_factory=dict, repr=False, compare=False)

    if not TYPE_CHECKING:
        __getattr__ = unknown_attribute("WorkflowRun")

    @overload
    def __getitem__(self, job: Planned[R]) -> Handle[R]: ...
    @overload
    def __getitem__(self, job: str) -> Handle[Any]: ...
    @overload
    def __getitem__(self, job: Callback[R]) -> Handle[R]: ...
    @overload
    def __getitem__(self, job: Part) -> list[Handle[Any]]: ...
    def __getitem__(self, job: Planned[Any] | Callback[Any] | Part | str) -> Handle[Any] | list[Handle[Any]]:
        """The handle of a planned job, also by its name (``run[a].result()``, ``run["fetch"]``). For a group or a
        sequence, also by its name: the list of handles, in the order in which the jobs were added."""
        if not self.created:
            raise Conflict(
                f"workflow {self.id} was started before, with other jobs",
                code="duplicate_key",
                fix="Read them with app.workflows.graph(run.id).",
            )
        if isinstance(job, Part):
            return [self[member] for member in job.walk()]
        if isinstance(job, Callback):
            return Handle(job.spec.id, self.tenant, True, None, self._caller, job.decode)
        if not isinstance(job, Planned | str):
            raise InvalidSetting(
                f"a run is indexed by a planned job, a group or a name, not by {type(job).__name__}",
                code="invalid_name",
                fix="Use what wf.add returned, or the name of the job.",
            )
        name = job.name if isinstance(job, Planned) else job
        planned = self.planned.get(name)
        if planned is not None:
            return Handle(planned.spec.id, self.tenant, True, None, self._caller, planned.decode)
        members = [member for member in self.planned.values() if f"{member.part.name}.".startswith(f"{name}.")]
        if not members:
            names = ", ".join(list(self.planned)[:20])
            near = get_close_matches(name, self.planned, 1)
            guess = f"Did you mean {near[0]!r}? " if near else ""
            raise NotFound(f"there is no job or group {name!r} in this workflow", fix=f"{guess}There are {names}.")
        return [self[member] for member in members]

    @operation
    def members(self, group: Part | Mapped | str) -> Program[list[Handle[Any]]]:
        """The handles of a group's jobs, also of those that ``wf.map`` added at run time."""
        name = group if isinstance(group, str) else group.name
        if name is None:
            raise InvalidSetting("members expects a group, not the whole workflow", code="invalid_name")
        ids = yield from run(self._store.workflows.members(self.id, name, self.tenant))
        decode = {job.spec.id: job.decode for job in self.planned.values()}
        return [
            Handle(job_id, self.tenant, True, None, self._caller, decode.get(job_id, lambda value: value))
            for job_id in ids
        ]

    amembers = awaited(members)

    @operation
    def workflow(self) -> Program[Workflow]:
        """The workflow as it is now."""
        return existing(self.id, (yield from run(self._store.workflows.get(self.id, self.tenant))))

    aworkflow = awaited(workflow)

    @operation
    def status(self) -> Program[WorkflowStatus]:
        """Its status: active, succeeded, failed, …"""
        return existing(self.id, (yield from run(self._store.workflows.get(self.id, self.tenant)))).status

    astatus = awaited(status)

    def wait(self, timeout: Duration | None = None) -> Workflow:
        """Block until all its jobs have ended or are held back by a failure, or raise ``WaitTimeout``."""
        notified = threading.Event()
        with self._listening(notified.set):
            for pause in self._pauses(timeout):
                notified.clear()
                workflow = self.workflow()
                if workflow.over:
                    return workflow
                notified.wait(pause)
        raise self._timed_out(timeout)

    async def await_end(self, timeout: Duration | None = None) -> Workflow:
        """The async form of ``wait``."""
        notified, loop = asyncio.Event(), asyncio.get_running_loop()

        def notify() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(notified.set)

        with self._listening(notify):
            for pause in self._pauses(timeout):
                notified.clear()
                workflow = await self.aworkflow()
                if workflow.over:
                    return workflow
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await notified.wait()
        raise self._timed_out(timeout)

    @contextlib.contextmanager
    def _listening(self, notify: Callable[[], None]) -> Iterator[None]:
        stop = self._store.listen(lambda _: notify(), lambda: ())
        try:
            yield
        finally:
            stop()

    def _pauses(self, timeout: Duration | None) -> Iterator[float]:
        began = time.monotonic()
        end = None if timeout is None else began + seconds(timeout, "timeout")
        pause = FIRST_PAUSE
        while True:
            self._caller.check_waiting(f"workflow {self.id}", began)
            remaining = MAX_PAUSE if end is None else end - time.monotonic()
            yield max(0.0, min(pause, remaining))
            if remaining <= 0:
                return
            pause = min(MAX_PAUSE, pause * 2)

    def _timed_out(self, timeout: Duration | None) -> WaitTimeout:
        return WaitTimeout(f"workflow {self.id} had not finished after {seconds(timeout or 0, 'timeout'):g} s")


class WorkflowOptions(TypedDict, total=False):
    """Options of ``app.workflow``. With ``connection``, the workflow is part of the caller's transaction there."""

    on_failure: OnFailure
    key: str
    tenant: str
    generator: str
    correlation_id: str
    connection: object


class WorkflowPlan(Plan):
    """A workflow that can be started. With a ``key`` it is started once, however often ``start`` is called."""

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
        self.scheduled_at: datetime | None = None
        """The time of the schedule that starts this workflow, in a function of ``@app.workflow``."""
        self.once = False
        """Whether a workflow that was started with this key is accepted even if its jobs differ."""
        self._run_id: str | None = None

    @operation
    def start(self) -> Program[WorkflowRun]:
        """Store the workflow in one transaction. Jobs that wait for others are claimed when those have ended.

        Raises ``Conflict`` if it was started before. With a ``key`` it returns the same run instead.
        """
        spec, store, connection = self._spec(), self._store, self._connection
        try:
            with observers.sending([node.job for node in spec.nodes], self.tenant):
                if connection is None:
                    return self._started((yield from run(store.workflows.start(spec, self.tenant))))
                flow = store.on_connection.start_workflow(spec, self.tenant)
                started = yield from call(
                    partial(store.run_on_connection, connection, flow),
                    partial(store.arun_on_connection, connection, flow),
                )
                return self._started(started)
        except Conflict as refused:
            # The database decides: a start in a transaction that was rolled back may be repeated.
            raise stored_before(self, self._run_id, refused) from None

    astart = awaited(start)

    def _spec(self) -> WorkflowSpec:
        if missing := self.names_used():
            raise InvalidSetting(f"no job {missing[0]!r} in this workflow", code="unknown_parent")
        workflow_id = new_id()
        nodes, edges = self.compiled(workflow_id, self.correlation_id, {})
        on_failure = self.failure_policy or "skip"
        callbacks = self.called_back(workflow_id, self.correlation_id)
        return WorkflowSpec(
            id=workflow_id,
            kind=self.kind,
            generator=self.generator,
            enqueued_by=nodes[0].job.enqueued_by,
            source_system=self._caller.name,
            nodes=nodes,
            edges=edges,
            callbacks=callbacks,
            on_failure=on_failure,
            key=self.key,
            plan_hash=plan_hash(nodes, edges, on_failure, callbacks),
            correlation_id=self.correlation_id,
            parent_id=self._parent_id,
        )

    def _started(self, answer: Started) -> WorkflowRun:
        if answer.reason == "idempotency_conflict" and not self.once:
            raise Conflict(
                f"workflow {answer.id} was started under this key with other jobs",
                code="idempotency_conflict",
                fix="Use another key, or plan the same jobs.",
            )
        self._run_id = answer.id
        planned = {job.name: job for job in self.walk()}
        return WorkflowRun(answer.id, self.tenant, answer.created, answer.reason, self._caller, planned)


class Extension(Plan):
    """More jobs for a running workflow: ``more = await ctx.workflow(); more.add(resize, page); await more.astart()``.

    ``after`` also takes names of jobs that are in it. Refused if the workflow has ended.
    """

    def __init__(self, client: Session, tenant: str, prepare: Callable[..., Prepared[Any]], workflow: Workflow) -> None:
        super().__init__(client, tenant, prepare, workflow.kind, workflow.on_failure)
        self.workflow = workflow

    @operation
    def start(self) -> Program[WorkflowRun]:
        """Store the new jobs in one transaction."""
        return (yield from self._extend(None))

    astart = awaited(start)

    @operation
    def behind(self, job_id: str) -> Program[WorkflowRun]:
        """Store the new jobs. Jobs that wait for this job of the workflow also wait for the new ones."""
        return (yield from self._extend(job_id))

    abehind = awaited(behind)

    def _extend(self, behind: str | None) -> Program[WorkflowRun]:
        workflows, workflow = self._store.workflows, self.workflow
        known = yield from run(workflows.named(workflow.id, self.names_used(), self.tenant))
        nodes, edges = self.compiled(workflow.id, workflow.correlation_id, known)
        callbacks = self.called_back(workflow.id, workflow.correlation_id)
        more = Addition(nodes, edges, callbacks, behind)
        with observers.sending([node.job for node in nodes], self.tenant):
            actor = nodes[0].job.enqueued_by
            return self._added((yield from run(workflows.extend(workflow.id, more, actor, self.tenant))))

    def _added(self, answer: Started) -> WorkflowRun:
        if answer.reason == "not_found":
            raise not_found(answer.id)
        if answer.reason is not None:
            reasons = {"workflow_over": "is over", "name_taken": "has a job of one of these names already"}
            raise Conflict(f"workflow {answer.id} {reasons[answer.reason]}", code=answer.reason)
        planned = {job.name: job for job in self.walk()}
        return WorkflowRun(answer.id, self.tenant, True, None, self._caller, planned)


def plan_workflow(
    client: Session,
    prepare: Callable[..., Prepared[Any]],
    kind: str,
    options: WorkflowOptions,
    running: Facts | None = None,
) -> WorkflowPlan:
    """Begin a plan. ``running`` is the job whose handler plans it, if any: it becomes the parent."""
    check_options(options, WorkflowOptions.__annotations__)
    given: dict[str, Any] = {**options}
    tenant = check_name(given.pop("tenant", running.tenant if running else client.tenant), "tenant")
    if given.get("on_failure") is not None:
        check_on_failure(given["on_failure"])
    if running is not None and running.tenant == tenant:
        given["parent_id"] = running.job_id
        given.setdefault("correlation_id", running.correlation_id or running.job_id)
    return WorkflowPlan(client, tenant, prepare, kind, **given)


def extend_workflow(client: Session, prepare: Callable[..., Prepared[Any]], workflow_id: str, tenant: str) -> Extension:
    workflow = client.run(client.store.workflows.get(workflow_id, tenant))
    return Extension(client, tenant, prepare, existing(workflow_id, workflow))


def existing(id: str, workflow: Workflow | None) -> Workflow:
    if workflow is None:
        raise not_found(id)
    return workflow


def not_found(id: str) -> NotFound:
    return NotFound(f"no workflow {id} in this tenant", code="workflow_not_found")


async def aextend_workflow(
    client: Session, prepare: Callable[..., Prepared[Any]], workflow_id: str, tenant: str
) -> Extension:
    workflow = await client.arun(client.store.workflows.get(workflow_id, tenant))
    return Extension(client, tenant, prepare, existing(workflow_id, workflow))


class Results(Mapping[str, Any]):
    """The results of the parents by name: ``results["fetch"]``, as stored; ``results.of(fetch)`` has the kind's type.

    If a failure lets its children continue, a parent that did not succeed is among them: reading its result raises
    ``JobFailed``. ``states`` has the states of all parents.
    """

    def __init__(self, parents: Sequence[ParentResult]) -> None:
        self._parents = {parent.name or parent.job_id: parent for parent in parents}

    def __getitem__(self, name: str) -> Any:
        return result_value(self._parents[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._parents)

    def __len__(self) -> int:
        return len(self._parents)

    @property
    def states(self) -> dict[str, State]:
        return {name: parent.state for name, parent in self._parents.items()}

    @property
    def succeeded(self) -> dict[str, Any]:
        """The results of the parents that succeeded."""
        return {name: p.value for name, p in self._parents.items() if p.state is State.SUCCEEDED}

    def of(self, kind: Kind[..., R]) -> list[R]:
        """The results of the parents of this kind, in the order in which they were added."""
        decode, name = kind._signature.unpack_result, kind.name
        return [decode(result_value(parent)) for parent in self._parents.values() if parent.kind == name]

    def one(self, kind: Kind[..., R]) -> R:
        """The result of the only parent of this kind."""
        (result,) = self.of(kind)
        return result


def result_value(parent: ParentResult) -> Any:
    """The result of a job; ``JobFailed`` if it did not succeed."""
    if parent.state is not State.SUCCEEDED:
        raise JobFailed(f"parent {parent.name or parent.job_id} is {parent.state}: it has no result")
    return parent.value


class BoundResults:
    """The values that a plan binds to arguments: results of the jobs that this one waited for."""

    def __init__(self, parents: Sequence[ParentResult], failed: WorkflowFailure | None) -> None:
        self._parents = {parent.job_id: parent for parent in parents}
        self._failed = failed

    def result(self, job_id: str) -> Any:
        if job_id not in self._parents:
            raise JobFailed(f"job {job_id} is not one that this job waited for: it has no result here")
        return result_value(self._parents[job_id])

    def mapped(self, job_id: str) -> list[Any]:
        """The results of a map in the order of its items: ids follow the order in which the jobs were added."""
        self.result(job_id)  # raises if the map has not added its jobs
        name = self._parents[job_id].name
        return [result_value(parent) for parent in self._parents.values() if parent.part == name and parent.name]

    def ends(self) -> dict[str, Any]:
        maps = {parent.name: parent.job_id for parent in self._parents.values() if parent.kind == MAP}
        return {
            parent.name: self.mapped(parent.job_id) if parent.name in maps else result_value(parent)
            for parent in self._parents.values()
            if parent.name is not None and parent.part not in maps
        }

    def failure(self) -> dict[str, Any] | None:
        return None if self._failed is None else asdict(self._failed)
