"""``/dead-letters`` and ``/operations``: what the declarations do not give."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Request, Response
from pydantic import ConfigDict, Field, create_model

from holdfast.app import App
from holdfast.app.internals import session_of
from holdfast.engine.ids import parse_id
from holdfast.engine.job import Job
from holdfast.engine.states import State
from holdfast.errors import InvalidInput
from holdfast.features.dead_letters.model import BulkAction, Operation
from holdfast.features.dead_letters.operations import DeadLetters, Operations
from holdfast.features.tokens.model import Scope
from holdfast.server.bodies import Body, Instant, LongText, Span, Text
from holdfast.server.derived import routes
from holdfast.server.json_body import Router
from holdfast.server.parameters import PAGE, After, Limit, Name, Page, TheApp, allowed, api_path, job_search, paged
from holdfast.stores.job_filters import FILTERS, MAX_TAGS, Filter
from holdfast.stores.requests import JobFilter

router = Router(tags=["dead letters"])


@router.get("/dead-letters/{group}/jobs", dependencies=[allowed(Scope.READ)], response_model=Page[Job])
async def list_dead_jobs(app: TheApp, group: Name, after: After = None, limit: Limit = PAGE) -> Page[Job]:
    """List the open dead letters of a group, newest first, without payloads."""
    client, before = session_of(app), None if after is None else parse_id(after)
    wanted = JobFilter(tenant=client.tenant, fingerprint=group, limit=limit + 1, before=before, payloads=False)
    jobs = await client.arun(client.store.jobs.list(wanted))
    if not jobs:
        await app.dead_letters.agroup(group)
    return paged(jobs, limit, lambda job: job.id)


declared_router = routes("dead_letters", DeadLetters)

operation_router = Router(tags=["operations"])


class Selection(Body):
    async def inputs(self, app: App) -> dict[str, Any]:
        """The inputs of ``app.operations.start``."""
        values = self.given()
        search = await job_search(app, values.get("q"), values)
        if search.examines:
            raise InvalidInput(
                "an operation cannot select jobs by error text",
                code="invalid_search",
                fix="Select the dead letter group with group:….",
            )
        return {name: value for name, value in values.items() if name not in SELECTION} | dict(search.given)


def _field(each: Filter) -> Any:
    several = Text | Annotated[list[Text], Field(max_length=MAX_TAGS)]
    text: Any = {"state": State, "texts": several, "number": int}.get(each.values, Text)
    return text | None, Field(default=None, description=each.help)


SELECTION = {"q", *(each.query for each in FILTERS)}
_fields: dict[str, Any] = {
    "q": (Annotated[str, Field(max_length=1_000)] | None, None),
    **{each.query: _field(each) for each in FILTERS if each.name != "worker"},
    "everything": (bool, Field(default=False, description="Select all jobs, if nothing else selects some.")),
}
Which: Any = create_model(
    "Which",
    __base__=Selection,
    __doc__="Which jobs: those that match every given field. ``q`` is the same as one line of text.",
    **_fields,
)


class StartOperation(Which):  # type: ignore[misc]
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"action": "redrive", "q": "kind:mail since:1h", "rate": 50, "reason": "fixed"}]
        },
    )

    action: BulkAction
    reason: LongText | None = None
    rate: float | None = Field(default=None, ge=0.001, le=1_000_000, description="Maximum jobs per second.")
    max_attempts: int | None = Field(default=None, ge=1, le=101)
    at: Instant | None = Field(default=None, description="Start redriven jobs not before this time.")
    delay: Span | None = Field(default=None, description="Start redriven jobs this long from now.")


@operation_router.post("/operations", dependencies=[allowed(Scope.OPERATE)], status_code=202, response_model=Operation)
async def start_operation(request: Request, response: Response, app: TheApp, body: StartOperation) -> Operation:
    """Start an operation on all matching jobs: cancel, redrive or discard. Workers run it in small batches."""
    started = await app.operations.astart(**(await body.inputs(app)))
    response.headers["location"] = api_path(request, f"/operations/{started.id}")
    return started


declared_operation_router = routes("operations", Operations)
