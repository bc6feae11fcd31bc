"""Replay: run a handler against the recorded steps of a job, without a database and without running a step.

``RecordedStore`` stands for the database: it answers from the history what a handler may read, accepts what it would
write and keeps none of it, and ends the replay at anything else. ``Replay`` is the ``Durable`` of such an attempt: the
same programs look up the same script, and where a call has no record yet the handler is suspended for good.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from holdfast.engine.job import Enqueued, JobSpec
from holdfast.engine.outcome import Paused
from holdfast.engine.payload import canonical, decode
from holdfast.engine.steps import Saved, Step, StepEntry
from holdfast.errors import InvalidPayload, StepsChanged
from holdfast.steps.driver import Durable
from holdfast.steps.history import History
from holdfast.steps.program import DurableCall, Lookup
from holdfast.stores.artifacts import SCHEME
from holdfast.stores.flow import Flow, Statement, Steps, drive_steps
from holdfast.stores.requests import SentResult
from holdfast.stores.vault import Part, Vault, What
from holdfast.worker.shutdown import Suspended

T = TypeVar("T")

TOLERANCE: Final = 1.0
"""Seconds by which a recorded timeout may differ from the one in the code."""

Code = Literal[
    "steps_changed",
    "question_changed",
    "approval_not_asked",
    "wait_changed",
    "value_changed",
    "arguments_changed",
    "not_called",
    "handler_failed",
    "not_deterministic",
]


@dataclass(frozen=True, slots=True)
class Call:
    """One durable call: recorded, or made by the code."""

    n: int
    kind: str
    name: str
    detail: str | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}" + (f" ({self.detail})" if self.detail else "")

    @classmethod
    def of(cls, step: Step | Lookup, detail: str | None = None) -> Call:
        return cls(step.n, step.kind, step.name, detail)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference between a recorded history and the code. ``stops`` tells whether the job would stop there;
    if not, it continues with what is recorded."""

    code: Code
    message: str
    n: int | None = None
    recorded: Call | None = None
    called: Call | None = None
    stops: bool = True


class EndOfHistory(Suspended):
    """Ends a replay: what the handler does next was not recorded. ``what`` describes it."""

    def __init__(self, what: str) -> None:
        super().__init__(Paused({"kind": "replay", "name": what}, []))
        self.what = what


class Replay(Durable):
    """The durable calls of a handler that is replayed. Nothing is written, and no function of a step is called."""

    def __init__(self, history: History, **given: Any) -> None:
        super().__init__(**given)
        self.history = history
        self.seen: set[int] = set()
        self.difference: Difference | None = None
        self.end: Lookup | None = None
        """The first call without a record."""
        self._loaded = True
        self._arguments: dict[int, dict[str, Any]] = {}
        self.script.remember(history.steps)
        self._questions = dict(history.questions)

    @property
    def missing(self) -> list[Step]:
        """The recorded calls that the handler has not made."""
        passed = self.script._position
        return [
            step
            for step in self.history.steps
            if step.n not in self.seen and step.n > 0 and not (step.kind == "patch" and step.n <= passed)
        ]

    def differs(self, difference: Difference) -> None:
        if self.difference is None or (difference.stops and not self.difference.stops):
            self.difference = difference

    # --- effects ---

    async def lookup(self, effect: Lookup) -> Step | None:
        self.seen.add(effect.n)
        recorded = self.script._recorded.get(effect.n)
        question = effect.content_hash
        if self.history.redacted and recorded is not None and recorded.kind == "approval" and recorded.over:
            question = recorded.value["content_hash"]  # it may contain values that the history lacks
        try:
            known = self.script.at(effect.n, effect.name, effect.kind, question)
            if known is None or not known.over:
                await self._check_asked(effect.n)
        except StepsChanged as error:
            self.changed = error
            self._changed(error, recorded, effect)
            raise
        if known is not None:
            self._compare(known, effect)
        if known is not None and (known.over or (known.kind == "sleep" and known.is_late)):
            return known
        self.end = self.end or effect
        if known is None and effect.kind == "sleep":
            return None  # a sleep of no time is never recorded
        raise EndOfHistory(str(Call.of(effect)))

    async def save(self, entry: StepEntry) -> list[Saved]:
        raise AssertionError(f"a replay writes nothing, not even {entry.kind} {entry.name!r}")

    async def note_failure(self, entry: StepEntry) -> None:
        await self.save(entry)

    def _changed(self, error: StepsChanged, recorded: Step | None, effect: Lookup) -> None:
        called: Call | None = Call.of(effect)
        code: Any = error.code
        if code == "approval_not_asked":
            recorded = self.script._decisions[min(self.script._decisions)]
        n = effect.n if recorded is None else recorded.n
        self.differs(Difference(code, error.message, n, None if recorded is None else Call.of(recorded), called))

    def _compare(self, known: Step, effect: Lookup) -> None:
        """Compare what the driver does not: a wait continues with the match and the timeout that are recorded."""
        asked = self._arguments.get(effect.n, {})
        if known.kind == "event" and not self.history.redacted:
            before, now = _wait_of(known), (asked.get("wanted") or {}, asked.get("timeout"))
            if canonical(before[0]) != canonical(now[0]) or not _same_time(before[1], now[1]):
                message = (
                    f"job {self.claim.id}: durable call {known.n} waits for event {known.name!r} with another match or "
                    "timeout: the job keeps those it was suspended with"
                )
                recorded, called = Call.of(known, _wait_text(*before)), Call.of(effect, _wait_text(*now))
                self.differs(Difference("wait_changed", message, known.n, recorded, called, stops=False))
        asked_before = None if self.history.redacted else self._questions.get(known.n)
        if known.kind == "approval" and asked_before not in (None, effect.content_hash):
            message = (
                f"job {self.claim.id}: approval {known.name!r} is open with another question (its summary, data or "
                "form): its decision will not apply"
            )
            self.differs(Difference("question_changed", message, known.n, Call.of(known), Call.of(effect)))

    # --- the two drivers ---

    async def _drive(self, call: DurableCall, run: Callable[[], Awaitable[Any]] | None) -> Any:
        n = self._note(call)
        try:
            return self._next(await super()._drive(call, run))
        except InvalidPayload as error:
            self._misfit(n, error)
            raise

    def drive_in_thread(
        self, call: DurableCall, loop: asyncio.AbstractEventLoop, run: Callable[[], Any] | None = None
    ) -> Any:
        n = self._note(call)
        try:
            return self._next(super().drive_in_thread(call, loop, run))
        except InvalidPayload as error:
            self._misfit(n, error)
            raise

    def _note(self, call: DurableCall) -> int:
        """Keep the arguments of a call, and return its position."""
        arguments = inspect.getgeneratorlocals(call)
        self._arguments[arguments["n"]] = arguments
        return int(arguments["n"])

    def _next(self, value: T) -> T:
        """The value, for the handler to go on with; not after the last recorded call, where nothing is left to compare
        and code outside steps would have effects."""
        if self.missing:
            return value
        raise EndOfHistory("the end of the record")

    def _misfit(self, n: int, error: InvalidPayload) -> None:
        step = self.script._recorded.get(n)
        if step is not None and step.error is None:
            message = f"job {self.claim.id}: the recorded value of durable call {n}, {Call.of(step)}, {error.message}"
            self.differs(Difference("value_changed", message, n, Call.of(step), Call.of(step)))


def _wait_of(step: Step) -> tuple[dict[str, Any], float | None]:
    timeout = None if step.until is None else (step.until - step.started_at).total_seconds()
    return step.wanted or {}, timeout


def _same_time(before: float | None, now: float | None) -> bool:
    return before == now if before is None or now is None else abs(before - now) <= TOLERANCE


def _wait_text(wanted: dict[str, Any], timeout: float | None) -> str:
    limit = "no timeout" if timeout is None else f"timeout {timeout:g} s"
    return f"match {canonical(wanted)}, {limit}"


# --- instead of the database ---


def _answer(value: T) -> Flow[T]:
    def steps() -> Steps[T]:
        yield from ()
        return value

    return Flow(steps, writes=False)


class RecordedStore:
    """Stands for the store while a job is replayed. It has what the history has; everything else ends the replay.

    Each attribute is a group of operations, as in a store: ``store.jobs.references(…)``.
    """

    url: Final = "replay:"
    embedded: Final = False

    def __init__(self, history: History) -> None:
        self.history = history
        self._checkpoints = dict(history.checkpoints)
        accept: Callable[..., Flow[Any]] = lambda *args, **options: _answer(True)  # noqa: E731
        nothing: Callable[..., Flow[Any]] = lambda *args, **options: _answer(None)  # noqa: E731
        self._operations: dict[str, Callable[..., Flow[Any]]] = {
            "jobs.enqueue": lambda specs, tenant: _answer(_created(specs)),
            "jobs.references": lambda *job: _answer(history.references),
            "jobs.checkpoints": lambda *job: _answer(dict(self._checkpoints)),
            "templates.scheduled_at": lambda *job: _answer(history.scheduled_at),
            "workflows.parent_results": lambda *job: _answer([*history.parents]),
            "workflows.failure": nothing,
            "steps.save_checkpoint": self._save_checkpoint,
            "steps.add_artifact": accept,
            "steps.note_upload": accept,
            "ledger.send": lambda event, actor, tenant: _answer(SentResult(event.id, True, 0)),
        }

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Group(self, name)

    def run(self, flow: Flow[T]) -> T:
        return drive_steps(flow.start(), _refuse)

    async def arun(self, flow: Flow[T]) -> T:
        return self.run(flow)

    def run_on_connection(self, connection: object, flow: Flow[T], *, within: bool = False) -> T:
        return self.run(flow)

    async def arun_on_connection(self, connection: object, flow: Flow[T], *, within: bool = False) -> T:
        return self.run(flow)

    def transaction(self) -> AbstractContextManager[Any]:
        raise EndOfHistory("a transaction that completes the job")

    def atransaction(self) -> AbstractAsyncContextManager[Any]:
        raise EndOfHistory("a transaction that completes the job")

    def _save_checkpoint(self, *given: Any) -> Flow[bool]:
        *_, name, text, _tenant = given
        self._checkpoints[name] = decode(text)
        return _answer(True)


@dataclass(frozen=True, slots=True)
class _Group:
    _store: RecordedStore
    _name: str

    def __getattr__(self, name: str) -> Callable[..., Flow[Any]]:
        operation = f"{self._name}.{name}".removeprefix("on_connection.")
        known = self._store._operations.get(operation if "." in operation else f"jobs.{operation}")
        if known is not None:
            return known

        def end(*_: Any, **__: Any) -> Flow[Any]:
            what = "completes the job" if operation == "settle" else f"uses the database ({operation})"
            raise EndOfHistory(f"code that {what} outside a step")

        return end


def _created(specs: list[JobSpec]) -> list[Enqueued]:
    return [Enqueued(spec.id, True) for spec in specs]


def _refuse(statement: Statement) -> Any:
    raise EndOfHistory("code that uses the database outside a step")


@dataclass(frozen=True, slots=True)
class RecordedVault(Vault):
    """Stands for the vault: nothing is sealed, and nothing is stored elsewhere."""

    kept: list[str] = field(default_factory=list, compare=False)

    def keep(self, data: bytes, *, tenant: str, job_id: str) -> str:
        return self._reference()

    def keep_file(self, path: Path, digest: str, *, tenant: str, job_id: str) -> str:
        return self._reference()

    def pack_part(self, text: str, *, what: What, tenant: str, job_id: str, place: str) -> Part:
        return Part(text)

    def open_value(self, value: Any, ref: str | None, *, tenant: str, job_id: str) -> Any:
        return value

    def _reference(self) -> str:
        self.kept.append(f"{SCHEME}replay/{len(self.kept) + 1}")
        return self.kept[-1]
