"""Replay recorded histories against the code of an app, and say which jobs would stop: ``holdfast replay``,
``kit.replay``.

A handler runs from the top with the recorded results of its calls, up to the last of them. No function of a step is
called, and meanwhile the app uses neither its database nor its artifact store. What a handler does between its calls it
does here too, as it does whenever a job resumes; a handler without recorded calls is not run at all.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import pdb
import sys
from bdb import BdbQuit
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from holdfast.app.handlers import Declared, result_binder, wants_context
from holdfast.app.internals import kinds_of, session_of
from holdfast.context import Context, LazyContext, SyncContext, enter
from holdfast.engine.bound_results import RESULT_MARK
from holdfast.engine.hooks import AppHooks
from holdfast.engine.job import Claim
from holdfast.engine.outcome import Cancel, Reject, RetryLater, Snooze, Stopped
from holdfast.engine.redaction import Redactor
from holdfast.engine.states import State
from holdfast.engine.steps import Step
from holdfast.errors import HoldfastError, InvalidArguments, StepsChanged
from holdfast.features.connectors.command_runner import Program
from holdfast.steps.driver import Plan, StepTools
from holdfast.steps.handler_run import HandlerRun
from holdfast.steps.history import History
from holdfast.steps.replay import Call, Code, Difference, EndOfHistory, RecordedStore, RecordedVault, Replay
from holdfast.stores.session import Session
from holdfast.telemetry import observers
from holdfast.telemetry.tracebacks import message_of
from holdfast.worker.shutdown import Stop, Suspended
from holdfast.worker.threads import Threads
from holdfast.worker.writers import StepWriter

if TYPE_CHECKING:
    from holdfast.app import App
    from holdfast.features.assembly import Store

Verdict = Literal["compatible", "different", "unchecked", "skipped"]
TIMEOUT: Final = 10.0
"""Seconds that one handler may take."""
_ENDINGS: Final = (Snooze, Cancel, RetryLater, Reject, Stopped)


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of one replay. ``matched`` of ``recorded`` calls were made as they are recorded.

    ``unchecked``: the replay ended before the record did, for the reason in ``note``, and found nothing until then.
    ``skipped``: the history could not be replayed.
    """

    job_id: str
    tenant: str
    kind: str
    state: State
    verdict: Verdict
    matched: int = 0
    recorded: int = 0
    difference: Difference | None = None
    note: str | None = None
    redacted: bool = False

    @property
    def stops(self) -> bool:
        """Whether a job with this history would stop."""
        return self.difference is not None and self.difference.stops

    def __str__(self) -> str:
        found = self.difference
        if found is None:
            return f"{self.kind} {self.job_id}: {self.verdict}" + (f": {self.note}" if self.note else "")
        text = f"{self.kind} {self.job_id} ({self.state}): {found.message} [{found.code}]"
        return text + (" (the values of this history are redacted)" if self.redacted else "")


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The results of a replay, in the order of the histories."""

    results: tuple[Replayed, ...] = ()

    @property
    def different(self) -> tuple[Replayed, ...]:
        return tuple(each for each in self.results if each.difference is not None)

    @property
    def not_checked(self) -> tuple[Replayed, ...]:
        return tuple(each for each in self.results if each.verdict in ("unchecked", "skipped"))

    @property
    def counts(self) -> dict[str, int]:
        """The number of histories per verdict."""
        return dict(Counter(each.verdict for each in self.results))


class Replayer:
    """Replays histories against the kinds of an app. ``timeout`` is how long one handler may take, in seconds;
    ``debug`` starts the debugger at the first line of the handler."""

    def __init__(self, app: App, *, timeout: float | None = TIMEOUT, debug: bool = False) -> None:
        self._app = app
        self._timeout = None if debug else timeout
        self._debug = debug
        self._threads = Threads(idle_for=0.1)

    async def replay(self, history: History) -> Replayed:
        declared = kinds_of(self._app).get(history.job.kind)
        if (why := _unfit(declared, history)) is not None:
            return _result(history, "skipped", note=why)
        assert declared is not None
        result = await self._once(declared, history)
        if result.difference is None or self._debug or result.difference.n is None:
            return result
        again = await self._once(declared, history)
        if _place(again) == _place(result):
            return result
        message = (
            f"job {history.id}: two replays of the same code differ: {result.difference.message}; the second: "
            f"{again.difference.message if again.difference else again.verdict}"
        )
        found = Difference("not_deterministic", message, result.difference.n, result.difference.recorded)
        return _result(history, "different", matched=result.matched, difference=found)

    async def _once(self, declared: Declared, history: History) -> Replayed:
        claim, store = history.claim(), RecordedStore(history)
        session = Session(cast("Store", store), tenant=claim.tenant, name="replay", actor="replay")
        session.vault = RecordedVault()
        with _isolated(session_of(self._app), session):
            if RESULT_MARK in claim.payload:
                claim = await result_binder(session)(claim)
            try:
                arguments = declared.kind._signature.unpack(claim.payload)
            except InvalidArguments as error:
                found = Difference("arguments_changed", f"job {history.id}: its payload does not fit: {error.message}")
                return _result(history, "different", difference=found)
            if not history.steps:
                return _result(history, "compatible", note="no call is recorded: only its payload was checked")
            run = _Run(self, declared, history, claim, session, arguments)
            return await run.result()


@dataclass(slots=True)
class _Run:
    """One run of one handler."""

    replayer: Replayer
    declared: Declared
    history: History
    claim: Claim
    session: Session
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    durable: Replay = field(init=False)

    async def result(self) -> Replayed:
        limit = asyncio.timeout(self.replayer._timeout)
        try:
            async with limit:
                await self._call()
        except TimeoutError as error:
            if not limit.expired():
                return self._raised(error)
            return self._found("handler_failed", f"has not reached it after {self.replayer._timeout:g} s")
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise
        except BdbQuit:
            raise
        except BaseException as error:
            end = _suspension(error)
            return (
                self._raised(error) if end is None else self._ended(end.what if isinstance(end, EndOfHistory) else None)
            )
        return self._returned()

    async def _call(self) -> None:
        app, claim, session = self.replayer._app, self.claim, self.session
        function, is_async = self.declared.kind.function, inspect.iscoroutinefunction(self.declared.kind.function)
        stop, redact, loop = Stop(), Redactor(), asyncio.get_running_loop()
        tools = StepTools(StepWriter(session.store, claim.tenant), self.replayer._threads, lambda: app._notifier)
        halt: type[BaseException] = asyncio.CancelledError if is_async else Stopped
        self.durable = Replay(
            self.history, claim=claim, client=session, tools=tools, redact=redact, stop=stop, halt=halt
        )
        run = HandlerRun(
            *(claim, session, _silent, stop, redact, lambda report: None, app._make.child),
            tools=tools,
            loop=loop,
            halt=halt,
        )
        run._plan = Plan(self.durable)
        context = Context(run) if is_async else SyncContext(run)
        lazy = LazyContext(lambda *_: context, claim, stop)
        enter(lazy, claim, session)
        lazy.get()
        args, kwargs = self.arguments
        if wants_context(function):
            args = (context, *args)
        call = partial(function, *args, **kwargs)
        if self.replayer._debug:
            call = partial(_debugged_coroutine if is_async else _debugged, function.__code__, call)
        try:
            await (call() if is_async else self.replayer._threads.run(claim.kind, call))
        finally:
            stop.over()
            await run.finish_steps()

    # --- what it means ---

    def _ended(self, what: str | None) -> Replayed:
        """The handler was suspended: at a call without a record, after the last recorded one, or where it needs a
        database."""
        durable, end = self.durable, self.durable.end
        skipped = [step for step in durable.missing if end is not None and step.n < end.n]
        if durable.difference is None and skipped:
            return self._missing(skipped[0], f"call {end and end.n}, {end and Call.of(end)}")
        if durable.difference is not None:
            return self._result("different", durable.difference)
        if durable.missing:
            first = durable.missing[0]
            where = f"it reached {what or (end and Call.of(end))}, which is not recorded"
            return self._result(
                "unchecked", note=f"{where}; not checked: {len(durable.missing)} calls from {first.n} on"
            )
        return self._result("compatible")

    def _returned(self) -> Replayed:
        not_asked = self.durable.script.not_asked()
        if self.durable.difference is None and not_asked is not None:
            return self._found("approval_not_asked", not_asked.message)
        if self.durable.difference is None and self.durable.missing:
            return self._missing(self.durable.missing[0], "the end of the handler")
        return self._ended(None)

    def _raised(self, error: BaseException) -> Replayed:
        difference = self.durable.difference
        if difference is not None and (difference.stops or isinstance(error, StepsChanged)):
            return self._result("different", difference)
        name = type(error).__name__
        text = error.message if isinstance(error, HoldfastError) else message_of(error)
        verb = "ends with" if isinstance(error, _ENDINGS) else "raises"
        return self._found("handler_failed", f"{verb} {name}: {text}"[:500].rstrip(": "))

    def _missing(self, step: Step, reached: str) -> Replayed:
        message = (
            f"job {self.history.id}: durable call {step.n}, {Call.of(step)}, is recorded and no longer made: "
            f"the handler reaches {reached}"
        )
        return self._result("different", Difference("not_called", message, step.n, Call.of(step), stops=False))

    def _found(self, code: Code, what: str) -> Replayed:
        """The handler has ended by itself before its record did."""
        step = self.durable.missing[0] if self.durable.missing else None
        before = "" if step is None else f" before durable call {step.n}, {Call.of(step)}"
        message = what if code == "approval_not_asked" else f"job {self.history.id}: the handler {what}{before}"
        recorded = None if step is None else Call.of(step)
        return self._result("different", Difference(code, message, None if step is None else step.n, recorded))

    def _result(self, verdict: Verdict, difference: Difference | None = None, note: str | None = None) -> Replayed:
        matched = len(self.history.steps) - len(self.durable.missing)
        return _result(self.history, verdict, matched=matched, difference=difference, note=note)


def _result(history: History, verdict: Verdict, **more: Any) -> Replayed:
    job = history.job
    return Replayed(
        *(job.id, job.tenant, job.kind, job.state, verdict),
        recorded=len(history.steps),
        redacted=history.redacted,
        **more,
    )


def _unfit(declared: Declared | None, history: History) -> str | None:
    if declared is None:
        return f"this app declares no job {history.job.kind!r}"
    if history.hidden is not None:
        return history.hidden
    if isinstance(declared.run_mode, Program):
        return "it is a command: its code is another program"
    return None


def _suspension(error: BaseException) -> BaseException | None:
    """The suspension of a handler. A task group wraps those of its tasks."""
    if isinstance(error, BaseExceptionGroup):
        return None if error.split(Suspended)[1] is not None else _suspension(error.exceptions[0])
    return error if isinstance(error, Suspended) else None


def _place(result: Replayed) -> tuple[str, int | None, Call | None] | None:
    found = result.difference
    return None if found is None else (found.code, found.n, found.called)


_silent: Final = logging.Logger("holdfast.replay", logging.CRITICAL + 1)


@contextmanager
def _isolated(session: Session, recorded: Session) -> Iterator[None]:
    """Let the app use the recorded history instead of its database within the block, without hooks and telemetry."""
    store, vault, hooks = session.store, session.vault, session.hooks
    session.move_to(recorded.store)
    session.vault, session.hooks = recorded.vault, AppHooks()
    try:
        with observers.muted():
            yield
    finally:
        session.move_to(store)
        session.vault, session.hooks = vault, hooks


# --- the debugger ---


def _debugged(code: CodeType, call: Callable[[], Any]) -> Any:
    with _stopping_in(code):
        return call()


async def _debugged_coroutine(code: CodeType, call: Callable[[], Any]) -> Any:
    with _stopping_in(code):
        return await call()


@contextmanager
def _stopping_in(code: CodeType) -> Iterator[None]:
    """Start the debugger at the first line of this code, in this thread."""

    def entered(frame: FrameType, event: str, argument: object) -> Any:
        return stop if frame.f_code is code else None

    def stop(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            debugger = pdb.Pdb(nosigint=True)
            debugger.set_trace(frame)
            return debugger.trace_dispatch(frame, event, argument)
        return stop

    sys.settrace(entered)
    try:
        yield
    finally:
        sys.settrace(None)
