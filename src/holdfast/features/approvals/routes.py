"""HTTP routes of approvals that decide, as the caller or with a token. A GET never decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Depends, Path, Request
from pydantic import ConfigDict, Field

from holdfast.app import App
from holdfast.app.internals import session_of
from holdfast.engine.job import EVERY_TENANT
from holdfast.errors import Refused
from holdfast.features.approvals.model import Approval, Vote
from holdfast.features.approvals.operations import ApprovalByToken, ApprovalRequest, Approvals, Spent
from holdfast.features.tokens.model import Scope
from holdfast.server.bodies import Body, LongText, Text
from holdfast.server.derived import routes
from holdfast.server.json_body import Router
from holdfast.server.parameters import Id, TheApp, allowed, checked_before_body

router = Router(tags=["approvals"])
by_token = Router(prefix="/approvals/by-token", tags=["approvals"])
"""For callers whose only credential is a token in the path. It is checked before anything is shown."""

HOW = "http"


class Say(Body):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"comment": "fine", "data": {"amount": 7}}]}
    )

    comment: LongText | None = None
    data: Any = Field(default=None, description="Values of the form, if there is one.")


@router.post("/approvals/{approval_id}/approve", dependencies=[allowed(Scope.DECIDE)], response_model=Approval)
async def approve(app: TheApp, approval_id: Id, body: Say | None = None) -> Approval:
    """Approve as the caller. Returns the approval as it is now: still open if more people have to agree."""
    return await _decide(app, "approve", approval_id, body)


@router.post("/approvals/{approval_id}/deny", dependencies=[allowed(Scope.DECIDE)], response_model=Approval)
async def deny(app: TheApp, approval_id: Id, body: Say | None = None) -> Approval:
    """Deny as the caller."""
    return await _decide(app, "deny", approval_id, body)


async def _decide(app: App, verdict: Literal["approve", "deny"], approval_id: str, body: Say | None) -> Approval:
    decision = body or Say()
    return await app.approvals._adecide(
        verdict, approval_id, session_of(app).actor, how=HOW, comment=decision.comment, data=decision.data
    )


declared_router = routes("approvals", Approvals)

# --- with a token and no login ---

Token = Annotated[str, Path(min_length=1, max_length=200)]


@dataclass(frozen=True, slots=True)
class Question:
    """What a token decides: only what its holder has to know, and nothing else about the job."""

    approval: Approval
    votes: list[Vote]
    job_id: str
    kind: str


@by_token.get("/{token}", response_model=Question | Spent)
async def show_question(app: TheApp, token: Token) -> Question | Spent:
    """Show what the token decides; once it no longer decides anything, what became of the approval. This decides
    nothing."""
    request = await _request_of(app, token)
    return request.spent or _question(request)


class Decide(Say):
    verdict: Literal["approve", "deny"]
    by: Text | None = Field(default=None, description="Person who decides, if the token was not issued for one.")


@checked_before_body
async def _known(request: Request) -> ApprovalByToken:
    """The approval request of the token in the path. The token is the credential, so it is checked before the body is
    read."""
    state = request.scope.setdefault("state", {})
    if "holdfast_approval" not in state:  # FastAPI calls this again for the parameter
        state["holdfast_approval"] = await _request_of(request.app.state.app, request.path_params["token"])
    approval_request: ApprovalByToken = state["holdfast_approval"]
    return approval_request


@by_token.post("/{token}", response_model=Question)
async def decide_question(
    app: TheApp, token: Token, request: Annotated[ApprovalByToken, Depends(_known)], body: Decide
) -> Question:
    """Decide with the token. It works once."""
    await app.approvals._adecide(
        body.verdict, token, body.by, how=HOW, comment=body.comment, data=body.data, tenant=request.approval.tenant
    )
    return _question(await app.approvals.aget(request.approval.id, tenant=request.approval.tenant))


async def _request_of(app: App, token: str) -> ApprovalByToken:
    """The approval that a token decides, in any tenant; in the tenant of the service if it may act for only one."""
    try:
        return await app.approvals.aget_by_token(token, tenant=EVERY_TENANT)
    except Refused as refused:
        if refused.code != "not_allowed":
            raise
    return await app.approvals.aget_by_token(token, tenant=session_of(app).scope)


def _question(request: ApprovalRequest) -> Question:
    return Question(request.approval, request.votes, request.job.id, request.job.kind)
