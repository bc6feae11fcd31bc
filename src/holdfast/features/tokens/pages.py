"""The API tokens page. A new token is shown once, on its own page."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from holdfast.features.tokens.model import ROLES, Role, Scope
from holdfast.server.auth import identity_of, refuse_beyond
from holdfast.server.pages import (
    PAGE,
    action_route,
    check_all_tenants,
    confirm,
    fields,
    page_route,
    redirect,
    repeated_field,
    text_field,
)
from holdfast.server.rendering import render, the_app

DEFAULT_EXPIRY: Final = "90d"


async def index(request: Request) -> Response:
    query = request.query_params
    sessions = bool(query.get("sessions"))
    tokens = await the_app(request).tokens.alist(
        sessions=sessions, before=text_field(query, "before", 50), limit=PAGE + 1
    )
    return await render(
        request,
        "tokens.html",
        tokens=tokens[:PAGE],
        following=tokens[PAGE - 1].id if len(tokens) > PAGE else None,
        sessions=sessions,
        roles=[(role.value, ", ".join(sorted(ROLES[role]))) for role in Role],
        default_expiry=DEFAULT_EXPIRY,
    )


async def issue(request: Request) -> Response:
    """Show the new token without a redirect: it must not be in a URL, and a reload must not show it again."""
    given, roles = await fields(request), await repeated_field(request, "role", 20)
    refuse_beyond(identity_of(request), roles)
    for_all = given.get("whose") == "all"
    if for_all:
        check_all_tenants(request)
    issued = await the_app(request).tokens.aissue(
        text_field(given, "name", 255) or "",
        roles=roles,
        expires=text_field(given, "expires", 30),
        every_tenant=for_all,
    )
    return await render(request, "token.html", text=issued.text, token=issued.token)


async def revoke(request: Request) -> Response:
    token_id = text_field(await fields(request), "id", 50) or ""
    question = "Revoke this token? Its next request is refused."
    if (confirmation := await confirm(request, question, back="/tokens")) is not None:
        return confirmation
    token = await the_app(request).tokens.arevoke(token_id)
    return redirect(request, "/tokens", f"Revoked token {token.name}.")


routes = [
    page_route("/tokens", index, Scope.ADMIN),
    action_route("/tokens", issue, Scope.ADMIN),
    action_route("/tokens/revoke", revoke, Scope.ADMIN),
]
