"""Dead letters: in groups that failed for one reason, until somebody resolves them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response
from pydantic import Field

from holdfast.access import Scope
from holdfast.api.answers import PAGE, After, Limit, Name, Page, paged
from holdfast.api.asking import TheApp, allowed
from holdfast.api.bodies import Because, Body, Words
from holdfast.api.linking import here
from holdfast.api.routing import Router
from holdfast.engine.ids import parse_id
from holdfast.engine.job import Job
from holdfast.errors import NotFound
from holdfast.features.dead_letters.model import DeadLetterGroup, Operation, Order
from holdfast.features.dead_letters.operations import GroupWanted
from holdfast.features.jobs.search import moment
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
        wanted["since"] = moment(since, await app.client.arun(app.client.verbs.now()))
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
    client, before = app.client, None if after is None else parse_id(after)
    wanted = JobFilter(tenant=client.tenant, fingerprint=group, limit=limit + 1, before=before, payloads=False)
    found = await client.arun(client.verbs.list_jobs(wanted))
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
