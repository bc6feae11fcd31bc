"""The parts of a plan: jobs, groups and sub-workflows, and their dependencies.

``after`` takes planned jobs, groups, and names of jobs that are already in the workflow. A dependency on a group
becomes dependencies on the jobs that end it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from holdfast.engine.bound_results import RESULT_MARK, ResultOf, Source, rebound
from holdfast.engine.hints import unknown_attribute
from holdfast.engine.job import JobSpec
from holdfast.errors import InvalidSetting
from holdfast.features.workflows.map_template import MAP, MOST_ITEMS, template_of
from holdfast.features.workflows.model import CallbackSpec, Fires, OnFailure, check_on_failure
from holdfast.steps.signature import result_schema
from holdfast.stores.ids import new_id

if TYPE_CHECKING:
    from holdfast.features.workflows.plan import Plan
    from holdfast.kind import Kind, Prepared


R = TypeVar("R")

Mode = Literal["graph", "parallel", "sequential"]


@dataclass(eq=False, slots=True)
class Planned(Generic[R]):
    """A job of a workflow that is not started yet. ``after`` takes it, and ``run[job]`` is its handle."""

    name: str
    part: Part = field(repr=False)
    spec: JobSpec = field(repr=False)
    decode: Callable[[Any], R] = field(repr=False)
    links: list[Link] = field(default_factory=list, repr=False)
    failure_policy: OnFailure | None = field(default=None, repr=False)
    """What its failure does to the jobs after it, unless they specify it themselves."""

    if not TYPE_CHECKING:
        __getattr__ = unknown_attribute("Planned")

    def wait_for(self, *others: Any, on_failure: OnFailure | None = None) -> Planned[R]:
        """Add dependencies to the job after it was added."""
        self.links += _links(self.part.plan, others, on_failure)
        return self

    def on_success(self, call: Kind[..., Any] | str, *args: Any, **kwargs: Any) -> Callback[Any]:
        """Run another job once this one has succeeded, outside the workflow: ``fetched.on_success(store, "pages")``
        calls ``store(<result of fetched>, "pages")``."""
        return self.part.plan.callback("success", self, call, args, kwargs)

    def on_failure(self, call: Kind[..., Any] | str, *args: Any, **kwargs: Any) -> Callback[Any]:
        """Run another job once this one has failed for good: ``fetched.on_failure(alert)`` calls
        ``alert(<WorkflowFailure>)``."""
        return self.part.plan.callback("failure", self, call, args, kwargs)


@dataclass(eq=False, slots=True)
class Mapped(Planned[Any]):
    """``wf.map`` over a result: one job per item, added at run time. As an argument it is the list of their results."""


@dataclass(eq=False, slots=True)
class Callback(Generic[R]):
    """A job that is created when the workflow, or one of its jobs, has ended. ``run[callback]`` is its handle."""

    fires: Fires
    step: Planned[Any] | None = field(repr=False)
    spec: JobSpec = field(repr=False)
    decode: Callable[[Any], R] = field(repr=False)

    def stored(self) -> CallbackSpec:
        return CallbackSpec(self.spec, self.fires, None if self.step is None else self.step.spec.id)


@dataclass(frozen=True, slots=True)
class Link:
    """A dependency on a job or a part. ``on_failure`` None means the policy of the group or the workflow."""

    target: Planned[Any] | Part | str
    on_failure: OnFailure | None


class Part:
    """A set of jobs in a workflow: the whole workflow, a group, or a sub-workflow. A job ``after`` a part waits until
    all of it has ended."""

    def __init__(
        self, outer: Part | None, name: str | None, mode: Mode, on_failure: OnFailure | None, links: Sequence[Link] = ()
    ) -> None:
        if mode not in ("graph", "parallel", "sequential"):
            raise InvalidSetting(f"a group must be parallel or sequential, not {mode!r}", code="invalid_mode")
        self.outer = outer
        self.name = name
        self.mode = mode
        self.failure_policy = None if on_failure is None else check_on_failure(on_failure)
        self.links = list(links)
        self.members: list[Planned[Any] | Part] = []

    if not TYPE_CHECKING:
        __getattr__ = unknown_attribute("Workflow")

    @property
    def plan(self) -> Plan:
        """The plan that it is a part of."""
        assert self.outer is not None  # Plan overrides this property
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
        """Add a job: a kind and its arguments, ``kind.prepare(…)`` if a type checker should check the arguments, or the
        name of a kind and a payload. ``on_failure``: what the failure of its parents does to it.

        An argument may be a planned job: ``wf.add(parse, html=fetched)`` waits for ``fetched`` and calls ``parse`` with
        its result. A group gives the list of the results of its jobs, in the order in which they were added, and a
        list of planned jobs the list of theirs.
        """
        parents = [job for value in (*args, *kwargs.values()) for job in _planned_in(value)]
        if parents:
            args = tuple(map(_result_of, args))
            kwargs = {key: _result_of(value) for key, value in kwargs.items()}
        prepared = self.plan.prepared(call, args, kwargs)
        label = self.plan.new_name(name, prepared.spec.kind, self)
        previous = self.members[-1:] if self.mode == "sequential" else []
        links = [*_links(self.plan, previous, self.failure_policy), *_links(self.plan, [after, *parents], on_failure)]
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
        """A group of jobs that run in parallel, or one after the other. ``on_failure`` applies between them, and to the
        jobs after the group unless those specify it."""
        part = Part(self, self.plan.new_part(name, self), mode, on_failure, _links(self.plan, [after], None))
        if self.mode == "sequential" and self.members:
            part.links += _links(self.plan, self.members[-1:], self.failure_policy)
        self.members.append(part)
        for call in calls:
            part.add(call)
        return part

    @overload
    def map(
        self,
        kind: Kind[..., Any],
        items: Planned[Any] | Part,
        *,
        name: str | None = None,
        after: Any = None,
        on_failure: OnFailure | None = None,
        max_items: int = MOST_ITEMS,
    ) -> Mapped: ...
    @overload
    def map(
        self,
        kind: Kind[..., Any],
        items: Iterable[Any],
        *,
        name: str | None = None,
        after: Any = None,
        on_failure: OnFailure | None = None,
    ) -> Part: ...
    def map(
        self,
        kind: Kind[..., Any],
        items: Any,
        *,
        name: str | None = None,
        after: Any = None,
        on_failure: OnFailure | None = None,
        max_items: int = MOST_ITEMS,
    ) -> Any:
        """One job per item, in parallel: ``pages = wf.map(render, range(10)); wf.add(bind, pages)``.

        The items may be a planned job whose result is a list, or a group: then the jobs are added when that has ended,
        at most ``max_items``. In both cases ``pages`` as an argument is the list of their results, in order.
        """
        if not hasattr(kind, "parameters"):
            raise InvalidSetting(
                f"map expects a kind, got {type(kind).__name__}",
                code="invalid_call",
                fix="Pass the kind itself and the items: wf.map(render, range(10)).",
            )
        label = name or self.plan.free(f"map-{kind.name}".replace(".", "-"))
        if isinstance(items, Planned | Part):
            return self._map_result(kind, items, label, after, on_failure, max_items)
        if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
            raise InvalidSetting(
                f"map expects a list of items, or a job of this workflow, got {type(items).__name__}",
                code="invalid_items",
            )
        part = self.group(label, after=after, on_failure=on_failure)
        for number, item in enumerate(items, 1):
            part.add(kind, item, name=str(number))
        return part

    def _map_result(
        self,
        kind: Kind[..., Any],
        items: Planned[Any] | Part,
        label: str,
        after: Any,
        on_failure: OnFailure | None,
        max_items: int,
    ) -> Mapped:
        """One job that adds the others when it runs. It has the name of their group, and their queue."""
        if type(max_items) is not int or not 1 <= max_items <= MOST_ITEMS:
            raise InvalidSetting(f"max_items must be between 1 and {MOST_ITEMS:,}", code="invalid_items")
        item = self.plan.prepared(kind, (ResultOf(""),), {}).spec  # refuse an invalid call now, not at run time
        call = {"items": _result_of(items), "job": template_of(kind, item), "limit": max_items}
        short = self.plan.new_part(label, self).rpartition(".")[2]
        added = self.add(MAP, call, after=[after, items], name=short)
        spec = dataclasses.replace(added.spec, queue=item.queue, priority=item.priority)
        mapped = Mapped(added.name, self, spec, added.decode, added.links, on_failure)
        self.members[-1] = mapped
        return mapped

    def sequence(
        self, *calls: Prepared[Any], name: str | None = None, after: Any = None, on_failure: OnFailure | None = None
    ) -> Part:
        """Jobs one after the other: ``wf.sequence(fetch.prepare(7), render.prepare())``."""
        return self.group(
            name or self.plan.free("sequence"), *calls, mode="sequential", after=after, on_failure=on_failure
        )

    def include(self, other: Plan, *, name: str | None = None, after: Any = None) -> Part:
        """Include another workflow as a part: jobs after it wait until all of it has ended. Its jobs are named
        ``name.job`` here. The other plan does not change, and can be included again."""
        own = other.failure_policy if other.on_failure_given else None
        part = self.group(name or other.kind, mode="graph", after=after, on_failure=own)
        _copy(other, part)
        return part

    def walk(self) -> Iterator[Planned[Any]]:
        for member in self.members:
            if isinstance(member, Part):
                yield from member.walk()
            else:
                yield member


def _planned_in(value: Any) -> list[Planned[Any]]:
    """The planned jobs whose results an argument stands for."""
    if isinstance(value, Part):
        return list(value.walk())
    if isinstance(value, Planned):
        return [value]
    if isinstance(value, list | tuple):
        found = [_planned_in(item) for item in value]
        if any(found) and not all(item or isinstance(each, Part) for item, each in zip(found, value, strict=True)):
            raise _mixed()
        return [job for item in found for job in item]
    if isinstance(value, Mapping) and any(isinstance(item, Planned | Part) for item in value.values()):
        raise _mixed()
    return []


def _mixed() -> InvalidSetting:
    return InvalidSetting(
        "an argument is a planned job, a group, a list of them, or a plain value; this one mixes them",
        code="invalid_call",
        fix="Pass the planned jobs as arguments of their own, or as a list of nothing else.",
    )


def _result_of(value: Any) -> Any:
    if not isinstance(value, Planned | Part | list | tuple) or not (jobs := _planned_in(value)):
        return ResultOf([], {"type": "array"}, "an empty group") if isinstance(value, Part) else value
    return ResultOf(source_of(value), _schema_of(value), ", ".join(job.name for job in jobs[:3]))


def source_of(value: Planned[Any] | Part | Sequence[Any]) -> Source:
    """The reference to the result of a job, or to the results of a group or of a list of jobs."""
    if isinstance(value, Part):
        return [source_of(job) for job in value.walk()]
    if isinstance(value, Planned):
        return {"map": value.spec.id} if isinstance(value, Mapped) else value.spec.id
    return [source_of(item) for item in value]


def _schema_of(value: Planned[Any] | Part | Sequence[Any]) -> Mapping[str, Any]:
    if isinstance(value, Mapped):
        return {"type": "array"}
    if isinstance(value, Planned):
        return result_schema(value.decode)
    items = value.walk() if isinstance(value, Part) else value
    return {"type": "array", "prefixItems": [_schema_of(item) for item in items]}


def _links(plan: Plan, targets: Iterable[Any], on_failure: OnFailure | None) -> list[Link]:
    policy = None if on_failure is None else check_on_failure(on_failure)
    links: list[Link] = []
    for target in targets:
        if target is None:
            continue
        if isinstance(target, Planned | Part | str):
            if not isinstance(target, str):
                _check_own(plan, target)
            links.append(Link(target, policy))
        elif isinstance(target, Iterable):
            links += _links(plan, target, policy)
        else:
            raise InvalidSetting(
                f"after expects jobs and groups of this workflow, got {type(target).__name__}", code="invalid_after"
            )
    return links


def _check_own(plan: Plan, target: Planned[Any] | Part) -> None:
    own = target.part.plan if isinstance(target, Planned) else target.plan
    if own is not plan:
        what = "job" if isinstance(target, Planned) else "group"
        raise InvalidSetting(
            f"{what} {target.name or own.kind!r} belongs to workflow {own.kind!r}, not to {plan.kind!r}",
            code="unknown_parent",
            fix="Add it to this workflow, or include that one: wf.include(other).",
        )


def _copy(source: Part, target: Part) -> None:
    """Copy the jobs, parts, links and callbacks of a plan into a part, with new ids and names."""
    twins: dict[int, Planned[Any] | Part] = {id(source): target}

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
                    there.plan.new_name(short, spec.kind, there), there, spec, member.decode, [], member.failure_policy
                )
                twins[id(member)] = twin
                there.members.append(twin)

    copy(source, target)
    renamed = {old.spec.id: new.spec.id for old, new in _twins(source, twins)}
    for _, twin in _twins(source, twins):
        if RESULT_MARK in twin.spec.payload:
            twin.spec.payload = rebound(twin.spec.payload, renamed)
    for callback in source.plan.callbacks:
        step = None if callback.step is None else twins.get(id(callback.step))
        if not isinstance(step, Planned):
            raise InvalidSetting(
                "a workflow with callbacks of its own cannot be included in another",
                code="conflicting_options",
                fix="Add the callbacks to its jobs, or to the outer workflow.",
            )
        spec = dataclasses.replace(callback.spec, id=new_id(), payload=rebound(callback.spec.payload, renamed))
        target.plan.callbacks.append(Callback(callback.fires, step, spec, callback.decode))
    for member in everything(source):
        twins[id(member)].links = [
            Link(link.target if isinstance(link.target, str) else twins[id(link.target)], link.on_failure)
            for link in member.links
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
