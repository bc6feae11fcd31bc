"""What the durable verbs of both colours share: check what is asked, take its place in the handler's order, make the
call.

The place is taken when the call is made, not when it runs: of steps that run at once, the order is that of the code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from holdfast.durable import script
from holdfast.durable.approvals import Asking, decision, question
from holdfast.durable.drivers import Durable
from holdfast.durable.script import Durably
from holdfast.durable.values import Value, check_callable
from holdfast.engine.names import check_name
from holdfast.engine.outcome import Reject
from holdfast.engine.retry import Retry
from holdfast.engine.steps import BEFORE_ALL, check_match, check_step_name
from holdfast.engine.times import instant
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting
from holdfast.stores.ids import new_id

running: ContextVar[str | None] = ContextVar("holdfast_step_key", default=None)


def step_key() -> str:
    """Inside a step: a key for the outside world, the same each time this very step is tried."""
    key = running.get()
    if key is None:
        raise InvalidSetting("there is no step running here", code="no_step")
    return key


class Plan:
    def __init__(self, durable: Durable) -> None:
        self.durable = durable

    def _place(self) -> int:
        if running.get() is not None:
            raise InvalidSetting(
                "a step makes no durable calls of its own: it is done as a whole or not at all", code="nested_step"
            )
        self.durable.may_go_on()
        return self.durable.script.take_place()

    def step(self, name: str, function: Callable[..., Any], retry: Retry | None) -> tuple[Durably, str]:
        """The call, and the key that the outside world may be given."""
        name = check_step_name(name)
        check_callable(name, function)
        durable, n = self.durable, self._place()
        claim = durable.claim
        call = script.step(durable.script, n, name, Value.of(name, function), retry, durable.redact)
        return call, f"{claim.tenant}:{claim.kind}:{claim.id}:{n}"

    def sleep(self, delay: Duration | None, until: datetime | None, name: str) -> Durably:
        if delay is None:
            until = instant(until, "the time")
        span = None if delay is None else seconds(delay, "delay")
        return script.sleep(self.durable.script, self._place(), check_step_name(name), span, until)

    def event(
        self, name: str, match: Mapping[str, Any] | None, timeout: Duration | None, since: Duration | None
    ) -> Durably:
        wanted, limit = check_match(match), None if timeout is None else seconds(timeout, "timeout")
        back, label = 0.0 if since is None else seconds(since, "since"), check_name(name, "event")
        return script.wait_for_event(self.durable.script, self._place(), label, wanted, limit, back)

    def approval(self, name: str, summary: str, form: Any, options: Asking) -> Durably:
        asked, label = question(summary, form, options), check_step_name(name)
        gate = asked.to_json(new_id(), label, self.durable.lent.notify())
        return script.approval(self.durable.script, self._place(), label, gate)

    async def before_all(self, name: str, summary: str, options: Asking) -> None:
        """The gate before the handler: raises ``Suspended`` until it is approved."""
        durable = self.durable
        gate = question(summary, None, options).to_json(new_id(), name, durable.lent.notify())
        said = decision(await durable.drive(script.approval(durable.script, BEFORE_ALL, name, gate)), None)
        if not said.approved:  # its job has ended with that; whatever put it back into the queue
            raise Reject("denied", f"it was {said.state}" + (f" by {said.by}" if said.by else ""))
