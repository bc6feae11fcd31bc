"""Durable Pydantic AI agents: a run is a job; its model requests and tool calls are steps.

    support = HoldfastAgent(agent, app)
    handle = support.enqueue("Refund order 7")

``HoldfastDurability`` is the capability behind it, built on ``pydantic_ai.durable_exec``. Attach it to an agent that
you run in your own handler. Outside a job it has no effect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar, Union, Unpack

from holdfast.app import App
from holdfast.app.declarations import JobOptions
from holdfast.app.internals import session_of
from holdfast.context import Context
from holdfast.engine.operation import Program, awaited, operation
from holdfast.engine.outcome import Reject
from holdfast.engine.units import Duration
from holdfast.errors import InvalidSetting
from holdfast.features.jobs.handle import Handle
from holdfast.integrations.agent_steps import (
    AgentJobs,
    StepOptions,
    check_agent,
    check_agent_name,
    declare_agent,
    first_parameter,
    made,
    output_not_json,
    save_messages,
)
from holdfast.integrations.pydantic_ai_steps import TOOL_RESULT, HoldfastDurability, Price, dollars, tokens
from holdfast.kind import Kind
from holdfast.steps.approvals import ApprovalOptions

try:
    from pydantic import TypeAdapter
    from pydantic_ai import Agent
    from pydantic_ai.agent import AbstractAgent, EventStreamHandler
    from pydantic_ai.exceptions import UsageLimitExceeded, UserError
    from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, UserContent
    from pydantic_ai.tools import DeferredToolRequests
    from pydantic_ai.usage import UsageLimits
    from pydantic_core import PydanticSerializationError, to_jsonable_python
except ImportError as missing:
    raise InvalidSetting(
        "durable agents need Pydantic AI 2.66 or newer", code="missing_extra", fix="pip install 'holdfast[pydantic-ai]'"
    ) from missing

__all__ = ["HoldfastAgent", "HoldfastDurability", "StepOptions", "TOOL_RESULT", "dollars", "tokens"]

D = TypeVar("D")
"""Dependencies of an agent."""
OutputT = TypeVar("OutputT")
"""Output of an agent."""


class HoldfastAgent(AgentJobs, Generic[D, OutputT]):
    """Runs a Pydantic AI agent as a kind of job: ``HoldfastAgent(agent, app).enqueue("Refund order 7")``.

    The kind has the name of the agent, and the result of the job is the output of the run. Raises ``InvalidSetting``
    for an agent whose calls cannot be recorded.

    ``deps`` makes the dependencies in the worker, from the value that the job was enqueued with; without it, that value
    is part of the payload and must be JSON. The other options are those of ``HoldfastDurability`` and ``@app.job``.
    """

    kind: Kind[..., OutputT]

    def __init__(
        self,
        agent: Agent[D, OutputT],
        app: App,
        *,
        deps: Callable[[Any], D | Awaitable[D]] | None = None,
        model: StepOptions | None = None,
        tool: StepOptions | None = None,
        mcp: StepOptions | None = None,
        approval: ApprovalOptions | None = None,
        price: Price = tokens,
        budget: float | None = None,
        usage_limits: UsageLimits | None = None,
        external_timeout: Duration | None = None,
        event_stream_handler: EventStreamHandler[D] | None = None,
        **options: Unpack[JobOptions],
    ) -> None:
        check_agent(HoldfastAgent, agent, AbstractAgent, options)
        name = check_agent_name(agent.name)
        super().__init__(session_of(app))
        self.agent = agent
        self._app = app
        self._make_deps = deps
        self._usage_limits = usage_limits
        attached: HoldfastDurability[Any] | None = HoldfastDurability.from_agent(agent)
        self._durability: HoldfastDurability[D] | None = None
        settings = (model, tool, mcp, approval, budget, external_timeout, event_stream_handler)
        if attached is not None and (any(setting is not None for setting in settings) or price is not tokens):
            raise InvalidSetting(
                f"agent {agent.name!r} already has a HoldfastDurability",
                code="conflicting_options",
                fix="Give the settings to that HoldfastDurability.",
            )
        if attached is None:
            self._durability = HoldfastDurability(
                model=model,
                tool=tool,
                mcp=mcp,
                approval=approval,
                price=price,
                budget=budget,
                external_timeout=external_timeout,
                event_stream_handler=event_stream_handler,
            )
            try:
                self._durability.for_agent(agent)  # raises now what every run would raise
            except UserError as error:
                raise InvalidSetting(
                    str(error), code="agent_not_durable", fix="Change the agent as described in the message."
                ) from error
        self._output = _output_type(agent.output_type)
        self.kind = declare_agent(app, name, self._handler(), options)

    @operation
    def enqueue(
        self,
        prompt: str | Sequence[UserContent],
        *,
        deps: Any = None,
        message_history: Sequence[ModelMessage] | None = None,
    ) -> Program[Handle[OutputT]]:
        """Start a run: enqueue its job and return the handle. ``deps`` must fit the agent's ``deps_type``."""
        history = None if message_history is None else [*message_history]
        return (yield from self._enqueue(prompt, deps=deps, message_history=history))

    aenqueue = awaited(enqueue)

    @operation
    def messages(self, job_id: str, *, tenant: str | None = None) -> Program[list[ModelMessage]]:
        """Return the messages of a run that has ended, to continue it: ``enqueue(…, message_history=…)``."""
        return ModelMessagesTypeAdapter.validate_python((yield from self._messages(job_id, tenant)))

    amessages = awaited(messages)

    def _handler(self) -> Callable[..., Any]:
        async def run(ctx: Context, prompt: Any, deps: Any = None, message_history: Any = None) -> Any:
            return await self._run(ctx, prompt, await made(self._make_deps, deps), message_history)

        # Types, not names: the payload and the result are checked against them.
        run.__annotations__ = {
            "ctx": Context,
            "prompt": str | list[UserContent],
            "deps": self._deps_type(),
            "message_history": list[ModelMessage] | None,
            "return": self._output,
        }
        return run

    async def _run(self, ctx: Context, prompt: Any, deps: Any, history: list[ModelMessage] | None) -> Any:
        added = None if self._durability is None else [self._durability]
        try:
            result = await self.agent.run(
                prompt, deps=deps, message_history=history, usage_limits=self._usage_limits, capabilities=added
            )
        except UsageLimitExceeded as error:
            raise Reject("agent_budget_exceeded", f"Agent {self.agent.name!r}: {error}") from error
        except UserError as error:
            raise Reject("agent_not_durable", f"Agent {self.agent.name!r}: {error}") from error
        await save_messages(ctx, ModelMessagesTypeAdapter.dump_python(result.all_messages(), mode="json"))
        if self._output is not Any:
            return result.output
        try:
            return to_jsonable_python(result.output)
        except PydanticSerializationError as error:
            raise output_not_json("the agent's output", str(error)) from error

    def _deps_type(self) -> Any:
        if self._make_deps is not None:
            return first_parameter(self._make_deps)
        deps_type = self.agent.deps_type
        if deps_type in (object, type(None)):
            return Any
        try:
            TypeAdapter(deps_type).json_schema(mode="serialization")
        except Exception as error:
            raise InvalidSetting(
                f"the dependencies of agent {self.agent.name!r} ({getattr(deps_type, '__name__', deps_type)}) cannot be"
                " stored in a job",
                code="agent_deps_not_json",
                fix="Enqueue ids, and make the dependencies in the worker: HoldfastAgent(agent, app, deps=make_deps).",
            ) from error
        return Union[deps_type, None]  # noqa: UP007 - a type form that may not support |


def _output_type(spec: Any) -> Any:
    """Return the type of the output, to check the job's result; Any for functions and output markers."""
    kinds = [*spec] if isinstance(spec, Sequence) and not isinstance(spec, str) else [spec]
    kinds = [kind for kind in kinds if kind is not DeferredToolRequests]
    plain = all(isinstance(kind, type) or getattr(kind, "__origin__", None) is not None for kind in kinds)
    if not kinds or not plain:
        return Any
    return Union[tuple(kinds)]  # noqa: UP007 - made at run time
