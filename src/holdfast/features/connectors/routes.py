"""``/connectors``: the hosts that a tenant's jobs may reach, with secrets by name."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from holdfast.features.connectors.model import LARGEST, MOST
from holdfast.features.tokens.model import Scope
from holdfast.server.bodies import Body, Span, Text, max_entries
from holdfast.server.json_body import Router
from holdfast.server.parameters import Name, Page, TheApp, allowed, allowed_one_tenant

router = Router(prefix="/connectors", tags=["connectors"])


class ShownConnector(BaseModel):
    """Settings of a connector. Secrets are given by name; the server does not have their values."""

    name: str
    tenant: str
    enabled: bool
    hosts: list[str]
    headers: dict[str, Any]
    secrets: list[str]
    timeout: float | None
    max_bytes: int | None
    set_by: str
    created_at: datetime
    updated_at: datetime


class SecretHeader(Body):
    secret: Text = Field(examples=["RATES_TOKEN"])
    prefix: Annotated[str, Field(max_length=20)] = Field(default="", examples=["Bearer "])


class SetConnector(Body):
    """An omitted field keeps its value."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "hosts": ["api.example.com"],
                    "secrets": ["RATES_TOKEN"],
                    "headers": {"Authorization": {"secret": "RATES_TOKEN", "prefix": "Bearer "}},
                    "timeout": "10s",
                }
            ]
        },
    )

    hosts: list[Text] = Field(default_factory=list, max_length=MOST)
    headers: Annotated[dict[Text, Annotated[str, Field(max_length=2_000)] | SecretHeader], max_entries(MOST)] = Field(
        default_factory=dict, max_length=MOST
    )
    secrets: list[Text] = Field(default_factory=list, max_length=MOST)
    timeout: Span | None = None
    max_bytes: int | None = Field(default=None, ge=1, le=LARGEST)
    enabled: bool = True


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[ShownConnector])
async def list_connectors(app: TheApp) -> Any:
    """List connector settings by name."""
    return {"items": await app.connectors.alist()}


@router.get("/{name}", dependencies=[allowed(Scope.READ)], response_model=ShownConnector)
async def show_connector(app: TheApp, name: Name) -> Any:
    return await app.connectors.aget(name)


@router.put("/{name}", dependencies=[allowed_one_tenant(Scope.ADMIN)], response_model=ShownConnector)
async def set_connector(app: TheApp, name: Name, body: SetConnector) -> Any:
    """Set what a connector may reach. It applies to jobs that start from now on."""
    options: Any = body.given()
    if "headers" in options:
        options["headers"] = body.model_dump(include={"headers"}, exclude_defaults=True).get("headers", {})
    return await app.connectors.aset(name, **options)


@router.delete("/{name}", dependencies=[allowed_one_tenant(Scope.ADMIN)], status_code=204)
async def remove_connector(app: TheApp, name: Name) -> None:
    """Remove a connector's settings. Its jobs are rejected from then on."""
    await app.connectors.aremove(name)
