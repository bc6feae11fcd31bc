"""Planning a workflow: ``wf = app.workflow("publish"); a = wf.add(fetch, 7); wf.add(render, after=a); wf.start()``.

Nothing is stored before ``start``, and then everything is, in one transaction. Whoever plans holds handles: ``after``
takes those of jobs and of groups, and names of jobs that are in the workflow already.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.client import Client
from holdfast.engine.names import check_name
from holdfast.errors import InvalidSetting
from holdfast.features.workflows.model import EdgeSpec, NodeSpec, OnFailure, find_cycle
from holdfast.workflows.edges import Edges
from holdfast.workflows.parts import Part, everything, policy

if TYPE_CHECKING:
    from holdfast.kind import Prepared

MOST_EDGES = 200_000
NAME_LIMIT = 200


class Plan(Part):
    """The whole: what ``app.workflow`` and ``ctx.workflow`` begin. ``prepare`` makes a job of a kind's name."""

    def __init__(
        self,
        client: Client,
        tenant: str,
        prepare: Callable[..., Prepared[Any]],
        kind: str,
        on_failure: OnFailure | None,
    ) -> None:
        self._names: set[str] = set()
        self._parts: set[str] = set()
        self._prepare = prepare
        self.client = client
        self.tenant = tenant
        self.kind = kind
        self.on_failure_given = on_failure is not None
        super().__init__(None, None, "graph", on_failure or "skip")

    # --- what parts ask of it ---

    @property
    def plan(self) -> Plan:
        return self

    def prepared(self, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Prepared[Any]:
        if isinstance(call, str):
            prepared: Prepared[Any] = self._prepare(call, args, kwargs)
        elif hasattr(call, "spec"):
            prepared = call
        else:
            prepared = call.prepare(*args, **kwargs)
        spec = prepared.spec
        if spec.key is not None or spec.content_key is not None:
            raise InvalidSetting(
                "a job of a workflow has no key of its own, and is no duplicate of another",
                code="conflicting_options",
                fix="Give the workflow a key: app.workflow(…, key=…).",
            )
        if prepared.tenant != self.tenant or prepared.connection is not None:
            raise InvalidSetting("tenant and connection are the workflow's, not a job's", code="conflicting_options")
        return prepared

    def new_name(self, name: str | None, kind: str, part: Part) -> str:
        prefix = "" if part.name is None else f"{part.name}."
        if name is None:
            label = self.free(f"{prefix}{kind}")
        else:
            label = f"{prefix}{check_name(name, 'name of the job', limit=NAME_LIMIT)}"
            if label in self._names:
                raise InvalidSetting(f"there is a job {label!r} in this workflow already", code="duplicate_name")
        self._names.add(label)
        return label

    def new_part(self, name: str, part: Part) -> str:
        check_name(name, "name of the group", limit=NAME_LIMIT)
        if "." in name:
            raise InvalidSetting("the name of a group has no dots: they tell what is inside", code="invalid_name")
        label = name if part.name is None else f"{part.name}.{name}"
        if label in self._parts:
            raise InvalidSetting(f"there is a group {label!r} in this workflow already", code="duplicate_name")
        self._parts.add(label)
        return label

    def free(self, wanted: str) -> str:
        """The name itself, or with the first number that makes it another one."""
        if wanted not in self._names and wanted not in self._parts:
            return wanted
        number = 2
        while f"{wanted}-{number}" in self._names or f"{wanted}-{number}" in self._parts:
            number += 1
        return f"{wanted}-{number}"

    # --- working it out ---

    def compiled(
        self, workflow_id: str, correlation_id: str | None, known: dict[str, str]
    ) -> tuple[tuple[NodeSpec, ...], tuple[EdgeSpec, ...]]:
        """The nodes and edges; ``known`` has the ids of jobs that are in the workflow already, by name."""
        jobs = list(self.walk())
        if not jobs:
            raise InvalidSetting("there is no job in it", code="empty_workflow")
        parents = Edges(self.kind).parents(jobs)
        cycle = find_cycle({name: [p for p in found if p in parents] for name, found in parents.items()})
        if cycle is not None:
            raise InvalidSetting(f"the jobs wait for one another: {' -> '.join(cycle)}", code="workflow_cycle")
        if sum(map(len, parents.values())) > MOST_EDGES:
            raise InvalidSetting(
                f"there are more than {MOST_EDGES:,} dependencies",
                code="too_many_dependencies",
                fix="Between two large groups put one job: all of the first before it, all of the second after it.",
            )
        ids = known | {job.name: job.spec.id for job in jobs}
        edges = []
        for job in jobs:
            for parent, on_failure in parents[job.name].items():
                if parent not in ids:
                    raise InvalidSetting(f"there is no job {parent!r} in this workflow", code="unknown_parent")
                edges.append(EdgeSpec(job.spec.id, ids[parent], on_failure))
        waited = {edge.parent for edge in edges}
        nodes = []
        for job in jobs:
            spec = job.spec
            correlation = spec.correlation_id or correlation_id or (None if spec.parent_id else workflow_id)
            spec = dataclasses.replace(spec, workflow_id=workflow_id, correlation_id=correlation, alike=None)
            fatal = spec.id not in waited and policy(job.part) == "stop"
            nodes.append(NodeSpec(spec, job.name, job.part.name, fatal))
        return tuple(nodes), tuple(edges)

    def names_used(self) -> list[str]:
        """Names of jobs that must be in the workflow already."""
        links = [link for member in everything(self) for link in member.links]
        return sorted({link.target for link in links if isinstance(link.target, str)} - self._names)
