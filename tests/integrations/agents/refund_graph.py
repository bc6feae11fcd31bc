"""The support agent of ``support_desk`` as a LangGraph graph, with a model that keeps no state."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt

from holdfast import App
from holdfast.integrations.langgraph import HoldfastGraph
from tests.integrations.agents.support_desk import Note


class Desk(BaseChatModel):
    """Looks up two orders, refunds one, and says so. It counts its requests as in ``support_desk``."""

    note: Any

    @property
    def _llm_type(self) -> str:
        return "desk"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        results = [str(message.content) for message in messages if isinstance(message, ToolMessage)]
        number = {0: 1, 2: 3, 3: 5}[len(results)]
        self.note(f"model {number}")
        calls = {
            1: [("lookup", {"order": 7}, "call-a"), ("lookup", {"order": 8}, "call-b")],
            3: [("refund", {"order": 7, "amount": 50}, "call-c")],
            5: [],
        }
        answer = AIMessage(
            results[-1] if number == 5 else "",
            tool_calls=[{"name": name, "args": args, "id": call} for name, args, call in calls[number]],
            usage_metadata={"input_tokens": 60, "output_tokens": 13, "total_tokens": 73},
            response_metadata={"model_name": "desk-1"},
        )
        return ChatResult(generations=[ChatGeneration(message=answer)])


class State(TypedDict, total=False):
    messages: Annotated[list[BaseMessage], add_messages]
    seen: Annotated[list[str], operator.add]


def graph_of(note: Note) -> Any:
    desk = Desk(note=note)

    async def model(state: State) -> dict[str, Any]:
        return {"messages": [await desk.ainvoke(state["messages"])]}

    def calls(state: State) -> list[Send] | str:
        last = state["messages"][-1]
        assert isinstance(last, AIMessage)
        return [Send(call["name"], call) for call in last.tool_calls] or END

    async def lookup(call: Any) -> dict[str, Any]:
        note(f"lookup {call['args']['order']}")
        return {"messages": [ToolMessage(f"order {call['args']['order']}: 50", tool_call_id=call["id"])]}

    def refund(call: Any) -> Command[Any]:
        order, amount = call["args"]["order"], call["args"]["amount"]
        form = {"type": "object", "properties": {"amount": {"type": "integer", "default": amount}}}
        said = interrupt({"refund": order, "amount": amount}, response_schema=form)
        if said is False:
            text = "denied"
        else:
            note(f"refund {order} {said['amount']}")
            text = f"refunded {said['amount']}"
        return Command(update={"messages": [ToolMessage(text, tool_call_id=call["id"])]}, goto="model")

    builder: Any = StateGraph(State)
    builder.add_node("model", model)
    builder.add_node("lookup", lookup)
    builder.add_node("refund", refund)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", calls, ["lookup", "refund", END])
    builder.add_edge("lookup", "model")
    return builder.compile(name="support")


def refund_graph(app: App, note: Note, **settings: Any) -> HoldfastGraph:
    settings = {"output": lambda state: state["messages"][-1].content} | settings
    return HoldfastGraph(graph_of(note), app, **settings)
