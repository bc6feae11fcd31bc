"""The parts of a plan: jobs, groups and sub-workflows, and their dependencies.

``after`` takes planned jobs, groups, and names of jobs that are already in the workflow. A dependency on a group
becomes dependencies on the jobs that end it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, overload

from holdfast.engine.bound_results import ResultOf, Source
from holdfast.engine.hints import unknown_attribute
from holdfast.engine.job import JobSpec
from holdfast.engine.job_options import job_options, stored_options
from holdfast.engine.times import instant
from holdfast.errors import InvalidSetting
from holdfast.features.workflows.model import CallbackSpec, Fires, OnFailure, check_on_failure
from holdfast.steps.signature import result_schema

if TYPE_CHECKING:
    from holdfast.features.workflows.plan import Plan
    from holdfast.kind import Kind, Prepared


R = TypeVar("R")

Mode = Literal["graph", "parallel", "sequential"]

MAP: Final = "workflow.map"
"""The kind of the job that adds one job per item. Every app handles it."""
MOST_ITEMS: Final = 10_000


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
        other.copy_into(part)
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


def template_of(kind: Kind[..., Any], spec: JobSpec) -> dict[str, Any]:
    """The template as JSON: the worker that adds the jobs may not have the kind, or have other defaults for it."""
    options = {"queue": spec.queue, "priority": spec.priority, "tags": spec.tags, "retry": spec.retry}
    times = {"run_at": spec.run_at, "deadline_at": spec.deadline_at}
    return {
        "kind": kind.name,
        "argument": kind.parameters[0],
        "options": stored_options(options | {"agent": spec.agent, "external_ref": spec.external_ref}),
        "retry_given": spec.retry_given,
        "uses": list(spec.uses),
        "delay": spec.delay,
        "deadline_in": spec.deadline_in,
        **{name: None if time is None else time.isoformat() for name, time in times.items()},
    }


def with_options(template: dict[str, Any], spec: JobSpec) -> JobSpec:
    """The job of one item, with the options of the plan."""
    options = job_options(template["options"], datetime.now(UTC))
    times: dict[str, Any] = {
        name: None if template[name] is None else instant(datetime.fromisoformat(template[name]), name)
        for name in ("run_at", "deadline_at")
    }
    return dataclasses.replace(
        spec,
        **{**options, "tags": tuple(options.get("tags", ()))},
        retry_given=template["retry_given"],
        uses=tuple(template["uses"]),
        delay=template["delay"],
        deadline_in=template.get("deadline_in"),
        **times,
        alike=None,
    )
