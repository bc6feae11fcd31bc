"""API tokens: issue, list, revoke. Only the response to issuing contains the token."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Request
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from holdfast.errors import Refused
from holdfast.features.tokens.model import MAX_LIFETIME, ApiToken, Role, Scope
from holdfast.server.auth import identity_of, refuse_beyond
from holdfast.server.bodies import Body
from holdfast.server.json_body import Router
from holdfast.server.parameters import TheApp, allowed

router = Router(prefix="/tokens", tags=["tokens"], dependencies=[allowed(Scope.ADMIN)])

PAGE, MAX_PAGE = 50, 200


class IssueToken(Body):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"name": "ci", "roles": ["producer"]}]})

    name: str = Field(max_length=100, description="Name recorded in the ledger.")
    roles: list[Role] = Field(min_length=1, max_length=len(Role))
    scopes: list[Scope] = Field(default=[], max_length=len(Scope), description="Restrict the roles to these scopes.")
    expires_at: AwareDatetime | None = None
    expires_in: float | None = Field(default=None, ge=1, le=MAX_LIFETIME, allow_inf_nan=False, description="Seconds.")


class IssuedToken(BaseModel):
    """``text`` is the token itself, which is not shown again."""

    text: str
    token: ApiToken


class TokenPage(BaseModel):
    items: list[ApiToken]
    next: str | None


@router.post("", status_code=201, summary="Issue a token")
async def issue_token(request: Request, app: TheApp, body: IssueToken) -> IssuedToken:
    """Issue a token for the caller's tenant, with at most the caller's own rights."""
    refuse_beyond(identity_of(request), body.roles, body.scopes)
    if body.expires_at is not None and body.expires_in is not None:
        raise Refused("pass expires_at or expires_in, not both", code="conflicting_options")
    expires = body.expires_at if body.expires_in is None else body.expires_in
    issued = await app.tokens.aissue(body.name, roles=body.roles, scopes=body.scopes, expires=expires)
    return IssuedToken(text=issued.text, token=issued.token)


@router.get("", summary="List tokens, newest first")
async def list_tokens(
    app: TheApp,
    sessions: bool = False,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = PAGE,
    after: Annotated[str | None, Query(max_length=36)] = None,
) -> TokenPage:
    tokens = await app.tokens.alist(sessions=sessions, before=after, limit=limit + 1)
    items = tokens[:limit]
    return TokenPage(items=items, next=items[-1].id if len(tokens) > limit else None)


@router.delete("/{id}", summary="Revoke a token, and its sessions")
async def revoke_token(app: TheApp, id: Annotated[str, Path(max_length=36)]) -> ApiToken:
    return await app.tokens.arevoke(id)
