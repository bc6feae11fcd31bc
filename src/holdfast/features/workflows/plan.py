"""``Planned``, groups, edges, ``Plan.add``.

Planning a workflow: ``wf = app.workflow("publish"); a = wf.add(fetch, 7); wf.add(render, after=a); wf.start()``.

Nothing is stored before ``start``, and then everything is, in one transaction. Whoever plans holds handles: ``after``
takes those of jobs and of groups, and names of jobs that are in the workflow already.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from holdfast.engine.bound_results import RESULT_MARK, ResultOf, rebound
from holdfast.engine.job import JobSpec
from holdfast.engine.names import check_name
from holdfast.errors import InvalidSetting
from holdfast.features.workflows.model import EdgeSpec, NodeSpec, OnFailure, check_on_failure, find_cycle
from holdfast.stores.ids import new_id
from holdfast.stores.namespace import StoreNamespace
from holdfast.stores.session import Session

if TYPE_CHECKING:
    from holdfast.kind import Kind, Prepared


R = TypeVar("R")

Mode = Literal["graph", "parallel", "sequential"]


@dataclass(eq=False, slots=True)
class Planned(Generic[R]):
    """A job of a workflow, not started yet. It is what ``after`` takes, and what finds its handle in the run."""

    name: str
    part: Part = field(repr=False)
    spec: JobSpec = field(repr=False)
    decode: Callable[[Any], R] = field(repr=False)
    links: list[Link] = field(default_factory=list, repr=False)

    def wait_for(self, *others: Any, on_failure: OnFailure | None = None) -> Planned[R]:
        """Let it wait for more: for a dependency that is known only later."""
        self.links += _links(others, on_failure)
        return self


@dataclass(frozen=True, slots=True)
class Link:
    """What is waited for, and what its failure does; None as the group or the workflow says."""

    target: Planned[Any] | Part | str
    on_failure: OnFailure | None


class Part:
    """Jobs of a workflow that belong together: the whole of it, a group, a sub-workflow. What is ``after`` a part waits
    until all of it has ended."""

    def __init__(
        self, outer: Part | None, name: str | None, mode: Mode, on_failure: OnFailure | None, links: Sequence[Link] = ()
    ) -> None:
        if mode not in ("graph", "parallel", "sequential"):
            raise InvalidSetting(f"a group must be parallel or sequential, not {mode!r}", code="invalid_mode")
        self.outer = outer
        self.name = name
        self.mode = mode
        self.on_failure = None if on_failure is None else check_on_failure(on_failure)
        self.links = list(links)
        self.members: list[Planned[Any] | Part] = []

    @property
    def plan(self) -> Plan:
        """The whole that it is a part of."""
        assert self.outer is not None  # the whole itself knows better
        return self.outer.plan

    @overload
    def add(
        self,
        call: Prepared[R],
        *,
        after: Any = None,
        name: str | None = None,
        on_failure: OnFailure | None = None,
    ) -> Planned[R]: ...
    @overload
    def add(
        self,
        call: Kind[..., R],
        *args: Any,
        after: Any = None,
        name: str | None = None,
        on_failure: OnFailure | None = None,
        **kwargs: Any,
    ) -> Planned[R]: ...
    @overload
    def add(
        self,
        call: str,
        payload: Any = None,
        *,
        after: Any = None,
        name: str | None = None,
        on_failure: OnFailure | None = None,
    ) -> Planned[Any]: ...
    def add(
        self,
        call: Any,
        *args: Any,
        after: Any = None,
        name: str | None = None,
        on_failure: OnFailure | None = None,
        **kwargs: Any,
    ) -> Planned[Any]:
        """Add a job: a kind and its arguments, or ``kind.prepare(…)`` where the arguments are to be checked by their
        types, or the name of a kind and a payload. ``on_failure``: what the failure of those before means for it.

        An argument may be a planned job: ``wf.add(parse, html=fetched)`` waits for ``fetched`` and calls ``parse`` with
        its result. A group gives the list of the results of its jobs, in the order in which they were added.
        """
        sources = [each for each in (*args, *kwargs.values()) if isinstance(each, Planned | Part)]
        waited = [list(each.walk()) if isinstance(each, Part) else each for each in sources]
        if sources:
            args = tuple(map(_result_of, args))
            kwargs = {key: _result_of(value) for key, value in kwargs.items()}
        prepared = self.plan.prepared(call, args, kwargs)
        label = self.plan.new_name(name, prepared.spec.kind, self)
        previous = self.members[-1:] if self.mode == "sequential" else []
        links = [*_links(previous, self.on_failure), *_links([after, *waited], on_failure)]
        planned = Planned(label, self, prepared.spec, prepared.decode, links)
        self.members.append(planned)
        return planned

    def group(
        self,
        name: str,
        *calls: Prepared[Any],
        mode: Mode = "parallel",
        after: Any = None,
        on_failure: OnFailure | None = None,
    ) -> Part:
        """Jobs that run at once, or one after the other (SC-17). ``on_failure`` holds between them, and for what comes
        after the group unless that says otherwise."""
        part = Part(self, self.plan.new_part(name, self), mode, on_failure, _links([after], None))
        if self.mode == "sequential" and self.members:
            part.links += _links(self.members[-1:], self.on_failure)
        self.members.append(part)
        for call in calls:
            part.add(call)
        return part

    def map(
        self,
        kind: Kind[..., R],
        items: Iterable[Any],
        *,
        name: str | None = None,
        after: Any = None,
        on_failure: OnFailure | None = None,
    ) -> Part:
        """One job per item, all at once: ``pages = wf.map(render, range(10)); wf.add(bind, pages)``."""
        label = name or self.plan.free(f"map-{kind.name}".replace(".", "-"))
        part = self.group(label, after=after, on_failure=on_failure)
        for item in items:
            part.add(kind, item)
        return part

    def sequence(
        self, *calls: Prepared[Any], name: str | None = None, after: Any = None, on_failure: OnFailure | None = None
    ) -> Part:
        """Jobs one after the other: ``wf.sequence(fetch.prepare(7), render.prepare())``."""
        return self.group(
            name or self.plan.free("sequence"), *calls, mode="sequential", after=after, on_failure=on_failure
        )

    def include(self, other: Plan, *, name: str | None = None, after: Any = None) -> Part:
        """Another workflow as a part of this one: what is after it waits until all of it has ended. Its jobs are called
        ``name.job`` here. The other one stays what it was, and can be included again."""
        own = other.on_failure if other.on_failure_given else None
        part = self.group(name or other.kind, mode="graph", after=after, on_failure=own)
        _copy(other, part)
        return part

    def walk(self) -> Iterator[Planned[Any]]:
        for member in self.members:
            if isinstance(member, Part):
                yield from member.walk()
            else:
                yield member


def _result_of(value: Any) -> Any:
    if isinstance(value, Planned):
        return ResultOf(value.spec.id)
    return ResultOf([job.spec.id for job in value.walk()]) if isinstance(value, Part) else value


def _links(targets: Iterable[Any], on_failure: OnFailure | None) -> list[Link]:
    policy = None if on_failure is None else check_on_failure(on_failure)
    found: list[Link] = []
    for target in targets:
        if target is None:
            continue
        if isinstance(target, Planned | Part | str):
            found.append(Link(target, policy))
        elif isinstance(target, Iterable):
            found += _links(target, policy)
        else:
            raise InvalidSetting(
                f"after expects jobs and groups of this workflow, got {type(target).__name__}", code="invalid_after"
            )
    return found


def _copy(source: Part, target: Part) -> None:
    twins: dict[int, Planned[Any] | Part] = {id(source): target}

    def copy(here: Part, there: Part) -> None:
        for member in here.members:
            if isinstance(member, Part):
                inner = member.name or ""
                label = there.plan.new_part(inner.rpartition(".")[2], there)
                made = Part(there, label, member.mode, member.on_failure)
                twins[id(member)] = made
                there.members.append(made)
                copy(member, made)
            else:
                spec = dataclasses.replace(member.spec, id=new_id())
                short = member.name.rpartition(".")[2]
                twin = Planned(there.plan.new_name(short, spec.kind, there), there, spec, member.decode)
                twins[id(member)] = twin
                there.members.append(twin)

    copy(source, target)
    renamed = {old.spec.id: new.spec.id for old, new in _twins(source, twins)}
    for _, twin in _twins(source, twins):
        if RESULT_MARK in twin.spec.payload:
            twin.spec.payload = rebound(twin.spec.payload, renamed)
    pairs = [(m, twins[id(m)]) for m in everything(source)]
    for old, new in pairs:
        new.links = [
            Link(link.target if isinstance(link.target, str) else twins[id(link.target)], link.on_failure)
            for link in old.links
        ]


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
    """What a failure inside this part does where nothing more is said."""
    around: Part | None = part
    while around is not None:
        if around.on_failure is not None:
            return around.on_failure
        around = around.outer
    return "skip"


class Edges:
    """Who waits for whom, worked out: links to parts become links to the jobs that end them. Each part is looked at
    once, however many wait for it."""

    def __init__(self, kind: str) -> None:
        self._inside: dict[int, set[str]] = {}
        self._last: dict[int, list[str] | None] = {}
        self._kind = kind

    def parents(self, jobs: Iterable[Planned[Any]]) -> dict[str, dict[str, OnFailure]]:
        return {job.name: self._of(job, None) for job in jobs}

    def _of(self, job: Planned[Any], within: Part | None) -> dict[str, OnFailure]:
        """Whom a job waits for: by itself, or because it begins a part that does. ``within`` a part, only what that
        part knows of."""
        found: dict[str, OnFailure] = {}
        for link in job.links:
            found |= self._expanded(link, policy(job.part))
        part: Part | None = job.part
        while part is not None and part is not within:
            if part.links and not self._names(part) & found.keys():
                for link in part.links:
                    found |= self._expanded(link, policy(part.outer or part))
            part = part.outer
        return found

    def _names(self, part: Part) -> set[str]:
        if id(part) not in self._inside:
            self._inside[id(part)] = {job.name for job in part.walk()}
        return self._inside[id(part)]

    def _expanded(self, link: Link, otherwise: OnFailure) -> dict[str, OnFailure]:
        target = link.target
        if isinstance(target, str):
            return {target: link.on_failure or otherwise}
        if isinstance(target, Planned):
            return {target.name: link.on_failure or otherwise}
        how = link.on_failure or target.on_failure or otherwise
        return dict.fromkeys(self._ends(target), how)

    def _ends(self, part: Part) -> list[str]:
        """The jobs of a part that no other job of it waits for: when they have ended, all of it has."""
        known = self._last.get(id(part), [])
        if known is None:
            name = part.name or self._kind
            raise InvalidSetting(f"circular dependency: {name} -> {name}", code="workflow_cycle")
        if id(part) not in self._last:
            self._last[id(part)] = None
            waited: set[str] = set()
            for job in part.walk():
                waited |= self._of(job, part).keys()
            known = self._last[id(part)] = [job.name for job in part.walk() if job.name not in waited]
        return known


MOST_EDGES = 200_000
NAME_LIMIT = 200


class Plan(Part, StoreNamespace):
    """The whole: what ``app.workflow`` and ``ctx.workflow`` begin. ``prepare`` makes a job of a kind's name."""

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
            raise InvalidSetting("it has no jobs", code="empty_workflow")
        parents = Edges(self.kind).parents(jobs)
        cycle = find_cycle({name: [p for p in found if p in parents] for name, found in parents.items()})
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
