"""Approvals: what waits for people, and what they say. A GET never decides (rule 26)."""

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
from holdfast.server.bodies import Body, Span, Text, Words
from holdfast.server.json_body import Router
from holdfast.server.parameters import PAGE, After, Id, Limit, Page, TheApp, allowed, before_the_body, paged

router = Router(prefix="/approvals", tags=["approvals"])
by_token = Router(prefix="/approvals/by-token", tags=["approvals"])
"""For whoever has a token and nothing else: it is in the path, and is looked at before anything is shown."""

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
    found = await app.approvals.alist(
        state=None if state == "all" else state, approver=approver, name=name, job_id=job, after=after, limit=limit + 1
    )
    return paged(list(found), limit, lambda approval: approval.id)


@router.get("/{approval_id}", dependencies=[allowed(Scope.READ)], response_model=ApprovalRequest)
async def show_approval(app: TheApp, approval_id: Id) -> ApprovalRequest:
    """The approval, what was said of it so far, and the job that asked."""
    return await app.approvals.aget(approval_id)


class Say(Body):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"comment": "fine", "data": {"amount": 7}}]}
    )

    comment: Words | None = None
    data: Any = Field(default=None, description="Values of the form, if there is one.")


@router.post("/{approval_id}/approve", dependencies=[allowed(Scope.DECIDE)], response_model=Approval)
async def approve(app: TheApp, approval_id: Id, body: Say | None = None) -> Approval:
    """Say yes, as whom the credentials name. Answers the approval as it is now: still open when more have to agree."""
    return await _decide(app, "approve", approval_id, body)


@router.post("/{approval_id}/deny", dependencies=[allowed(Scope.DECIDE)], response_model=Approval)
async def deny(app: TheApp, approval_id: Id, body: Say | None = None) -> Approval:
    """Say no."""
    return await _decide(app, "deny", approval_id, body)


async def _decide(app: App, verdict: Literal["approve", "deny"], approval_id: str, body: Say | None) -> Approval:
    said = body or Say()
    return await app.approvals._adecide(
        verdict, approval_id, app._session.actor, how=HOW, comment=said.comment, data=said.data
    )


class Issue(Body):
    person: Text | None = Field(default=None, description="Whose it is; without one whoever uses it says who they are.")
    expires_in: Span | None = None


@dataclass(frozen=True, slots=True)
class Issued:
    """The one time it is seen: what is kept is a hash."""

    token: str


@router.post("/{approval_id}/token", dependencies=[allowed(Scope.ADMIN)], status_code=201, response_model=Issued)
async def issue_approval_token(app: TheApp, approval_id: Id, body: Issue | None = None) -> Issued:
    """A token that decides this approval once, for anyone who holds it."""
    asked = body or Issue()
    return Issued(await app.approvals.aissue_token(approval_id, person=asked.person, expires_in=asked.expires_in))


# --- with a token and no log-in ---

Token = Annotated[str, Path(min_length=1, max_length=200)]


@dataclass(frozen=True, slots=True)
class Question:
    """What a token decides: as much as one has to know for it, and nothing else of the job."""

    approval: Approval
    votes: list[Vote]
    job_id: str
    kind: str


@by_token.get("/{token}", response_model=Question | Spent)
async def show_question(app: TheApp, token: Token) -> Question | Spent:
    """Look at what the token decides; once it can decide nothing any more, at what became of it. It decides nothing."""
    asked = await _asked_with(app, token)
    return asked.spent or _question(asked)


class Decide(Say):
    verdict: Literal["approve", "deny"]
    by: Text | None = Field(default=None, description="Person who decides, if the token was not issued for one.")


@before_the_body
async def _known(request: Request) -> ApprovalByToken:
    """What the token in the path decides: it is the credential, so the body of nobody else's request is read."""
    state = request.scope.setdefault("state", {})
    if "holdfast_asked" not in state:  # FastAPI asks once more, for the parameter
        state["holdfast_asked"] = await _asked_with(request.app.state.app, request.path_params["token"])
    asked: ApprovalByToken = state["holdfast_asked"]
    return asked


@by_token.post("/{token}", response_model=Question)
async def decide_question(
    app: TheApp, token: Token, asked: Annotated[ApprovalByToken, Depends(_known)], body: Decide
) -> Question:
    """Decide with the token. It works once."""
    await app.approvals._adecide(
        body.verdict, token, body.by, how=HOW, comment=body.comment, data=body.data, tenant=asked.approval.tenant
    )
    now = await app.approvals.aget(asked.approval.id, tenant=asked.approval.tenant)
    return _question(now)


async def _asked_with(app: App, token: str) -> ApprovalByToken:
    """Whose approval it is, the token says; where the service may act for one tenant alone, it is that one's."""
    try:
        return await app.approvals.aget_by_token(token, tenant=EVERY_TENANT)
    except Refused as refused:
        if refused.code != "not_allowed":
            raise
    return await app.approvals.aget_by_token(token, tenant=app._session.scope)


def _question(asked: ApprovalRequest) -> Question:
    return Question(asked.approval, asked.votes, asked.job.id, asked.job.kind)
