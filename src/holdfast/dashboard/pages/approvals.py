"""Approvals: what waits for people, one question with its form, and what was decided by whom."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, cast

from starlette.requests import Request
from starlette.responses import Response

from holdfast.access import Identity, Scope, identity_of
from holdfast.dashboard.acting import go
from holdfast.dashboard.asking import PAGE, chosen, fields, said
from holdfast.dashboard.forms import data_of, fields_of
from holdfast.dashboard.rendering import render, the_app
from holdfast.dashboard.routing import does, shows
from holdfast.errors import InvalidInput
from holdfast.features.approvals.model import COMMENT_LIMIT, Ballot, Gate, GateState, VerdictWord, Vote, refusal
from holdfast.features.approvals.operations import REASONS, Asked

STATES: Final = ("open", "approved", "denied", "expired", "withdrawn")


async def inbox(request: Request) -> Response:
    """The oldest question first; of what was decided the newest."""
    asked, app = request.query_params, the_app(request)
    state = cast(GateState, chosen(asked, "state", STATES))
    person = identity_of(request).actor if asked.get("mine") else None
    newest, after = state != "open", said(asked, "after", 50)
    gates = await app.approvals.atold(state=state, newest=newest, approver=person, after=after, limit=PAGE + 1)
    following = gates[PAGE - 1][0].id if len(gates) > PAGE else None
    return await render(
        request,
        "approvals.html",
        gates=gates[:PAGE],
        following=following,
        state=state,
        states=STATES,
        mine=bool(person),
        why_not={gate.id: why_not(gate, votes, identity_of(request)) for gate, votes in gates},
    )


async def show(request: Request) -> Response:
    return await _page(request, await the_app(request).approvals.ashow(request.path_params["gate"]))


async def decide(request: Request) -> Response:
    """A form that does not fit is shown again, with what was written in it."""
    app, given = the_app(request), await fields(request)
    asked = await app.approvals.ashow(request.path_params["gate"])
    by = identity_of(request).actor
    try:
        gate = await app.approvals.adecide(
            verdict_of(given),
            asked.gate.id,
            by,
            how="dashboard",
            comment=said(given, "comment", COMMENT_LIMIT),
            data=data_of(asked.gate.form, given) if given.get("verdict") == "approve" else None,
        )
    except InvalidInput as error:
        if error.code != "form_invalid":
            raise
        return await _page(request, asked, given=given, wrong=error.message)
    return go(request, f"/approvals/{gate.id}", outcome(gate))


async def _page(
    request: Request, asked: Asked, *, given: dict[str, str] | None = None, wrong: str | None = None
) -> Response:
    return await render(
        request,
        "approval.html",
        status=200 if wrong is None else 422,
        question=asked,
        gate=asked.gate,
        form=fields_of(asked.gate.form, given),
        comment=(given or {}).get("comment", ""),
        wrong=wrong,
        why_not=why_not(asked.gate, asked.votes, identity_of(request)),
    )


def verdict_of(given: dict[str, str]) -> VerdictWord:
    """Nobody approves by leaving something out."""
    word = given.get("verdict")
    if word not in ("approve", "deny"):
        raise InvalidInput("say approve or deny", code="invalid_request")
    return cast(VerdictWord, word)


def outcome(gate: Gate) -> str:
    if gate.state != "open":
        return f"{gate.name} is {gate.state}."
    return f"Your word on {gate.name} counts; {gate.missing} more {'has' if gate.missing == 1 else 'have'} to agree."


def why_not(gate: Gate, votes: Sequence[Vote], identity: Identity) -> str | None:
    """Why this person's word would not count, said before it is tried; the store says it again."""
    if not identity.may(Scope.DECIDE):
        return "you may not decide: it takes the scope decide"
    ballot = Ballot("deny", identity.actor, "dashboard")  # which needs no form
    reason = refusal(gate, ballot, identity.actor, None, (vote.person for vote in votes), True, datetime.now(UTC))
    return None if reason is None else REASONS.get(reason, reason)


routes = [
    shows("/approvals", inbox),
    shows("/approvals/{gate}", show),
    does("/approvals/{gate}", decide, Scope.DECIDE),
]
