"""``Plan``: a workflow that is planned but not stored yet, or jobs to add to a running one.

A plan is written as ``wf = app.workflow("publish"); a = wf.add(fetch, 7); wf.add(render, after=a); wf.start()``.
Nothing is stored before ``start``, which stores everything in one transaction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.engine.bound_results import CALLBACK_TAG, ResultOf, Source
from holdfast.engine.names import check_name
from holdfast.errors import Conflict, InvalidSetting
from holdfast.features.workflows.model import CallbackSpec, EdgeSpec, Fires, NodeSpec, OnFailure, find_cycle
from holdfast.features.workflows.parts import Callback, Edges, Part, Planned, everything, policy, source_of
from holdfast.stores.namespace import StoreNamespace
from holdfast.stores.session import Session

if TYPE_CHECKING:
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
