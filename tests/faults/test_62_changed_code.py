"""Fault 62: code is deployed while jobs wait for an approval. No recorded decision is bypassed: a job whose code asks
another question, or no longer asks, becomes a visible dead letter before anything that follows the decision runs."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import pytest
from agents import Agent as OpenAIAgent
from agents import RunConfig, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import App, Context, SyncContext
from holdfast.engine.states import State
from holdfast.features.assembly import open_store
from holdfast.integrations import openai_agents, pydantic_ai
from tests.app.process_jobs import pay_10, pay_after_a_step, pay_more, pay_without_asking
from tests.support.ledger import check_ledger
from tests.support.workers import work_off

pytestmark = pytest.mark.req("CX-5", "CX-6", "HF-6", "HF-9")

Handler = Callable[..., Any]
FORM = {"type": "object", "properties": {"amount": {"type": "integer"}}}
effects: list[str] = []


@pytest.fixture(autouse=True)
def _no_effects() -> None:
    effects.clear()


@pytest.fixture
def deploy(url: str) -> Iterator[Callable[[], App]]:
    """Apps on one database, each with other code."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(App(url, name="tests", enqueued_by="tester")))
    with closing(open_store(url)) as store:
        check_ledger(store)


# --- handlers ---


def asks(name: str = "pay", then: str = "step", **question: Any) -> Handler:
    """A handler that asks and pays. ``then`` is how: in a step, in an unordered step, or in its own code."""
    question = {"summary": "Pay 10?", "on_deny": "resume"} | question

    async def pay(ctx: Context) -> str:
        decision = await ctx.approval(name, **question)
        return await _pay(ctx, then, "paid" if decision.approved else "kept")

    return pay


def asks_in_thread(**question: Any) -> Handler:
    question = {"summary": "Pay 10?", "on_deny": "resume"} | question

    def pay(ctx: SyncContext) -> str:
        decision = ctx.approval("pay", **question)
        ctx.step("pay", effects.append, "paid" if decision.approved else "kept")
        return "done"

    return pay


def does_not_ask(then: str) -> Handler:
    async def pay(ctx: Context) -> str:
        return await _pay(ctx, then, "paid")

    return pay


async def _pay(ctx: Context, then: str, effect: str) -> str:
    if then == "transaction":
        async with ctx.transaction() as connection:
            await asyncio.to_thread(effects.append, effect)
            assert connection is not None
    elif then == "plain":
        effects.append(effect)
    else:
        await ctx.step_options(unordered=then == "unordered").step("pay", effects.append, effect)
    return "done"


def swallows(ctx_then: str = "unordered") -> Handler:
    """A handler that no longer asks, and catches every error, as SDKs do."""

    async def pay(ctx: Context) -> str:
        for _ in range(2):
            try:
                await _pay(ctx, ctx_then, "paid")
            except Exception:
                continue
        return "done"

    return pay


def asks_on_the_old_path(ctx: Context) -> Any:
    async def pay() -> str:
        if await ctx.patched("pay without asking"):
            return await _pay(ctx, "step", "paid")
        return str(await asks()(ctx))

    return pay()


async def asks_in_a_branch(ctx: Context) -> str:
    """The branch that does not ask comes first, and has a step that is not recorded when the job resumes."""

    async def other() -> None:
        await ctx.step_options(unordered=True).step("look", asyncio.sleep, 0.02)
        await ctx.step_options(unordered=True).step("log", effects.append, "logged")

    async def asking() -> None:
        await asyncio.sleep(0.001)
        await asks(then="unordered")(ctx)

    await ctx.gather(other(), asking())
    return "done"


@dataclass(frozen=True)
class Change:
    """Code before and after, and the code of the dead letter; None if the decision still applies."""

    name: str
    before: Handler
    after: Handler
    code: str | None
    effects: tuple[str, ...] = ()
    verdict: str = "approve"

    def __str__(self) -> str:
        return self.name


QUESTIONS: dict[str, dict[str, Any]] = {
    "summary": {"summary": "Pay 1,000,000?"},
    "data": {"data": {"amount": 1_000_000}},
    "form": {"form": FORM | {"required": ["amount"]}},
}
CHANGES = [
    Change("same question", asks(), asks(), None, ("paid",)),
    Change("same question, denied", asks(), asks(), None, ("kept",), "deny"),
    Change("other approvers", asks(), asks(approvers=["bob"]), None, ("paid",)),
    *(Change(f"other {what}", asks(), asks(**other), "question_changed") for what, other in QUESTIONS.items()),
    *(
        Change(f"other {what}, sync", asks_in_thread(), asks_in_thread(**other), "question_changed")
        for what, other in QUESTIONS.items()
    ),
    Change("no form", asks(form=FORM), asks(), "question_changed"),
    Change("other name", asks(), asks("refund"), "steps_changed"),
    *(
        Change(f"not asked, {verdict}, then {then}", asks(then=then), does_not_ask(then), code, (), verdict)
        for verdict in ("approve", "deny")
        for then, code in (("step", "steps_changed"), ("unordered", "approval_not_asked"))
    ),
    Change("not asked, then transaction", asks(), does_not_ask("transaction"), "approval_not_asked"),
    # Code that makes no durable call cannot be stopped; its job does not succeed.
    Change("not asked, then plain code", asks(), does_not_ask("plain"), "approval_not_asked", ("paid",), "deny"),
    Change("not asked, and errors caught", asks(then="unordered"), swallows(), "approval_not_asked"),
    Change("asked on the old path", asks(), asks_on_the_old_path, None, ("paid",)),
    Change("asked in a branch", asks_in_a_branch, asks_in_a_branch, None, ("logged", "paid")),
]


def declare(app: App, handler: Handler) -> Any:
    handler.__annotations__ |= {"return": str}
    if not inspect.iscoroutinefunction(handler) and "SyncContext" not in str(inspect.signature(handler)):

        async def as_coroutine(ctx: Context) -> str:
            return str(await handler(ctx))

        return app.job("pay")(as_coroutine)
    return app.job("pay")(handler)


def decide(app: App, verdict: str, **options: Any) -> None:
    (approval,) = app.approvals.list()
    getattr(app.approvals, verdict)(approval.id, by="ada", **options)


@pytest.mark.every_case
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_decision_applies_to_its_question_only(deploy: Callable[[], App], change: Change) -> None:
    old = deploy()
    handle = declare(old, change.before).enqueue()
    work_off(old)
    decide(old, change.verdict, **({"data": {"amount": 5}} if change.name == "no form" else {}))
    new = deploy()
    declare(new, change.after)
    work_off(new)
    job = handle.get()
    held = {each.job_id: "steps_changed" for each in new.versions.held()}
    assert (sorted(effects), held.get(job.id, job.error_code)) == (sorted(change.effects), change.code)
    ended = State.SUCCEEDED if change.code is None else State.DEAD_LETTER
    assert job.state is (State.RETRY_WAITING if held else ended)
    if change.code is not None and not effects:  # nothing is lost: the old code continues with the decision
        if not held:
            old.jobs.redrive(handle.id)
        work_off(old)
        assert (effects, handle.get().state) == (["paid" if change.verdict == "approve" else "kept"], State.SUCCEEDED)


@pytest.mark.every_case
@pytest.mark.parametrize("verdict", ["approve", "deny"])
def test_a_kind_that_no_longer_requires_approval_runs_approved_jobs_only(
    deploy: Callable[[], App], verdict: str
) -> None:
    old, new = deploy(), deploy()

    def pay(amount: int) -> None:
        effects.append(f"paid {amount}")

    handle = old.job("pay", requires_approval=True)(pay).enqueue(80)
    work_off(old)
    decide(old, verdict)
    work_off(old, queues=["none"])
    new.job("pay")(pay)
    if verdict == "deny":
        assert handle.get().error_code == "denied"
    work_off(new)
    assert effects == (["paid 80"] if verdict == "approve" else [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("after", "code"), [(pay_10, None), (pay_more, "question_changed"), (pay_without_asking, "approval_not_asked")]
)
def test_child_process_compares_the_question(deploy: Callable[[], App], after: Handler, code: str | None) -> None:
    old, new = deploy(), deploy()
    handle = old.job("pay", process=True)(pay_10).enqueue()
    work_off(old)
    decide(old, "approve")
    new.job("pay", process=True)(after)
    work_off(new)
    job = handle.get()
    assert (job.error_code, job.state) == (code, State.SUCCEEDED if code is None else State.DEAD_LETTER)
    assert [step.name for step in handle.steps()] == (["pay", "pay"] if code is None else ["pay"])


@pytest.mark.slow
def test_child_process_whose_steps_do_not_fit_is_held(deploy: Callable[[], App]) -> None:
    old, new = deploy(), deploy()
    handle = old.job("pay", process=True)(pay_10).enqueue()
    work_off(old)
    decide(old, "approve")
    new.job("pay", process=True)(pay_after_a_step)
    work_off(new)
    (held,) = new.versions.held()
    assert (held.job_id, held.steps[0]["called"]) == (handle.id, "step check")
    work_off(old)
    assert handle.get().state is State.SUCCEEDED


# --- agents ---


def pydantic_agent(app: App, *, asks: bool = True, note: str = "", first: bool = False) -> Any:
    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart("refund", {"amount": 80}, tool_call_id="c")])
        return ModelResponse(parts=[TextPart("done")])

    agent = PydanticAgent(FunctionModel(model), name="desk", output_type=str)

    def refund(amount: int, note: str = note) -> str:
        effects.append(f"refund {amount}")
        return "refunded"

    agent.tool_plain(requires_approval=asks)(refund)
    return pydantic_ai.HoldfastAgent(agent, app)


def openai_agent(app: App, *, asks: bool = True, note: str = "", first: bool = False) -> Any:
    def refund(amount: int, note: str = note) -> str:
        effects.append(f"refund {amount}")
        return "refunded"

    call, done = [function_call("refund", {"amount": 80}, call_id="c")], [assistant_message("done")]
    model = ScriptedModel([call, done] if first else [done])
    agent = OpenAIAgent[None]("desk", tools=[function_tool(needs_approval=asks)(refund)], model=model)
    return openai_agents.HoldfastAgent(agent, app, run_config=RunConfig(tracing_disabled=True))


AGENTS = {"pydantic": pydantic_agent, "openai": openai_agent}


@pytest.mark.parametrize(
    ("change", "code"), [({"asks": False}, "approval_not_asked"), ({"note": "a default"}, "question_changed")]
)
@pytest.mark.every_case
@pytest.mark.parametrize("verdict", ["approve", "deny"])
@pytest.mark.parametrize("sdk", AGENTS)
def test_a_tool_call_that_was_decided_is_not_made_by_other_code(
    deploy: Callable[[], App], sdk: str, verdict: str, change: dict[str, Any], code: str
) -> None:
    old, new = deploy(), deploy()
    handle = AGENTS[sdk](old, first=True).enqueue("Refund order 7")
    work_off(old)
    decide(old, verdict, **({"data": {"amount": 5}} if verdict == "approve" else {}))
    AGENTS[sdk](new, **change)
    work_off(new)
    job = handle.get()
    assert (effects, job.state, job.error_code) == ([], State.DEAD_LETTER, code), job.error_message
