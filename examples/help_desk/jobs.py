"""The jobs of the help desk. A ticket is one job: the agent's calls and the reply are its steps."""

from __future__ import annotations

import os

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from sqlalchemy import func, select

import holdfast
from holdfast.integrations.pydantic_ai import HoldfastDurability
from models import URL, Order, Ticket, make_session

app = holdfast.App(URL, name="help-desk")


def think(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Stands in for a language model: look up the order, refund what was not delivered, and say so."""
    parts = [part for message in messages for part in message.parts]
    results = [part for part in parts if isinstance(part, ToolReturnPart)]
    if not results:
        number = int(str(parts[0].content).split("order ")[1].split(":")[0])  # type: ignore[union-attr]
        return ModelResponse(parts=[ToolCallPart("find_order", {"number": number}, tool_call_id="find")])
    found = results[0].content
    if len(results) == 1 and isinstance(found, dict) and not found["delivered"]:
        arguments = {"number": found["number"], "amount": found["total"]}
        return ModelResponse(parts=[ToolCallPart("refund", arguments, tool_call_id="refund")])
    return ModelResponse(parts=[TextPart(str(results[-1].content) if len(results) > 1 else "It was delivered.")])


agent = Agent(
    os.environ.get("DESK_MODEL") or FunctionModel(think),
    name="desk",
    instructions="Help customers. Refund what was not delivered.",
    capabilities=[HoldfastDurability(approval={"expires_in": "7d"}, budget=50_000)],
)


@agent.tool_plain
async def find_order(number: int) -> dict[str, int | bool]:
    async with make_session() as session:
        order = await session.get_one(Order, number)
        return {"number": number, "total": order.total, "delivered": order.delivered}


@agent.tool_plain(requires_approval=True)
async def refund(number: int, amount: int) -> str:
    async with make_session() as session:
        order = await session.get_one(Order, number)
        order.refunded = amount  # a repeated call changes nothing
        await session.commit()
    return f"{amount} euros are on their way."


async def save_reply(ticket_id: int, reply: str) -> None:
    async with make_session() as session:
        (await session.get_one(Ticket, ticket_id)).reply = reply
        await session.commit()


@app.job(queue="desk", retry=holdfast.Retry(max_attempts=5))
async def answer(ctx: holdfast.Context, ticket_id: int, order: int, text: str) -> str:
    """Answer a ticket with the agent."""
    result = await agent.run(f"About order {order}: {text}")
    await ctx.step("reply", save_reply, ticket_id, result.output)
    return result.output


@app.schedule("0 6 * * *", tz="Europe/Paris")
@app.job(queue="desk")
async def report() -> dict[str, int]:
    """Count tickets and refunds."""
    async with make_session() as session:
        tickets = await session.scalar(select(func.count(Ticket.id)))
        refunded = await session.scalar(select(func.coalesce(func.sum(Order.refunded), 0)))
    return {"tickets": tickets or 0, "refunded": refunded or 0}
