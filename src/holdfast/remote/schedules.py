"""``client.schedules``, ``templates``, ``workflows``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Unpack

from holdfast.engine.operation import Items, awaited, awaited_stream, operation, stream
from holdfast.engine.retry import Retry
from holdfast.errors import InvalidSetting
from holdfast.features.schedules.model import Schedule, ScheduleRun, Template
from holdfast.features.schedules.recurrence import Coming
from holdfast.features.workflows.model import Graph, OnFailure, Swept, Workflow
from holdfast.remote.handle import JobHandle, JobOptions, Placed, aware, new_key, policy, prepared
from holdfast.remote.http_requests import Steps, delete, get, given, patch, post, put, segment
from holdfast.remote.responses import read
from holdfast.remote.runners import RemoteNamespace, Runner

_Schedules = list[Schedule]  # inside the classes the word is a method
_Templates = list[Template]
_Fires = list[ScheduleRun]
_Times = list[Coming]


class Schedules(RemoteNamespace):
    @operation
    def add(self, /, name: str, timing: str, **definition: Any) -> Steps[Schedule]:
        """``client.schedules.add("nightly", "0 3 * * *", kind="report", tz="Europe/Paris", payload={…})``."""
        body = {"name": name, "timing": timing, **given(**_kept(definition))}
        return (yield from self._read(Schedule, post("/schedules", body)))

    aadd = awaited(add)

    @operation
    def edit(self, /, name: str, **changes: Any) -> Steps[Schedule]:
        """Change what is named here; an option of None is taken away."""
        return (yield from self._read(Schedule, patch(_schedule(name), _kept(changes))))

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
        yield from self._ask(delete(_schedule(name)))

    aremove = awaited(remove)

    @operation
    def run(self, name: str, *, anyway: bool = False) -> Steps[str]:
        """Run it now, besides its times. Answers the job's id."""
        path = f"{_schedule(name)}/run-now"
        request = dataclasses.replace(post(path), query=(("anyway", "true"),) if anyway else ())
        return read(dict[str, str], (yield from self._ask(request)))["job_id"]

    arun = awaited(run)

    @operation
    def get(self, name: str) -> Steps[Schedule]:
        return (yield from self._read(Schedule, get(_schedule(name))))

    aget = awaited(get)

    @operation
    def list(self, *, state: str | None = None, kind: str | None = None) -> Steps[_Schedules]:
        return (yield from self._pages(Schedule, "/schedules", limit=200, state=state, kind=kind))

    alist = awaited(list)

    @operation
    def history(self, name: str, *, limit: int = 50, before: datetime | None = None) -> Steps[_Fires]:
        """What became of its times, the latest first."""
        aware(before, "before")
        return (yield from self._items(ScheduleRun, get(f"{_schedule(name)}/history", limit=limit, before=before)))

    ahistory = awaited(history)

    @operation
    def preview(self, name: str, count: int = 10) -> Steps[_Times]:
        """Its next times in its zone, with a warning where a change of the clock touches one."""
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
        body = given(kind=kind, payload=None if payload is None else dict(payload), **_kept(options))
        return (yield from self._read(Template, dataclasses.replace(put(_template(name), body), repeatable=True)))

    aset = awaited(set)

    @operation
    def get(self, name: str, version: int | None = None) -> Steps[Template]:
        return (yield from self._read(Template, get(_template(name), version=version)))

    aget = awaited(get)

    @operation
    def list(self) -> Steps[_Templates]:
        return (yield from self._pages(Template, "/templates", limit=200))

    alist = awaited(list)

    @operation
    def versions(self, name: str) -> Steps[_Templates]:
        """List the versions of a template, newest first, including removals."""
        return (yield from self._pages(Template, f"{_template(name)}/versions", limit=200))

    aversions = awaited(versions)

    @operation
    def remove(self, name: str) -> Steps[None]:
        """Remove a template from use. Its versions stay readable."""
        yield from self._ask(delete(_template(name)))

    aremove = awaited(remove)

    def using(self, *, version: int | None = None, **options: Any) -> Templates:
        """With another version than the newest, or other options, for what is enqueued through it."""
        chosen = self._version if version is None else version
        return Templates(self._runner, chosen, {**self._options, **options})

    @operation
    def enqueue(self, name: str, /, **arguments: Any) -> Steps[JobHandle]:
        """Enqueue a job made from a template; ``arguments`` are on top of its payload."""
        key = self._options.get("key") or new_key()
        body = given(arguments=arguments, version=self._version, **{**_kept(self._options), "key": key})
        request = dataclasses.replace(post(f"{_template(name)}/enqueue", body), repeatable=True)
        placed = yield from self._read(Placed, request)
        return JobHandle(self._runner, placed if "key" in self._options else placed.as_ours())

    aenqueue = awaited(enqueue)


def _kept(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: policy(value) if isinstance(value, Retry) else value for name, value in options.items()}


def _schedule(name: str) -> str:
    return f"/schedules/{segment(name)}"


def _template(name: str) -> str:
    return f"/templates/{segment(name)}"


@dataclass(frozen=True, slots=True)
class StartedWorkflow:
    """``jobs`` has the ids of its jobs by name; nothing where it was started before."""

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
        """Newest first: all, those that are over, or the active ones."""
        return (yield from self._some(Workflow, "/workflows", limit, before, kind=kind, over=over))

    alist = awaited(list)

    @stream
    def every(self, *, kind: str | None = None, over: bool | None = None) -> Items[Workflow]:
        """All of them, read page by page as you go."""
        yield from self._every(Workflow, "/workflows", kind=kind, over=over)

    aevery = awaited_stream(every)

    @operation
    def graph(self, id: str) -> Steps[Graph]:
        """A workflow with its jobs and who waits for whom."""
        return (yield from self._read(Graph, get(f"/workflows/{segment(id)}")))

    agraph = awaited(graph)

    @operation
    def cancel(self, id: str, *, reason: str | None = None) -> Steps[Swept]:
        """Cancel all its jobs that have not ended, the running ones as well."""
        return (yield from self._read(Swept, post(f"/workflows/{segment(id)}/cancel", given(reason=reason))))

    acancel = awaited(cancel)

    @operation
    def resume(self, id: str, *, reason: str | None = None) -> Steps[Swept]:
        """Resume a workflow by redriving its dead letters. Dependent jobs continue once they succeed."""
        return (yield from self._read(Swept, post(f"/workflows/{segment(id)}/resume", given(reason=reason))))

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
        """A job, by whose name others may be ``after`` it; without one of its own it has a number beside its kind."""
        call = prepared(kind, payload, options)
        known = name or f"{kind}-{len(self._nodes) + 1}"
        if known in self._nodes:
            raise InvalidSetting(f"job {known!r} already exists in this workflow", code="duplicate_name")
        self._nodes[known] = {"name": known, **call.body, **({} if call.own else {"key": call.key})}
        for parent in (after,) if isinstance(after, str) else after:
            self._edges.append(given(parent=parent, child=known, on_failure=on_failure))
        return known

    def on_success(self, kind: str, payload: dict[str, Any] | None = None, *, step: str | None = None) -> None:
        """Create a job once the workflow, or the job named ``step``, has succeeded. Its payload also has ``result``."""
        self._callbacks.append(given(fires="success", kind=kind, payload=payload, step=step))

    def on_failure(self, kind: str, payload: dict[str, Any] | None = None, *, step: str | None = None) -> None:
        """Create a job once the workflow, or the job named ``step``, has failed. Its payload also has ``failure``."""
        self._callbacks.append(given(fires="failure", kind=kind, payload=payload, step=step))

    @operation
    def start(self) -> Steps[StartedWorkflow]:
        """All its jobs in one transaction. Under a key of its own it is started once, whatever is lost on the way."""
        body = {**self._options, "nodes": [*self._nodes.values()], "edges": self._edges}
        body |= {"callbacks": self._callbacks} if self._callbacks else {}
        request = dataclasses.replace(post(self._path, body), repeatable="key" in self._options)
        return (yield from self._read(StartedWorkflow, request))

    astart = awaited(start)


def new_plan(runner: Runner, kind: str, key: str | None, **options: Any) -> WorkflowPlan:
    return WorkflowPlan(runner, "/workflows", given(kind=kind, key=key or new_key(), **options))
