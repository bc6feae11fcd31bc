"""Templates: job definitions with a name and versions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import ConfigDict, Field

from holdfast.access import Scope
from holdfast.api.answers import PAGE, After, Limit, NamePath, Page, paged
from holdfast.api.asking import TheApp, allowed, allowed_one
from holdfast.api.bodies import Body, JobOptions, RetryPolicy, Span, Text
from holdfast.api.routes.jobs import Accepted
from holdfast.api.routing import Router
from holdfast.engine.names import Place
from holdfast.errors import NotFound
from holdfast.features.schedules.model import Template

router = Router(prefix="/templates", tags=["templates"])


class KeptOptions(Body):
    """How jobs are enqueued that are made later; ``deadline`` is how long after its time one may still be begun."""

    queue: Text | None = None
    priority: int | None = Field(default=None, ge=-32_768, le=32_767)
    tags: list[Text] | None = Field(default=None, max_length=50)
    agent: Text | None = None
    retry: Literal["exponential", "gentle", "hourly_cap"] | RetryPolicy | None = None
    deadline: Span | None = None
    correlation_id: Text | None = None
    external_ref: Text | None = None

    def options(self, *besides: str) -> dict[str, Any]:
        """What was said and is not null."""
        return {name: value for name, value in self.changes(*besides).items() if value is not None}

    def changes(self, *besides: str) -> dict[str, Any]:
        """What was said: null as well, which takes something away."""
        chosen = {name: value for name, value in self.given().items() if name not in besides}
        if isinstance(chosen.get("retry"), RetryPolicy):
            chosen["retry"] = chosen["retry"].policy()
        return chosen


class PutTemplate(KeptOptions):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"kind": "report", "payload": {"format": "pdf"}, "queue": "reports"}]},
    )

    kind: Text
    payload: dict[str, Any] | None = None


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Template])
async def list_templates(
    app: TheApp,
    after: After = None,
    limit: Limit = PAGE,
) -> Page[Template]:
    """The newest version of each, by their names."""
    scope = app.client.tenant
    found = await app.templates.alist(after=Place.read(after, scope), limit=limit + 1)
    return paged(found, limit, lambda each: Place(each.tenant, each.name).cursor(scope))


@router.get("/{name:path}/versions", dependencies=[allowed(Scope.READ)], response_model=Page[Template])
async def template_versions(app: TheApp, name: NamePath, after: After = None, limit: Limit = PAGE) -> Page[Template]:
    """The newest first; a removal is one of them."""
    scope = app.client.tenant
    found = await app.templates.aversions(name, after=Place.read(after, scope), limit=limit + 1)
    if not found and after is None:
        raise _missing(name)
    return paged(found, limit, lambda each: Place(each.tenant, str(each.version)).cursor(scope))


class FromTemplate(JobOptions, Body):
    arguments: dict[str, Any] = Field(default_factory=dict, description="On top of the template's payload.")
    version: int | None = Field(default=None, ge=1, le=2**31 - 1)


@router.post(
    "/{name:path}/enqueue", dependencies=[allowed_one(Scope.ENQUEUE)], status_code=201, response_model=Accepted
)
async def enqueue_template(app: TheApp, name: NamePath, body: FromTemplate | None = None) -> Accepted:
    """Enqueue a job made from a template."""
    asked = body or FromTemplate()
    chosen = app.templates.using(version=asked.version, **asked.options("arguments", "version"))
    handle = await chosen.aenqueue(name, **asked.arguments)
    return Accepted(handle.id, handle.tenant, handle.created, handle.reason)


@router.get("/{name:path}", dependencies=[allowed(Scope.READ)], response_model=Template)
async def show_template(
    app: TheApp, name: NamePath, version: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None
) -> Template:
    """One version; without a number the newest."""
    found = await app.templates.aget(name, version)
    if found is None:
        raise _missing(name)
    return found


@router.put("/{name:path}", dependencies=[allowed_one(Scope.OPERATE)], response_model=Template)
async def put_template(app: TheApp, name: NamePath, body: PutTemplate) -> Template:
    """Define a template, or change it: that is a new version, and the others stay. Repeating it changes nothing."""
    return await app.templates.aput(name, body.kind, body.payload, **body.options("kind", "payload"))


@router.delete("/{name:path}", dependencies=[allowed_one(Scope.OPERATE)], status_code=204)
async def remove_template(app: TheApp, name: NamePath) -> None:
    """No new jobs are made from it; its versions stay."""
    await app.templates.aremove(name)


def _missing(name: str) -> NotFound:
    return NotFound(f"there is no template {name} in this tenant", code="template_not_found")
