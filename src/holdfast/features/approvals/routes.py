"""HTTP routes of approvals: list, show, decide. A GET never decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Depends, Path, Query, Request
from pydantic import ConfigDict, Field

from holdfast.app import App
from holdfast.engine.job import EVERY_TENANT
from holdfast.errors import Refused
from holdfast.features.approvals.model import Approval, ApprovalState, Vote
from holdfast.features.approvals.operations import ApprovalByToken, ApprovalRequest, Spent
from holdfast.features.tokens.model import Scope
from holdfast.server.bodies import Body, LongText, Span, Text
from holdfast.server.json_body import Router
from holdfast.server.parameters import PAGE, After, Id, Limit, Page, TheApp, allowed, checked_before_body, paged

router = Router(prefix="/approvals", tags=["approvals"])
by_token = Router(prefix="/approvals/by-token", tags=["approvals"])
"""For callers whose only credential is a token in the path. It is checked before anything is shown."""

HOW = "http"


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Approval])
async def list_approvals(
    app: TheApp,
    state: ApprovalState | Literal["all"] = "open",
    approver: Annotated[
        str | None, Query(max_length=255, description="Only approvals that this person may decide.")
    ] = None,
    name: Annotated[str | None, Query(max_length=255)] = None,
    job: Annotated[str | None, Query(max_length=100)] = None,
    after: After = None,
    limit: Limit = PAGE,
) -> Page[Approval]:
    """List approvals, oldest first."""
    approvals = await app.approvals.alist(
        state=None if state == "all" else state, approver=approver, name=name, job_id=job, after=after, limit=limit + 1
    )
    return paged(approvals, limit, lambda approval: approval.id)


@router.get("/{approval_id}", dependencies=[allowed(Scope.READ)], response_model=ApprovalRequest)
async def show_approval(app: TheApp, approval_id: Id) -> ApprovalRequest:
    """Show an approval, its votes, and the job that requested it."""
    return await app.approvals.aget(approval_id)


class Say(Body):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"comment": "fine", "data": {"amount": 7}}]}
    )

    comment: LongText | None = None
    data: Any = Field(default=None, description="Values of the form, if there is one.")


@router.post("/{approval_id}/approve", dependencies=[allowed(Scope.DECIDE)], response_model=Approval)
async def approve(app: TheApp, approval_id: Id, body: Say | None = None) -> Approval:
    """Approve as the caller. Returns the approval as it is now: still open if more people have to agree."""
    return await _decide(app, "approve", approval_id, body)


@router.post("/{approval_id}/deny", dependencies=[allowed(Scope.DECIDE)], response_model=Approval)
async def deny(app: TheApp, approval_id: Id, body: Say | None = None) -> Approval:
    """Deny as the caller."""
    return await _decide(app, "deny", approval_id, body)


async def _decide(app: App, verdict: Literal["approve", "deny"], approval_id: str, body: Say | None) -> Approval:
    decision = body or Say()
    return await app.approvals._adecide(
        verdict, approval_id, app._session.actor, how=HOW, comment=decision.comment, data=decision.data
    )


class Issue(Body):
    person: Text | None = Field(
        default=None, description="Person the token is for; without one, its user gives a name."
    )
    expires_in: Span | None = None


@dataclass(frozen=True, slots=True)
class Issued:
    """A new token. It is shown only once: the database stores a hash."""

    token: str


@router.post("/{approval_id}/token", dependencies=[allowed(Scope.ADMIN)], status_code=201, response_model=Issued)
async def issue_approval_token(app: TheApp, approval_id: Id, body: Issue | None = None) -> Issued:
    """Issue a token that decides this approval once, for anyone who holds it."""
    options = body or Issue()
    return Issued(await app.approvals.aissue_token(approval_id, person=options.person, expires_in=options.expires_in))


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
    return await app.approvals.aget_by_token(token, tenant=app._session.scope)


def _question(request: ApprovalRequest) -> Question:
    return Question(request.approval, request.votes, request.job.id, request.job.kind)
