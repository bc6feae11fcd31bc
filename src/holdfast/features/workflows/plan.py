"""``Plan``: a workflow that is planned but not stored yet, or jobs to add to a running one.

A plan is written as ``wf = app.workflow("publish"); a = wf.add(fetch, 7); wf.add(render, after=a); wf.start()``.
Nothing is stored before ``start``, which stores everything in one transaction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from holdfast.engine.bound_results import CALLBACK_TAG, RESULT_MARK, ResultOf, Source, rebound
from holdfast.engine.names import check_name
from holdfast.engine.outcome import Reject
from holdfast.errors import Conflict, InvalidSetting
from holdfast.features.workflows.model import CallbackSpec, EdgeSpec, Fires, NodeSpec, OnFailure, find_cycle
from holdfast.features.workflows.parts import Callback, Link, Part, Planned, source_of, with_options
from holdfast.stores.namespace import StoreNamespace
from holdfast.stores.requests import new_id
from holdfast.stores.session import Session

if TYPE_CHECKING:
    from holdfast.context import Context
    from holdfast.kind import Kind, Prepared


MOST_EDGES = 200_000
NAME_LIMIT = 200


class Plan(Part, StoreNamespace):
    """The plan that ``app.workflow`` and ``ctx.workflow`` return. ``prepare`` makes a job from the name of a kind."""

    def __init__(
        self,
        client: Session,
        tenant: str,
        prepare: Callable[..., Prepared[Any]],
        kind: str,
        on_failure: OnFailure | None,
    ) -> None:
        self._names: set[str] = set()
        self._parts: set[str] = set()
        self._prepare = prepare
        self._caller: Session = client
        self.tenant = tenant
        self.kind = kind
        self.on_failure_given = on_failure is not None
        self.callbacks: list[Callback[Any]] = []
        super().__init__(None, None, "graph", on_failure or "skip")

    def on_success(self, call: Kind[..., Any] | str, *args: Any, **kwargs: Any) -> Callback[Any]:
        """Run a job once the whole workflow has succeeded: ``wf.on_success(announce, channel="news")`` calls
        ``announce({"<name>": <result>, …}, channel="news")`` with the results of the jobs that no other waits for."""
        return self.callback("success", None, call, args, kwargs)

    def on_failure(self, call: Kind[..., Any] | str, *args: Any, **kwargs: Any) -> Callback[Any]:
        """Run a job once the workflow has ended with a failure: ``wf.on_failure(alert)`` calls
        ``alert(<WorkflowFailure>)``, which names the first job that failed with its error, and the others."""
        return self.callback("failure", None, call, args, kwargs)

    # --- used by parts ---

    def callback(
        self, fires: Fires, step: Planned[Any] | None, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callback[Any]:
        """Add a callback. The result or the failure is its first argument; a kind that is given by name gets it as the
        key ``result`` or ``failure``. A kind without parameters gets no argument."""
        source: Source = (
            {"failure": True} if fires == "failure" else {"ends": True} if step is None else source_of(step)
        )
        if isinstance(call, str):
            payload = {**(args[0] if args else {}), ("failure" if fires == "failure" else "result"): ResultOf(source)}
            args, kwargs = (payload,), {}
        elif not hasattr(call, "parameters"):
            raise InvalidSetting(
                f"a callback expects a kind, got {type(call).__name__}",
                code="invalid_callback",
                fix="Pass the kind and its other arguments: wf.on_failure(alert, channel).",
            )
        elif call.parameters:
            args = (ResultOf(source), *args)
        prepared = self.prepared(call, args, kwargs)
        # Not a child of the job that plans it: children of a workflow's job join that workflow.
        tags = (*prepared.spec.tags, CALLBACK_TAG)
        spec = dataclasses.replace(prepared.spec, parent_id=None, workflow_id=None, tags=tags, alike=None)
        callback = Callback(fires, step, spec, prepared.decode)
        self.callbacks.append(callback)
        return callback

    @property
    def plan(self) -> Plan:
        return self

    def copy_into(self, target: Part) -> None:
        """Copy its jobs, parts, links and callbacks into a part, with new ids and names."""
        twins: dict[int, Planned[Any] | Part] = {id(self): target}

        def copy(here: Part, there: Part) -> None:
            for member in here.members:
                if isinstance(member, Part):
                    label = there.plan.new_part((member.name or "").rpartition(".")[2], there)
                    part = Part(there, label, member.mode, member.failure_policy)
                    twins[id(member)] = part
                    there.members.append(part)
                    copy(member, part)
                else:
                    spec = dataclasses.replace(member.spec, id=new_id())
                    short = member.name.rpartition(".")[2]
                    twin = type(member)(
                        there.plan.new_name(short, spec.kind, there),
                        there,
                        spec,
                        member.decode,
                        [],
                        member.failure_policy,
                    )
                    twins[id(member)] = twin
                    there.members.append(twin)

        copy(self, target)
        renamed = {old.spec.id: new.spec.id for old, new in _twins(self, twins)}
        for _, twin in _twins(self, twins):
            if RESULT_MARK in twin.spec.payload:
                twin.spec.payload = rebound(twin.spec.payload, renamed)
        for callback in self.callbacks:
            step = None if callback.step is None else twins.get(id(callback.step))
            if not isinstance(step, Planned):
                raise InvalidSetting(
                    "a workflow with callbacks of its own cannot be included in another",
                    code="conflicting_options",
                    fix="Add the callbacks to its jobs, or to the outer workflow.",
                )
            spec = dataclasses.replace(callback.spec, id=new_id(), payload=rebound(callback.spec.payload, renamed))
            target.plan.callbacks.append(Callback(callback.fires, step, spec, callback.decode))
        for member in everything(self):
            twins[id(member)].links = [
                Link(link.target if isinstance(link.target, str) else twins[id(link.target)], link.on_failure)
                for link in member.links
            ]

    def prepared(self, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Prepared[Any]:
        if isinstance(call, str):
            prepared: Prepared[Any] = self._prepare(call, args, kwargs)
        elif hasattr(call, "spec") and hasattr(call, "connection"):
            prepared = call
        elif hasattr(call, "prepare"):
            prepared = call.prepare(*args, **kwargs)
        else:
            raise _not_a_call(call)
        spec = prepared.spec
        if spec.key is not None or spec.content_key is not None:
            raise InvalidSetting(
                "a job of a workflow cannot have its own key or dedupe",
                code="conflicting_options",
                fix="Pass a key to the workflow: app.workflow(…, key=…).",
            )
        if prepared.tenant != self.tenant or prepared.connection is not None:
            raise InvalidSetting(
                "tenant and connection belong to the workflow, not to a job", code="conflicting_options"
            )
        return prepared

    def new_name(self, name: str | None, kind: str, part: Part) -> str:
        prefix = "" if part.name is None else f"{part.name}."
        if name is None:
            label = self.free(f"{prefix}{kind}")
        else:
            label = f"{prefix}{check_name(name, 'name of the job', limit=NAME_LIMIT)}"
            if label in self._names:
                raise InvalidSetting(f"job {label!r} already exists in this workflow", code="duplicate_name")
        self._names.add(label)
        return label

    def new_part(self, name: str, part: Part) -> str:
        check_name(name, "name of the group", limit=NAME_LIMIT)
        if "." in name:
            raise InvalidSetting("a group's name must not contain dots", code="invalid_name")
        label = name if part.name is None else f"{part.name}.{name}"
        if label in self._parts:
            raise InvalidSetting(f"group {label!r} already exists in this workflow", code="duplicate_name")
        self._parts.add(label)
        return label

    def free(self, wanted: str) -> str:
        """The name, with a number appended if it is taken."""
        if wanted not in self._names and wanted not in self._parts:
            return wanted
        number = 2
        while f"{wanted}-{number}" in self._names or f"{wanted}-{number}" in self._parts:
            number += 1
        return f"{wanted}-{number}"

    # --- compiling ---

    def compiled(
        self, workflow_id: str, correlation_id: str | None, known: dict[str, str]
    ) -> tuple[tuple[NodeSpec, ...], tuple[EdgeSpec, ...]]:
        """The nodes and edges; ``known`` has the ids of jobs that are already in the workflow, by name."""
        jobs = list(self.walk())
        if not jobs:
            raise InvalidSetting(
                f"workflow {self.kind!r} has no jobs", code="empty_workflow", fix="Add jobs with wf.add(…)."
            )
        parents = Edges(self.kind).parents(jobs)
        cycle = find_cycle({name: [p for p in waits_for if p in parents] for name, waits_for in parents.items()})
        if cycle is not None:
            raise InvalidSetting(f"circular dependency: {' -> '.join(cycle)}", code="workflow_cycle")
        if sum(map(len, parents.values())) > MOST_EDGES:
            raise InvalidSetting(
                f"more than {MOST_EDGES:,} dependencies",
                code="too_many_dependencies",
                fix="Put one job between two large groups: after the first group and before the second.",
            )
        ids = known | {job.name: job.spec.id for job in jobs}
        edges = []
        for job in jobs:
            for parent, on_failure in parents[job.name].items():
                if parent not in ids:
                    raise InvalidSetting(f"no job {parent!r} in this workflow", code="unknown_parent")
                edges.append(EdgeSpec(job.spec.id, ids[parent], on_failure))
        with_children = {edge.parent for edge in edges}
        nodes = []
        for job in jobs:
            spec = job.spec
            correlation = spec.correlation_id or correlation_id or (None if spec.parent_id else workflow_id)
            spec = dataclasses.replace(spec, workflow_id=workflow_id, correlation_id=correlation, alike=None)
            fatal = spec.id not in with_children and policy(job.part) == "stop"
            nodes.append(NodeSpec(spec, job.name, job.part.name, fatal))
        return tuple(nodes), tuple(edges)

    def called_back(self, workflow_id: str, correlation_id: str | None) -> tuple[CallbackSpec, ...]:
        """The callbacks, as they are stored."""
        specs = tuple(callback.stored() for callback in self.callbacks)
        for spec in specs:
            spec.job.correlation_id = spec.job.correlation_id or correlation_id or workflow_id
        return specs

    def names_used(self) -> list[str]:
        """Names in links that must be of jobs already in the workflow."""
        links = [link for member in everything(self) for link in member.links]
        return sorted({link.target for link in links if isinstance(link.target, str)} - self._names)


def stored_before(plan: Plan, run_id: str | None, refused: Conflict) -> Conflict:
    """The error for a plan with jobs that the database has already. ``run_id`` is the earlier run of the plan."""
    if refused.code != "already_exists":
        return refused
    if run_id is None:
        return Conflict(
            f"workflow {plan.kind!r} has a prepared job that was used before",
            code="already_exists",
            fix="Add each prepared job once, or pass the kind and its arguments: wf.add(fetch, 1).",
        )
    return Conflict(
        f"workflow {plan.kind!r} was started already, as {run_id}",
        code="already_exists",
        fix="Use the run that the first start returned, or plan another workflow: app.workflow(…). With a key, "
        "app.workflow(…, key=…), each start returns the same run.",
    )


def _not_a_call(call: object) -> InvalidSetting:
    if hasattr(call, "aresult"):  # a Handle, which this feature cannot import
        what, fix = "a handle", "That job is enqueued already. Plan a new one: wf.add(fetch, 1)."
    elif isinstance(call, Planned | Part):
        what, fix = "a part of a workflow", "Pass it as an argument, or wait for it: wf.add(parse, page, after=page)."
    elif callable(call):
        what, fix = type(call).__name__, "Declare it with @app.job first."
    else:
        what, fix = type(call).__name__, "Pass the kind and its arguments: wf.add(fetch, 1), not wf.add(fetch(1))."
    return InvalidSetting(f"expected a kind or kind.prepare(…), got {what}", code="invalid_call", fix=fix)


def _twins(source: Part, twins: dict[int, Planned[Any] | Part]) -> Iterator[tuple[Planned[Any], Planned[Any]]]:
    for old in source.walk():
        new = twins[id(old)]
        assert isinstance(new, Planned)
        yield old, new


def everything(part: Part) -> Iterator[Planned[Any] | Part]:
    for member in part.members:
        yield member
        if isinstance(member, Part):
            yield from everything(member)


def policy(part: Part) -> OnFailure:
    """What a failure inside this part does by default."""
    outer: Part | None = part
    while outer is not None:
        if outer.failure_policy is not None:
            return outer.failure_policy
        outer = outer.outer
    return "skip"


class Edges:
    """Resolves links to dependencies between jobs: a link to a part becomes links to the jobs that end it. The result
    for a part is cached, however many jobs wait for it."""

    def __init__(self, kind: str) -> None:
        self._job_names: dict[int, set[str]] = {}
        self._last_jobs: dict[int, list[str] | None] = {}
        self._kind = kind

    def parents(self, jobs: Iterable[Planned[Any]]) -> dict[str, dict[str, OnFailure]]:
        return {job.name: self._parents_of(job, None) for job in jobs}

    def _parents_of(self, job: Planned[Any], within: Part | None) -> dict[str, OnFailure]:
        """The jobs that a job waits for: through its own links, and through those of the parts that it begins. With
        ``within``, only dependencies inside that part."""
        parents: dict[str, OnFailure] = {}
        for link in job.links:
            parents |= self._expanded(link, policy(job.part))
        part: Part | None = job.part
        while part is not None and part is not within:
            if part.links and not self._names(part) & parents.keys():
                for link in part.links:
                    parents |= self._expanded(link, policy(part.outer or part))
            part = part.outer
        return parents

    def _names(self, part: Part) -> set[str]:
        if id(part) not in self._job_names:
            self._job_names[id(part)] = {job.name for job in part.walk()}
        return self._job_names[id(part)]

    def _expanded(self, link: Link, default: OnFailure) -> dict[str, OnFailure]:
        target = link.target
        if isinstance(target, str):
            return {target: link.on_failure or default}
        on_failure = link.on_failure or target.failure_policy or default
        return dict.fromkeys([target.name] if isinstance(target, Planned) else self._ends(target), on_failure)

    def _ends(self, part: Part) -> list[str]:
        """The jobs of a part that no other job of it waits for: when they have ended, all of it has."""
        last = self._last_jobs.get(id(part), [])
        if last is None:
            name = part.name or self._kind
            raise InvalidSetting(f"circular dependency: {name} -> {name}", code="workflow_cycle")
        if id(part) not in self._last_jobs:
            self._last_jobs[id(part)] = None  # in progress: reaching this part again means a cycle
            parents: set[str] = set()
            for job in part.walk():
                parents |= self._parents_of(job, part).keys()
            last = self._last_jobs[id(part)] = [job.name for job in part.walk() if job.name not in parents]
        return last


async def expand(ctx: Context, items: Any, job: dict[str, Any], limit: int) -> int:
    """The handler of ``workflow.map``: add one job per item of a result to the running workflow, and return their
    number. The transaction that adds the jobs also makes the jobs behind the map wait for them. An attempt after a
    crash finds the jobs by their names, and adds none."""
    if not isinstance(items, list):
        raise Reject("invalid_items", f"map expects a list of items, got {type(items).__name__}")
    if len(items) > limit:
        raise Reject("too_many_items", f"{len(items):,} items, at most {limit:,} are allowed (max_items)")
    if not items:
        return 0
    store, more = ctx._run.session.store, await ctx.workflow()
    name = await ctx._run.session.arun(store.workflows.name_of(ctx.job_id, ctx.tenant))
    group = Part(more, name, "parallel", None)
    more.members.append(group)
    for number, item in enumerate(items, 1):
        prepared = ctx._child(job["kind"], ({job["argument"]: item},), {})
        spec = with_options(job, prepared.spec)
        group.add(dataclasses.replace(prepared, made=spec), name=str(number))
    try:
        await more.abehind(ctx.job_id)
    except Conflict as error:
        members = await ctx._run.session.arun(store.workflows.members(more.workflow.id, name, ctx.tenant))
        if error.code != "name_taken" or len(members) != len(items):
            raise
    return len(items)
