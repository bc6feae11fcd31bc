"""``/dead-letters`` and ``/operations``."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response
from pydantic import ConfigDict, Field, create_model

from holdfast.app import App
from holdfast.engine.ids import parse_id
from holdfast.engine.job import Job
from holdfast.engine.states import State
from holdfast.errors import InvalidInput
from holdfast.features.dead_letters.model import BulkAction, DeadLetterGroup, Operation, Order
from holdfast.features.dead_letters.operations import GroupOptions
from holdfast.features.jobs.search import moment
from holdfast.features.tokens.model import Scope
from holdfast.server.bodies import Body, Instant, LongText, Span, Text, WithReason
from holdfast.server.json_body import Router
from holdfast.server.parameters import PAGE, After, Id, Limit, Name, Page, TheApp, allowed, api_path, job_search, paged
from holdfast.stores.job_filters import FILTERS, MAX_TAGS, Filter
from holdfast.stores.requests import JobFilter

router = Router(prefix="/dead-letters", tags=["dead letters"])

NameQuery = Annotated[str | None, Query(max_length=255)]
Rate = Annotated[float | None, Field(default=None, ge=0.001, le=1_000_000, description="Maximum jobs per second.")]


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[DeadLetterGroup])
async def list_dead_letters(
    app: TheApp,
    kind: NameQuery = None,
    queue: NameQuery = None,
    text: NameQuery = None,
    since: NameQuery = None,
    order: Order = "last",
    resolved: bool = False,
    after: Annotated[str | None, Query(max_length=255)] = None,
    limit: Limit = PAGE,
) -> Page[DeadLetterGroup]:
    """List dead letter groups, most recent first or largest first (`order=count`). `resolved` includes groups with
    nothing open."""
    options = GroupOptions(order=order, resolved=resolved, limit=limit + 1)
    if kind is not None:
        options["kind"] = kind
    if queue is not None:
        options["queue"] = queue
    if text is not None:
        options["text"] = text
    if after is not None:
        options["after"] = after
    if since is not None:
        options["since"] = moment(since, await app._session.arun(app._session.store.clock.now()))
    return paged(await app.dead_letters.agroups(**options), limit, lambda group: group.cursor)


@router.get("/{group}", dependencies=[allowed(Scope.READ)], response_model=DeadLetterGroup)
async def show_dead_letters(app: TheApp, group: Name) -> DeadLetterGroup:
    return await app.dead_letters.agroup(group)


@router.get("/{group}/jobs", dependencies=[allowed(Scope.READ)], response_model=Page[Job])
async def list_dead_jobs(app: TheApp, group: Name, after: After = None, limit: Limit = PAGE) -> Page[Job]:
    """List the open dead letters of a group, newest first, without payloads."""
    client, before = app._session, None if after is None else parse_id(after)
    wanted = JobFilter(tenant=client.tenant, fingerprint=group, limit=limit + 1, before=before, payloads=False)
    jobs = await client.arun(client.store.jobs.list(wanted))
    if not jobs:
        await show_dead_letters(app, group)
    return paged(jobs, limit, lambda job: job.id)


class Note(Body):
    note: LongText | None = Field(description="The note; null removes it.")


@router.post("/{group}/note", dependencies=[allowed(Scope.OPERATE)], response_model=DeadLetterGroup)
async def note_dead_letters(app: TheApp, group: Name, body: Note) -> DeadLetterGroup:
    """Set a note on a group. It stays when more dead letters join the group."""
    return await app.dead_letters.anote(group, body.note)


class RedriveGroup(WithReason):
    rate: Rate
    max_attempts: int | None = Field(default=None, ge=1, le=101)
    at: Instant | None = Field(default=None, description="Start not before this time.")
    delay: Span | None = Field(default=None, description="Start this long from now.")


@router.post("/{group}/redrive", dependencies=[allowed(Scope.OPERATE)], status_code=202, response_model=Operation)
async def redrive_dead_letters(
    request: Request, response: Response, app: TheApp, group: Name, body: RedriveGroup | None = None
) -> Operation:
    """Redrive all dead letters of a group. Workers run this as an operation."""
    options = body or RedriveGroup.model_validate({})
    started = await app.dead_letters.aredrive(
        group,
        reason=options.reason,
        rate=options.rate,
        max_attempts=options.max_attempts,
        at=options.at,
        delay=options.delay,
    )
    response.headers["location"] = api_path(request, f"/operations/{started.id}")
    return started


class DiscardGroup(Body):
    reason: LongText
    rate: Rate


@router.post("/{group}/discard", dependencies=[allowed(Scope.OPERATE)], status_code=202, response_model=Operation)
async def discard_dead_letters(
    request: Request, response: Response, app: TheApp, group: Name, body: DiscardGroup
) -> Operation:
    """Discard all dead letters of a group."""
    started = await app.dead_letters.adiscard(group, reason=body.reason, rate=body.rate)
    response.headers["location"] = api_path(request, f"/operations/{started.id}")
    return started


operation_router = Router(prefix="/operations", tags=["operations"])


class Selection(Body):
    async def selection(self, app: App) -> dict[str, Any]:
        values = self.given()
        search = await job_search(app, values.get("q"), values)
        if search.examines:
            raise InvalidInput(
                "an operation cannot select jobs by error text",
                code="invalid_search",
                fix="Select the dead letter group with group:….",
            )
        if not search.given and not values.get("everything"):
            raise InvalidInput("select jobs, or everything", code="nothing_named")
        return dict(search.given)


def _field(each: Filter) -> Any:
    several = Text | Annotated[list[Text], Field(max_length=MAX_TAGS)]
    text: Any = {"state": State, "texts": several, "number": int}.get(each.values, Text)
    return text | None, Field(default=None, description=each.help)


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
    reason: Annotated[str, Field(max_length=2_000)] | None = None
    rate: float | None = Field(default=None, ge=0.001, le=1_000_000, description="Maximum jobs per second.")
    max_attempts: int | None = Field(default=None, ge=1, le=101)
    at: Instant | None = Field(default=None, description="Start redriven jobs not before this time.")
    delay: Span | None = Field(default=None, description="Start redriven jobs this long from now.")


@operation_router.post("", dependencies=[allowed(Scope.OPERATE)], status_code=202, response_model=Operation)
async def start_operation(request: Request, response: Response, app: TheApp, body: StartOperation) -> Operation:
    """Start an operation on all matching jobs: cancel, redrive or discard. Workers run it in small batches."""
    selection = await body.selection(app)
    started = await app.operations.astart(
        body.action,
        reason=body.reason,
        rate=body.rate,
        max_attempts=body.max_attempts,
        at=body.at,
        delay=body.delay,
        **selection,
    )
    response.headers["location"] = api_path(request, f"/operations/{started.id}")
    return started


@operation_router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Operation])
async def list_operations(
    app: TheApp, running: bool = False, after: After = None, limit: Limit = PAGE
) -> Page[Operation]:
    """List bulk operations, newest first."""
    operations = await app.operations.alist(running=running, limit=limit + 1, before=after)
    return paged(operations, limit, lambda operation: operation.id)


@operation_router.get("/{operation_id}", dependencies=[allowed(Scope.READ)], response_model=Operation)
async def show_operation(app: TheApp, operation_id: Id) -> Operation:
    """Show an operation and its progress."""
    return await app.operations.aget(operation_id)


@operation_router.post("/{operation_id}/cancel", dependencies=[allowed(Scope.OPERATE)], response_model=Operation)
async def cancel_operation(app: TheApp, operation_id: Id, body: WithReason | None = None) -> Operation:
    """Cancel an operation. Jobs it has already changed stay changed."""
    return await app.operations.acancel(operation_id, reason=None if body is None else body.reason)
