"""A support agent on Pydantic AI's function model. It looks up two orders at once, requests a refund and reports.

``note`` is called for each model request and each tool call that is really made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import App, Retry
from holdfast.integrations.pydantic_ai import HoldfastAgent

Note = Callable[[str], object]


def last_tool_results(messages: list[ModelMessage]) -> str:
    """The tool results in the last message to the model."""
    last = messages[-1]
    assert isinstance(last, ModelRequest)
    return "; ".join(str(part.content) for part in last.parts if isinstance(part, ToolReturnPart))


def support_agent(note: Note, **refund: Any) -> Agent[None, str]:
    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        note(f"model {len(messages)}")
        match len(messages):
            case 1:
                return ModelResponse(
                    parts=[
                        ToolCallPart("lookup", {"order": 7}, tool_call_id="call-a"),
                        ToolCallPart("lookup", {"order": 8}, tool_call_id="call-b"),
                    ]
                )
            case 3:
                return ModelResponse(parts=[ToolCallPart("refund", {"order": 7, "amount": 50}, tool_call_id="call-c")])
        return ModelResponse(parts=[TextPart(last_tool_results(messages))])

    agent = Agent(FunctionModel(model), name="support", output_type=str)

    @agent.tool_plain
    async def lookup(order: int) -> dict[str, int]:
        note(f"lookup {order}")
        return {"order": order, "total": 50}

    @agent.tool_plain(requires_approval=True, **refund)
    def refund_order(order: int, amount: int) -> str:
        note(f"refund {order} {amount}")
        return f"refunded {amount}"

    return agent


def support(app: App, note: Note, **settings: Any) -> HoldfastAgent[None, str]:
    settings = {"retry": Retry(max_attempts=1)} | settings
    tool = settings.pop("refund", {})
    return HoldfastAgent(support_agent(note, name="refund", **tool), app, **settings)
