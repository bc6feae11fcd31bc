"""Durable agents of the OpenAI Agents SDK: a run is a job; its model requests and function tools are steps.

    support = HoldfastAgent(agent, app)
    handle = support.enqueue("Refund order 7")

The agent and its handoffs are copied with models and function tools that record their results. Only public names of the
SDK are used: ``Model``, ``ModelProvider``, ``FunctionTool.on_invoke_tool``, ``RunResult.interruptions`` and
``RunState``.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Generic, TypedDict, TypeVar, Unpack

from holdfast.app import App
from holdfast.app.declarations import JobOptions
from holdfast.app.internals import session_of
from holdfast.context import Context
from holdfast.engine.hints import check_options
from holdfast.engine.operation import Program, awaited, operation
from holdfast.engine.outcome import Reject
from holdfast.engine.units import Duration
from holdfast.errors import InvalidSetting
from holdfast.features.jobs.handle import Handle
from holdfast.integrations.agent_steps import (
    AgentJobs,
    StepOptions,
    approve_tool_call,
    check_agent,
    check_budget,
    check_calls,
    declare_agent,
    denial,
    durable_context,
    extras,
    first_parameter,
    made,
    model_options,
    output_not_json,
    recorded_call,
    recorded_model_request,
    save_messages,
    short_name,
)
from holdfast.steps.approvals import ApprovalOptions

try:
    from agents import (
        Agent,
        ApplyPatchTool,
        ComputerTool,
        CustomTool,
        FunctionTool,
        Handoff,
        LocalShellTool,
        MaxTurnsExceeded,
        Model,
        ModelProvider,
        ModelResponse,
        RunConfig,
        Runner,
        ShellTool,
        ToolApprovalItem,
        TResponseInputItem,
        UserError,
    )
    from agents.items import TResponseStreamEvent
    from agents.tool_context import ToolContext
    from pydantic import TypeAdapter
    from pydantic_core import PydanticSerializationError, to_jsonable_python
except ImportError as missing:
    raise InvalidSetting(
        "durable agents need the OpenAI Agents SDK 0.24 or newer",
        code="missing_extra",
        fix="pip install 'holdfast[openai-agents]'",
    ) from missing

__all__ = ["HoldfastAgent", "StepOptions", "ToolOptions", "tokens"]

C = TypeVar("C")
"""The context of an agent."""

_RESPONSE: TypeAdapter[ModelResponse] = TypeAdapter(ModelResponse)
_LOCAL_TOOLS = (ApplyPatchTool, ComputerTool, CustomTool, LocalShellTool, ShellTool)
_EDITED = "edited arguments"

Price = Callable[[ModelResponse], float]


class ToolOptions(TypedDict, total=False):
    """Settings of one function tool: its retry policy, its timeout, and the options of its approval."""

    retry: Any
    timeout: Duration
    approval: ApprovalOptions


def tokens(response: ModelResponse) -> float:
    """Cost of a model request in tokens: input and output together."""
    return float(response.usage.total_tokens)


@dataclasses.dataclass(frozen=True)
class _Settings:
    agent: str
    model: StepOptions
    tool: StepOptions
    tools: Mapping[str, ToolOptions]
    approval: ApprovalOptions
    price: Price
    budget: float | None


class _DurableModel(Model):
    """A model whose responses are recorded. Outside a job, and inside a step, it only calls the model."""

    def __init__(self, model: Model, settings: _Settings) -> None:
        self._model = model
        self._settings = settings

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        context, settings = durable_context(), self._settings
        if context is None:
            return await self._model.get_response(*args, **kwargs)

        async def request() -> tuple[Any, float]:
            response = await self._model.get_response(*args, **kwargs)
            # Fields that the provider left out stay out, because the next request sends the response back to it.
            value = _RESPONSE.dump_python(response, mode="json", by_alias=True, exclude_unset=True, warnings=False)
            return value, settings.price(response)

        name = short_name(f"{settings.agent}: model request")
        value = await recorded_model_request(
            context, settings.agent, name, request, options=settings.model, budget=settings.budget
        )
        return _RESPONSE.validate_python(value)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:
        if durable_context() is not None:
            raise UserError(
                "Runner.run_streamed does not work inside a job, because a stream cannot be recorded. Use Runner.run,"
                " and follow the run with AgentHooks (Agent(hooks=…))."
            )
        return self._model.stream_response(*args, **kwargs)

    async def close(self) -> None:
        await self._model.close()


class _DurableProvider(ModelProvider):
    def __init__(self, provider: ModelProvider, settings: _Settings) -> None:
        self._provider = provider
        self._settings = settings

    def get_model(self, model_name: str | None) -> Model:
        return _DurableModel(self._provider.get_model(model_name), self._settings)

    async def aclose(self) -> None:
        await self._provider.aclose()


def _durable_tool(tool: FunctionTool, settings: _Settings) -> FunctionTool:
    """Return a copy of the tool that records its results. It uses the arguments as the approver edited them."""
    invoke = tool.on_invoke_tool
    own = {name: value for name, value in settings.tools.get(tool.name, {}).items() if name != "approval"}
    options: Any = {**settings.tool, **own}

    async def invoked(ctx: ToolContext[Any], arguments: str) -> Any:
        context = durable_context()
        if context is None:
            return await invoke(ctx, arguments)
        final = extras(context).get(_EDITED, {}).get(ctx.tool_call_id, arguments)
        name = short_name(f"{tool.name} {ctx.tool_call_id}")

        async def call_tool() -> Any:
            output = await invoke(ctx, final)
            try:
                return to_jsonable_python(output)
            except PydanticSerializationError as error:
                raise output_not_json(name, str(error)) from error

        return await recorded_call(context, name, call_tool, options=options)

    durable = copy.copy(tool)
    durable.on_invoke_tool = invoked
    return durable


def _durable_agent(agent: Agent[Any], settings: _Settings, copies: dict[int, Agent[Any]]) -> Agent[Any]:
    """Copy the agent and the agents of its handoffs. ``copies`` has the existing ones: handoffs may be cyclic."""
    if id(agent) in copies:
        return copies[id(agent)]
    local = [tool.name for tool in agent.tools if isinstance(tool, _LOCAL_TOOLS)]
    if local or agent.mcp_servers:
        unsupported = f"tools that are not function tools ({', '.join(local)})" if local else "MCP servers"
        raise InvalidSetting(
            f"agent {agent.name!r} has {unsupported}, whose calls cannot be recorded",
            code="agent_not_durable",
            fix="Call them in a function tool. Hosted tools are part of the model request and need no change.",
        )
    for tool in agent.tools:
        inner = _agent_of(tool)
        if inner is not None and _asks(inner, []):
            raise InvalidSetting(
                f"tool {tool.name!r} runs agent {inner.name!r}, which has tools that need approval: its run is one"
                " step, which cannot wait",
                code="agent_not_durable",
                fix="Hand off to that agent, or require the approval of the tool: as_tool(…, needs_approval=True).",
            )
    tools = [_durable_tool(tool, settings) if isinstance(tool, FunctionTool) else tool for tool in agent.tools]
    model = _DurableModel(agent.model, settings) if isinstance(agent.model, Model) else agent.model
    copied = copies[id(agent)] = agent.clone(tools=tools, model=model, handoffs=[])
    for target in agent.handoffs:
        if isinstance(target, Handoff):

            async def hand_over(invoke: Any, *args: Any) -> Agent[Any]:
                return _durable_agent(await invoke(*args), settings, copies)

            copied.handoffs.append(
                dataclasses.replace(target, on_invoke_handoff=partial(hand_over, target.on_invoke_handoff))
            )
        else:
            copied.handoffs.append(_durable_agent(target, settings, copies))
    return copied


def _agent_of(tool: object) -> Agent[Any] | None:
    """The agent that ``as_tool`` made a tool. The attribute is private; without it the agent is not known."""
    agent = getattr(tool, "_agent_instance", None)
    return agent if isinstance(agent, Agent) else None


def _target(handoff: Any) -> Agent[Any] | None:
    """The agent of a handoff. The reference is private; without it the agent is not known before the handoff."""
    if isinstance(handoff, Handoff):
        reference = getattr(handoff, "_agent_ref", None)
        handoff = None if reference is None else reference()
    return handoff if isinstance(handoff, Agent) else None


def _asks(agent: Agent[Any], seen: list[Agent[Any]]) -> bool:
    """Whether the agent, or one that it runs or hands off to, has tools that need approval."""
    if any(agent is other for other in seen):
        return False
    seen.append(agent)
    if any(getattr(tool, "needs_approval", False) is not False for tool in agent.tools):
        return True
    others = (*map(_agent_of, agent.tools), *map(_target, agent.handoffs))
    return any(_asks(other, seen) for other in others if other is not None)


def _check_tools(agent: Agent[Any], tools: Mapping[str, ToolOptions]) -> None:
    """Refuse the options of a tool that no agent of the run has: its approvers would not apply."""
    for options in tools.values():
        check_options(options, ToolOptions.__annotations__)
        check_calls(options.get("approval"))
    names: set[str] = set()
    agents, seen = [agent], [agent]
    while agents:
        current = agents.pop()
        names |= {tool.name for tool in current.tools if isinstance(tool, FunctionTool)}
        for handoff in current.handoffs:
            target = _target(handoff)
            if target is None:
                return
            if not any(target is other for other in seen):
                agents.append(target)
                seen.append(target)
    if unknown := sorted(tools.keys() - names):
        raise InvalidSetting(
            f"tools has options for {', '.join(unknown)}, and agent {agent.name!r} has no such tool",
            code="unknown_option",
            fix=f"Its function tools, and those of its handoffs, are {', '.join(sorted(names)) or 'none'}.",
        )


class HoldfastAgent(AgentJobs, Generic[C]):
    """Runs an agent of the OpenAI Agents SDK as a kind of job: ``HoldfastAgent(agent, app).enqueue("Refund order 7")``.

    The kind has the name of the agent, and the result of the job is the final output. Raises ``InvalidSetting`` for an
    agent whose calls cannot be recorded.

    - ``context`` makes the run's context in the worker, from the value that the job was enqueued with; without it, that
      value is the context, and must be JSON.
    - ``model`` and ``tool`` are the retry policy and timeout of model requests and function tools; ``tools`` has those
      of single tools by name.
    - ``approval`` has the options of ``ctx.approval`` for tools with ``needs_approval``.
    - ``price`` returns the cost of a model request; ``budget`` stops a run whose cost reaches it.

    The other options are those of ``@app.job``.
    """

    def __init__(
        self,
        agent: Agent[C],
        app: App,
        *,
        context: Callable[[Any], C | Awaitable[C]] | None = None,
        model: StepOptions | None = None,
        tool: StepOptions | None = None,
        tools: Mapping[str, ToolOptions] | None = None,
        approval: ApprovalOptions | None = None,
        price: Price = tokens,
        budget: float | None = None,
        max_turns: int = 10,
        run_config: RunConfig | None = None,
        **options: Unpack[JobOptions],
    ) -> None:
        check_agent(HoldfastAgent, agent, Agent, options)
        check_calls(approval, model=model, tool=tool)
        _check_tools(agent, tools or {})
        settings = _Settings(
            agent=agent.name,
            model=model_options(model),
            tool=tool or {},
            tools=tools or {},
            approval=approval or {},
            price=price,
            budget=check_budget(budget),
        )
        super().__init__(session_of(app))
        self._app = app
        self._settings = settings
        self._make_context = context
        self._max_turns = max_turns
        config = run_config or RunConfig()
        self._config = dataclasses.replace(config, model_provider=_DurableProvider(config.model_provider, settings))
        if isinstance(config.model, Model):
            self._config.model = _DurableModel(config.model, settings)
        self._agent: Agent[Any] = _durable_agent(agent, settings, {})
        output = agent.output_type
        self._output = output if isinstance(output, type) else str if output is None else Any
        self.kind = declare_agent(app, agent.name, self._handler(), options)

    @operation
    def enqueue(self, input: str | list[TResponseInputItem], *, context: Any = None) -> Program[Handle[Any]]:
        """Start a run: enqueue its job and return the handle."""
        return (yield from self._enqueue(input, context=context))

    aenqueue = awaited(enqueue)

    @operation
    def messages(self, job_id: str, *, tenant: str | None = None) -> Program[list[TResponseInputItem]]:
        """Return the items of a run that has ended, to continue the conversation: ``enqueue([*items, question])``."""
        return (yield from self._messages(job_id, tenant))

    amessages = awaited(messages)

    def _handler(self) -> Callable[..., Any]:
        async def run(ctx: Context, input: Any, context: Any = None) -> Any:
            try:
                return await self._run(ctx, input, await made(self._make_context, context))
            except MaxTurnsExceeded as error:
                raise Reject("agent_budget_exceeded", f"Agent {self._settings.agent!r}: {error}") from error
            except UserError as error:
                raise Reject("agent_not_durable", f"Agent {self._settings.agent!r}: {error}") from error

        context_type = Any if self._make_context is None else first_parameter(self._make_context)
        run.__annotations__ = {"ctx": Context, "input": Any, "context": context_type, "return": self._output}
        return run

    async def _run(self, ctx: Context, input: Any, context: Any) -> Any:
        result = await Runner.run(
            self._agent, input, context=context, max_turns=self._max_turns, run_config=self._config
        )
        while result.interruptions:
            state = result.to_state()
            for item in result.interruptions:
                refusal = await self._refusal(ctx, item)
                if refusal is None:
                    state.approve(item)
                else:
                    state.reject(item, rejection_message=refusal)
            result = await Runner.run(self._agent, state, run_config=self._config)
        await save_messages(ctx, to_jsonable_python(result.to_input_list()))
        return result.final_output

    async def _refusal(self, ctx: Context, item: ToolApprovalItem) -> str | None:
        """Wait for the approval of a tool call. Return None if it is approved, else the message to the model."""
        raw: Any = item.raw_item if isinstance(item.raw_item, dict) else item.raw_item.model_dump()
        name, call_id = item.tool_name or "tool", str(raw.get("call_id") or raw.get("id"))
        arguments = json.loads(raw.get("arguments") or "{}")
        tools = (each for each in getattr(item.agent, "tools", []) if isinstance(each, FunctionTool))
        schema = next((tool.params_json_schema for tool in tools if tool.name == name), None)
        options: ApprovalOptions = {**self._settings.approval, **self._settings.tools.get(name, {}).get("approval", {})}
        about = {"tool_call_id": call_id}
        decision, allowed = await approve_tool_call(ctx, self._settings.agent, name, arguments, schema, options, about)
        if not decision.approved:
            return denial(decision)
        if allowed != arguments:
            extras(ctx).setdefault(_EDITED, {})[call_id] = json.dumps(allowed)
        return None
