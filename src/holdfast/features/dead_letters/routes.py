"""/dead-letters, /operations."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response
from pydantic import ConfigDict, Field

from holdfast.app import App
from holdfast.engine.ids import parse_id
from holdfast.engine.job import Job
from holdfast.engine.states import State
from holdfast.errors import InvalidInput, NotFound
from holdfast.features.dead_letters.model import BulkVerb, DeadLetterGroup, Operation, Order
from holdfast.features.dead_letters.operations import GroupWanted
from holdfast.features.jobs.search import moment
from holdfast.features.tokens.model import Scope
from holdfast.server.bodies import Because, Body, Text, Words
from holdfast.server.json_body import Router
from holdfast.server.parameters import PAGE, After, Id, Limit, Name, Page, TheApp, allowed, here, paged, the_search
from holdfast.stores.requests import JobFilter

router = Router(prefix="/dead-letters", tags=["dead letters"])

Word = Annotated[str | None, Query(max_length=255)]
Rate = Annotated[
    float | None, Field(default=None, ge=0.001, le=1_000_000, description="At most so many jobs a second.")
]


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[DeadLetterGroup])
async def list_dead_letters(
    app: TheApp,
    kind: Word = None,
    queue: Word = None,
    text: Word = None,
    since: Word = None,
    order: Order = "last",
    resolved: bool = False,
    after: Annotated[str | None, Query(max_length=255)] = None,
    limit: Limit = PAGE,
) -> Page[DeadLetterGroup]:
    """Groups, those seen last first, or the largest (`order=count`); `resolved` also those with nothing open."""
    wanted = GroupWanted(order=order, resolved=resolved, limit=limit + 1)
    if kind is not None:
        wanted["kind"] = kind
    if queue is not None:
        wanted["queue"] = queue
    if text is not None:
        wanted["text"] = text
    if after is not None:
        wanted["after"] = after
    if since is not None:
        wanted["since"] = moment(since, await app._session.arun(app._session.store.clock.now()))
    return paged(await app.dead_letters.agroups(**wanted), limit, lambda group: group.cursor)


@router.get("/{group}", dependencies=[allowed(Scope.READ)], response_model=DeadLetterGroup)
async def show_dead_letters(app: TheApp, group: Name) -> DeadLetterGroup:
    found = await app.dead_letters.agroup(group)
    if found is None:
        raise NotFound(f"there is no group of dead letters {group} in this tenant", code="group_not_found")
    return found


@router.get("/{group}/jobs", dependencies=[allowed(Scope.READ)], response_model=Page[Job])
async def list_dead_jobs(app: TheApp, group: Name, after: After = None, limit: Limit = PAGE) -> Page[Job]:
    """The open ones of a group, newest first, without their payloads."""
    client, before = app._session, None if after is None else parse_id(after)
    wanted = JobFilter(tenant=client.tenant, fingerprint=group, limit=limit + 1, before=before, payloads=False)
    found = await client.arun(client.store.jobs.list(wanted))
    if not found:
        await show_dead_letters(app, group)
    return paged(found, limit, lambda job: job.id)


class Note(Body):
    note: Words | None = Field(description="What is known about it; null takes it away.")


@router.post("/{group}/note", dependencies=[allowed(Scope.OPERATE)], response_model=DeadLetterGroup)
async def note_dead_letters(app: TheApp, group: Name, body: Note) -> DeadLetterGroup:
    """Write down what is known about a group. It stays while more of them come."""
    return await app.dead_letters.anote(group, body.note)


class RedriveGroup(Because):
    rate: Rate
    max_attempts: int | None = Field(default=None, ge=1, le=101)


@router.post("/{group}/redrive", dependencies=[allowed(Scope.OPERATE)], status_code=202, response_model=Operation)
async def redrive_dead_letters(
    request: Request, response: Response, app: TheApp, group: Name, body: RedriveGroup | None = None
) -> Operation:
    """Put all of a group back into their queues: an operation, which workers do."""
    asked = body or RedriveGroup.model_validate({})
    started = await app.dead_letters.aredrive(
        group, reason=asked.reason, rate=asked.rate, max_attempts=asked.max_attempts
    )
    response.headers["location"] = here(request, f"/operations/{started.id}")
    return started


class DiscardGroup(Body):
    reason: Words
    rate: Rate


@router.post("/{group}/discard", dependencies=[allowed(Scope.OPERATE)], status_code=202, response_model=Operation)
async def discard_dead_letters(
    request: Request, response: Response, app: TheApp, group: Name, body: DiscardGroup
) -> Operation:
    """Give all of a group up for good."""
    started = await app.dead_letters.adiscard(group, reason=body.reason, rate=body.rate)
    response.headers["location"] = here(request, f"/operations/{started.id}")
    return started


operation_router = Router(prefix="/operations", tags=["operations"])


class Which(Body):
    """Which jobs: those for which all of it holds. ``q`` says the same in one line."""

    q: str | None = Field(default=None, max_length=1_000)
    state: State | None = None
    kind: Text | None = None
    queue: Text | None = None
    agent: Text | None = None
    tag: Text | None = None
    correlation_id: Text | None = None
    parent_id: Text | None = None
    group: Text | None = None
    since: Text | None = None
    until: Text | None = None
    everything: bool = Field(default=False, description="All there are, where nothing else says which.")

    async def chosen(self, app: App) -> dict[str, Any]:
        names = self.model_fields_set & {*Which.model_fields} - {"everything"}
        search = await the_search(app, **{name: getattr(self, name) for name in names})
        if search.words:
            raise InvalidInput(
                "words of an error choose no jobs for an operation",
                code="invalid_search",
                fix="Choose the group of dead letters: group:…",
            )
        if not search.given and not self.everything:
            raise InvalidInput("say which jobs, or everything", code="nothing_named")
        return dict(search.given)


class StartOperation(Which):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"verb": "redrive", "q": "kind:mail since:1h", "rate": 50, "reason": "fixed"}]},
    )

    verb: BulkVerb
    reason: Annotated[str, Field(max_length=2_000)] | None = None
    rate: float | None = Field(default=None, ge=0.001, le=1_000_000, description="At most so many jobs a second.")
    max_attempts: int | None = Field(default=None, ge=1, le=101)


@operation_router.post("", dependencies=[allowed(Scope.OPERATE)], status_code=202, response_model=Operation)
async def start_operation(request: Request, response: Response, app: TheApp, body: StartOperation) -> Operation:
    """Cancel, redrive or discard all jobs that match, without waiting for it: workers do it, in small batches."""
    wanted = await body.chosen(app)
    started = await app.operations.astart(
        body.verb, reason=body.reason, rate=body.rate, max_attempts=body.max_attempts, **wanted
    )
    response.headers["location"] = here(request, f"/operations/{started.id}")
    return started


@operation_router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Operation])
async def list_operations(
    app: TheApp, running: bool = False, after: After = None, limit: Limit = PAGE
) -> Page[Operation]:
    """Newest first."""
    found = await app.operations.alist(running=running, limit=limit + 1, before=after)
    return paged(found, limit, lambda each: each.id)


@operation_router.get("/{operation_id}", dependencies=[allowed(Scope.READ)], response_model=Operation)
async def show_operation(app: TheApp, operation_id: Id) -> Operation:
    """How far it is."""
    found = await app.operations.aget(operation_id)
    if found is None:
        raise NotFound(f"there is no operation {operation_id} in this tenant", code="operation_not_found")
    return found


@operation_router.post("/{operation_id}/cancel", dependencies=[allowed(Scope.OPERATE)], response_model=Operation)
async def cancel_operation(app: TheApp, operation_id: Id, body: Because | None = None) -> Operation:
    """No further job is touched; what was done stays done."""
    return await app.operations.acancel(operation_id, reason=None if body is None else body.reason)
