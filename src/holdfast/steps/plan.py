"""``Plan`` checks the arguments of a durable call, gives the call its position and makes its program.

The position is taken when the call is made, not when it runs, so steps that run at once have the order of the code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any, TypeAlias

from holdfast.engine.names import check_name
from holdfast.engine.retry import Retry
from holdfast.engine.steps import (
    BEFORE_ALL,
    check_match,
    check_step_name,
)
from holdfast.engine.times import instant
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting
from holdfast.steps import program, undo
from holdfast.steps.approvals import ApprovalOptions, check_approved, decision, first_question, question
from holdfast.steps.branches import ROOT, Branch, current_branch
from holdfast.steps.driver import Durable
from holdfast.steps.program import DurableCall
from holdfast.steps.undo import Undo
from holdfast.steps.values import Value, check_callable
from holdfast.stores.requests import new_id


class RunningStep:
    """A step that runs: its position, and its idempotency key for other systems. Another object for each try."""

    __slots__ = ("key", "n")

    def __init__(self, key: str, n: int) -> None:
        self.key, self.n = key, n


running: ContextVar[RunningStep | None] = ContextVar("holdfast_step_key", default=None)


def step_key() -> str:
    """Inside a step: an idempotency key for other systems, the same in every attempt of this step."""
    step = running.get()
    if step is None:
        raise InvalidSetting("no step is running here", code="no_step")
    return step.key


StepKey: TypeAlias = tuple[str, int]
"""The idempotency key of a step for other systems, and its position."""


class Plan:
    def __init__(self, durable: Durable) -> None:
        self.durable = durable
        self.root = Branch(ROOT)

    def _check_allowed(self) -> None:
        if running.get() is not None:
            raise InvalidSetting("a step cannot make durable calls: it runs as a whole", code="nested_step")
        self.durable.check_running()

    def _next_position(self) -> int:
        self._check_allowed()
        branch, script = current_branch(), self.durable.script
        return script.next_position() if branch is None else script.position_in(branch.path, branch.next())

    def step(self, name: str, function: Callable[..., Any], retry: Retry | None) -> tuple[DurableCall, StepKey]:
        """The call, and its key."""
        name = check_step_name(name)
        check_callable(name, function)
        return self._step(self._next_position(), name, function, retry)

    def undoable(
        self, call: DurableCall, name: str, function: Callable[[Any], Any], retry: Retry | None, timeout: float | None
    ) -> DurableCall:
        """The call of a step that ``function`` undoes."""
        check_callable(name, function)
        n = inspect.getgeneratorlocals(call)["n"]

        def keep(value: Any) -> None:
            self.durable.undos.append(Undo(n, name, function, value, retry, timeout))

        return undo.undoable(n, call, keep)

    async def unordered_step(
        self, name: str, function: Callable[..., Any], retry: Retry | None
    ) -> tuple[DurableCall, StepKey]:
        """The same for a step that is identified by its name. Its position depends on the recorded steps."""
        check_callable(check_step_name(name), function)
        self._check_allowed()
        n, name = (await self.durable.remember()).named_position(name)
        return self._step(n, check_step_name(name), function, retry)

    def _step(
        self, n: int, name: str, function: Callable[..., Any], retry: Retry | None
    ) -> tuple[DurableCall, StepKey]:
        durable, claim = self.durable, self.durable.claim
        call = program.step(
            durable.script, n, name, Value.of(name, function, durable.client.vault), retry, durable.redact
        )
        return call, (f"{claim.tenant}:{claim.kind}:{claim.id}:{durable.script.place_of(n) or n}", n)

    def sleep(self, delay: Duration | None, until: datetime | None, name: str) -> DurableCall:
        if delay is None:
            until = instant(until, "the time")
        duration = None if delay is None else seconds(delay, "delay")
        return program.sleep(self.durable.script, self._next_position(), check_step_name(name), duration, until)

    def event(
        self, name: str, match: Mapping[str, Any] | None, timeout: Duration | None, since: Duration | None
    ) -> DurableCall:
        wanted, limit = check_match(match), None if timeout is None else seconds(timeout, "timeout")
        lookback, label = 0.0 if since is None else seconds(since, "since"), check_name(name, "event")
        return program.wait_for_event(self.durable.script, self._next_position(), label, wanted, limit, lookback)

    def approval(self, name: str, summary: str, form: Any, options: ApprovalOptions) -> DurableCall:
        asked, label = question(summary, form, options), check_step_name(name)
        approval = asked.to_json(new_id(), label, self.durable.tools.notify())
        return program.approval(self.durable.script, self._next_position(), label, approval)

    async def before_all(self, name: str, summary: str, options: ApprovalOptions, shown: Any) -> None:
        """The approval before the handler: raises ``Suspended`` until it is approved."""
        durable = self.durable
        approval = first_question(name, summary, options, shown, durable.tools.notify())
        result = decision(await durable.drive(program.approval(durable.script, BEFORE_ALL, name, approval)), None)
        check_approved(result)
