"""/schedules, /templates."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from holdfast.features.jobs.routes import Accepted
from holdfast.features.schedules.operations import Schedules
from holdfast.features.schedules.templates import Templates
from holdfast.features.tokens.model import Scope
from holdfast.server.bodies import Body
from holdfast.server.derived import routes
from holdfast.server.job_bodies import JobOptions
from holdfast.server.parameters import NamePath, TheApp, allowed_one_tenant

router = routes("schedules", Schedules)
template_router = routes("templates", Templates)


class FromTemplate(JobOptions, Body):
    arguments: dict[str, Any] = Field(
        default_factory=dict, description="Arguments that override the template's payload."
    )
    version: int | None = Field(default=None, ge=1, le=2**31 - 1)


@template_router.post(
    "/templates/{name:path}/enqueue",
    dependencies=[allowed_one_tenant(Scope.ENQUEUE)],
    status_code=201,
    response_model=Accepted,
)
async def enqueue_template(app: TheApp, name: NamePath, body: FromTemplate | None = None) -> Accepted:
    """Enqueue a job from a template."""
    options = body or FromTemplate()
    templates = app.templates.using(version=options.version, **options.options("arguments", "version"))
    handle = await templates.aenqueue(name, **options.arguments)
    return Accepted(handle.id, handle.tenant, handle.created, handle.reason)
