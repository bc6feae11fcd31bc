"""The calls of a context that talk to other programs: ``receive`` and ``answer`` messages, ``publish`` values.

They are waits and steps like all others: a message is received once, and what was published or answered is not
published again by a later attempt.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from holdfast.engine.messages import (
    MAILBOX,
    ON_RECEIPT,
    REFUSED,
    VALUE,
    answered_as,
    is_refusal_on_receipt,
    mailbox,
    published_as,
)
from holdfast.engine.units import Duration
from holdfast.errors import EventTimeout, HoldfastError
from holdfast.steps.branches import ROOT, current_path
from holdfast.steps.calls import AwaitedSteps, BlockingSteps
from holdfast.steps.driver import Durable
from holdfast.steps.handler_run import HandlerRun
from holdfast.steps.plan import Plan
from holdfast.steps.program import DurableCall
from holdfast.steps.signature import rebuilt
from holdfast.steps.streams import AwaitedStream, BlockingStream
from holdfast.steps.values import AppEvent

Check = Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class Message:
    """A message that ``ctx.receive`` returns. ``asked``: its sender waits for an answer (``ctx.answer``)."""

    id: str
    name: str
    data: Any
    sent_by: str
    sent_at: datetime
    asked: bool = False

    @classmethod
    def of(cls, event: AppEvent) -> Message:
        name, content = event.name.removeprefix(MAILBOX), event.data
        return cls(event.id, name, content["data"], event.sent_by, event.sent_at, content["asked"])


@dataclass(frozen=True, slots=True)
class _Expected:
    """What ``receive`` accepts. A message that does not fit is refused, and the next one is awaited."""

    name: str
    type: Any
    check: Check | None
    timeout: Duration | None

    def wait(self, plan: Plan) -> DurableCall:
        return plan.event(mailbox(self.name), None, self.timeout, None)

    def timed_out(self) -> EventTimeout:
        return EventTimeout(f"message {self.name!r} did not arrive in time")

    def accept(self, message: Message, n: int, durable: Durable) -> Message | str:
        """The message with its data as the type, or why it is refused. It is decided once: what an earlier attempt
        recorded after it shows how, and ``check`` is not called again."""
        decided = _decided(message, n, durable)
        if isinstance(decided, str):
            return decided
        try:
            data = message.data if self.type is None else rebuilt(self.type, message.data, f"message {self.name}")
            if self.check is not None and not decided:
                self.check(data)
        except HoldfastError as error:
            if decided:
                raise
            return error.message
        except ValueError as error:
            return str(error) or type(error).__name__
        return replace(message, data=data)


def _decided(message: Message, n: int, durable: Durable) -> bool | str:
    """Whether an earlier attempt has accepted the message that wait ``n`` received, or why it has refused it."""
    script, path = durable.script, current_path()
    answer = script.step_named(answered_as(message.id))
    if answer is not None and isinstance(answer.value, dict):
        on_receipt = is_refusal_on_receipt(answer.name, answer.value)
        if not on_receipt:
            return True
        return str(answer.value[REFUSED]) if ON_RECEIPT in answer.value else False
    later = script.after(n, path, alone=path == ROOT and not durable.suspensions.gathering)
    # A refusal of another message comes from another call that runs at once.
    return any(not is_refusal_on_receipt(step.name, step.value) for step in later)


class BlockingMessages:
    """For a ``SyncContext``. ``AwaitedMessages`` explains the calls."""

    __slots__ = ()

    if TYPE_CHECKING:
        _run: HandlerRun

    def receive(
        self, name: str, *, type: Any = None, check: Check | None = None, timeout: Duration | None = None
    ) -> Message:
        """Wait for the next message of this name; ``EventTimeout`` if none comes in time."""
        driver, expected = self._run.thread_driver, _Expected(name, type, check, timeout)
        while True:
            wait = expected.wait(driver.plan)
            n = inspect.getgeneratorlocals(wait)["n"]
            try:
                received = Message.of(driver.drive(wait))
            except EventTimeout:
                raise expected.timed_out() from None
            accepted = expected.accept(received, n, driver.plan.durable)
            if isinstance(accepted, Message):
                return accepted
            self._keep(answered_as(received.id), {REFUSED: accepted, ON_RECEIPT: True})

    def publish(self, name: str, value: Any) -> None:
        """Publish a value under a name, for ``handle.value(name)`` and ``handle.wait_for_value(name)``."""
        self._keep(published_as(name), value)

    def answer(self, message: Message, value: Any = None) -> None:
        """Answer a question: ``handle.ask`` returns this value."""
        self._keep(answered_as(message.id), {VALUE: value})

    def refuse(self, message: Message, reason: str) -> None:
        """Refuse a question: ``handle.ask`` raises ``Refused`` with this reason."""
        self._keep(answered_as(message.id), {REFUSED: reason, ON_RECEIPT: False})

    def stream(self, name: str) -> BlockingStream:
        """Open an output stream: ``ctx.stream("tokens").write(text)``. See ``Context.stream``."""
        return BlockingStream(self._run, name)

    def _keep(self, name: str, value: Any) -> None:
        BlockingSteps(self._run.thread_driver).step(name, lambda: value)


class AwaitedMessages:
    """For a ``Context``."""

    __slots__ = ()

    if TYPE_CHECKING:
        _run: HandlerRun

    def receive(
        self, name: str, *, type: Any = None, check: Check | None = None, timeout: Duration | None = None
    ) -> Coroutine[Any, Any, Message]:
        """Suspend the job until ``handle.send(name, …)`` or ``handle.ask(name, …)`` sends it a message.

        Messages of a name are received in the order in which they were sent, each once. Raises ``EventTimeout`` if none
        comes in time. ``type`` is what the data is converted to (with pydantic), ``check`` is called with it and may
        raise ``ValueError``: a message that does not fit is refused, its sender is told why, and the call waits on.
        """
        expected = _Expected(name, type, check, timeout)
        return self._received(expected, expected.wait(self._run.plan))

    async def _received(self, expected: _Expected, wait: DurableCall) -> Message:
        plan = self._run.plan
        while True:
            n = inspect.getgeneratorlocals(wait)["n"]
            try:
                received = Message.of(await plan.durable.drive(wait))
            except EventTimeout:
                raise expected.timed_out() from None
            accepted = expected.accept(received, n, plan.durable)
            if isinstance(accepted, Message):
                return accepted
            await self._keep(answered_as(received.id), {REFUSED: accepted, ON_RECEIPT: True})
            wait = expected.wait(plan)

    def publish(self, name: str, value: Any) -> Coroutine[Any, Any, None]:
        """Publish a value under a name, for ``handle.value(name)`` and ``handle.wait_for_value(name)``. The last one
        counts. Each is stored like the result of a step: for hundreds of them use ``ctx.stream``."""
        return self._keep(published_as(name), value)

    def answer(self, message: Message, value: Any = None) -> Coroutine[Any, Any, None]:
        """Answer a question: ``handle.ask`` returns this value. The first answer counts."""
        return self._keep(answered_as(message.id), {VALUE: value})

    def refuse(self, message: Message, reason: str) -> Coroutine[Any, Any, None]:
        """Refuse a question: ``handle.ask`` raises ``Refused`` with this reason."""
        return self._keep(answered_as(message.id), {REFUSED: reason, ON_RECEIPT: False})

    def stream(self, name: str) -> AwaitedStream:
        """Open an output stream: ``stream = ctx.stream("tokens"); await stream.write(text)``, inside a step or not.

        Clients read it with ``handle.stream("tokens")``, also while the handler runs. If a step or an attempt is
        retried, what it writes replaces what it had written, and readers are told.
        """
        return AwaitedStream(self._run, name)

    def _keep(self, name: str, value: Any) -> Coroutine[Any, Any, None]:
        async def result() -> Any:
            return value

        return AwaitedSteps(self._run.plan).step(name, result)
