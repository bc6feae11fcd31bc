"""``HoldfastDurability``: a Pydantic AI capability that makes each operation of the framework a step of the job.

It is built on ``pydantic_ai.durable_exec``. ``holdfast.integrations.pydantic_ai`` has the public names.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from holdfast.context import Context
from holdfast.engine.units import Duration
from holdfast.errors import EventTimeout, InvalidSetting
from holdfast.integrations.agent_steps import (
    StepOptions,
    approve_tool_call,
    check_budget,
    check_calls,
    denial,
    durable_context,
    extras,
    model_options,
    output_not_json,
    recorded_call,
    recorded_model_request,
    short_name,
)
from holdfast.steps.approvals import ApprovalOptions

try:
    from pydantic_ai.agent import AbstractAgent, EventStreamHandler
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.durable_exec import (
        JSON_CODEC,
        BaseDurabilityCapability,
        BoundDurableOperation,
        CapabilityOperationId,
        DurabilityEngineSpec,
        DurableOperation,
        DurableOperationBackend,
        DurableOperationId,
        EventStreamHandlerId,
        ModelCancelSuspendedResponseId,
        ModelCompactMessagesId,
        ModelRequestId,
        ToolsetCallToolId,
        ToolsetGetInstructionsId,
        ToolsetGetToolsId,
        ToolsetValidateToolArgumentsId,
        conversation_id_from_run_id,
        durable_unit_scope,
    )
    from pydantic_ai.exceptions import ModelRetry
    from pydantic_ai.messages import ModelResponse, ToolCallPart
    from pydantic_ai.models import Model, ModelRequestContext
    from pydantic_ai.tools import (
        DeferredToolRequests,
        DeferredToolResults,
        RunContext,
        Tool,
        ToolApproved,
        ToolDefinition,
        ToolDenied,
    )
    from pydantic_ai.toolsets import FunctionToolset, ToolsetTool
    from pydantic_core import PydanticSerializationError, to_jsonable_python
except ImportError as missing:
    raise InvalidSetting(
        "durable agents need Pydantic AI 2.66 or newer", code="missing_extra", fix="pip install 'holdfast[pydantic-ai]'"
    ) from missing

D = TypeVar("D")
"""Dependencies of an agent."""
ParamsT = TypeVar("ParamsT")
WireT = TypeVar("WireT")
ResultT = TypeVar("ResultT")

METADATA = "holdfast"
"""Key of a tool's metadata: ``metadata={"holdfast": {"timeout": 30, "approval": {"approvers": ["ada"]}}}``."""
TOOL_RESULT = "agent.tool_result"
"""Name of the event with the result of a tool that another system runs."""

Price = Callable[[ModelResponse], float]


def tokens(response: ModelResponse) -> float:
    """Cost of a model request in tokens: input and output together."""
    return float(response.usage.total_tokens)


def dollars(response: ModelResponse) -> float:
    """Cost of a model request in US dollars, by the price list of Pydantic AI; 0 for an unknown model."""
    try:
        return float(response.cost().total_price)
    except (AssertionError, LookupError, ValueError):
        return 0.0


class HoldfastDurability(BaseDurabilityCapability[D]):
    """Makes the runs of an agent durable inside a job: ``Agent(…, capabilities=[HoldfastDurability()])``.

    - ``model``, ``tool`` and ``mcp`` are the retry policy and timeout of these calls. The metadata of a tool can
      replace them.
    - ``approval`` has the options of ``ctx.approval`` for every tool that requires approval.
    - ``price`` returns the cost of a model request; ``budget`` stops a run whose cost reaches it.
    - ``external_timeout`` is how long a run waits for the result of a tool that another system runs.
    - ``event_stream_handler`` receives the events of a run: those of the model live, inside the step of the request;
      each event of a tool as a separate step.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="Holdfast",
        durable_unit_noun="step",
        durable_container_noun="job",
        codec=JSON_CODEC,
        wrapped_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        tool_config_key=METADATA,
    )

    def __init__(
        self,
        *,
        name: str | None = None,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[D] | None = None,
        model: StepOptions | None = None,
        tool: StepOptions | None = None,
        mcp: StepOptions | None = None,
        approval: ApprovalOptions | None = None,
        price: Price = tokens,
        budget: float | None = None,
        external_timeout: Duration | None = None,
    ) -> None:
        check_calls(approval, model=model, tool=tool, mcp=mcp)
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self.price = price
        self.budget = check_budget(budget)
        self._approval: ApprovalOptions = approval or {}
        self._external_timeout = external_timeout
        self._options: dict[str, StepOptions] = {
            "model": model_options(model),
            "mcp": mcp or {},
            "tool": tool or {},
        }

    def for_agent(self, agent: AbstractAgent[D, Any]) -> AbstractCapability[D]:
        for toolset in agent.toolsets:
            for tool in toolset.tools.values() if isinstance(toolset, FunctionToolset) else ():
                _check_metadata(tool)
        return super().for_agent(agent)

    @property
    def in_durable_context(self) -> bool:
        return durable_context() is not None

    def get_durable_operation_backend(self) -> _Steps:
        return _Steps(self)

    def get_default_run_id(self) -> str | None:
        context = durable_context()
        if context is None:
            return None
        values = extras(context)
        number = values["agent_runs"] = values.get("agent_runs", 0) + 1
        return f"{context.job_id}:{number}"

    def get_default_conversation_id(self, run_id: str) -> str | None:
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def before_model_request(
        self, ctx: RunContext[D], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        context = durable_context()
        if context is not None:
            # An approval needs a tool's parameters and metadata, but receives only its name.
            tools = {tool.name: tool for tool in request_context.model_request_parameters.function_tools}
            extras(context)[f"tools of {self.name}"] = tools
        return await super().before_model_request(ctx, request_context)

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[D], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Turn calls that require approval into approvals, and wait for the results of external calls."""
        context = durable_context()
        if context is None:
            return None
        results = DeferredToolResults()
        for call in requests.approvals:
            results.approvals[call.tool_call_id] = await self._decide(context, call, requests.metadata)
        for call in requests.calls:
            results.calls[call.tool_call_id] = await self._external_result(context, call)
        return results

    async def _decide(
        self, context: Context, call: ToolCallPart, metadata: Mapping[str, Any]
    ) -> ToolApproved | ToolDenied:
        tools: dict[str, ToolDefinition] = extras(context).get(f"tools of {self.name}", {})
        tool = tools.get(call.tool_name)
        own = _settings(tool).get("approval", {})
        arguments = call.args_as_dict()
        about = {"tool_call_id": call.tool_call_id, **metadata.get(call.tool_call_id, {})}
        decision, allowed = await approve_tool_call(
            context,
            self.name,
            call.tool_name,
            arguments,
            None if tool is None else tool.parameters_json_schema,
            {**self._approval, **own},
            to_jsonable_python(about),
        )
        if not decision.approved:
            return ToolDenied(denial(decision))
        return ToolApproved(override_args=None if allowed == arguments else allowed)

    async def _external_result(self, context: Context, call: ToolCallPart) -> Any:
        try:
            event = await context.wait_for_event(
                TOOL_RESULT, match={"tool_call_id": call.tool_call_id}, timeout=self._external_timeout
            )
        except EventTimeout:
            return ModelRetry(f"{call.tool_name} did not answer in time.")
        return event.data.get("result")


def _check_metadata(tool: Tool[Any]) -> None:
    """Refuse misspelled settings of a tool that the agent has when it is declared. Those of other tools are checked
    when they are called."""
    metadata = tool.metadata or {}
    for key in metadata:
        if key != METADATA and difflib.get_close_matches(key.lower(), [METADATA], cutoff=0.8):
            raise _invalid_metadata(f"tool {tool.name} has metadata {key!r}, which is probably {METADATA!r}")
    if metadata.get(METADATA) is not False:
        check_calls(_checked(metadata.get(METADATA, {})).get("approval"))


def _settings(tool: ToolDefinition | None) -> dict[str, Any]:
    """Return Holdfast's settings from the metadata of a tool."""
    return _checked((tool.metadata or {}).get(METADATA, {}) if tool is not None else {})


def _checked(settings: object) -> dict[str, Any]:
    if not isinstance(settings, Mapping) or settings.keys() - {"retry", "timeout", "approval"}:
        raise _invalid_metadata(
            f"the metadata {METADATA!r} of a tool has retry, timeout and approval, not {settings!r}"
        )
    return dict(settings)


def _invalid_metadata(message: str) -> InvalidSetting:
    return InvalidSetting(
        message,
        code="invalid_tool_metadata",
        fix='Write it like this: metadata={"holdfast": {"timeout": 30, "approval": {"approvers": ["ada"]}}}.',
    )


class _Steps(DurableOperationBackend[StepOptions]):
    """Runs each operation of the framework as one step."""

    def __init__(self, durability: HoldfastDurability[Any]) -> None:
        self._durability = durability

    def bind(
        self, operation: DurableOperation[ParamsT, WireT, ResultT]
    ) -> BoundDurableOperation[ParamsT, WireT, ResultT]:
        return _BoundStep(operation, self._durability, self._options(operation.operation_id))

    def config_for_tool(
        self, operation: DurableOperation[ParamsT, WireT, ResultT], *, tool: object | None, tool_name: str
    ) -> StepOptions | Literal[False]:
        if not isinstance(tool, ToolsetTool):
            return self._options(operation.operation_id)
        if (tool.tool_def.metadata or {}).get(METADATA) is False:
            return False
        own = _settings(tool.tool_def)
        own.pop("approval", None)
        options: dict[str, Any] = {**self._options(operation.operation_id), **own}
        return cast(StepOptions, options)

    def registrations(self) -> Sequence[Callable[..., object]]:
        return ()

    def _options(self, operation_id: DurableOperationId) -> StepOptions:
        options = self._durability._options
        match operation_id:
            case ModelRequestId() | ModelCompactMessagesId() | ModelCancelSuspendedResponseId():
                return options["model"]
            case ToolsetGetInstructionsId():
                return options["mcp"]
            case ToolsetGetToolsId(kind) | ToolsetCallToolId(kind) if kind == "mcp":
                return options["mcp"]
        return options["tool"]


@dataclass(frozen=True)
class _BoundStep(BoundDurableOperation[ParamsT, WireT, ResultT]):
    operation_: DurableOperation[ParamsT, WireT, ResultT]
    durability: HoldfastDurability[Any]
    options: StepOptions

    @property
    def operation(self) -> DurableOperation[ParamsT, WireT, ResultT]:
        return self.operation_

    async def __call__(self, params: ParamsT, *, config: object | None = None) -> ResultT:
        operation, agent = self.operation_, self.durability.name
        context = durable_context()
        if context is None:  # an agent that a tool runs: the tool's step records it
            return await operation.handler(params)
        options = self.options if config is None else cast(StepOptions, config)
        name = short_name(_step_name(agent, operation.operation_id, params))

        async def run_operation() -> tuple[ResultT, Any]:
            with durable_unit_scope():
                result = await operation.handler(params)
            try:
                return result, operation.result_codec.dump(result)
            except (PydanticSerializationError, TypeError, ValueError) as error:
                raise output_not_json(name, str(error)) from error

        async def request() -> tuple[Any, float]:
            result, value = await run_operation()
            return value, self.durability.price(result) if isinstance(result, ModelResponse) else 0.0

        async def call() -> Any:
            return (await run_operation())[1]

        if isinstance(operation.operation_id, ModelRequestId | ModelCompactMessagesId):
            value = await recorded_model_request(
                context, agent, name, request, options=options, budget=self.durability.budget
            )
        else:
            value = await recorded_call(context, name, call, options=options)
        return operation.result_codec.load(value)


def _step_name(agent: str, operation_id: DurableOperationId, params: Any) -> str:
    """Return the name of the step. It is recorded: another name would be another step, and run the call again."""
    match operation_id:
        case ModelRequestId():
            return f"{agent}: model request"
        case ModelCompactMessagesId():
            return f"{agent}: compact messages"
        case EventStreamHandlerId():
            return f"{agent}: event"
        case ToolsetCallToolId():
            return f"{params.name} {params.ctx.tool_call_id}"
        case ToolsetValidateToolArgumentsId():
            return f"check arguments: {params.name} {params.ctx.tool_call_id}"
        case ToolsetGetToolsId(toolset_id=toolset):
            return f"list tools: {toolset}"
        case ToolsetGetInstructionsId(toolset):
            return f"read instructions: {toolset}"
        case CapabilityOperationId(capability, operation=operation):
            return f"{capability}: {operation}"
    return f"{agent}: {type(operation_id).__name__}"
