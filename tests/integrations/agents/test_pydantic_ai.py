"""Pydantic AI agents as jobs: steps, approvals, costs, retries and refusals."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterable
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from agents import Agent as OpenAIAgent
from pydantic import BaseModel
from pydantic_ai import Agent, ExternalToolset, RunContext
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import AgentStreamEvent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import FunctionToolset
from pydantic_ai.usage import UsageLimits

from holdfast import App, Backoff, Context, Retry, State, SyncContext
from holdfast.errors import InvalidInput, InvalidPayload
from holdfast.integrations.pydantic_ai import TOOL_RESULT, HoldfastAgent, HoldfastDurability, dollars, tokens
from holdfast.stores.vault import new_key
from tests.integrations.agents.conftest import later
from tests.integrations.agents.support_desk import last_tool_results, support
from tests.support.workers import work_off

pytestmark = pytest.mark.req("HF-9")

AT_ONCE = Retry(max_attempts=3, backoff=Backoff(base=0.0, jitter=False))
BEFORE = ["model 1", "lookup 7", "lookup 8", "model 3"]


def answering(text: str) -> FunctionModel:
    return FunctionModel(lambda messages, info: ModelResponse(parts=[TextPart(text)]))


def calling(tool: str, **arguments: Any) -> FunctionModel:
    """A model that calls one tool and then repeats its result."""

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        first = len(messages) == 1
        return ModelResponse(
            parts=[ToolCallPart(tool, arguments) if first else TextPart(last_tool_results(messages) or "hello")]
        )

    return FunctionModel(model)


def code_of(make: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        make()
    assert caught.value.fix
    return caught.value.code


def test_options_of_the_agent_are_listed_and_other_agents_refused(app: App) -> None:
    with pytest.raises(InvalidInput, match=r'For approvers use approval=\{"approvers": \[…\]\}') as refused:
        HoldfastAgent(Agent("test", name="desk"), app, approvers=["ada"])  # type: ignore[call-arg]
    assert "usage_limits" in str(refused.value)
    with pytest.raises(InvalidInput, match=r"from holdfast\.integrations\.openai_agents"):
        HoldfastAgent(OpenAIAgent("desk"), app)  # type: ignore[arg-type]


@pytest.mark.every_case
def test_run_waits_without_a_worker_and_continues_with_edited_arguments(each_app: App, calls: list[str]) -> None:
    app, agent = each_app, support(each_app, calls.append)
    handle = agent.using(tags=["desk"]).enqueue("Refund order 7")
    work_off(app)
    (approval,) = app.approvals.list()
    job = handle.get()
    assert (job.state, job.tags, calls) == (State.WAITING_FOR_APPROVAL, ("desk",), BEFORE)
    assert (approval.name, approval.summary) == (
        "refund",
        'support: call refund with {"order": 7, "amount": 50}?',
    )
    assert approval.data == {
        "agent": "support",
        "tool": "refund",
        "arguments": {"order": 7, "amount": 50},
        "tool_call_id": "call-c",
    }
    with pytest.raises(InvalidInput, match="amount must be integer"):
        app.approvals.approve(approval.id, by="ada", data={"amount": "much"})
    later(app, timedelta(days=9))
    app.approvals.approve(approval.id, by="ada", data={"amount": 20})
    work_off(app)
    assert handle.result(timeout=1) == "refunded 20"
    assert calls == [*BEFORE, "refund 7 20", "model 5"]
    assert [step.name for step in handle.steps()] == [
        "support: model request",
        "lookup call-a",
        "lookup call-b",
        "support: model request",
        "refund",
        "refund call-c",
        "support: model request",
    ]
    assert [line.cost for line in app.usage.list(by="kind")] == [219.0]
    history = agent.messages(handle.id)
    assert len(history) == 6
    assert {message.run_id for message in history} == {f"{handle.id}:1"}


def decided(app: App, agent: HoldfastAgent[None, str], *people: str, deny: bool = False) -> Any:
    """Start a run and have people decide on its refund."""
    handle = agent.enqueue("Refund order 7")
    work_off(app)
    (approval,) = app.approvals.list()
    for person in people:
        if deny:
            app.approvals.deny(approval.id, by=person, comment="too much")
        else:
            app.approvals.approve(approval.id, by=person)
    return handle


def test_model_gets_denied_and_expired_approvals(app: App, calls: list[str]) -> None:
    agent = support(app, calls.append, approval={"expires_in": "2d"})
    denied = decided(app, agent, "ada", deny=True)
    work_off(app)
    assert denied.result(timeout=1) == "The tool call was denied by ada: too much"
    expired = decided(app, agent)
    later(app, timedelta(days=3))
    work_off(app)
    assert expired.result(timeout=1) == "The tool call was not approved in time."
    approved = decided(app, agent, "ada")  # with no data: the arguments stay
    work_off(app)
    assert approved.result(timeout=1) == "refunded 50"
    assert [line for line in calls if line.startswith("refund")] == ["refund 7 50"]


def test_tool_metadata_sets_approvers_and_quorum(app: App, calls: list[str]) -> None:
    two = {"approvers": ["ada", "bob"], "quorum": 2, "on_deny": "fail"}
    agent = support(app, calls.append, refund={"metadata": {"holdfast": {"approval": two, "timeout": 5}}})
    handle = decided(app, agent, "ada")
    work_off(app)
    (approval,) = app.approvals.list()
    assert (approval.missing, approval.form) == (1, None)  # no one can edit what another person approved
    assert code_or_state(app, approval.id) == "not_an_approver"
    app.approvals.approve(approval.id, by="bob")
    work_off(app)
    assert handle.result(timeout=1) == "refunded 50"
    failed = decided(app, agent, "bob", deny=True)
    work_off(app)
    assert (failed.get().state, failed.get().error_code) == (State.FAILED, "denied")


def code_or_state(app: App, approval_id: str) -> str:
    with pytest.raises(Exception) as caught:
        app.approvals.approve(approval_id, by="eve")
    return str(caught.value.code)  # type: ignore[attr-defined]


def test_run_stops_at_its_budget_and_continues_when_it_is_raised(app: App, calls: list[str]) -> None:
    agent = support(app, calls.append, budget=100)
    handle = agent.enqueue("Refund order 7")
    work_off(app)
    job = handle.get()
    assert (job.state, job.error_code) == (State.WAITING_FOR_APPROVAL, None)  # 61, then 77: above it only now
    app.approvals.approve(app.approvals.list()[0].id, by="ada")
    work_off(app)
    job = handle.get()
    assert (job.state, job.error_code) == (State.DEAD_LETTER, "agent_budget_exceeded")
    assert "'support' has spent 138 of its budget of 100" in str(job.error_message)
    assert calls == [*BEFORE, "refund 7 50"]
    agent._durability.budget = 1_000  # type: ignore[union-attr]
    app.jobs.redrive(handle.id, reason="the budget was raised")
    work_off(app)
    assert handle.result(timeout=1) == "refunded 50"
    assert calls == [*BEFORE, "refund 7 50", "model 5"]
    assert [line.cost for line in app.usage.list(by="kind")] == [219.0]
    limited = HoldfastAgent(
        Agent(calling("clock"), name="limited", tools=[lambda: 1]), app, usage_limits=UsageLimits(request_limit=1)
    )
    other = limited.enqueue("What time is it?")
    work_off(app)
    assert other.get().error_code == "agent_budget_exceeded"


def test_requests_and_tools_are_retried_by_their_own_policy(app: App, calls: list[str]) -> None:
    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        calls.append(f"model {len(messages)}")
        if len(calls) < 3:
            raise ModelHTTPError(503, "flaky")
        return ModelResponse(
            parts=[ToolCallPart("shaky", {}) if len(messages) == 1 else TextPart(last_tool_results(messages))]
        )

    def shaky() -> str:
        calls.append("shaky")
        if calls.count("shaky") == 1:
            raise ConnectionError("the shop is closed")
        return "sold"

    flaky = Agent(FunctionModel(model), name="flaky", tools=[shaky])
    handle = HoldfastAgent(flaky, app, model={"retry": AT_ONCE}, retry=AT_ONCE).enqueue("Buy it")
    work_off(app)
    work_off(app)
    assert handle.result(timeout=1) == "sold"
    # The tool has no retry policy: the job was retried and did not repeat the recorded request.
    assert calls == ["model 1", "model 1", "model 1", "shaky", "shaky", "model 3"]
    assert handle.get().retries == 1


def test_delayed_tool_retry_suspends_the_job_while_other_tools_finish(app: App, calls: list[str]) -> None:
    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart("shaky", {}), ToolCallPart("steady", {})])
        return ModelResponse(parts=[TextPart(last_tool_results(messages))])

    def shaky() -> str:
        calls.append("shaky")
        if calls.count("shaky") == 1:
            raise ConnectionError("the shop is closed")
        return "sold"

    async def steady() -> str:
        calls.append("steady")
        return "sent"

    patient = {"retry": Retry(max_attempts=2, backoff=Backoff(base=60.0, jitter=False))}
    shop = Agent(FunctionModel(model), name="shop", tools=[shaky, steady])
    handle = HoldfastAgent(shop, app, tool=patient, retry=Retry(max_attempts=1)).enqueue("Buy")  # type: ignore[arg-type]
    work_off(app)
    assert (handle.get().state, sorted(calls)) == (State.RETRY_WAITING, ["shaky", "steady"])
    later(app, timedelta(minutes=2))
    work_off(app)
    assert handle.result(timeout=1) == "sold; sent"
    assert sorted(calls) == ["shaky", "shaky", "steady"]


class Receipt(BaseModel):
    total: int
    to: str


@dataclass
class Customer:
    name: str
    level: int = 1


class Desk:
    """Dependencies that are no data: made in the worker."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.socket = socket.AF_INET


def make_desk(customer: Customer) -> Desk:
    return Desk(customer.name.upper())


def test_dependencies_and_output_are_typed(app: App) -> None:
    model = TestModel(custom_output_args={"total": 3, "to": "ada"})
    plain = Agent(model, name="plain", deps_type=Customer, output_type=Receipt)
    desk = Agent(calling("who"), name="desk", deps_type=Desk)

    @desk.tool
    def who(ctx: RunContext[Desk]) -> str:
        return ctx.deps.name

    typed = HoldfastAgent(plain, app).enqueue("Pay", deps=Customer("ada"))
    made = HoldfastAgent(desk, app, deps=make_desk)
    handle = made.enqueue("Who?", deps=Customer("bob"))
    work_off(app)
    assert typed.result(timeout=1) == Receipt(total=3, to="ada")
    assert handle.result(timeout=1) == "BOB"
    again = made.enqueue("And now?", deps={"name": "eve"}, message_history=made.messages(handle.id))
    work_off(app)
    assert again.result(timeout=1) == "hello"  # the model sees that it is not the first message
    assert len(made.messages(again.id)) == 6
    with pytest.raises(InvalidInput, match="deps"):
        made.enqueue("Who?", deps={"level": 3})


def test_event_answers_an_external_tool(app: App) -> None:
    shipping = ExternalToolset([ToolDefinition(name="ship", parameters_json_schema={"type": "object"})], id="shipping")
    agent = HoldfastAgent(Agent(calling("ship"), name="shop", toolsets=[shipping]), app, external_timeout="2d")
    handle, late = agent.enqueue("Ship it"), agent.enqueue("Ship that")
    work_off(app)
    (wait,) = [step for step in handle.steps() if step.name == TOOL_RESULT]
    assert wait.wanted is not None
    app.send_event(TOOL_RESULT, wait.wanted | {"result": "parcel 4711"}, job=handle.id)
    later(app, timedelta(days=3))
    work_off(app)
    assert handle.result(timeout=1) == "parcel 4711"
    assert late.get().state is State.SUCCEEDED


def test_capability_works_in_your_own_handler(app: App, calls: list[str]) -> None:
    def ask() -> str:
        calls.append("ask")
        return "blue"

    durability = HoldfastDurability[None](price=dollars)
    agent = Agent(calling("ask"), name="colour", tools=[ask], capabilities=[durability])

    @app.job
    async def paint(ctx: Context, wall: str) -> str:
        colour = (await agent.run(f"Colour of {wall}?")).output
        await ctx.sleep(0.01)
        return f"{wall} {colour}"

    @app.job(retry=Retry(max_attempts=1))
    def blocking(ctx: SyncContext) -> str:
        return asyncio.run(agent.run("Colour?")).output

    handle, refused = paint.enqueue("door"), blocking.enqueue()
    work_off(app)
    later(app, timedelta(minutes=1))
    work_off(app)
    assert handle.result(timeout=1) == "door blue"
    assert calls == ["ask"]
    assert refused.get().error_code == "agent_needs_async_handler"
    assert asyncio.run(agent.run("Colour?")).output == "blue"  # outside a job: an ordinary run
    assert code_of(lambda: HoldfastAgent(agent, app, budget=3)) == "conflicting_options"
    assert HoldfastAgent(agent, app).kind.name == "colour"


def test_agent_that_cannot_be_durable_is_refused_with_a_fix(app: App) -> None:
    def named(name: str | None, **settings: Any) -> Agent[Any, Any]:
        return Agent(answering("yes"), name=name, **settings)

    assert code_of(lambda: HoldfastAgent(named(None), app)) == "agent_without_name"
    assert code_of(lambda: HoldfastAgent(named("a", deps_type=Desk), app)) == "agent_deps_not_json"
    assert code_of(lambda: HoldfastAgent(named("a"), app, budget=-1)) == "invalid_budget"
    assert code_of(lambda: HoldfastAgent(named("a"), app, process=True)) == "conflicting_options"
    assert code_of(lambda: HoldfastAgent(named("a", toolsets=[FunctionToolset()]), app)) == "agent_not_durable"
    HoldfastAgent(named("a"), app)
    assert code_of(lambda: HoldfastAgent(named("a"), app)) == "duplicate_kind"
    loose = HoldfastAgent(named("loose"), app)
    with pytest.raises(InvalidPayload):
        loose.enqueue("Hello", deps=object())


@pytest.mark.req("DP-22")
def test_misspelled_settings_of_calls_and_tools_are_refused(app: App) -> None:
    def with_tool(metadata: dict[str, Any]) -> Agent[Any, Any]:
        agent = Agent(answering("yes"), name="desk")

        @agent.tool_plain(metadata=metadata)
        def refund() -> str:
            return ""

        return agent

    approval = {"approval": {"approvers": ["ada"]}}
    assert code_of(lambda: HoldfastAgent(with_tool({"holdfst": approval}), app)) == "invalid_tool_metadata"
    assert code_of(lambda: HoldfastAgent(with_tool({"holdfast": {"aproval": {}}}), app)) == "invalid_tool_metadata"
    wrong: Any = {"aprovers": ["ada"]}
    assert code_of(lambda: HoldfastAgent(with_tool({"holdfast": {"approval": wrong}}), app)) == "unknown_option"
    assert code_of(lambda: HoldfastAgent(with_tool({}), app, approval=wrong)) == "unknown_option"
    assert code_of(lambda: HoldfastAgent(with_tool({}), app, model=wrong)) == "unknown_option"
    HoldfastAgent(with_tool({"holdfast": approval, "sensitive": True}), app)


def test_tool_output_that_is_not_json_dead_letters_the_run(app: App, calls: list[str]) -> None:
    def opens() -> object:
        calls.append("opens")
        return socket

    def fills() -> str:
        calls.append("fills")
        return "x" * 1_100_000

    def strange() -> str:
        return ""

    for function in (opens, fills):
        HoldfastAgent(Agent(calling(function.__name__), name=function.__name__, tools=[function]), app, retry=AT_ONCE)
    agent = Agent(calling("strange"), name="strange")
    HoldfastAgent(agent, app, retry=Retry(max_attempts=1))
    agent.tool_plain(metadata={"holdfast": {"retires": 3}})(strange)  # after the check of the declaration
    handles = [app.enqueue(kind, {"prompt": "Go"}) for kind in ("opens", "fills", "strange")]
    work_off(app)
    assert [handle.get().error_code for handle in handles] == [
        "agent_output_not_json",
        "payload_too_large",  # the tool's result is in the artifact store; the answer of the run is too large
        "invalid_tool_metadata",
    ]
    assert sorted(calls) == ["fills", "opens"]
    assert "opens" in str(handles[0].get().error_message)


@pytest.mark.req("HF-9", "DP-4")
def test_agent_messages_are_encrypted_with_the_steps(
    sqlite_url: str, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_KEYS", f"first:{new_key()}")
    with closing(App(sqlite_url)) as app:
        agent = support(app, calls.append)
        handle = decided(app, agent, "ada")
        work_off(app)
        assert handle.result(timeout=1) == "refunded 50"
        assert len(agent.messages(handle.id)) == 6
        job_id = handle.id
    monkeypatch.delenv("HOLDFAST_KEYS")
    with closing(App(sqlite_url)) as app:
        stranger = app.jobs.handle(job_id)
        assert "refunded" not in repr((stranger.steps(), stranger.checkpoints()))


def test_prices_are_in_tokens_or_dollars(app: App) -> None:
    known = ModelResponse(parts=[], model_name="gpt-4o", provider_name="openai")
    known.usage.input_tokens, known.usage.output_tokens = 1_000_000, 10
    assert tokens(known) == 1_000_010
    assert dollars(known) > 1
    assert dollars(ModelResponse(parts=[], model_name="unknown-model")) == 0


def test_stream_events_reach_a_handler_and_recorded_ones_are_not_repeated(each_app: App) -> None:
    app, seen = each_app, list[str]()
    agent = Agent(TestModel(custom_output_text="shipped"), name="clerk")
    fails = [True]

    @agent.tool_plain(metadata={"holdfast": {"retry": AT_ONCE}})
    def look(order: int) -> str:
        return f"order {order}"

    async def publish(ctx: RunContext[object], events: AsyncIterable[AgentStreamEvent]) -> None:
        async for event in events:
            seen.append(event.event_kind)
            if event.event_kind == "function_tool_result" and fails.pop():
                fails.append(False)
                raise ConnectionError("the listener is unreachable")

    durable = HoldfastAgent(agent, app, event_stream_handler=publish, retry=AT_ONCE)
    handle = durable.enqueue("Where is order 7?")
    work_off(app)
    later(app, timedelta(hours=1))
    work_off(app)
    assert handle.result(timeout=1) == "shipped"
    assert seen.count("function_tool_call") == 1, "recorded"
    assert seen.count("function_tool_result") == 2, "the one that failed was sent again"
    assert seen.count("final_result") == 1
    names = [step.name for step in handle.steps()]
    assert [name for name in names if "event" in name] == ["clerk: event", "clerk: event (2)"]
    attached = Agent(TestModel(), name="other", capabilities=[HoldfastDurability()])
    make = partial(HoldfastAgent, attached, app, event_stream_handler=publish)
    assert code_of(make) == "conflicting_options"


def test_stream_in_a_handler_is_replayed_from_the_record(each_app: App) -> None:
    app, texts = each_app, list[str]()
    agent = Agent(TestModel(custom_output_text="shipped"), name="clerk", capabilities=[HoldfastDurability()])

    @app.job(retry=AT_ONCE)
    async def ask(ctx: Context) -> str:
        async with agent.run_stream("Where is order 7?") as run:
            async for text in run.stream_text():
                texts.append(text)
        if ctx.attempt == 1:
            raise ConnectionError("after the stream")
        return texts[-1]

    handle = ask.enqueue()
    work_off(app)
    later(app, timedelta(hours=1))
    work_off(app)
    assert handle.result(timeout=1) == "shipped"
    assert texts == ["shipped", "shipped"], "the same text in both attempts"
    assert [step.tries for step in handle.steps()] == [1], "and one request"
