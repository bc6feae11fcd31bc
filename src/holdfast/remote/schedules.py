"""``client.schedules``, ``templates``, ``workflows``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Unpack

from holdfast.engine.operation import Items, awaited, awaited_stream, operation, stream
from holdfast.errors import InvalidSetting
from holdfast.features.schedules.model import Schedule, ScheduleRun, Template
from holdfast.features.schedules.recurrence import Coming
from holdfast.features.workflows.model import Graph, OnFailure, Swept, Workflow
from holdfast.remote.handle import (
    EnqueueResponse,
    JobHandle,
    JobOptions,
    check_aware,
    new_key,
    prepare_call,
    with_policies,
)
from holdfast.remote.http_requests import Steps, delete, get, patch, post, put, segment, without_none
from holdfast.remote.responses import read
from holdfast.remote.runners import RemoteNamespace, Runner

_Schedules = list[Schedule]  # inside the classes, ``list`` is a method
_Templates = list[Template]
_Fires = list[ScheduleRun]
_Times = list[Coming]


class Schedules(RemoteNamespace):
    @operation
    def add(self, /, name: str, timing: str, **definition: Any) -> Steps[Schedule]:
        """Add a schedule:
        ``client.schedules.add("nightly", "0 3 * * *", kind="report", tz="Europe/Paris", payload={…})``."""
        body = {"name": name, "timing": timing, **without_none(**with_policies(definition))}
        return (yield from self._read(Schedule, post("/schedules", body)))

    aadd = awaited(add)

    @operation
    def edit(self, /, name: str, **changes: Any) -> Steps[Schedule]:
        """Change the given settings; None removes an option."""
        return (yield from self._read(Schedule, patch(_schedule(name), with_policies(changes))))

    aedit = awaited(edit)

    @operation
    def pause(self, name: str) -> Steps[Schedule]:
        return (yield from self._read(Schedule, post(f"{_schedule(name)}/pause")))

    apause = awaited(pause)

    @operation
    def resume(self, name: str) -> Steps[Schedule]:
        return (yield from self._read(Schedule, post(f"{_schedule(name)}/resume")))

    aresume = awaited(resume)

    @operation
    def remove(self, name: str) -> Steps[None]:
        """Delete a schedule. Its jobs and history stay; its name can be used again."""
        yield from self._request(delete(_schedule(name)))

    aremove = awaited(remove)

    @operation
    def run(self, name: str, *, anyway: bool = False) -> Steps[str]:
        """Run it now, in addition to its times. Returns the id of the job."""
        path = f"{_schedule(name)}/run-now"
        request = dataclasses.replace(post(path), query=(("anyway", "true"),) if anyway else ())
        return read(dict[str, str], (yield from self._request(request)))["job_id"]

    arun = awaited(run)

    @operation
    def get(self, name: str) -> Steps[Schedule]:
        return (yield from self._read(Schedule, get(_schedule(name))))

    aget = awaited(get)

    @operation
    def list(self, *, state: str | None = None, kind: str | None = None) -> Steps[_Schedules]:
        return (yield from self._all(Schedule, "/schedules", limit=200, state=state, kind=kind))

    alist = awaited(list)

    @operation
    def history(self, name: str, *, limit: int = 50, before: datetime | None = None) -> Steps[_Fires]:
        """Its past times and their outcomes, newest first."""
        check_aware(before, "before")
        return (yield from self._items(ScheduleRun, get(f"{_schedule(name)}/history", limit=limit, before=before)))

    ahistory = awaited(history)

    @operation
    def preview(self, name: str, count: int = 10) -> Steps[_Times]:
        """Its next times in its time zone, with a warning where a clock change affects one."""
        return (yield from self._items(Coming, get(f"{_schedule(name)}/next", count=count)))

    apreview = awaited(preview)


class Templates(RemoteNamespace):
    def __init__(self, runner: Runner, version: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(runner)
        self._version, self._options = version, dict(options or {})

    @operation
    def set(self, /, name: str, kind: str, payload: Mapping[str, Any] | None = None, **options: Any) -> Steps[Template]:
        """Create a template or a new version of it. Older versions stay. Repeating the same request changes
        nothing."""
        body = without_none(kind=kind, payload=None if payload is None else dict(payload), **with_policies(options))
        return (yield from self._read(Template, put(_template(name), body)))

    aset = awaited(set)

    @operation
    def get(self, name: str, version: int | None = None) -> Steps[Template]:
        return (yield from self._read(Template, get(_template(name), version=version)))

    aget = awaited(get)

    @operation
    def list(self) -> Steps[_Templates]:
        return (yield from self._all(Template, "/templates", limit=200))

    alist = awaited(list)

    @operation
    def versions(self, name: str) -> Steps[_Templates]:
        """List the versions of a template, newest first, including removals."""
        return (yield from self._all(Template, f"{_template(name)}/versions", limit=200))

    aversions = awaited(versions)

    @operation
    def remove(self, name: str) -> Steps[None]:
        """Remove a template from use. Its versions stay readable."""
        yield from self._request(delete(_template(name)))

    aremove = awaited(remove)

    def using(self, *, version: int | None = None, **options: Any) -> Templates:
        """The templates with another version than the newest, or with options, for ``enqueue``."""
        return Templates(self._runner, self._version if version is None else version, {**self._options, **options})

    @operation
    def enqueue(self, name: str, /, **arguments: Any) -> Steps[JobHandle]:
        """Enqueue a job from a template; ``arguments`` are added to its payload."""
        key = self._options.get("key") or new_key()
        body = without_none(arguments=arguments, version=self._version, **{**with_policies(self._options), "key": key})
        request = post(f"{_template(name)}/enqueue", body, repeatable=True)
        response = yield from self._read(EnqueueResponse, request)
        return JobHandle(self._runner, response if "key" in self._options else response.as_created())

    aenqueue = awaited(enqueue)


def _schedule(name: str) -> str:
    return f"/schedules/{segment(name)}"


def _template(name: str) -> str:
    return f"/templates/{segment(name)}"


@dataclass(frozen=True, slots=True)
class StartedWorkflow:
    """``jobs`` has the ids of its jobs by name; empty if the workflow was started before."""

    id: str
    tenant: str
    created: bool
    reason: str | None = None
    jobs: dict[str, str] = field(default_factory=dict)


class Workflows(RemoteNamespace):
    @operation
    def list(
        self, *, kind: str | None = None, over: bool | None = None, before: str | None = None, limit: int = 50
    ) -> Steps[list[Workflow]]:
        """Workflows, newest first: all, or only finished or active ones (``over``)."""
        return (yield from self._limited(Workflow, "/workflows", limit, before, kind=kind, over=over))

    alist = awaited(list)

    @stream
    def every(self, *, kind: str | None = None, over: bool | None = None) -> Items[Workflow]:
        """All workflows, read page by page."""
        yield from self._stream(Workflow, "/workflows", kind=kind, over=over)

    aevery = awaited_stream(every)

    @operation
    def graph(self, id: str) -> Steps[Graph]:
        """A workflow with its jobs and their dependencies."""
        return (yield from self._read(Graph, get(f"/workflows/{segment(id)}")))

    agraph = awaited(graph)

    @operation
    def cancel(self, id: str, *, reason: str | None = None) -> Steps[Swept]:
        """Cancel all its unfinished jobs, including running ones."""
        return (yield from self._read(Swept, post(f"/workflows/{segment(id)}/cancel", without_none(reason=reason))))

    acancel = awaited(cancel)

    @operation
    def resume(self, id: str, *, reason: str | None = None) -> Steps[Swept]:
        """Resume a workflow by redriving its dead letters. Dependent jobs continue once they succeed."""
        return (yield from self._read(Swept, post(f"/workflows/{segment(id)}/resume", without_none(reason=reason))))

    aresume = awaited(resume)

    def extend(self, id: str) -> WorkflowPlan:
        """Add jobs to a running workflow: ``more = client.workflows.extend(id); more.add(…); more.start()``."""
        return WorkflowPlan(self._runner, f"/workflows/{segment(id)}/jobs", {})


class WorkflowPlan(RemoteNamespace):
    """``wf = client.workflow("publish"); a = wf.add("fetch", {"n": 7}); wf.add("render", after=a); wf.start()``."""

    def __init__(self, runner: Runner, path: str, options: dict[str, Any]) -> None:
        super().__init__(runner)
        self._path, self._options = path, options
        self._nodes: dict[str, dict[str, Any]] = {}
        self._edges: list[dict[str, Any]] = []
        self._callbacks: list[dict[str, Any]] = []

    def add(
        self,
        kind: str,
        payload: Any = None,
        *,
        name: str | None = None,
        after: str | Iterable[str] = (),
        on_failure: OnFailure | None = None,
        **options: Unpack[JobOptions],
    ) -> str:
        """Add a job and return its name, which others use as ``after``. The default name is the kind and a number."""
        call = prepare_call(kind, payload, options)
        name = name or f"{kind}-{len(self._nodes) + 1}"
        if name in self._nodes:
            raise InvalidSetting(f"job {name!r} already exists in this workflow", code="duplicate_name")
        self._nodes[name] = {"name": name, **call.body, **({} if call.own else {"key": call.key})}
        for parent in (after,) if isinstance(after, str) else after:
            self._edges.append(without_none(parent=parent, child=name, on_failure=on_failure))
        return name

    def on_success(self, kind: str, payload: dict[str, Any] | None = None, *, step: str | None = None) -> None:
        """Create a job once the workflow, or the job named ``step``, has succeeded. Its payload also has ``result``."""
        self._callbacks.append(without_none(fires="success", kind=kind, payload=payload, step=step))

    def on_failure(self, kind: str, payload: dict[str, Any] | None = None, *, step: str | None = None) -> None:
        """Create a job once the workflow, or the job named ``step``, has failed. Its payload also has ``failure``."""
        self._callbacks.append(without_none(fires="failure", kind=kind, payload=payload, step=step))

    @operation
    def start(self) -> Steps[StartedWorkflow]:
        """Create all its jobs in one transaction. With a key it is started once, even if the request is repeated."""
        body = {**self._options, "nodes": [*self._nodes.values()], "edges": self._edges}
        body |= {"callbacks": self._callbacks} if self._callbacks else {}
        request = post(self._path, body, repeatable="key" in self._options)
        return (yield from self._read(StartedWorkflow, request))

    astart = awaited(start)


def new_plan(runner: Runner, kind: str, key: str | None, **options: Any) -> WorkflowPlan:
    return WorkflowPlan(runner, "/workflows", without_none(kind=kind, key=key or new_key(), **options))
