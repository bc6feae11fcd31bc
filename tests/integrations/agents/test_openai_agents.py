"""OpenAI Agents SDK agents as jobs, on the SDK's scripted model."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from agents import Agent, LocalShellTool, RunConfig, Runner, Usage, function_tool, handoff
from agents.testing import ScriptedModel, assistant_message, function_call
from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAgent

from holdfast import App, Backoff, Context, Retry, State
from holdfast.errors import InvalidInput
from holdfast.integrations.openai_agents import HoldfastAgent, ToolOptions
from tests.integrations.agents.conftest import later
from tests.support.workers import work_off

pytestmark = pytest.mark.req("HF-9")

QUIET = RunConfig(tracing_disabled=True)
AT_ONCE = Retry(max_attempts=3, backoff=Backoff(base=0.0, jitter=False))
USAGE = Usage(requests=1, input_tokens=40, output_tokens=10, total_tokens=50)


class Answer(BaseModel):
    text: str


def scripted(*steps: Any) -> ScriptedModel:
    return ScriptedModel(steps, default_usage=USAGE)


@pytest.fixture
def refunds(calls: list[str]) -> Agent[None]:
    """An agent that looks up two orders at once and hands off to one that refunds."""

    @function_tool
    async def lookup(order: int) -> str:
        calls.append(f"lookup {order}")
        return f"order {order}: 50"

    @function_tool(needs_approval=True)
    def refund(order: int, amount: int) -> str:
        calls.append(f"refund {order} {amount}")
        return f"refunded {amount}"

    cashier = Agent(
        "cashier",
        tools=[refund],
        model=scripted(
            [function_call("refund", {"order": 7, "amount": 50}, call_id="c")],
            [assistant_message('{"text": "done"}')],
        ),
        output_type=Answer,
    )
    desk = Agent[None](
        "desk",
        tools=[lookup],
        handoffs=[cashier],
        model=scripted(
            [function_call("lookup", {"order": 7}, call_id="a"), function_call("lookup", {"order": 8}, call_id="b")],
            [function_call("transfer_to_cashier", {}, call_id="h")],
        ),
        output_type=Answer,
    )
    return desk


def test_options_of_the_agent_are_listed_and_other_agents_refused(app: App) -> None:
    with pytest.raises(InvalidInput, match=r'For approvers use approval=\{"approvers": \[…\]\}') as refused:
        HoldfastAgent(Agent("desk"), app, approvers=["ada"])  # type: ignore[call-arg]
    assert "budget" in str(refused.value)
    with pytest.raises(InvalidInput, match=r"from holdfast\.integrations\.pydantic_ai"):
        HoldfastAgent(PydanticAgent("test", name="desk"), app)  # type: ignore[arg-type]


@pytest.mark.every_case
def test_run_waits_without_a_worker_and_makes_each_call_once(
    each_app: App, refunds: Agent[None], calls: list[str]
) -> None:
    app = each_app
    desk = HoldfastAgent(
        refunds,
        app,
        run_config=QUIET,
        tools={"refund": {"approval": {"approvers": ["ada"]}, "timeout": 9}},
        retry=Retry(max_attempts=1),
    )
    handle = desk.enqueue("Refund order 7")
    work_off(app)
    assert handle.get().state is State.WAITING_FOR_APPROVAL
    (approval,) = app.approvals.list(approver="ada")
    assert (approval.data["arguments"], calls) == ({"order": 7, "amount": 50}, ["lookup 7", "lookup 8"])
    later(app, timedelta(days=9))
    app.approvals.approve(approval.id, by="ada", data={"amount": 20})
    work_off(app)
    # The scripts have one step per request: a repeated request would fail.
    assert handle.result(timeout=1) == Answer(text="done")
    assert calls == ["lookup 7", "lookup 8", "refund 7 20"]
    assert [line.cost for line in app.usage.list(by="kind")] == [200.0]
    names = [step.name for step in handle.steps()]
    assert (names.count("desk: model request"), {*names} >= {"lookup a", "lookup b", "refund c"}) == (4, True)
    assert any(item.get("output") == "refunded 20" for item in desk.messages(handle.id))


def test_model_gets_a_denial_and_failed_requests_are_retried(app: App, calls: list[str]) -> None:
    @function_tool(needs_approval=True)
    def pay() -> str:
        calls.append("pay")
        return "paid"

    model = scripted(ConnectionError("flaky"), [function_call("pay", {}, call_id="p")], [assistant_message("a pity")])
    agent = HoldfastAgent(Agent("payer", tools=[pay], model=model), app, run_config=QUIET, model={"retry": AT_ONCE})
    handle = agent.enqueue("Pay")
    work_off(app)
    app.approvals.deny(app.approvals.list()[0].id, by="ada", comment="not today")
    work_off(app)
    assert (handle.result(timeout=1), calls) == ("a pity", [])
    outputs = [item.get("output") for item in agent.messages(handle.id)]
    assert "The tool call was denied by ada: not today" in outputs


def test_run_stops_at_its_budget_and_builds_its_context_in_the_worker(app: App, calls: list[str]) -> None:
    @function_tool
    def again() -> str:
        calls.append("again")
        return "more"

    looping = [[function_call("again", {}, call_id=f"call-{number}")] for number in range(9)]
    dear = HoldfastAgent(Agent("dear", tools=[again], model=scripted(*looping)), app, run_config=QUIET, budget=100)
    long = HoldfastAgent(Agent("long", tools=[again], model=scripted(*looping)), app, run_config=QUIET, max_turns=2)
    made: list[Any] = []
    plain = Agent("plain", model=scripted([assistant_message("hello")]))
    greeting = HoldfastAgent(plain, app, run_config=QUIET, context=lambda name: made.append(name)).enqueue(
        "Hello", context="ada"
    )
    handles = [dear.enqueue("Go"), long.enqueue("Go")]
    work_off(app)
    assert [handle.get().error_code for handle in handles] == ["agent_budget_exceeded"] * 2
    assert (greeting.result(timeout=1), made, len(calls)) == ("hello", ["ada"], 4)
    outside = Agent("outside", model=scripted([assistant_message("plain")]))
    HoldfastAgent(outside, app, run_config=QUIET)
    assert asyncio.run(Runner.run(outside, "Hello", run_config=QUIET)).final_output == "plain"


def test_agent_that_cannot_be_durable_is_refused_with_a_fix(app: App) -> None:
    def code_of(agent: Agent[Any], **settings: Any) -> str:
        with pytest.raises(InvalidInput) as caught:
            HoldfastAgent(agent, app, **settings)
        assert caught.value.fix
        return caught.value.code

    HoldfastAgent(Agent("a"), app)
    assert code_of(Agent("a")) == "duplicate_kind"
    assert code_of(Agent("")) == "agent_without_name"
    assert code_of(Agent("b"), budget=0) == "invalid_budget"
    assert code_of(Agent("b", tools=[LocalShellTool(executor=lambda request: "")])) == "agent_not_durable"


def test_agent_as_a_tool_cannot_ask_inside(app: App, refunds: Agent[None]) -> None:
    """Its run is one step, which cannot wait. The approval of the tool itself works."""
    cashier = refunds.handoffs[0]
    assert isinstance(cashier, Agent)
    plain = Agent[None]("plain", model=scripted([assistant_message("looked up")]))
    for inner in (cashier, refunds, Agent("outer", tools=[cashier.as_tool("pay", "Pay")])):
        with pytest.raises(InvalidInput, match="cannot wait") as caught:
            HoldfastAgent(Agent("desk", tools=[inner.as_tool("help", "Help")]), app)
        assert caught.value.code == "agent_not_durable"
    turns = ([function_call("help", {"input": "7"}, call_id="h")], [assistant_message("done")])
    tool = plain.as_tool("help", "Help", needs_approval=True)
    desk = HoldfastAgent(Agent("desk", tools=[tool], model=scripted(*turns)), app, run_config=QUIET)
    handle = desk.enqueue("Help")
    work_off(app)
    app.approvals.approve(app.approvals.list()[0].id, by="ada")
    work_off(app)
    assert handle.result(timeout=1) == "done"


@pytest.mark.req("DP-22")
def test_options_of_a_tool_that_no_agent_has_are_refused(app: App, refunds: Agent[None]) -> None:
    def refusal(agent: Agent[Any], **settings: Any) -> InvalidInput:
        with pytest.raises(InvalidInput) as caught:
            HoldfastAgent(agent, app, **settings)
        assert caught.value.code == "unknown_option"
        return caught.value

    approval: ToolOptions = {"approval": {"approvers": ["ada"]}}
    error = refusal(refunds, tools={"refnd": approval})
    assert error.message == "tools has options for refnd, and agent 'desk' has no such tool"
    assert error.fix == "Its function tools, and those of its handoffs, are lookup, refund."
    by_handoff = refunds.clone(name="by_handoff", handoffs=[handoff(refunds.handoffs[0])])  # type: ignore[arg-type]
    refusal(by_handoff, tools={"refnd": approval})
    refusal(refunds, tools={"refund": {"aproval": {}}})
    refusal(refunds, tools={"refund": {"approval": {"aprovers": ["ada"]}}})
    refusal(refunds, approval={"aprovers": ["ada"]})
    refusal(refunds, tool={"retires": 3})
    HoldfastAgent(refunds, app, tools={"refund": approval, "lookup": {"timeout": 9}})
    HoldfastAgent(by_handoff, app, tools={"refund": approval})


def test_stream_in_a_job_is_refused_with_an_alternative(app: App) -> None:
    durable = HoldfastAgent(Agent("clerk", model=scripted([assistant_message("hello")])), app, run_config=QUIET)

    @app.job(retry=AT_ONCE)
    async def ask(ctx: Context) -> None:
        run = Runner.run_streamed(durable._agent, "Hello", run_config=QUIET)
        async for _ in run.stream_events():
            pass

    handle = ask.enqueue()
    work_off(app)
    assert "AgentHooks" in str(handle.get().error_message)
    assert handle.steps() == []
