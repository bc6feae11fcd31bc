"""Shared by the integrations of AI agents: recorded calls with a cost, budgets, and approvals of tool calls.

Here "agent" means an AI agent. ``app.agents`` is something else: named owners of jobs.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Self, TypedDict, Unpack, get_type_hints

from holdfast.app import App
from holdfast.app.declarations import JobOptions
from holdfast.context import Context, current
from holdfast.engine.hints import check_options
from holdfast.engine.operation import Program
from holdfast.engine.outcome import Reject
from holdfast.engine.retry import Retry
from holdfast.engine.units import Duration
from holdfast.errors import InvalidPayload, InvalidSetting
from holdfast.features.jobs.handle import Handle
from holdfast.features.retention.model import check_cost
from holdfast.kind import Kind, Options
from holdfast.steps.approvals import ApprovalOptions, Decision, question
from holdfast.steps.driver import running
from holdfast.stores.namespace import StoreNamespace, call

_MESSAGES: Final = "messages"
"""Name of the checkpoint with the messages of a run."""
SUMMARY_SHOWN: Final = 500
NAME_LIMIT: Final = 180
"""Length of a step's name. It leaves room for the number that a repeated name gets."""

_COST: Final = "agent_cost"
_VALUE: Final = "value"
_EXTRAS: Final = "ai_agents"


class StepOptions(TypedDict, total=False):
    """Options of a model request or a tool call: its retry policy, and the timeout of each try."""

    retry: Retry
    timeout: Duration


def model_options(given: StepOptions | None) -> StepOptions:
    """The options of model requests, with their defaults."""
    return {"retry": Retry(max_attempts=3), "timeout": 600.0, **(given or {})}


def check_agent_name(name: str | None) -> str:
    if not name:
        raise InvalidSetting(
            "the agent has no name",
            code="agent_without_name",
            fix='Name it: Agent(…, name="support"). Its kind of job has that name.',
        )
    return name


def check_agent(wrapper: type, agent: object, sdk: type, options: Iterable[str]) -> None:
    """Refuse an agent that is not of this SDK, and options that ``wrapper`` does not have."""
    if not isinstance(agent, sdk):
        given, wanted = (type_.__module__.partition(".")[0] for type_ in (type(agent), sdk))
        module = {"agents": "openai_agents", "pydantic_ai": "pydantic_ai"}.get(given)
        raise InvalidSetting(
            f"expected an Agent of {wanted}, got {given}.{type(agent).__name__}",
            code="invalid_setting",
            fix=f"Import HoldfastAgent from holdfast.integrations.{module}." if module else "Pass the agent itself.",
        )
    own = inspect.signature(wrapper).parameters.keys() - {"agent", "app", "options"}
    check_options(options, JobOptions.__annotations__.keys() | own)


def check_budget(budget: float | None) -> float | None:
    if budget is not None and not budget > 0:
        raise InvalidSetting(
            "budget must be a number above 0",
            code="invalid_budget",
            fix="Give the most that one run may cost, in the unit of price; without a budget there is no limit.",
        )
    return budget


def check_calls(approval: ApprovalOptions | None, **calls: StepOptions | None) -> None:
    """Check the options of approvals and of calls (``model=``, ``tool=``) when the agent is declared: a misspelled one
    would otherwise fail the first run, or drop the approvers."""
    question("Call a tool", None, approval or {})
    for options in calls.values():
        check_options(options or {}, StepOptions.__annotations__)


def declare_agent(app: App, name: str, handler: Callable[..., Any], options: JobOptions) -> Kind[..., Any]:
    """Declare the kind of job that runs an agent. Its name is that of the agent."""
    check_agent_name(name)
    if options.get("process"):
        raise InvalidSetting(
            "an agent runs in the worker, not in a child process",
            code="conflicting_options",
            fix="Leave process out. A tool can start processes.",
        )
    handler.__name__ = handler.__qualname__ = name
    try:
        kind: Kind[..., Any] = app.job(name, **options)(handler)
    except InvalidSetting as error:
        if error.code == "duplicate_kind":
            error.fix = "Give each agent its own name: it is the name of its kind of job."
        raise
    return kind


class AgentJobs(StoreNamespace):
    """An agent as a kind of job. Each SDK has its own ``enqueue`` and ``messages``, with the types of that SDK."""

    kind: Kind[..., Any]
    _app: App

    def using(self, **options: Unpack[Options]) -> Self:
        """Return the agent with other options for its jobs: ``support.using(tenant="acme", key="ticket-7")``."""
        other = copy.copy(self)
        other.kind = self.kind.using(**options)
        return other

    def _enqueue(self, prompt: Any, **inputs: Any) -> Program[Handle[Any]]:
        given = {name: value for name, value in inputs.items() if value is not None}
        return (
            yield from call(partial(self.kind.enqueue, prompt, **given), partial(self.kind.aenqueue, prompt, **given))
        )

    def _messages(self, job_id: str, tenant: str | None) -> Program[list[Any]]:
        handle = self._app.jobs.handle(job_id, tenant=tenant)
        checkpoints = yield from call(handle.checkpoints, handle.acheckpoints)
        messages: list[Any] = checkpoints.get(_MESSAGES, [])
        return messages


async def save_messages(context: Context, messages: Any) -> None:
    """Store the messages of a run that has ended, for ``AgentJobs._messages``."""
    try:
        await context.checkpoint.save(messages, _MESSAGES)
    except InvalidPayload as error:
        context.log.warning("The messages of this run were not stored: %s", error.message)


async def made(make: Callable[[Any], Any] | None, value: Any) -> Any:
    """Return what the worker makes of a value that the job was enqueued with; without ``make``, the value."""
    if make is None:
        return value
    result = make(value)
    return await result if inspect.isawaitable(result) else result


def first_parameter(function: Callable[..., Any]) -> Any:
    """Return the annotation of a function's first parameter, or Any."""
    try:
        names = [*inspect.signature(function).parameters]
        return get_type_hints(function).get(names[0], Any)
    except (IndexError, NameError, TypeError, ValueError):
        return Any


def short_name(name: str) -> str:
    """Shorten a name to fit a step: some providers have long call ids."""
    if len(name) <= NAME_LIMIT:
        return name
    return f"{name[: NAME_LIMIT - 17]} {hashlib.sha256(name.encode()).hexdigest()[:16]}"


def durable_context() -> Context | None:
    """Return the context of the running async handler; None outside a job, and inside a step, which is one unit."""
    context = current()
    if context is None or running.get() is not None:
        return None
    if not isinstance(context, Context):
        raise InvalidSetting(
            "an AI agent was run in a handler that is not async",
            code="agent_needs_async_handler",
            fix="Declare the handler with async def and holdfast.Context, and await agent.run(…).",
        )
    return context


@dataclass(slots=True)
class Spending:
    """The cost of each agent's recorded calls in this job, in this attempt and earlier ones."""

    by_agent: dict[str, float] = field(default_factory=dict)

    def check(self, agent: str, budget: float | None) -> None:
        spent = self.by_agent.get(agent, 0.0)
        if budget is not None and spent >= budget:
            raise Reject(
                "agent_budget_exceeded",
                f"Agent {agent!r} has spent {spent:g} of its budget of {budget:g}. Raise the budget and redrive the job"
                " to continue from the last recorded call.",
            )

    def add(self, agent: str, cost: float) -> None:
        self.by_agent[agent] = round(self.by_agent.get(agent, 0.0) + cost, 6)


def extras(context: Context) -> dict[str, Any]:
    """Return the dictionary in which integrations keep values for the duration of the attempt."""
    run = context._run
    if run.extras is None:
        run.extras = {}
    return run.extras


async def spending_of(context: Context) -> Spending:
    """Return the spending of this job. First use charges the calls of attempts whose worker was lost.

    The cost of an attempt is stored when it ends. A worker that is killed stores none, but its calls are recorded with
    the number of their attempt. Each attempt that ends normally charges all calls since the last one that did, so every
    recorded call is charged once.
    """
    run, values = context._run, extras(context)
    spending: Spending | None = values.get(_EXTRAS)
    if spending is None:
        spending = values[_EXTRAS] = Spending()
        if run.claim.attempt > 1:
            steps = (await run.plan.durable.remember()).steps
            attempts = await run.session.arun(run.session.store.jobs.attempts(run.claim.id, run.claim.tenant))
            ended = max((each.attempt for each in attempts if each.outcome not in (None, "crashed")), default=0)
            lost = sum(_cost(step.value) for step in steps if step.attempt > ended)
            if lost:
                run.stop.spend(lost)
    return spending


def _cost(value: object) -> float:
    return float(value.get(_COST, 0.0)) if isinstance(value, Mapping) else 0.0


async def recorded_model_request(
    context: Context,
    agent: str,
    name: str,
    request: Callable[[], Awaitable[tuple[Any, float]]],
    *,
    options: StepOptions,
    budget: float | None,
) -> Any:
    """Make a model request as a step. ``request`` returns the response as JSON, and its cost."""
    spending = await spending_of(context)
    spending.check(agent, budget)
    made = False

    async def request_model() -> Any:
        nonlocal made
        value, cost = await request()
        made = True
        return {_VALUE: value, _COST: check_cost(cost)}

    recorded = await context.step_options(**options).step(name, request_model)
    cost = _cost(recorded)
    spending.add(agent, cost)
    if made and cost:
        context.cost(cost)
    return recorded[_VALUE]


async def recorded_call(
    context: Context, name: str, call: Callable[[], Awaitable[Any]], *, options: StepOptions
) -> Any:
    """Make a tool call as a step that is identified by its name: tools run concurrently, in no fixed order."""

    async def call_tool() -> Any:
        return {_VALUE: await call()}

    try:
        recorded = await context.step_options(**options, unordered=True).step(name, call_tool)
    except (InvalidPayload, InvalidSetting) as error:
        if isinstance(error, InvalidSetting) and error.code != "no_artifact_store":
            raise
        # The call was made. Another attempt would repeat it, and fail again.
        raise output_not_json(name, error.message) from error
    return recorded[_VALUE]


def output_not_json(name: str, why: str) -> Reject:
    return Reject(
        "agent_output_not_json",
        f"The result of {name!r} cannot be recorded: {why}. Return JSON, a pydantic model or a dataclass of at most"
        " 1 MiB; put larger data into a file or an object store and return its address.",
    )


async def approve_tool_call(
    context: Context,
    agent: str,
    tool: str,
    arguments: dict[str, Any],
    schema: Mapping[str, Any] | None,
    options: ApprovalOptions,
    about: Mapping[str, Any] | None = None,
) -> tuple[Decision[Any], dict[str, Any]]:
    """Wait for the approval of a tool call. Return the decision and the arguments, which the approver may edit.

    With a quorum of several approvers the arguments cannot be edited: all must approve the same call.
    """
    request: ApprovalOptions = {"on_deny": "resume", **options}
    editable = request.get("quorum", 1) == 1 and request.get("on_expire") != "approve"
    shown = json.dumps(arguments, ensure_ascii=False)
    if len(shown) > SUMMARY_SHOWN:
        shown = shown[:SUMMARY_SHOWN] + "…"
    request["data"] = {"agent": agent, "tool": tool, "arguments": arguments, **(about or {})}
    form = argument_form(schema, arguments) if editable and schema else None
    decision = await context.approval(tool, summary=f"{agent}: call {tool} with {shown}?", form=form, **request)
    edited = decision.data if editable and isinstance(decision.data, dict) else {}
    return decision, {**arguments, **edited}


def argument_form(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the tool's parameters as a form, filled in with the model's arguments. No field is required."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return None
    fields = {
        name: {**rule, "default": arguments[name]} if name in arguments and isinstance(rule, Mapping) else rule
        for name, rule in properties.items()
    }
    return {**schema, "properties": fields, "required": []}


def denial(decision: Decision[Any]) -> str:
    """Return the message to the model about a tool call that was not approved."""
    if decision.state == "expired":
        return "The tool call was not approved in time."
    return f"The tool call was denied by {decision.by}" + (f": {decision.comment}" if decision.comment else ".")
