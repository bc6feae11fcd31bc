"""Dashboard pages of approvals: the inbox, the decision page, decision links, and forms.

A form is built from the JSON schema of an approval, and the posted values become data again. Properties of the top
level become fields; nested values are entered as JSON. Validation is not done here: ``forms.py`` and the store check
the data, so values that cannot be parsed are passed on unchanged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.app.internals import session_of
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.json_schema import referred
from holdfast.errors import InvalidInput, NotFound
from holdfast.features.approvals.model import (
    COMMENT_LIMIT,
    Approval,
    ApprovalState,
    Ballot,
    Vote,
    VoteVerdict,
    proposed,
    refusal,
)
from holdfast.features.approvals.operations import REASONS, ApprovalByToken, ApprovalRequest
from holdfast.features.tokens.model import Scope
from holdfast.server.auth import Identity, identity_of
from holdfast.server.pages import PAGE, action_route, choice_field, fields, page_route, redirect, text_field
from holdfast.server.rendering import render, the_app

Widget = Literal["text", "number", "integer", "checkbox", "choice", "json"]

PREFIX = "f:"
WHOLE = "whole"
MAX_FIELDS = 200
MAX_DEPTH = 20


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a form. ``value`` is its current text; for a choice, the index in ``choices``."""

    name: str
    label: str
    widget: Widget
    required: bool = False
    help: str | None = None
    choices: tuple[Any, ...] = ()
    value: str = ""
    least: float | None = None
    most: float | None = None
    longest: int | None = None

    @property
    def key(self) -> str:
        """The name of the field in the posted form. The prefix keeps it apart from the other fields of the page."""
        return PREFIX + self.name


def fields_of(
    form: Mapping[str, Any] | None, given: Mapping[str, str] | None = None, proposal: Any = None
) -> list[Field]:
    """The fields of a form. ``given`` are values that were posted before, to be shown again; ``proposal`` has the
    values that another person approved, which take the place of the defaults."""
    if form is None:
        return []
    return list(_fields(form, given, proposal if isinstance(proposal, Mapping) else None))


def _fields(
    form: Mapping[str, Any], given: Mapping[str, str] | None, proposal: Mapping[str, Any] | None
) -> Iterator[Field]:
    rule = _resolved(form, form)
    known = rule.get("properties")
    if not isinstance(known, Mapping) or not known:
        shown = (given or {}).get(PREFIX + WHOLE, json.dumps(proposal or {}))
        yield Field(WHOLE, "Form (JSON)", "json", required=True, value=shown)
        return
    required = rule.get("required")
    needed = set(map(str, required)) if isinstance(required, list) else set()
    for name, inner in list(known.items())[:MAX_FIELDS]:
        rule = _resolved(inner, form)
        if proposal is not None:
            rule = {**rule, "default": proposal.get(name)}
        yield _field(str(name), rule, str(name) in needed, given)


def _field(name: str, rule: Mapping[str, Any], required: bool, given: Mapping[str, str] | None) -> Field:
    title, description = rule.get("title"), rule.get("description")
    choices = _choices(rule)
    widget = _widget(rule, choices)
    shown = _shown(rule.get("default"), widget, choices) if given is None else given.get(PREFIX + name, "")
    return Field(
        name=name,
        label=title if isinstance(title, str) and title else name,
        widget=widget,
        required=required and widget != "checkbox",
        help=description if isinstance(description, str) else None,
        choices=choices,
        value=shown,
        least=_number(rule.get("minimum")),
        most=_number(rule.get("maximum")),
        longest=_length(rule.get("maxLength")),
    )


def _resolved(rule: Any, root: Mapping[str, Any], depth: int = 0) -> Mapping[str, Any]:
    """A rule with its reference resolved. Of ``X | null`` only X remains: pydantic writes optional fields that way."""
    if not isinstance(rule, Mapping) or depth > MAX_DEPTH:
        return {}
    if "$ref" in rule:
        inner = _resolved(referred(rule["$ref"], root), root, depth + 1)
        return {**inner, **{name: value for name, value in rule.items() if name != "$ref"}}
    for keyword in ("anyOf", "oneOf"):
        kinds = rule.get(keyword)
        if isinstance(kinds, list):
            real = [kind for kind in kinds if not (isinstance(kind, Mapping) and kind.get("type") == "null")]
            if len(real) == 1:
                return {**_resolved(real[0], root, depth + 1), **{n: v for n, v in rule.items() if n != keyword}}
    return rule


def _choices(rule: Mapping[str, Any]) -> tuple[Any, ...]:
    given = rule.get("enum")
    if isinstance(given, list):
        return tuple(given[:1000])
    return (rule["const"],) if "const" in rule else ()


def _widget(rule: Mapping[str, Any], choices: tuple[Any, ...]) -> Widget:
    if choices:
        return "choice"
    kinds = rule.get("type")
    real = [kind for kind in kinds if kind != "null"] if isinstance(kinds, list) else [kinds]
    match real:
        case ["string"]:
            return "text"
        case ["integer"]:
            return "integer"
        case ["number"]:
            return "number"
        case ["boolean"]:
            return "checkbox"
    return "json"


def _shown(default: Any, widget: Widget, choices: tuple[Any, ...]) -> str:
    if default is None:
        return ""
    if widget == "choice":
        return next((str(index) for index, choice in enumerate(choices) if choice == default), "")
    if widget == "checkbox":
        return "on" if default is True else ""
    return default if isinstance(default, str) and widget != "json" else json.dumps(default)


def data_of(form: Mapping[str, Any] | None, given: Mapping[str, str]) -> Any:
    """The data of the posted form. Empty fields are left out."""
    if form is None:
        return None
    data: dict[str, Any] = {}
    for field in fields_of(form, given):
        if field.name == WHOLE and field.widget == "json" and field.key in given:
            return _read(field, given[field.key])
        text = given.get(field.key, "")
        if field.widget == "checkbox":
            data[field.name] = text != ""
        elif text != "":
            data[field.name] = _read(field, text)
    return data


def _read(field: Field, text: str) -> Any:
    try:
        match field.widget:
            case "choice":
                index = int(text)
                return field.choices[index] if 0 <= index < len(field.choices) else text
            case "integer":
                return int(text)
            case "number":
                value = float(text)
                return value if math.isfinite(value) else text
            case "json":
                return json.loads(text)
    except (ValueError, RecursionError):
        pass
    return text


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _length(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


STATES: Final = ("open", "approved", "denied", "expired", "withdrawn")


async def inbox(request: Request) -> Response:
    """List approvals: open ones oldest first, closed ones newest first."""
    query, app = request.query_params, the_app(request)
    state = cast(ApprovalState, choice_field(query, "state", STATES))
    person = identity_of(request).actor if query.get("mine") else None
    newest, after = state != "open", text_field(query, "after", 50)
    approvals = await app.approvals._awith_votes(
        state=state, newest=newest, approver=person, after=after, limit=PAGE + 1
    )
    following = approvals[PAGE - 1][0].id if len(approvals) > PAGE else None
    return await render(
        request,
        "approvals.html",
        approvals=approvals[:PAGE],
        following=following,
        state=state,
        states=STATES,
        mine=bool(person),
        why_not={approval.id: why_not(approval, votes, identity_of(request)) for approval, votes in approvals},
    )


async def show(request: Request) -> Response:
    return await _page(request, await the_app(request).approvals.aget(request.path_params["approval"]))


async def decide(request: Request) -> Response:
    """Record a decision. A form that is refused is shown again with the entered values."""
    app, given = the_app(request), await fields(request)
    pending = await app.approvals.aget(request.path_params["approval"])
    by = identity_of(request).actor
    try:
        approval = await app.approvals._adecide(
            verdict_of(given),
            pending.approval.id,
            by,
            how="dashboard",
            comment=text_field(given, "comment", COMMENT_LIMIT),
            data=data_of(pending.approval.form, given) if given.get("verdict") == "approve" else None,
        )
    except InvalidInput as error:
        if error.code != "form_invalid":
            raise
        return await _page(request, pending, given=given, wrong=error.message)
    return redirect(request, f"/approvals/{approval.id}", outcome(approval))


async def _page(
    request: Request, pending: ApprovalRequest, *, given: dict[str, str] | None = None, wrong: str | None = None
) -> Response:
    last = proposed(pending.approval, pending.votes)
    return await render(
        request,
        "approval.html",
        status=200 if wrong is None else 422,
        question=pending,
        approval=pending.approval,
        form=fields_of(pending.approval.form, given, last and last.data),
        proposed=last if pending.approval.quorum > 1 else None,
        comment=(given or {}).get("comment", ""),
        wrong=wrong,
        why_not=why_not(pending.approval, pending.votes, identity_of(request)),
    )


def verdict_of(given: dict[str, str]) -> VoteVerdict:
    """The verdict in the posted form. It has no default."""
    verdict = given.get("verdict")
    if verdict not in ("approve", "deny"):
        raise InvalidInput("Choose approve or deny.", code="invalid_request")
    return cast(VoteVerdict, verdict)


def outcome(approval: Approval) -> str:
    if approval.state != "open":
        return f"{approval.name} is {approval.state}."
    needed = f"{approval.missing} more {'person has' if approval.missing == 1 else 'people have'} to approve"
    return f"Your decision on {approval.name} is recorded; {needed}."


def why_not(approval: Approval, votes: Sequence[Vote], identity: Identity) -> str | None:
    """Why a decision of this person would be refused, shown in advance. The store decides."""
    if not identity.may(Scope.DECIDE):
        return "this needs the scope decide"
    ballot = Ballot("deny", identity.actor, "dashboard")  # a denial needs no form
    reason = refusal(approval, ballot, identity.actor, None, votes, True, datetime.now(UTC))
    if reason == "not_an_approver":
        return f"only {' and '.join(approval.people)} may decide, and you are {identity.actor}"
    if reason == "token_required":
        return "only the link that was sent to you decides it"
    return None if reason is None else REASONS.get(reason, reason)


routes = [
    page_route("/approvals", inbox),
    page_route("/approvals/{approval}", show),
    action_route("/approvals/{approval}", decide, Scope.DECIDE),
]


async def show_by_link(request: Request) -> Response:
    return await _link_page(request, await _request_by_token(request))


async def decide_by_link(request: Request) -> Response:
    pending, given = await _request_by_token(request), await fields(request)
    try:
        approval = await the_app(request).approvals._adecide(
            verdict_of(given),
            request.path_params["token"],
            text_field(given, "by", 255),
            how="link",
            comment=text_field(given, "comment", COMMENT_LIMIT),
            data=data_of(pending.approval.form, given) if given.get("verdict") == "approve" else None,
            tenant=pending.approval.tenant,
        )
    except InvalidInput as error:
        if error.code != "form_invalid":
            raise
        return await _link_page(request, pending, given=given, wrong=error.message)
    return await _link_page(request, await _request_by_token(request), done=outcome(approval))


async def _request_by_token(request: Request) -> ApprovalByToken:
    """The approval that the token in the path decides: in the tenant of the program, else in any tenant."""
    app, token = the_app(request), request.path_params["token"]
    try:
        return await app.approvals.aget_by_token(token, tenant=session_of(app).scope)
    except NotFound:
        return await app.approvals.aget_by_token(token, tenant=EVERY_TENANT)


async def _link_page(
    request: Request,
    pending: ApprovalByToken,
    *,
    given: dict[str, str] | None = None,
    wrong: str | None = None,
    done: str | None = None,
) -> Response:
    last = proposed(pending.approval, pending.votes)
    response = await render(
        request,
        "decide.html",
        status=200 if wrong is None else 422,
        question=pending,
        approval=pending.approval,
        form=fields_of(pending.approval.form, given, last and last.data),
        proposed=last if pending.approval.quorum > 1 else None,
        given=given or {},
        wrong=wrong,
        done=done,
    )
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Robots-Tag"] = "noindex"
    return response


# For anyone who holds a token: authentication lets these two routes through.
link_routes = [
    Route("/decide/{token}", show_by_link, methods=["GET"]),
    Route("/decide/{token}", decide_by_link, methods=["POST"]),
]
