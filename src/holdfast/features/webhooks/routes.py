"""HTTP routes of webhooks and their deliveries."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from holdfast.features.events.model import JobOptions
from holdfast.features.tokens.model import Scope
from holdfast.features.webhooks.operations import Changes, DeliveryFilter
from holdfast.server.bodies import Body, LongText, RetryPolicy, RetryPreset, Text
from holdfast.server.json_body import Router
from holdfast.server.parameters import PAGE, After, Limit, Name, Page, TheApp, allowed, allowed_one_tenant, paged

router = Router(prefix="/webhooks", tags=["webhooks"])

Url = Annotated[str, Field(max_length=2_000, description="URL to post messages to.")]
Secrets = Annotated[
    list[Text],
    Field(
        min_length=1, max_length=5, description="Names of secrets, newest first (names, not the secrets themselves)."
    ),
]
Wants = Annotated[list[Text], Field(min_length=1, max_length=30, examples=[["job.dead_letter", "job.crashed"]])]


class ShownWebhook(BaseModel):
    """A webhook. ``url`` is shown without its query."""

    id: str
    name: str
    tenant: str
    url: str
    secrets: list[str]
    wants: list[str]
    kind: str | None
    job_options: dict[str, Any]
    enabled: bool
    disabled_at: datetime | None
    disabled_by: str | None
    disabled_reason: str | None
    created_by: str
    created_at: datetime
    updated_at: datetime


class ShownDelivery(BaseModel):
    """One attempt. `message` is the webhook-id: the same in every attempt, and when it is sent again."""

    id: str
    tenant: str
    webhook_id: str
    message: str
    type: str
    job_id: str
    attempt: int
    status: int | None
    error_code: str | None
    duration_ms: int
    excerpt: str | None
    at: datetime | None
    delivered: bool


class SentMessage(BaseModel):
    job_id: str


class Delivering(Body):
    """How the deliveries are enqueued, and the queue of the jobs whose events are sent."""

    of_queue: Text | None = Field(default=None, description="Only events of jobs enqueued in this queue.")
    queue: Text | None = Field(default=None, description="Queue for the deliveries.")
    priority: int | None = Field(default=None, ge=-32_768, le=32_767)
    retry: RetryPreset | RetryPolicy | None = None

    def options(self) -> dict[str, Any]:
        """The options in the request, null as None."""
        options = {name: value for name, value in self.given().items() if name in Delivering.model_fields}
        if isinstance(self.retry, RetryPolicy):
            options["retry"] = self.retry.policy()
        return options


class AddWebhook(Delivering):
    """Add a webhook: post signed messages (Standard Webhooks) to a URL."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"name": "ops", "url": "https://ops.example.com/hooks", "secrets": ["OPS_HOOK"]}]
        },
    )

    name: Text
    url: Url
    secrets: Secrets
    wants: Wants | None = None
    kind: Text | None = None


class ChangeWebhook(Delivering):
    """Replace the given settings. For the options of deliveries, null restores the default."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"queue": "hooks", "retry": {"max_attempts": 8}}]}
    )

    url: Url | None = None
    secrets: Secrets | None = None
    wants: Wants | None = None
    kind: Text | None = None


class Rotate(Body):
    secret: Text = Field(description="The name of the new secret.")
    keep: int = Field(default=1, ge=0, le=4, description="Number of old secrets that still sign.")


class Disable(Body):
    reason: LongText


class Enable(Body):
    skip: bool = Field(default=False, description="Skip events that arrived while the webhook was disabled.")


class Resend(Body):
    message: Text = Field(examples=["msg_01a1de74eb8c70f1843bcac5f6817387"])


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[ShownWebhook])
async def list_webhooks(app: TheApp) -> Any:
    """List webhooks by name."""
    return {"items": [webhook.described() for webhook in await app.webhooks.alist()]}


@router.post("", dependencies=[allowed_one_tenant(Scope.ADMIN)], status_code=201, response_model=ShownWebhook)
async def add_webhook(app: TheApp, body: AddWebhook) -> Any:
    options = JobOptions(**{name: value for name, value in body.options().items() if value is not None})  # type: ignore[typeddict-item]
    webhook = await app.webhooks.aadd(
        body.name, body.url, secrets=body.secrets, wants=body.wants, kind=body.kind, **options
    )
    return webhook.described()


@router.get("/{name}", dependencies=[allowed(Scope.READ)], response_model=ShownWebhook)
async def show_webhook(app: TheApp, name: Name) -> Any:
    return (await app.webhooks.aget(name)).described()


@router.patch("/{name}", dependencies=[allowed_one_tenant(Scope.ADMIN)], response_model=ShownWebhook)
async def change_webhook(app: TheApp, name: Name, body: ChangeWebhook) -> Any:
    options = body.options()
    settings = {name: value for name, value in body.given().items() if name not in options}
    changes = Changes(**settings, options=options)  # type: ignore[typeddict-item]
    return (await app.webhooks.aset(name, **changes)).described()


@router.delete("/{name}", dependencies=[allowed_one_tenant(Scope.ADMIN)], status_code=204)
async def remove_webhook(app: TheApp, name: Name) -> None:
    """Remove a webhook and its delivery log. Pending deliveries are cancelled."""
    await app.webhooks.aremove(name)


@router.post("/{name}/rotate", dependencies=[allowed_one_tenant(Scope.ADMIN)], response_model=ShownWebhook)
async def rotate_secret(app: TheApp, name: Name, body: Rotate) -> Any:
    """Add a signing secret. The old ones still sign, so that receivers can change theirs in time."""
    return (await app.webhooks.arotate_secret(name, body.secret, keep=body.keep)).described()


@router.post("/{name}/disable", dependencies=[allowed_one_tenant(Scope.ADMIN)], response_model=ShownWebhook)
async def disable_webhook(app: TheApp, name: Name, body: Disable) -> Any:
    "Disable a webhook. Events that arrive meanwhile are kept until it is enabled."
    return (await app.webhooks.adisable(name, reason=body.reason)).described()


@router.post("/{name}/enable", dependencies=[allowed_one_tenant(Scope.ADMIN)], response_model=ShownWebhook)
async def enable_webhook(app: TheApp, name: Name, body: Enable | None = None) -> Any:
    return (await app.webhooks.aenable(name, skip=body is not None and body.skip)).described()


@router.post(
    "/{name}/test", dependencies=[allowed_one_tenant(Scope.OPERATE)], status_code=202, response_model=SentMessage
)
async def ping_webhook(app: TheApp, name: Name) -> Any:
    """Send a `ping` to a webhook, also while it is disabled."""
    return {"job_id": await app.webhooks.atest(name)}


@router.post(
    "/{name}/resend", dependencies=[allowed_one_tenant(Scope.OPERATE)], status_code=202, response_model=SentMessage
)
async def resend_message(app: TheApp, name: Name, body: Resend) -> Any:
    "Send a message again, unchanged and under the same id."
    return {"job_id": await app.webhooks.aresend(name, body.message)}


@router.get("/{name}/deliveries", dependencies=[allowed(Scope.READ)], response_model=Page[ShownDelivery])
async def list_webhook_deliveries(
    app: TheApp,
    name: Name,
    failed: Annotated[bool, Query()] = False,
    message: Annotated[str | None, Query(max_length=200)] = None,
    limit: Limit = PAGE,
    after: After = None,
) -> Any:
    """List delivery attempts, newest first."""
    wanted = DeliveryFilter(failed=failed, limit=limit + 1)
    if message is not None:
        wanted["message"] = message
    if after is not None:
        wanted["before"] = after
    deliveries = await app.webhooks.adeliveries(name, **wanted)
    return paged([delivery.described() for delivery in deliveries], limit, lambda row: row["id"])
