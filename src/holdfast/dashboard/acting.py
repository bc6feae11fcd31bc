"""Actions of a page: a form is posted, something is done, and the browser is sent on (a reload repeats nothing)."""

from __future__ import annotations

from urllib.parse import quote, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from holdfast.dashboard.rendering import SAID, render


def go(request: Request, path: str, said: str | None = None) -> Response:
    """On to another page, which says once what was done."""
    root = request.scope.get("root_path", "")
    answer = RedirectResponse(root + path, status_code=303)
    if said is not None:
        answer.set_cookie(SAID, quote(said[:500]), max_age=60, httponly=True, samesite="strict", path=root or "/")
    return answer


async def field(request: Request, name: str, default: str = "") -> str:
    """One text field of the form that was posted."""
    value = (await request.form()).get(name, default)
    return value.strip() if isinstance(value, str) else default


async def fields(request: Request, name: str, most: int = 500) -> list[str]:
    """Every value of a field that may be there more than once."""
    found = (await request.form()).getlist(name)
    return [value for value in found[:most] if isinstance(value, str)]


def below(path: str, otherwise: str = "/") -> str:
    """A path of this service that a form names; anything that would lead elsewhere is replaced."""
    parts = urlsplit(path)
    inside = not parts.scheme and not parts.netloc and path.startswith("/") and not path.startswith(("//", "/\\"))
    return path if inside and len(path) <= 2_000 and path.isprintable() else otherwise


async def ask_first(request: Request, question: str, *, back: str, detail: str | None = None) -> Response | None:
    """A page that asks, with what was filled in; None once somebody has said yes (there, or in the dialog)."""
    form = await request.form()
    if form.get("confirmed") == "yes":
        return None
    given = [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
    root = request.scope.get("root_path", "")
    return await render(
        request,
        "confirm.html",
        question=question,
        detail=detail,
        action=quote(request.scope["path"]) + (f"?{request.url.query}" if request.url.query else ""),
        fields=given,
        back=root + back,
    )
