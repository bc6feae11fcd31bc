"""Jobs of a plan, groups and sub-workflows, and which of them waits for which.

``after`` takes handles of jobs and of groups, and names of jobs that are in the workflow already. Dependencies on a
group become dependencies on the jobs that end it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from holdfast.engine.bound_results import RESULT_MARK, ResultOf, Source, rebound
from holdfast.engine.job import JobSpec
from holdfast.errors import InvalidSetting
from holdfast.features.workflows.map_template import MAP, MOST_ITEMS, template_of
from holdfast.features.workflows.model import CallbackSpec, Fires, OnFailure, check_on_failure
from holdfast.stores.ids import new_id

if TYPE_CHECKING:
    from holdfast.features.workflows.plan import Plan
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
    failure_policy: OnFailure | None = field(default=None, repr=False)
    """What its failure does to those after it, unless they say otherwise."""

    def wait_for(self, *others: Any, on_failure: OnFailure | None = None) -> Planned[R]:
        """Let it wait for more: for a dependency that is known only later."""
        self.links += _links(others, on_failure)
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
    """A job that is made when the workflow, or one of its jobs, has ended. ``run[callback]`` is its handle."""

    fires: Fires
    step: Planned[Any] | None = field(repr=False)
    spec: JobSpec = field(repr=False)
    decode: Callable[[Any], R] = field(repr=False)

    def stored(self) -> CallbackSpec:
        return CallbackSpec(self.spec, self.fires, None if self.step is None else self.step.spec.id)


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
        self.failure_policy = None if on_failure is None else check_on_failure(on_failure)
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
        links = [*_links(previous, self.failure_policy), *_links([after, *waited], on_failure)]
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
        """Jobs that run at once, or one after the other. ``on_failure`` holds between them, and for what comes
        after the group unless that says otherwise."""
        part = Part(self, self.plan.new_part(name, self), mode, on_failure, _links([after], None))
        if self.mode == "sequential" and self.members:
            part.links += _links(self.members[-1:], self.failure_policy)
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
        """One job per item, all at once: ``pages = wf.map(render, range(10)); wf.add(bind, pages)``.

        The items may be a planned job whose result is a list, or a group: then the jobs are added when that has ended,
        at most ``max_items``. Either way, ``pages`` as an argument is the list of their results, in order.
        """
        label = name or self.plan.free(f"map-{kind.name}".replace(".", "-"))
        if isinstance(items, Planned | Part):
            return self._map_result(kind, items, label, after, on_failure, max_items)
        if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
            raise InvalidSetting(
                f"map expects a list of items, or a job of this workflow, got {type(items).__name__}",
                code="invalid_items",
            )
        part = self.group(label, after=after, on_failure=on_failure)
        for item in items:
            part.add(kind, item)
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
        """One job that adds the others when it runs. It bears their group's name, and is in their queue."""
        if type(max_items) is not int or not 1 <= max_items <= MOST_ITEMS:
            raise InvalidSetting(f"max_items must be between 1 and {MOST_ITEMS:,}", code="invalid_items")
        one = self.plan.prepared(kind, (ResultOf(""),), {}).spec  # refused now rather than at run time
        call = {"items": _result_of(items), "job": template_of(kind, one), "limit": max_items}
        short = self.plan.new_part(label, self).rpartition(".")[2]
        added = self.add(MAP, call, after=[after, items], name=short)
        spec = dataclasses.replace(added.spec, queue=one.queue, priority=one.priority)
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
        """Another workflow as a part of this one: what is after it waits until all of it has ended. Its jobs are called
        ``name.job`` here. The other one stays what it was, and can be included again."""
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


def _result_of(value: Any) -> Any:
    return ResultOf(_source(value)) if isinstance(value, Planned | Part) else value


def _source(value: Planned[Any] | Part) -> Source:
    if isinstance(value, Part):
        return [_source(job) for job in value.walk()]
    return {"map": value.spec.id} if isinstance(value, Mapped) else value.spec.id


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
                made = Part(there, label, member.mode, member.failure_policy)
                twins[id(member)] = made
                there.members.append(made)
                copy(member, made)
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
    for each in source.plan.callbacks:
        about = None if each.step is None else twins.get(id(each.step))
        if not isinstance(about, Planned):
            raise InvalidSetting(
                "a workflow with callbacks of its own cannot be included in another",
                code="conflicting_options",
                fix="Add the callbacks to its jobs, or to the outer workflow.",
            )
        made = dataclasses.replace(each.spec, id=new_id(), payload=rebound(each.spec.payload, renamed))
        target.plan.callbacks.append(Callback(each.fires, about, made, each.decode))
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
        if around.failure_policy is not None:
            return around.failure_policy
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
            return {target.name: link.on_failure or target.failure_policy or otherwise}
        how = link.on_failure or target.failure_policy or otherwise
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
