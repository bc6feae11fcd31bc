"""Schedules in code, and what the app lends to templates. Between the features, which know no kinds, and the app."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar

from holdfast.calling import Declared
from holdfast.client import Client
from holdfast.engine.job import Enqueued
from holdfast.engine.retry import Retry
from holdfast.engine.units import Duration
from holdfast.errors import InvalidSetting
from holdfast.features.schedules.firing import Scheduler
from holdfast.features.schedules.model import Missed, Overlap, ScheduleDraft
from holdfast.handle import Handle
from holdfast.kind import Kind, Prepared

T = TypeVar("T")

MARK = "__holdfast_schedules__"
_PARTS = ("kind", "template", "name", "tz", "payload", "missed", "overlap", "jitter")


class Timed(TypedDict, total=False):
    """What ``app.schedule`` takes besides the times. ``name`` is the kind's, or the template's, unless it is given."""

    name: str
    kind: str | Kind[..., Any]
    template: str
    tz: str
    payload: Mapping[str, Any]
    missed: Missed
    overlap: Overlap
    jitter: Duration
    queue: str
    priority: int
    tags: Sequence[str]
    agent: str
    retry: Retry | str
    deadline: Duration
    correlation_id: str
    external_ref: str


class ScheduleDecorator:
    """What ``app.schedule(…)`` returns: declared already if it names a kind or a template, else to be put on a job."""

    def __init__(self, scheduler: Scheduler, timing: str, definition: Timed) -> None:
        self._scheduler = scheduler
        self._timing = timing
        self._definition: dict[str, Any] = {**definition}
        self._declared = "kind" in definition or "template" in definition
        if "kind" in definition and "template" in definition:
            raise InvalidSetting("a schedule has a kind or a template", code="conflicting_options")
        if self._declared:
            kind = self._definition.get("kind")
            self._declare(kind.name if isinstance(kind, Kind) else kind)
        else:
            self._draft("unnamed")  # refused at once where it stands

    def __call__(self, target: T) -> T:
        if self._declared:
            raise InvalidSetting("this schedule has its kind already", code="conflicting_options")
        if isinstance(target, Kind):
            self._declare(target.name)
        else:  # a function that is about to be declared as a job
            marks = [*getattr(target, MARK, ()), self._declare]
            setattr(target, MARK, marks)
        return target

    def _declare(self, kind: str | None) -> None:
        self._scheduler.declare(self._draft(kind))

    def _draft(self, kind: str | None) -> ScheduleDraft:
        parts = {name: self._definition[name] for name in _PARTS if name in self._definition and name != "kind"}
        options = {name: value for name, value in self._definition.items() if name not in _PARTS}
        template = parts.get("template")
        made_of = str(kind or template)  # the kind of a template is asked of the database
        name = parts.pop("name", None) or made_of
        return ScheduleDraft.of(name, self._timing, kind=made_of, options=options, **parts)


def declare_marked(scheduler: Scheduler, function: Callable[..., Any], kind: str) -> None:
    """Declare the schedules that were put on a function before it became a job."""
    for declare in getattr(function, MARK, ()):
        declare(kind)


class Desk:
    """What templates are lent: kinds to check arguments against, and handles for what was enqueued."""

    def __init__(
        self, client: Client, kinds: Mapping[str, Declared], prepare: Callable[[str, Any, Any], Prepared[Any]]
    ) -> None:
        self._client = client
        self._kinds = kinds
        self._prepare = prepare

    def fits(self, kind: str, payload: Mapping[str, Any]) -> None:
        known = self._kinds.get(kind)
        if known is not None:
            known.kind.signature.check_some(payload)

    def prepare(self, kind: str, payload: Any, options: dict[str, Any]) -> Prepared[Any]:
        return self._prepare(kind, payload, options)

    def handle(self, answers: Sequence[Enqueued], prepared: Prepared[Any]) -> Handle[Any]:
        return self._client.accepted(answers, prepared.tenant, prepared.decode)
