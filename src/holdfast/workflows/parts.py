"""What a workflow is planned of: jobs that are not started yet, groups of them, and what each waits for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from holdfast.engine.job import JobSpec
from holdfast.errors import InvalidSetting
from holdfast.features.workflows.model import OnFailure, check_on_failure
from holdfast.stores.ids import new_id

if TYPE_CHECKING:
    from holdfast.kind import Kind, Prepared
    from holdfast.workflows.plan import Plan

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
            raise InvalidSetting(f"a group is parallel or sequential, not {mode!r}", code="invalid_mode")
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
        """
        prepared = self.plan.prepared(call, args, kwargs)
        label = self.plan.new_name(name, prepared.spec.kind, self)
        previous = self.members[-1:] if self.mode == "sequential" else []
        links = [*_links(previous, self.on_failure), *_links([after], on_failure)]
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
                f"after takes jobs and groups of the workflow, not {type(target).__name__}", code="invalid_after"
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
    pairs = [(m, twins[id(m)]) for m in everything(source)]
    for old, new in pairs:
        new.links = [
            Link(link.target if isinstance(link.target, str) else twins[id(link.target)], link.on_failure)
            for link in old.links
        ]


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
