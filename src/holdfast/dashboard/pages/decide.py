"""Approval links: looking never decides, for programs that read mail fetch every link in it (rule 26); posting does,
once. The token in the address is the credential, so nothing of the address may get out (rule 27)."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.dashboard.asking import fields, said
from holdfast.dashboard.forms import data_of, fields_of
from holdfast.dashboard.pages.approvals import outcome, verdict_of
from holdfast.dashboard.rendering import render, the_app
from holdfast.engine.job import EVERY_TENANT
from holdfast.errors import InvalidInput, NotFound
from holdfast.features.approvals.model import COMMENT_LIMIT
from holdfast.features.approvals.operations import AskedByToken


async def show(request: Request) -> Response:
    return await _page(request, await _asked(request))


async def decide(request: Request) -> Response:
    asked, given = await _asked(request), await fields(request)
    try:
        gate = await the_app(request).approvals.adecide(
            verdict_of(given),
            request.path_params["token"],
            said(given, "by", 255),
            how="link",
            comment=said(given, "comment", COMMENT_LIMIT),
            data=data_of(asked.gate.form, given) if given.get("verdict") == "approve" else None,
            tenant=asked.gate.tenant,
        )
    except InvalidInput as error:
        if error.code != "form_invalid":
            raise
        return await _page(request, asked, given=given, wrong=error.message)
    return await _page(request, await _asked(request), done=outcome(gate))


async def _asked(request: Request) -> AskedByToken:
    """Whose it is, the token says: it is looked for in the tenant of the program, then wherever it may look."""
    app, token = the_app(request), request.path_params["token"]
    try:
        return await app.approvals.ashow_with(token, tenant=app.client.scope)
    except NotFound:
        return await app.approvals.ashow_with(token, tenant=EVERY_TENANT)


async def _page(
    request: Request,
    asked: AskedByToken,
    *,
    given: dict[str, str] | None = None,
    wrong: str | None = None,
    done: str | None = None,
) -> Response:
    answer = await render(
        request,
        "decide.html",
        status=200 if wrong is None else 422,
        question=asked,
        gate=asked.gate,
        form=fields_of(asked.gate.form, given),
        given=given or {},
        wrong=wrong,
        done=done,
    )
    answer.headers["Referrer-Policy"] = "no-referrer"
    answer.headers["Cache-Control"] = "no-store"
    answer.headers["X-Robots-Tag"] = "noindex"
    return answer


# For everybody who holds a token; the gate of the service lets these two through.
routes = [
    Route("/decide/{token}", show, methods=["GET"]),
    Route("/decide/{token}", decide, methods=["POST"]),
]
