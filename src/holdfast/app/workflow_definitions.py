"""``@app.workflow`` as a decorator: a kind whose jobs plan and start a workflow.

Schedules, events, HTTP and the command line can start it like any other kind. The key of the workflow is the id of the
job, so an attempt after a crash finds the workflow that the first attempt started.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from holdfast.context import Context
from holdfast.errors import InvalidSetting
from holdfast.features.workflows.run import WorkflowOptions, WorkflowPlan


def planner(function: Callable[..., Any], plan: Callable[[Context], WorkflowPlan]) -> Callable[..., Any]:
    """Return a handler that plans and starts a workflow. Its parameters are the function's, without the first."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise InvalidSetting(
            f"the function of workflow {function.__name__} must take the workflow as its first parameter",
            code="invalid_workflow",
            fix="Write def nightly(wf: holdfast.WorkflowPlan) -> None, and add jobs with wf.add(…).",
        )

    @wraps(function)
    async def start(ctx: Context, *args: Any, **kwargs: Any) -> str:
        wf = plan(ctx)
        wf.scheduled_at = await ctx.scheduled_at()
        if inspect.iscoroutinefunction(function):
            await function(wf, *args, **kwargs)
        else:
            await asyncio.to_thread(function, wf, *args, **kwargs)
        return (await wf.astart()).id

    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_ONLY, annotation=Context)
    start.__signature__ = inspect.Signature([context, *parameters[1:]], return_annotation=str)  # type: ignore[attr-defined]
    start.__annotations__ = {p.name: p.annotation for p in parameters[1:] if p.annotation is not p.empty} | {
        "return": str
    }
    return start


def pop_workflow_options(options: dict[str, Any]) -> WorkflowOptions:
    """Remove the workflow's options and return them. Those that remain are options of the job that plans it."""
    return WorkflowOptions(on_failure=options.pop("on_failure")) if "on_failure" in options else WorkflowOptions()
