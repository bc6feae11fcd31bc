"""The handler ``workflow.map``: adds one job per item of a result to the running workflow.

The transaction that adds the jobs also makes the jobs behind the map wait for them. An attempt after a crash finds the
jobs by their names, and adds none.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from holdfast.engine.outcome import Reject
from holdfast.errors import Conflict
from holdfast.features.workflows.map_template import with_options
from holdfast.features.workflows.parts import Part

if TYPE_CHECKING:
    from holdfast.context import Context


async def expand(ctx: Context, items: Any, job: dict[str, Any], limit: int) -> int:
    """Add the jobs, and return the number of items."""
    if not isinstance(items, list):
        raise Reject("invalid_items", f"map expects a list of items, got {type(items).__name__}")
    if len(items) > limit:
        raise Reject("too_many_items", f"{len(items):,} items, at most {limit:,} are allowed (max_items)")
    if not items:
        return 0
    store, more = ctx._run.session.store, await ctx.workflow()
    name = await ctx._run.session.arun(store.workflows.name_of(ctx.job_id, ctx.tenant))
    group = Part(more, name, "parallel", None)
    more.members.append(group)
    for number, item in enumerate(items, 1):
        prepared = ctx._child(job["kind"], ({job["argument"]: item},), {})
        spec = with_options(job, prepared.spec)
        group.add(dataclasses.replace(prepared, spec=spec), name=str(number))
    try:
        await more.abehind(ctx.job_id)
    except Conflict as error:
        members = await ctx._run.session.arun(store.workflows.members(more.workflow.id, name, ctx.tenant))
        if error.code != "name_taken" or len(members) != len(items):
            raise
    return len(items)
