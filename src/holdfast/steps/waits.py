"""Children and races as programs (``steps/program.py``): ``ctx.spawn``, ``ctx.result_of`` and ``ctx.first``; and what a
wait of a handler returns, as ``ctx.first`` needs its position.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Generic, NamedTuple, TypeVar

from holdfast.engine.payload import encode
from holdfast.engine.redaction import Redact
from holdfast.engine.steps import Pause, Script, Step, StepEntry, StepKind
from holdfast.errors import InvalidSetting, StepsChanged
from holdfast.steps.branches import current_path
from holdfast.steps.plan import Plan
from holdfast.steps.program import CONTROL, DurableCall, Lookup, Run, Save, suspended
from holdfast.steps.values import Value, describe, recorded_error
from holdfast.worker.shutdown import Suspended

T = TypeVar("T")

WITHDRAWN: Final = {"type": "withdrawn", "message": "another wait was over first"}
_LATEST: Final = datetime.max.replace(tzinfo=UTC)


class First(NamedTuple):
    """What ``ctx.first`` returns: ``which`` wait was over first (its number from 0, or its name) and its value."""

    which: Any
    value: Any


@dataclass(frozen=True, slots=True)
class Open:
    """The awaited job has not ended. ``job_id`` is its last retry, if retries are new jobs."""

    job_id: str


def spawn(script: Script, n: int, name: str, redact: Redact) -> DurableCall:
    """Enqueue a child once. Its record is not sealed, because the database cancels children by it."""
    known: Step | None = yield Lookup(n, name, "step")
    if known is not None and known.over:
        if known.error is not None:
            raise recorded_error(known)
        return known.value
    try:
        child = yield Run(n, name)
    except CONTROL:
        raise
    except Exception as error:
        script.defer(StepEntry(n, name, "step", None, describe(error, redact)))
        raise
    yield Save(StepEntry(n, name, "step", encode(child), plain=True))
    return child


def result_of(script: Script, n: int, name: str, value: Value, redact: Redact) -> DurableCall:
    """Wait for the end of a job, and record what it returned. A failure is recorded if the handler continues: until
    then the job may be redriven."""
    known: Step | None = yield Lookup(n, name, "step", waits=True)
    if known is not None and known.over:
        if known.error is not None:
            raise recorded_error(known)
        return known.value
    try:
        result = yield Run(n, name, 0)
        if isinstance(result, Open):
            raise suspended(script, Pause(n, name, "step", awaits=result.job_id))
        text = value.pack(result)
    except CONTROL:
        raise
    except Exception as error:
        script.defer(StepEntry(n, name, "step", None, describe(error, redact)))
        raise
    yield Save(StepEntry(n, name, "step", text))
    return value.restore(text)


def first(script: Script, n: int, waits: Sequence[Wait[Any]]) -> DurableCall:
    """Decide which wait was over first, and end the others with it. ``Run`` awaits them all."""
    results: list[Any] = yield Run(n, "first", 0)
    known: Step | None = yield Lookup(n, "first", "step", waits=True)
    if known is not None and known.over:
        return results[int(known.value)]
    come = [i for i, result in enumerate(results) if not isinstance(result, Suspended)]
    if not come:
        raise results[0]
    chosen = min(come, key=lambda i: (script.came_at(waits[i].n) or _LATEST, i))
    others = [wait for i, wait in enumerate(waits) if i != chosen]
    ended = tuple(
        StepEntry(wait.n, wait.name, wait.kind, None, WITHDRAWN) for wait in others if not script.is_over(wait.n)
    )
    yield Save(StepEntry(n, "first", "step", encode(chosen)), ended)
    return results[chosen]


def place_of(call: DurableCall) -> tuple[int, str, StepKind]:
    """The position, name and kind of a wait."""
    values = inspect.getgeneratorlocals(call)
    kind: StepKind = "event" if "wanted" in values else "sleep"
    return values["n"], values["name"], kind


class Wait(Coroutine[Any, Any, T], Generic[T]):
    """A wait of an async handler: awaited, or passed to ``ctx.first`` or ``ctx.gather``."""

    __slots__ = ("_work", "kind", "n", "name")

    def __init__(self, work: Coroutine[Any, Any, T], n: int, name: str, kind: StepKind) -> None:
        self._work = work
        self.n, self.name, self.kind = n, name, kind

    def __await__(self) -> Generator[Any, Any, T]:
        return self._work.__await__()

    def send(self, value: Any) -> Any:
        return self._work.send(value)

    def throw(self, kind: Any, value: Any = None, trace: TracebackType | None = None) -> Any:
        return self._work.throw(kind if value is None else value)

    def close(self) -> None:
        self._work.close()


class Later(Generic[T]):
    """A wait of a sync handler that has not begun: for ``ctx.first`` and ``ctx.gather``."""

    __slots__ = ("_work", "kind", "n", "name")

    def __init__(self, work: Callable[[], T], n: int, name: str, kind: StepKind) -> None:
        self._work = work
        self.n, self.name, self.kind = n, name, kind

    def __call__(self) -> T:
        return self._work()


@dataclass(frozen=True, slots=True)
class Race:
    """One ``ctx.first``: its waits in order, and how each is called in the answer."""

    plan: Plan
    waits: list[Any]
    labels: list[Any]
    n: int

    @classmethod
    def of(cls, plan: Plan, kind: type, calls: Sequence[Any], named: dict[str, Any]) -> Race:
        waits = [*calls, *named.values()]
        if len(waits) < 2 or not all(isinstance(each, kind) for each in waits):
            for each in waits:
                if hasattr(each, "close"):
                    each.close()
            raise InvalidSetting(
                "ctx.first expects two or more waits: sleep, wait_for_event or result_of",
                code="not_a_wait",
                fix='Write ctx.first(ctx.wait_for_event("paid"), ctx.sleep("1h")); in a sync handler '
                'ctx.first(ctx.later.wait_for_event("paid"), ctx.later.sleep("1h")).',
            )
        return cls(plan, waits, [*range(len(calls)), *named], plan._next_position())

    @property
    def call(self) -> DurableCall:
        return first(self.plan.durable.script, self.n, self.waits)

    def settled(self, results: list[Any]) -> list[Any]:
        """The results as ``first`` expects them: errors as values, since the first that comes may be one."""
        for each in results:
            if isinstance(each, (*CONTROL, StepsChanged)):  # they end the attempt
                raise each
        suspensions = self.plan.durable.suspensions
        if all(isinstance(each, Suspended) for each in results) and not self._decided:
            suspensions.race([wait.n for wait in self.waits])
        else:
            suspensions.withdraw(current_path(), [wait.n for wait in self.waits])
        return [
            each if isinstance(each, Suspended) else (label, each)
            for label, each in zip(self.labels, results, strict=True)
        ]

    @property
    def _decided(self) -> bool:
        return self.plan.durable.script.is_over(self.n)

    def answer(self, chosen: tuple[Any, Any]) -> First:
        label, value = chosen
        if isinstance(value, BaseException):
            raise value
        return First(label, value)


def attempt(call: Callable[[], Any]) -> Any:
    """The result of a call, or what it raised."""
    try:
        return call()
    except (Suspended, Exception) as error:
        return error
