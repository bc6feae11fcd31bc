"""Actions of a page: a form is posted, something is done, and the browser is sent on (a reload repeats nothing)."""

from __future__ import annotations

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from holdfast.dashboard.rendering import SAID


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
