"""Bulk operations: have something done to all jobs that match, look how far it is, cancel it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Request, Response
from pydantic import ConfigDict, Field

from holdfast.access import Scope
from holdfast.api.answers import PAGE, After, Id, Limit, Page, paged
from holdfast.api.asking import TheApp, allowed
from holdfast.api.bodies import Because, Body, Text
from holdfast.api.linking import here
from holdfast.api.routing import Router
from holdfast.api.searches import the_search
from holdfast.app import App
from holdfast.engine.states import State
from holdfast.errors import InvalidInput, NotFound
from holdfast.features.dead_letters.model import BulkVerb, Operation

router = Router(prefix="/operations", tags=["operations"])


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


@router.post("", dependencies=[allowed(Scope.OPERATE)], status_code=202, response_model=Operation)
async def start_operation(request: Request, response: Response, app: TheApp, body: StartOperation) -> Operation:
    """Cancel, redrive or discard all jobs that match, without waiting for it: workers do it, in small batches."""
    wanted = await body.chosen(app)
    started = await app.operations.astart(
        body.verb, reason=body.reason, rate=body.rate, max_attempts=body.max_attempts, **wanted
    )
    response.headers["location"] = here(request, f"/operations/{started.id}")
    return started


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Operation])
async def list_operations(
    app: TheApp, running: bool = False, after: After = None, limit: Limit = PAGE
) -> Page[Operation]:
    """Newest first."""
    found = await app.operations.alist(running=running, limit=limit + 1, before=after)
    return paged(found, limit, lambda each: each.id)


@router.get("/{operation_id}", dependencies=[allowed(Scope.READ)], response_model=Operation)
async def show_operation(app: TheApp, operation_id: Id) -> Operation:
    """How far it is."""
    found = await app.operations.aget(operation_id)
    if found is None:
        raise NotFound(f"there is no operation {operation_id} in this tenant", code="operation_not_found")
    return found


@router.post("/{operation_id}/cancel", dependencies=[allowed(Scope.OPERATE)], response_model=Operation)
async def cancel_operation(app: TheApp, operation_id: Id, body: Because | None = None) -> Operation:
    """No further job is touched; what was done stays done."""
    return await app.operations.acancel(operation_id, reason=None if body is None else body.reason)
