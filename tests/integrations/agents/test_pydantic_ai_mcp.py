"""Tools of an MCP server: listing and calling them are steps. The server runs in the process of the test."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pydantic_ai import Agent

from holdfast import App
from holdfast.integrations.pydantic_ai import HoldfastAgent
from tests.integrations.agents.conftest import later
from tests.integrations.agents.test_pydantic_ai import calling
from tests.support.workers import work_off


@pytest.mark.slow
@pytest.mark.req("HF-9")
def test_mcp_tools_are_listed_and_called_once_each(app: App, calls: list[str]) -> None:
    from mcp.server import MCPServer  # a slow test alone needs them, and every process would import them
    from pydantic_ai.mcp import MCPToolset

    server = MCPServer("shop")

    @server.tool()
    def price(item: str) -> str:
        calls.append(item)
        return f"{item} costs 7"

    model = calling("price", item="tea")
    tools = MCPToolset(server, id="shop")
    agent = Agent(model, name="mcp", toolsets=[tools.approval_required()])
    handle = HoldfastAgent(agent, app, mcp={"timeout": 20}).enqueue("What does tea cost?")
    work_off(app)
    app.approvals.approve(app.approvals.list()[0].id, by="ada")
    later(app, timedelta(days=2))
    work_off(app)
    assert handle.result(timeout=1) == "tea costs 7"
    assert calls == ["tea"]
    names = [step.name for step in handle.steps()]
    assert names[0] == "list tools: shop"
    assert [name.split()[0] for name in names if name.startswith("price")] == ["price", "price"]
