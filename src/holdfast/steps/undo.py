"""Undo of steps: ``ctx.step("book", book_flight, 7, undo=cancel_flight)``.

When a job with such steps has failed for good or was cancelled, a job of the kind ``steps.undo`` calls the undo
functions of its recorded steps, newest first, each as a durable step of its own. A subscription to the ends of the
kind creates that job, so no end is missed: not of a job whose worker is lost, and not of one that is cancelled while it
waits. The undo functions are code, so the job replays the handler (``steps/replay.py``) to find them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from holdfast.engine.retry import Retry
from holdfast.engine.steps import NAME_LIMIT, UNDO_KIND
from holdfast.errors import InvalidSetting
from holdfast.features.events.model import MAX_DEPTH, NewSubscription
from holdfast.steps.program import DurableCall, Effect
from holdfast.stores.requests import new_id
from holdfast.stores.session import Session

T = TypeVar("T")

UndoFor: TypeAlias = Callable[[T], Any] | None
"""A function that undoes a step, given its result."""

ENDS: Final = "job.dead_letter|job.cancel|job.deny|job.expire"


@dataclass(frozen=True, slots=True)
class Undo:
    """How to undo a recorded step: the function is called with the step's result."""

    n: int
    name: str
    function: Callable[[Any], Any]
    value: Any
    retry: Retry | None
    timeout: float | None

    def label(self, repeated: bool) -> str:
        """The name of the step of the undo job. ``repeated``: the job has several steps of this name."""
        place = f" #{self.n}" if repeated else ""
        return f"undo {self.name}"[: NAME_LIMIT - len(place)] + place


def split_undo(kwargs: dict[str, Any]) -> Callable[[Any], Any] | None:
    """Take ``undo`` out of the keywords of a step."""
    undo: Callable[[Any], Any] | None = kwargs.pop("undo", None)
    if undo is not None and not callable(undo):
        raise InvalidSetting(
            f"undo= expects a function of the result of its step, got {type(undo).__name__}",
            code="not_callable",
            fix='Write ctx.step("charge", charge, 7, undo=refund), or undo=None.',
        )
    return undo


def undoable(n: int, call: DurableCall, keep: Callable[[Any], None]) -> Generator[Effect, Any, Any]:
    """The call of a step that can be undone. ``keep`` is called with its result, recorded or new."""
    value = yield from call
    keep(value)
    return value


class UndoSubscriptions:
    """Sets the subscription of a kind before its first step that can be undone runs; once in each process."""

    def __init__(self) -> None:
        self._known = WeakKeyDictionary[Any, set[tuple[str, str]]]()

    async def ready(self, client: Session, tenant: str, kind: str, queue: str) -> None:
        known = self._known.setdefault(client.store, set())
        if (tenant, kind) in known:
            return
        name = f"undo {kind}"
        store = client.store.subscriptions
        if not any(each.name == name for each in await client.arun(store.list(tenant))):
            new = NewSubscription.of(
                *(name, ENDS, UNDO_KIND),
                kind=kind,
                max_depth=MAX_DEPTH,
                options={"queue": queue, "payload": {"job": "$.job_id"}},
            )
            await client.arun(store.set(new, new_id(), client.actor, tenant))
        known.add((tenant, kind))


subscriptions: Final = UndoSubscriptions()
