"""``/payload-rules``: allowed content, visibility and size of payloads."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import Field

from holdfast.features.payloads.model import EACH_KIND, Effective, PayloadRule
from holdfast.features.tokens.model import Scope
from holdfast.server.bodies import Body, Text
from holdfast.server.json_body import Router
from holdfast.server.parameters import Page, TheApp, allowed, allowed_one_tenant

router = Router(prefix="/payload-rules", tags=["payload rules"])

Bytes = int | Annotated[str, Field(max_length=50)]
Kind = Annotated[str, Query(max_length=255, description="Only this kind; `*` is each kind.")]


class SetRule(Body):
    kind: Text = EACH_KIND
    signal_only: bool = False
    forbidden: list[Text] | None = Field(default=None, max_length=100)
    restricted: bool = False
    max_bytes: Bytes | None = None
    max_result_bytes: Bytes | None = None
    store: bool | None = None
    replaceable: bool | None = None
    requires_approval: bool | dict[str, Any] | None = Field(
        default=None, description="Its jobs wait for an approval before they run: true, or options of the approval."
    )
    token_only: bool | None = Field(default=None, description="Only tokens decide the approvals of its jobs.")


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[PayloadRule])
async def list_payload_rules(app: TheApp) -> Page[PayloadRule]:
    """List the payload rules of the tenant and of all tenants."""
    return Page(items=await app.payload_rules.alist())


@router.get("/effective", dependencies=[allowed(Scope.READ)], response_model=Effective)
async def effective_payload_rule(app: TheApp, kind: Kind) -> Effective:
    """Show the effective payload rule for a kind."""
    return await app.payload_rules.aeffective(kind)


@router.put("", dependencies=[allowed_one_tenant(Scope.ADMIN)], response_model=PayloadRule)
async def set_payload_rule(app: TheApp, body: SetRule) -> PayloadRule:
    """Set a payload rule for jobs that are enqueued from now on. Restricted payloads are hidden at once."""
    options = {name: value for name, value in body.given().items() if name != "kind"}
    return await app.payload_rules.aset(body.kind, **options)


@router.delete("", dependencies=[allowed_one_tenant(Scope.ADMIN)], status_code=204)
async def delete_payload_rule(
    app: TheApp, kind: Kind = EACH_KIND, declared_by: Annotated[str, Query(max_length=255)] = ""
) -> None:
    """Delete an operator's rule, or one of a program that no longer exists."""
    await app.payload_rules.aremove(kind, declared_by=declared_by)
