"""LangGraph graphs as durable jobs (HF-21): nodes are steps, interrupts are approvals."""

from __future__ import annotations

import operator
import sys
from collections import Counter
from types import ModuleType
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import RetryPolicy, Send, interrupt

from holdfast import App, Retry
from holdfast.errors import InvalidSetting
from holdfast.integrations.langgraph import HoldfastGraph, answer
from holdfast.steps.approvals import Decision
from tests.docs.guide_blocks import block_with
from tests.integrations.agents.refund_graph import graph_of, refund_graph
from tests.support.spans import Recorded, attributes, recorded
from tests.support.workers import work_off

pytestmark = pytest.mark.req("HF-21", "HF-9")
__all__ = ["recorded"]

QUESTION = {"messages": [{"role": "user", "content": "Refund order 7"}]}


class State(TypedDict, total=False):
    topic: str
    found: Annotated[list[Any], operator.add]


class Found(TypedDict, total=False):
    found: Annotated[list[Any], operator.add]


def decide_all(app: App, **options: Any) -> int:
    approvals = app.approvals.list()
    for approval in approvals:
        app.approvals.approve(approval.id, by="ada", **options)
    return len(approvals)


def test_run_waits_without_a_worker_and_repeats_no_node(each_app: App, calls: list[str]) -> None:
    support = refund_graph(each_app, calls.append)
    handle = support.enqueue(QUESTION)
    work_off(each_app)
    (approval,) = each_app.approvals.list()
    assert approval.summary == 'support: {"refund": 7, "amount": 50}'
    assert handle.state() == "waiting_for_approval"
    each_app.approvals.approve(approval.id, by="ada", data={"amount": 20})
    work_off(each_app)
    assert handle.result(timeout=5) == "refunded 20"
    assert Counter(calls) == Counter(["model 1", "lookup 7", "lookup 8", "model 3", "refund 7 20", "model 5"])
    steps = [(step.name, step.kind) for step in handle.steps()]
    assert Counter(steps) == Counter(
        [
            *(
                (name, "step")
                for name in ("model 1", "lookup 2.0", "lookup 2.1", "model 3", "refund 4.0", "refund 4.0 (2)")
            ),
            ("model 5", "step"),
            ("support", "approval"),
        ]
    )
    assert sum(line.cost for line in each_app.usage.list()) == 219
    state = support.state(handle.id)
    assert [message["type"] for message in state["messages"]] == ["human", "ai", "tool", "tool", "ai", "tool", "ai"]
    assert support.kind.name == "support"


def test_denied_interrupt_returns_false(app: App, calls: list[str]) -> None:
    handle = refund_graph(app, calls.append).enqueue(QUESTION)
    work_off(app)
    (approval,) = app.approvals.list()
    app.approvals.deny(approval.id, by="ada")
    work_off(app)
    assert handle.result(timeout=5) == "denied"


@pytest.mark.slow
def test_interrupts_of_one_node_of_parallel_nodes_and_of_subgraphs(each_app: App, calls: list[str]) -> None:
    """Each is asked once, and each answer goes to its own interrupt, although every attempt replays the others."""

    def twice(state: State) -> State:
        return {"found": [[state["topic"], interrupt("first"), interrupt("second")]]}

    def inner(state: State) -> State:
        calls.append(f"inner {state['topic']}")
        return {"topic": state["topic"].upper()}

    def inner_ask(state: State) -> State:
        return {"found": [[state["topic"], interrupt(f"inner {state['topic']}")]]}

    sub = StateGraph(State, output_schema=Found)
    sub.add_node("inner", inner)
    sub.add_node("ask", inner_ask)
    sub.add_edge(START, "inner")
    sub.add_edge("inner", "ask")
    builder = StateGraph(State)
    builder.add_node("twice", twice)
    builder.add_node("sub", sub.compile())
    builder.add_conditional_edges(
        START, lambda state: [Send(node, {"topic": topic}) for node in ("twice", "sub") for topic in "ab"]
    )

    def answered(value: Any, decision: Decision[Any]) -> str:
        return f"{value}: {decision.comment}"

    graph = HoldfastGraph(builder.compile(name="many"), each_app, answer=answered)
    handle = graph.enqueue({"topic": "all"})
    asked = 0
    for _ in range(10):
        work_off(each_app)
        asked += decide_all(each_app, comment=f"{asked}")
    found = handle.result(timeout=5)["found"]
    assert asked == 6
    firsts = {value[0]: value[1] for value in found}
    assert set(firsts) == {"a", "b", "A", "B"}
    assert firsts["A"].startswith("inner A: ")
    assert firsts["B"].startswith("inner B: ")
    for topic in "ab":
        (value,) = [each for each in found if each[0] == topic]
        assert value[1].startswith("first: ")
        assert value[2].startswith("second: ")
    numbers = [text.split(": ")[1] for value in found for text in value[1:]]
    assert sorted(numbers) == list("012345")  # each answer was used once
    assert Counter(calls) == {"inner a": 1, "inner b": 1}


def test_budget_stops_a_run_which_continues_with_a_larger_one(app: App, calls: list[str]) -> None:
    graph = refund_graph(app, calls.append, budget=100, retry=Retry(max_attempts=1))
    handle = graph.enqueue(QUESTION)
    work_off(app)
    job = handle.get()
    assert (job.state, job.error_code) == ("dead_letter", "agent_budget_exceeded")
    assert calls.count("model 3") == 1
    graph._budget = 1000.0
    app.jobs.redrive(handle.id)
    work_off(app)
    assert decide_all(app, data={"amount": 5}) == 1
    work_off(app)
    assert handle.result(timeout=5) == "refunded 5"
    assert calls.count("model 1") == 1


def test_nodes_have_retries_and_spans(app: App, recorded: Recorded) -> None:
    tries: list[int] = []

    def flaky(state: State) -> State:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("not yet")
        return {"found": [1]}

    builder = StateGraph(State)
    builder.add_node("flaky", flaky)
    builder.add_edge(START, "flaky")
    retry = Retry(max_attempts=3)
    handle = HoldfastGraph(builder.compile(), app, name="trier", nodes={"flaky": {"retry": retry}}).enqueue({})
    for _ in range(20):
        work_off(app)
        if handle.state().finished:
            break
    assert handle.result(timeout=5) == {"found": [1]}
    spans = recorded.named("step flaky")
    assert [attributes(span).get("error.type") for span in spans] == ["OSError", None]
    assert attributes(spans[1])["gen_ai.agent.name"] == "trier"

    support = refund_graph(app, lambda note: None).enqueue(QUESTION)
    work_off(app)
    (first, *_) = recorded.named("step model")
    assert attributes(first)["gen_ai.usage.input_tokens"] == 60
    assert attributes(first)["gen_ai.response.model"] == "desk-1"
    assert support.state() == "waiting_for_approval"


def test_graphs_that_cannot_be_recorded_are_refused(app: App) -> None:
    def node(state: State) -> State:
        return {}

    builder = StateGraph(State)
    builder.add_node("node", node, retry_policy=RetryPolicy())
    builder.add_edge(START, "node")
    with pytest.raises(InvalidSetting, match="retry policy of LangGraph for node 'node'"):
        HoldfastGraph(builder.compile(), app, name="one")
    plain = StateGraph(State)
    plain.add_node("node", node)
    plain.add_edge(START, "node")
    with pytest.raises(InvalidSetting, match="interrupt_before"):
        HoldfastGraph(plain.compile(interrupt_before=["node"]), app, name="one")
    with pytest.raises(InvalidSetting, match="no name"):
        HoldfastGraph(plain.compile(), app)
    with pytest.raises(InvalidSetting, match="no such node"):
        HoldfastGraph(plain.compile(), app, name="one", nodes={"other": {}})
    with pytest.raises(InvalidSetting, match="expected"):
        HoldfastGraph(graph_of, app)  # type: ignore[arg-type]


def test_graph_that_interrupts_inside_a_node_is_refused(app: App) -> None:
    def asks(state: State) -> State:
        return {"found": [interrupt("?")]}

    inner = StateGraph(State)
    inner.add_node("asks", asks)
    inner.add_edge(START, "asks")
    compiled = inner.compile()

    async def calls_it(state: State) -> Any:
        return await compiled.ainvoke(state)

    builder = StateGraph(State)
    builder.add_node("calls_it", calls_it)
    builder.add_edge(START, "calls_it")
    handle = HoldfastGraph(builder.compile(), app, name="outer").enqueue({})
    work_off(app)
    assert handle.get().error_code == "agent_not_durable"


def test_program_of_the_guide(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    program = block_with("ai-agents", "HoldfastGraph(").replace('holdfast.App("sqlite:///support.db")', "app")
    names = ModuleType("desk")
    monkeypatch.setitem(sys.modules, "desk", names)  # LangGraph looks up annotations there
    names.__dict__["app"] = app
    exec(compile(program, "ai-agents.md", "exec", dont_inherit=True), names.__dict__)
    handle = names.__dict__["support"].enqueue({"order": 4711})
    work_off(app)
    (approval,) = app.approvals.list()
    assert approval.summary == "support: Refund 80 euros?"
    app.approvals.approve(approval.id, by="ada")
    work_off(app)
    assert handle.result(timeout=5) == "80 euros are on their way."


def test_reviews_of_tool_calls_get_one_decision_each(app: App) -> None:
    asked = {"action_requests": [{"name": "a"}, {"name": "b"}]}
    approved: Any = Decision("1", True, "approved", None, (), None)  # type: ignore[arg-type]
    assert answer(asked, approved) == {"decisions": [{"type": "approve"}] * 2}
    expired: Any = Decision("1", False, "expired", None, (), None)  # type: ignore[arg-type]
    said = answer(asked, expired)["decisions"][0]
    assert (said["type"], said["message"]) == ("reject", "The tool call was not approved in time.")
