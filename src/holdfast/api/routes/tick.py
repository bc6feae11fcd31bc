"""The tick (HK-1): a few jobs are run here and now, for cron and for hosts that run nothing by themselves."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Annotated

from pydantic import ConfigDict, Field

from holdfast.access import Scope
from holdfast.api.asking import TheApp, allowed
from holdfast.api.bodies import Body
from holdfast.api.routing import Router
from holdfast.engine.job import DEFAULT_QUEUE
from holdfast.worker.options import TickSummary

router = Router(tags=["jobs"])

MOST_JOBS, LONGEST = 100, 300.0


class TickAsked(Body):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"limit": 20, "timeout": 30}]})

    limit: int = Field(default=10, ge=1, le=MOST_JOBS, description="How many jobs at most.")
    queues: list[Annotated[str, Field(max_length=100)]] = Field(default=[DEFAULT_QUEUE], min_length=1, max_length=100)
    concurrency: int = Field(default=16, ge=1, le=MOST_JOBS)
    timeout: float = Field(
        default=60,
        ge=0.1,
        le=LONGEST,
        allow_inf_nan=False,
        description="What runs after so many seconds is handed back.",
    )


@router.post("/jobs/tick", dependencies=[allowed(Scope.WORK)], summary="Run a few jobs here and now")
async def tick(app: TheApp, wanted: TickAsked | None = None) -> TickSummary:
    """Any number of them may run at once: no job is taken by two."""
    wanted = wanted or TickAsked()
    ticking = app.atick(
        wanted.limit,
        queues=wanted.queues,
        concurrency=wanted.concurrency,
        timeout=wanted.timeout,
        tenant=app.client.tenant,
    )
    # In a context of its own: what handlers do is done by them, not by whoever rang.
    return await asyncio.get_running_loop().create_task(ticking, context=contextvars.Context())
