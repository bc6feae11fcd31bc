"""The support agent of ``support_desk`` on the OpenAI Agents SDK, with a model that keeps no state."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Usage, function_tool
from agents.items import TResponseStreamEvent
from agents.testing import assistant_message, function_call

from holdfast import App
from holdfast.integrations.openai_agents import HoldfastAgent
from tests.integrations.agents.support_desk import Note


class Desk(Model):
    def __init__(self, note: Note) -> None:
        self._note = note

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        items: Any = args[1] if len(args) > 1 else kwargs["input"]
        outputs = [] if isinstance(items, str) else [item["output"] for item in items if "output" in item]
        number = {0: 1, 2: 3, 3: 5}[len(outputs)]  # counted as in ``support_desk``
        self._note(f"model {number}")
        answers = {
            1: [
                function_call("lookup", {"order": 7}, call_id="call-a"),
                function_call("lookup", {"order": 8}, call_id="call-b"),
            ],
            3: [function_call("refund", {"order": 7, "amount": 50}, call_id="call-c")],
            5: [assistant_message(str(outputs[-1]) if outputs else "")],
        }
        usage = Usage(requests=1, input_tokens=60, output_tokens=13, total_tokens=73)
        return ModelResponse(output=answers[number], usage=usage, response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:
        raise NotImplementedError


def refunds(app: App, note: Note, **settings: Any) -> HoldfastAgent[None]:
    @function_tool
    async def lookup(order: int) -> str:
        note(f"lookup {order}")
        return f"order {order}: 50"

    @function_tool(needs_approval=True)
    def refund(order: int, amount: int) -> str:
        note(f"refund {order} {amount}")
        return f"refunded {amount}"

    agent = Agent[None]("support", tools=[lookup, refund], model=Desk(note))
    return HoldfastAgent(agent, app, run_config=RunConfig(tracing_disabled=True), **settings)
