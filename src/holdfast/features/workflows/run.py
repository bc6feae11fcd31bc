"""``WorkflowRun``, start, extend, results of parents."""

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

from holdfast.engine.names import check_name, check_options
from holdfast.engine.operation import Program, awaited, operation
from holdfast.engine.states import State
from holdfast.engine.units import Duration, seconds
from holdfast.errors import Conflict, InvalidSetting, JobFailed, NotFound, WaitTimeout
from holdfast.features.jobs.facts import Facts
from holdfast.features.jobs.handle import Handle
from holdfast.features.workflows.map_template import MAP
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
from holdfast.features.workflows.parts import Callback, Mapped, Part, Planned
from holdfast.features.workflows.plan import Plan
from holdfast.stores.flow import run
from holdfast.stores.ids import new_id
from holdfast.stores.namespace import StoreNamespace, call
from holdfast.stores.session import Session
from holdfast.telemetry import observers

if TYPE_CHECKING:
    from holdfast.kind import Kind, Prepared


R = TypeVar("R")

FIRST_LOOK, LONGEST_PAUSE = 0.05, 0.5


@dataclass(frozen=True, slots=True)
class WorkflowRun(StoreNamespace):
    """A workflow that was started. ``created`` is False when one was started before under the same key."""

    id: str
    tenant: str
    created: bool
    reason: str | None
    _caller: Session = field(repr=False, compare=False)
    planned: dict[str, Planned[Any]] = field(default_factory=dict, repr=False, compare=False)

    @overload
    def __getitem__(self, job: Planned[R]) -> Handle[R]: ...
    @overload
    def __getitem__(self, job: str) -> Handle[Any]: ...
    @overload
    def __getitem__(self, job: Callback[R]) -> Handle[R]: ...
    @overload
    def __getitem__(self, job: Part) -> list[Handle[Any]]: ...
    def __getitem__(self, job: Planned[Any] | Callback[Any] | Part | str) -> Handle[Any] | list[Handle[Any]]:
        """The handle of a planned job, by its name as well (``run[a].result()``, ``run["fetch"]``); of a group or a
        sequence, also by its name, the list of handles, in the order in which the jobs were added."""
        if not self.created:
            raise Conflict(
                f"workflow {self.id} was started before, with other jobs",
                code="duplicate_key",
                fix="Read them with app.workflows.graph(run.id).",
            )
        if isinstance(job, Part):
            return [self[each] for each in job.walk()]
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
        members = [each for each in self.planned.values() if f"{each.part.name}.".startswith(f"{name}.")]
        if not members:
            there = ", ".join(list(self.planned)[:20])
            near = get_close_matches(name, self.planned, 1)
            guess = f"Did you mean {near[0]!r}? " if near else ""
            raise NotFound(f"there is no job or group {name!r} in this workflow", fix=f"{guess}There are {there}.")
        return [self[each] for each in members]

    @operation
    def members(self, group: Part | Mapped | str) -> Program[list[Handle[Any]]]:
        """The handles of a group's jobs, also of those that ``wf.map`` added at run time."""
        named = group if isinstance(group, str) else group.name
        if named is None:
            raise InvalidSetting("members expects a group, not the whole workflow", code="invalid_name")
        found = yield from run(self._store.workflows.members(self.id, named, self.tenant))
        decode = {each.spec.id: each.decode for each in self.planned.values()}
        return [
            Handle(job_id, self.tenant, True, None, self._caller, decode.get(job_id, lambda value: value))
            for job_id in found
        ]

    amembers = awaited(members)

    @operation
    def workflow(self) -> Program[Workflow]:
        """The workflow as it is now."""
        return found(self.id, (yield from run(self._store.workflows.get(self.id, self.tenant))))

    aworkflow = awaited(workflow)

    @operation
    def status(self) -> Program[WorkflowStatus]:
        """Its status: active, succeeded, failed, …"""
        return found(self.id, (yield from run(self._store.workflows.get(self.id, self.tenant)))).status

    astatus = awaited(status)

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
        stop = self._store.listen(lambda _: tell(), lambda: ())
        try:
            yield
        finally:
            stop()

    def _too_late(self, timeout: Duration | None) -> WaitTimeout:
        return WaitTimeout(f"workflow {self.id} had not finished after {timeout}")


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
        self.scheduled_at: datetime | None = None
        """The time of the schedule that this workflow is started for, in a function of ``@app.workflow``."""
        self.once = False
        """Whether what was started under this key is this workflow, also if its jobs were others."""

    @operation
    def start(self) -> Program[WorkflowRun]:
        """Store all of it in one transaction. Jobs that wait for others are claimed when those have ended."""
        spec, store, connection = self._spec(), self._store, self._connection
        with observers.sending([node.job for node in spec.nodes], self.tenant):
            if connection is None:
                return self._started((yield from run(store.workflows.start(spec, self.tenant))))
            flow = store.borrowed.start_workflow(spec, self.tenant)
            started = yield from call(
                partial(store.run_borrowed, connection, flow), partial(store.arun_borrowed, connection, flow)
            )
            return self._started(started)

    astart = awaited(start)

    def _spec(self) -> WorkflowSpec:
        if missing := self.names_used():
            raise InvalidSetting(f"no job {missing[0]!r} in this workflow", code="unknown_parent")
        flow_id = new_id()
        nodes, edges = self.compiled(flow_id, self.correlation_id, {})
        on_failure = self.failure_policy or "skip"
        callbacks = self.called_back(flow_id, self.correlation_id)
        return WorkflowSpec(
            id=flow_id,
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
        planned = {job.name: job for job in self.walk()}
        return WorkflowRun(answer.id, self.tenant, answer.created, answer.reason, self._caller, planned)


class Extension(Plan):
    """More jobs for a running workflow: ``more = await ctx.workflow(); more.add(resize, page); await more.astart()``.

    ``after`` also takes names of jobs that are in it. Refused when the workflow is over.
    """

    def __init__(self, client: Session, tenant: str, prepare: Callable[..., Prepared[Any]], workflow: Workflow) -> None:
        super().__init__(client, tenant, prepare, workflow.kind, workflow.on_failure)
        self.workflow = workflow

    @operation
    def start(self) -> Program[WorkflowRun]:
        """Store the new jobs in one transaction."""
        return (yield from self._adding(None))

    astart = awaited(start)

    @operation
    def behind(self, job_id: str) -> Program[WorkflowRun]:
        """Store the new jobs; those that wait for this job of the workflow wait for the new ones, too."""
        return (yield from self._adding(job_id))

    abehind = awaited(behind)

    def _adding(self, behind: str | None) -> Program[WorkflowRun]:
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
            raise missing(answer.id)
        if answer.reason is not None:
            words = {"workflow_over": "is over", "name_taken": "has a job of one of these names already"}
            raise Conflict(f"workflow {answer.id} {words[answer.reason]}", code=answer.reason)
        planned = {job.name: job for job in self.walk()}
        return WorkflowRun(answer.id, self.tenant, True, None, self._caller, planned)


def plan_workflow(
    client: Session,
    prepare: Callable[..., Prepared[Any]],
    kind: str,
    options: WorkflowOptions,
    running: Facts | None = None,
) -> WorkflowPlan:
    """``running`` is the job that plans it, if one does: its parent (DP-10)."""
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
    return Extension(client, tenant, prepare, found(workflow_id, workflow))


def found(id: str, workflow: Workflow | None) -> Workflow:
    if workflow is None:
        raise missing(id)
    return workflow


def missing(id: str) -> NotFound:
    return NotFound(f"no workflow {id} in this tenant", code="workflow_not_found")


async def aextend_workflow(
    client: Session, prepare: Callable[..., Prepared[Any]], workflow_id: str, tenant: str
) -> Extension:
    workflow = await client.arun(client.store.workflows.get(workflow_id, tenant))
    return Extension(client, tenant, prepare, found(workflow_id, workflow))


class Results(Mapping[str, Any]):
    """By the name of the parent: ``results["fetch"]``, as it was stored; ``results.of(fetch)`` has the kind's own type.

    A parent that did not succeed is among them (where a failure lets its children go on): to ask for its result raises
    ``JobFailed``, and ``states`` tells beforehand.
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
        """Of those that did."""
        return {name: p.value for name, p in self._parents.items() if p.state is State.SUCCEEDED}

    def of(self, kind: Kind[..., R]) -> list[R]:
        """What the parents of this kind returned, in the order in which they were added."""
        decode, name = kind._signature.unpack_result, kind.name
        return [decode(result_value(parent)) for parent in self._parents.values() if parent.kind == name]

    def one(self, kind: Kind[..., R]) -> R:
        """What the only parent of this kind returned."""
        (found,) = self.of(kind)
        return found


def result_value(parent: ParentResult) -> Any:
    """What a job returned; ``JobFailed`` if it did not succeed."""
    if parent.state is not State.SUCCEEDED:
        raise JobFailed(f"parent {parent.name or parent.job_id} is {parent.state}: it has no result")
    return parent.value


class BoundResults:
    """The values that a plan binds to arguments, of the jobs that this one waited for."""

    def __init__(self, parents: Sequence[ParentResult], failed: WorkflowFailure | None) -> None:
        self._parents = {parent.job_id: parent for parent in parents}
        self._failed = failed

    def result(self, job_id: str) -> Any:
        if job_id not in self._parents:
            raise JobFailed(f"job {job_id} is not one that this job waited for: it has no result here")
        return result_value(self._parents[job_id])

    def mapped(self, job_id: str) -> list[Any]:
        """In the order of the items: ids follow the order in which the jobs were added."""
        self.result(job_id)  # whether it has added them
        name = self._parents[job_id].name
        return [result_value(each) for each in self._parents.values() if each.part == name and each.name]

    def ends(self) -> dict[str, Any]:
        maps = {each.name: each.job_id for each in self._parents.values() if each.kind == MAP}
        return {
            each.name: self.mapped(each.job_id) if each.name in maps else result_value(each)
            for each in self._parents.values()
            if each.name is not None and each.part not in maps
        }

    def failure(self) -> dict[str, Any] | None:
        return None if self._failed is None else asdict(self._failed)
