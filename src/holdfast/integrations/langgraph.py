"""Durable LangGraph graphs: a run is a job, its nodes are steps, and ``interrupt()`` is an approval.

    support = HoldfastGraph(graph, app)
    handle = support.enqueue({"messages": [{"role": "user", "content": "Refund order 7"}]})

The graph is compiled again with nodes that record what they return. An attempt runs it from the start in memory:
recorded nodes are not called, so it continues where the last attempt ended. The recorded steps are the checkpointer.
Only public names of LangGraph are used: ``builder.nodes``, ``InMemorySaver``, ``interrupt`` and ``Command``.
"""

from __future__ import annotations

import base64
import copy
import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, Unpack

from holdfast.app import App
from holdfast.app.declarations import JobOptions
from holdfast.app.internals import session_of
from holdfast.context import Context
from holdfast.engine.operation import Program, awaited, operation
from holdfast.engine.outcome import Reject
from holdfast.errors import InvalidSetting
from holdfast.features.jobs.handle import Handle
from holdfast.integrations.agent_steps import (
    SUMMARY_SHOWN,
    AgentJobs,
    StepOptions,
    check_agent,
    check_agent_name,
    check_budget,
    check_calls,
    declare_agent,
    denial,
    durable_context,
    extras,
    output_not_json,
    recorded_model_request,
    save_messages,
    short_name,
)
from holdfast.steps.approvals import ApprovalOptions, Decision
from holdfast.telemetry import observers

try:
    from langchain_core.callbacks import BaseCallbackHandler
    from langchain_core.messages import AIMessage, convert_to_messages
    from langchain_core.outputs import ChatGeneration, LLMResult
    from langchain_core.runnables import RunnableConfig, RunnableLambda
    from langchain_core.runnables.config import merge_configs
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
    from langgraph.errors import GraphInterrupt, GraphRecursionError
    from langgraph.graph.state import CompiledStateGraph
    from langgraph.types import Command, Interrupt, interrupt
    from pydantic_core import PydanticSerializationError, to_jsonable_python
except ImportError as missing:
    raise InvalidSetting(
        "durable graphs need LangGraph 1.2 or newer", code="missing_extra", fix="pip install 'holdfast[langgraph]'"
    ) from missing

__all__ = ["HoldfastGraph", "StepOptions", "answer", "tokens"]

_PATH = "holdfast_path"
_SERDE = JsonPlusSerializer()

Graph = CompiledStateGraph[Any, Any, Any, Any]
Price = Callable[[AIMessage], float]


def tokens(message: AIMessage) -> float:
    """Cost of a model request in tokens: input and output together."""
    return float(message.usage_metadata["total_tokens"]) if message.usage_metadata else 0.0


def answer(value: Any, decision: Decision[Any]) -> Any:
    """What ``interrupt(value)`` returns: the form values, or whether it was approved. A request to review tool calls
    (``action_requests``) gets one decision for each of them."""
    if isinstance(value, Mapping) and isinstance(value.get("action_requests"), list):
        one = {"type": "approve"} if decision.approved else {"type": "reject", "message": denial(decision)}
        return {"decisions": [one for _ in value["action_requests"]]}
    return decision.data if decision.approved and decision.data is not None else decision.approved


class HoldfastGraph(AgentJobs):
    """Runs a compiled ``StateGraph`` as a kind of job: ``HoldfastGraph(graph, app).enqueue({"question": "Why?"})``.

    The kind has the name of the graph (``compile(name=…)``) or ``name``. The result of the job is the state at the end,
    or what ``output`` makes of it.

    - ``node`` is the retry policy and timeout of nodes; ``nodes`` has those of single nodes by name.
    - ``approval`` has the options of ``ctx.approval`` for interrupts, and ``answer`` makes what an interrupt returns
      from its value and the decision.
    - ``price`` returns the cost of a model's message; ``budget`` stops a run whose cost reaches it.
    - ``context`` is the context of the run, and ``recursion_limit`` its largest number of supersteps.

    The other options are those of ``@app.job``.
    """

    def __init__(
        self,
        graph: Graph,
        app: App,
        *,
        name: str | None = None,
        node: StepOptions | None = None,
        nodes: Mapping[str, StepOptions] | None = None,
        approval: ApprovalOptions | None = None,
        answer: Callable[[Any, Decision[Any]], Any] = answer,
        output: Callable[[Any], Any] | None = None,
        price: Price = tokens,
        budget: float | None = None,
        context: Any = None,
        recursion_limit: int = 100,
        **options: Unpack[JobOptions],
    ) -> None:
        check_agent(HoldfastGraph, graph, CompiledStateGraph, options)
        check_calls(approval, node=node, **dict(nodes or {}))
        super().__init__(session_of(app))
        own = graph.name if graph.name != "LangGraph" else None  # the name of a graph that was given none
        self.name = check_agent_name(name or own)
        self._app = app
        self._node: StepOptions = node or {}
        self._nodes = dict(nodes or {})
        self._approval: ApprovalOptions = {"on_deny": "resume", **(approval or {})}
        self._answer, self._output = answer, output
        self._price, self._budget = price, check_budget(budget)
        self._context, self._limit = context, recursion_limit
        self._names: set[str] = set()
        self._graph = self._durable(graph)
        if unknown := sorted(self._nodes.keys() - self._names):
            raise InvalidSetting(
                f"nodes has options for {', '.join(unknown)}, and graph {self.name!r} has no such node",
                code="unknown_option",
                fix=f"Its nodes are {', '.join(sorted(self._names))}.",
            )
        self.kind = declare_agent(app, self.name, self._handler(), options)

    @operation
    def enqueue(self, input: Any) -> Program[Handle[Any]]:
        """Start a run: enqueue its job and return the handle."""
        return (yield from self._enqueue(_readable("the input", input)))

    aenqueue = awaited(enqueue)

    @operation
    def state(self, job_id: str, *, tenant: str | None = None) -> Program[Any]:
        """Return the state at the end of a run, as JSON, to continue from it: ``enqueue({**state, …})``."""
        return (yield from self._messages(job_id, tenant))

    astate = awaited(state)

    # --- the durable copy ---

    def _durable(self, graph: Graph) -> Graph:
        """A copy of the graph, and of those that are its nodes, whose other nodes are steps."""
        if graph.interrupt_before_nodes or graph.interrupt_after_nodes:
            raise self._refused("interrupt_before or interrupt_after", "Call interrupt() in a node instead.")
        builder = copy.copy(graph.builder)
        builder.nodes = dict(builder.nodes)
        for node, spec in builder.nodes.items():
            self._names.add(node)
            if spec.retry_policy is not None:
                fix = f'Give it to HoldfastGraph: nodes={{"{node}": {{"retry": holdfast.Retry(max_attempts=3)}}}}.'
                raise self._refused(f"a retry policy of LangGraph for node {node!r}", fix)
            inner: Any = spec.runnable
            run = self._subgraph(node, inner) if isinstance(inner, CompiledStateGraph) else self._step(node, inner)
            builder.nodes[node] = dataclasses.replace(spec, runnable=RunnableLambda(run, name=node))
        own = graph.checkpointer if isinstance(graph.checkpointer, bool) else None
        return builder.compile(checkpointer=own, store=graph.store, name=graph.name)

    def _refused(self, what: str, fix: str) -> InvalidSetting:
        return InvalidSetting(f"graph {self.name!r} has {what}", code="agent_not_durable", fix=fix)

    def _subgraph(self, node: str, inner: Graph) -> Callable[..., Any]:
        durable = self._durable(inner)

        async def run_graph(state: Any, config: RunnableConfig) -> Any:
            return await durable.ainvoke(
                state, merge_configs(config, {"metadata": {_PATH: f"{_place(node, config)} "}})
            )

        return run_graph

    def _step(self, node: str, inner: Any) -> Callable[..., Any]:
        options: StepOptions = {**self._node, **self._nodes.get(node, {})}

        async def invoke(state: Any, config: RunnableConfig) -> Any:
            return await inner.ainvoke(state, config)

        traced = RunnableLambda(invoke, name=node)  # makes its callbacks those of the models that the node calls
        about = observers.Call(f"step {node}", {"gen_ai.agent.name": self.name})

        async def run_node(state: Any, config: RunnableConfig) -> Any:
            context = durable_context()
            assert context is not None  # `run` has checked it
            place = short_name(_place(node, config))
            runs = extras(context).setdefault(f"runs of {self.name}", {})
            number = runs[place] = runs.get(place, 0) + 1
            raised: GraphInterrupt | None = None

            async def call() -> tuple[Any, float]:
                nonlocal raised
                meter = _Meter(self._price)
                try:
                    returned = await traced.ainvoke(state, merge_configs(config, {"callbacks": [meter]}))
                except GraphInterrupt as error:
                    raised = error
                    self._check_own(node, number, config, error)
                    return {"interrupt": _packed(node, error.args[0][0])}, meter.cost
                return {"returned": _packed(node, returned)}, meter.cost

            value = await recorded_model_request(
                *(context, self.name, place, call),
                options=options,
                budget=self._budget,
                about=about,
                unordered=True,
            )
            if raised is not None:
                raise raised
            if "interrupt" in value:
                # Recorded before: ask in its place, after the answers that the node had by then.
                asked: Interrupt[Any] = _unpacked(value["interrupt"])
                for _ in range(number - 1):
                    interrupt(None)
                interrupt(asked.value, response_schema=asked.response_schema)
            return _unpacked(value["returned"])

        return run_node

    def _check_own(self, node: str, number: int, config: RunnableConfig, error: GraphInterrupt) -> None:
        own = Interrupt.from_ns(None, config["configurable"]["checkpoint_ns"]).id
        if number == 1 and error.args[0][0].id != own:
            raise Reject(
                "agent_not_durable",
                f"Node {node!r} calls a graph that interrupts. Its run is one step, which cannot wait: add that graph"
                " as a node.",
            ) from error

    # --- a run ---

    def _handler(self) -> Callable[..., Any]:
        async def run(ctx: Context, input: Any) -> Any:
            try:
                state = await self._run(ctx, input)
            except GraphRecursionError as error:
                raise Reject("agent_budget_exceeded", f"Graph {self.name!r}: {error}") from error
            readable = _readable("the state", state)
            await save_messages(ctx, readable)
            return readable if self._output is None else self._output(state)

        run.__annotations__ = {"ctx": Context, "input": Any, "return": Any}
        return run

    async def _run(self, ctx: Context, input: Any) -> Any:
        if durable_context() is None:
            raise Reject("agent_not_durable", f"Graph {self.name!r} was run inside a step.")
        graph = copy.copy(self._graph)
        graph.checkpointer = InMemorySaver(serde=_SERDE)
        config: RunnableConfig = {"configurable": {"thread_id": ctx.job_id}, "recursion_limit": self._limit}
        command: Any = _identified(ctx, input)
        while True:
            await graph.ainvoke(command, config, context=self._context, durability="sync")
            state = await graph.aget_state(config)
            if not state.interrupts:
                return state.values
            command = Command(resume={asked.id: await self._decide(ctx, asked) for asked in state.interrupts})

    async def _decide(self, ctx: Context, asked: Interrupt[Any]) -> Any:
        value = _readable("the value of an interrupt", asked.value)
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        shown = shown if len(shown) <= SUMMARY_SHOWN else shown[:SUMMARY_SHOWN] + "…"
        form = asked.response_schema if isinstance(asked.response_schema, dict) else None
        given: ApprovalOptions = {"data": {"graph": self.name, "value": value}, **self._approval}
        return self._answer(
            asked.value, await ctx.approval(self.name, summary=f"{self.name}: {shown}", form=form, **given)
        )


class _Meter(BaseCallbackHandler):
    """Adds up the cost of the models that a node calls."""

    run_inline = True

    def __init__(self, price: Price) -> None:
        self.cost = 0.0
        self._price = price

    def on_llm_end(self, response: LLMResult, **_: Any) -> None:
        for generation in (each for prompt in response.generations for each in prompt[:1]):
            message = generation.message if isinstance(generation, ChatGeneration) else None
            if isinstance(message, AIMessage):
                self.cost += self._price(message)
                usage: Mapping[str, Any] = message.usage_metadata or {}
                observers.answered(
                    {
                        "gen_ai.response.model": message.response_metadata.get("model_name"),
                        "gen_ai.usage.input_tokens": usage.get("input_tokens"),
                        "gen_ai.usage.output_tokens": usage.get("output_tokens"),
                    }
                )


def _place(node: str, config: RunnableConfig) -> str:
    """What identifies one execution of a node in every attempt: the graphs around it, its superstep, and its number
    among those that were sent to it at once."""
    about = config["metadata"]
    path = [part for part in about["langgraph_path"] if type(part) is int]
    number = ".".join(map(str, [about["langgraph_step"], *path]))
    return f"{about.get(_PATH, '')}{node} {number}"


def _packed(node: str, value: Any) -> Any:
    """A value as JSON: readable if it is data, else as LangGraph stores it."""
    if _is_data(value):
        return {"value": value}
    try:
        kind, data = _SERDE.dumps_typed(value)
    except (TypeError, ValueError) as error:
        raise output_not_json(node, str(error)) from error
    return {"packed": kind, "data": base64.b64encode(data).decode()}


def _unpacked(value: Mapping[str, Any]) -> Any:
    if "packed" not in value:
        return value["value"]
    return _SERDE.loads_typed((value["packed"], base64.b64decode(value["data"])))


def _is_data(value: Any) -> bool:
    if isinstance(value, dict):
        return type(value) is dict and all(isinstance(k, str) and _is_data(v) for k, v in value.items())
    if isinstance(value, list):
        return type(value) is list and all(map(_is_data, value))
    return value is None or type(value) in (str, int, float, bool)


def _readable(what: str, value: Any) -> Any:
    try:
        return to_jsonable_python(value)
    except PydanticSerializationError as error:
        raise output_not_json(what, str(error)) from error


def _identified(ctx: Context, input: Any) -> Any:
    """The input with ids for its messages. LangGraph would give them others in each attempt."""
    if not isinstance(input, dict) or not isinstance(input.get("messages"), list):
        return input
    messages = convert_to_messages(input["messages"])
    for number, message in enumerate(messages):
        message.id = message.id or f"{ctx.job_id}:{number}"
    return {**input, "messages": messages}
