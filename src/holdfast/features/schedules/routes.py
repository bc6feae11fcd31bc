"""HTTP routes of schedules and templates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import ConfigDict, Field
from starlette.responses import Response

from holdfast.engine.names import PagePosition
from holdfast.errors import NotFound
from holdfast.features.jobs.routes import Accepted
from holdfast.features.schedules.model import Schedule, ScheduleRun, Template
from holdfast.features.schedules.recurrence import Coming
from holdfast.features.tokens.model import Scope
from holdfast.server.bodies import Body, Instant, JobOptions, RetryPolicy, RetryPreset, Span, Text
from holdfast.server.json_body import Router
from holdfast.server.parameters import (
    PAGE,
    After,
    Limit,
    NamePath,
    Page,
    TheApp,
    allowed,
    allowed_one_tenant,
    as_json,
    paged,
)

template_router = Router(prefix="/templates", tags=["templates"])


class KeptOptions(Body):
    """Options of jobs that are created later; ``deadline`` is how long after its time a job may still start."""

    queue: Text | None = None
    priority: int | None = Field(default=None, ge=-32_768, le=32_767)
    tags: list[Text] | None = Field(default=None, max_length=50)
    agent: Text | None = None
    executor: Text | None = None
    retry: RetryPreset | RetryPolicy | None = None
    deadline: Span | None = None
    correlation_id: Text | None = None
    external_ref: Text | None = None

    def options(self, *besides: str) -> dict[str, Any]:
        """The given fields that are not null."""
        return {name: value for name, value in self.changes(*besides).items() if value is not None}

    def changes(self, *besides: str) -> dict[str, Any]:
        """The given fields, also those that are null: null removes an option."""
        fields = {name: value for name, value in self.given().items() if name not in besides}
        if isinstance(fields.get("retry"), RetryPolicy):
            fields["retry"] = fields["retry"].policy()
        return fields


class PutTemplate(KeptOptions):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"kind": "report", "payload": {"format": "pdf"}, "queue": "reports"}]},
    )

    kind: Text
    payload: dict[str, Any] | None = None


@template_router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Template])
async def list_templates(
    app: TheApp,
    after: After = None,
    limit: Limit = PAGE,
) -> Page[Template]:
    """List templates in their newest versions, by name."""
    scope = app._session.tenant
    templates = await app.templates.alist(after=PagePosition.read(after, scope), limit=limit + 1)
    return paged(templates, limit, lambda template: PagePosition(template.tenant, template.name).cursor(scope))


@template_router.get("/{name:path}/versions", dependencies=[allowed(Scope.READ)], response_model=Page[Template])
async def template_versions(app: TheApp, name: NamePath, after: After = None, limit: Limit = PAGE) -> Page[Template]:
    """List the versions of a template, newest first, including removals."""
    scope = app._session.tenant
    versions = await app.templates.aversions(name, after=PagePosition.read(after, scope), limit=limit + 1)
    if not versions and after is None:
        raise _missing(name)
    return paged(versions, limit, lambda version: PagePosition(version.tenant, str(version.version)).cursor(scope))


class FromTemplate(JobOptions, Body):
    arguments: dict[str, Any] = Field(
        default_factory=dict, description="Arguments that override the template's payload."
    )
    version: int | None = Field(default=None, ge=1, le=2**31 - 1)


@template_router.post(
    "/{name:path}/enqueue", dependencies=[allowed_one_tenant(Scope.ENQUEUE)], status_code=201, response_model=Accepted
)
async def enqueue_template(app: TheApp, name: NamePath, body: FromTemplate | None = None) -> Accepted:
    """Enqueue a job from a template."""
    options = body or FromTemplate()
    templates = app.templates.using(version=options.version, **options.options("arguments", "version"))
    handle = await templates.aenqueue(name, **options.arguments)
    return Accepted(handle.id, handle.tenant, handle.created, handle.reason)


@template_router.get("/{name:path}", dependencies=[allowed(Scope.READ)], response_model=Template)
async def show_template(
    app: TheApp, name: NamePath, version: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None
) -> Template:
    """Show a version of a template; without a number, the newest."""
    return await app.templates.aget(name, version)


@template_router.put("/{name:path}", dependencies=[allowed_one_tenant(Scope.OPERATE)], response_model=Template)
async def put_template(app: TheApp, name: NamePath, body: PutTemplate) -> Template:
    """Create a template or a new version of it. Older versions stay. Repeating the same request changes nothing."""
    return await app.templates.aset(name, body.kind, body.payload, **body.options("kind", "payload"))


@template_router.delete("/{name:path}", dependencies=[allowed_one_tenant(Scope.OPERATE)], status_code=204)
async def remove_template(app: TheApp, name: NamePath) -> None:
    """Remove a template from use. Its versions stay readable."""
    await app.templates.aremove(name)


def _missing(name: str) -> NotFound:
    return NotFound(f"no template {name} in this tenant", code="template_not_found")


router = Router(prefix="/schedules", tags=["schedules"])


class Definition(KeptOptions):
    """The definition of a schedule. In a change, fields that are left out stay as they are."""

    timing: Annotated[str, Field(max_length=200, examples=["0 9 * * MON-FRI", "@daily", "every 15m"])] | None = None
    tz: Text | None = None
    kind: Text | None = None
    template: Text | None = None
    payload: dict[str, Any] | None = None
    missed: Literal["skip", "once", "all"] | None = None
    overlap: Literal["allow", "skip", "queue"] | None = None
    jitter: Span | None = None


class CreateSchedule(Definition):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"name": "nightly", "timing": "0 3 * * *", "tz": "Europe/Paris", "kind": "report"}]
        },
    )

    name: Text
    timing: Annotated[str, Field(max_length=200)]


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Schedule])
async def list_schedules(
    app: TheApp,
    state: Literal["active", "paused", "ended"] | None = None,
    kind: Annotated[str | None, Query(max_length=255)] = None,
    after: After = None,
    limit: Limit = PAGE,
) -> Response:
    """List schedules by name."""
    scope = app._session.tenant
    schedules = await app.schedules.alist(
        state=state, kind=kind, after=PagePosition.read(after, scope), limit=limit + 1
    )
    page = paged(schedules, limit, lambda schedule: PagePosition(schedule.tenant, schedule.name).cursor(scope))
    return Response(as_json(page), media_type="application/json")  # skips the validation of the response model


@router.post("", dependencies=[allowed_one_tenant(Scope.OPERATE)], status_code=201, response_model=Schedule)
async def create_schedule(app: TheApp, body: CreateSchedule) -> Schedule:
    """Create a schedule for a kind or a template."""
    definition = body.options("name", "timing")
    return await app.schedules.aadd(body.name, body.timing, **definition)


@router.get("/{name:path}/next", dependencies=[allowed(Scope.READ)], response_model=Page[Coming])
async def next_times(app: TheApp, name: NamePath, count: Annotated[int, Query(ge=1, le=100)] = 10) -> Page[Coming]:
    """Show the next times in UTC and in the schedule's time zone, with a warning where daylight saving time
    affects one."""
    return Page(items=await app.schedules.apreview(name, count))


@router.get("/{name:path}/history", dependencies=[allowed(Scope.READ)], response_model=Page[ScheduleRun])
async def schedule_history(
    app: TheApp, name: NamePath, before: Annotated[Instant | None, Query()] = None, limit: Limit = PAGE
) -> Page[ScheduleRun]:
    """List a schedule's past times, newest first. `before` is the `due_at` of the last one seen."""
    runs = await app.schedules.ahistory(name, limit=limit + 1, before=before)
    return paged(runs, limit, lambda fire: fire.due_at.isoformat())


@router.post("/{name:path}/pause", dependencies=[allowed_one_tenant(Scope.OPERATE)], response_model=Schedule)
async def pause_schedule(app: TheApp, name: NamePath) -> Schedule:
    """Pause a schedule."""
    return await app.schedules.apause(name)


@router.post("/{name:path}/resume", dependencies=[allowed_one_tenant(Scope.OPERATE)], response_model=Schedule)
async def resume_schedule(app: TheApp, name: NamePath) -> Schedule:
    return await app.schedules.aresume(name)


@dataclass(frozen=True, slots=True)
class Ran:
    job_id: str


@router.post(
    "/{name:path}/run-now", dependencies=[allowed_one_tenant(Scope.OPERATE)], status_code=201, response_model=Ran
)
async def run_schedule_now(app: TheApp, name: NamePath, anyway: bool = False) -> Ran:
    """Run a schedule now, in addition to its times. A schedule that does not allow overlap is refused while a job of it
    runs, unless `anyway`."""
    return Ran(await app.schedules.arun(name, anyway=anyway))


@router.get("/{name:path}", dependencies=[allowed(Scope.READ)], response_model=Schedule)
async def show_schedule(app: TheApp, name: NamePath) -> Schedule:
    return await app.schedules.aget(name)


@router.patch("/{name:path}", dependencies=[allowed_one_tenant(Scope.OPERATE)], response_model=Schedule)
async def edit_schedule(app: TheApp, name: NamePath, body: Definition) -> Schedule:
    """Change the given fields. An option that is null is removed."""
    return await app.schedules.aedit(name, **body.changes())


@router.delete("/{name:path}", dependencies=[allowed_one_tenant(Scope.OPERATE)], status_code=204)
async def delete_schedule(app: TheApp, name: NamePath) -> None:
    """Delete a schedule. Its jobs and history stay; its name can be used again."""
    await app.schedules.aremove(name)
