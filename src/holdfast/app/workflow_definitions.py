"""``@app.workflow`` above a function: a kind whose jobs plan and start a workflow.

It is a kind like any other, so schedules, events, HTTP and the command line can start it. The key of the workflow is
the id of the job: an attempt after a crash finds the workflow that the first one has started.
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
    """The handler of a workflow that this function plans. Its parameters are the function's, but for the first."""
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

    own = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_ONLY, annotation=Context)
    start.__signature__ = inspect.Signature([own, *parameters[1:]], return_annotation=str)  # type: ignore[attr-defined]
    start.__annotations__ = {p.name: p.annotation for p in parameters[1:] if p.annotation is not p.empty} | {
        "return": str
    }
    return start


def planned_by(options: dict[str, Any]) -> WorkflowOptions:
    """The options of the definition that are the workflow's own; the others are of the job that plans it."""
    return WorkflowOptions(on_failure=options.pop("on_failure")) if "on_failure" in options else WorkflowOptions()
