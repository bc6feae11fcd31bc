"""Actions of a page: a form is posted, something is done, and the browser is sent on (a reload repeats nothing)."""

from __future__ import annotations

from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from holdfast.dashboard.asking import posted
from holdfast.dashboard.rendering import SAID, render

LONGEST = 2_000
"""Characters of a path that a request names."""


def go(request: Request, path: str, said: str | None = None) -> Response:
    """On to another page of ours, which says once what was done. Every redirect of the dashboard is made here."""
    root = request.scope.get("root_path", "")
    answer = RedirectResponse(root + (path if is_own(path) else "/"), status_code=303)
    if said is not None:
        answer.set_cookie(SAID, quote(said[:500]), max_age=60, httponly=True, samesite="strict", path=root or "/")
    return answer


async def field(request: Request, name: str, default: str = "") -> str:
    """One text field of the form that was posted."""
    return (await posted(request)).get(name, default).strip()


async def fields(request: Request, name: str, most: int = 500) -> list[str]:
    """Every value of a field that may be there more than once."""
    return (await posted(request)).getlist(name)[:most]


def below(path: str, otherwise: str = "/") -> str:
    """A path of this service that a request names; anything that would lead elsewhere is replaced."""
    return path if is_own(path) and len(path) <= LONGEST else otherwise


def is_own(path: str) -> bool:
    """Whether a browser that is sent to this path stays here, however much of it the browser or a proxy unescapes, and
    whichever characters they skip."""
    plain = unquote(path).replace("\\", "/")
    # A slash and no second one: `//host` is another host. Browsers drop tabs and line ends before they look.
    return path.startswith("/") and not plain.startswith("//") and path.isprintable() and plain[:2].isprintable()


async def ask_first(request: Request, question: str, *, back: str, detail: str | None = None) -> Response | None:
    """A page that asks, with what was filled in; None once somebody has said yes (there, or in the dialog)."""
    form = await posted(request)
    if form.get("confirmed") == "yes":
        return None
    root = request.scope.get("root_path", "")
    return await render(
        request,
        "confirm.html",
        question=question,
        detail=detail,
        action=quote(request.scope["path"]) + (f"?{request.url.query}" if request.url.query else ""),
        fields=form.multi_items(),
        back=root + back,
    )
