"""Answers judged: a problem document becomes the exception that the same call raises locally, with the same code.

Whatever else may come (pages of a proxy, half an answer, another service's errors) becomes an error that says so. What
the service says is cut and cleaned before it is put into a message, and never holds the token.
"""

from __future__ import annotations

import re
from typing import Any

from holdfast import errors
from holdfast.engine.payload import safe_text
from holdfast.errors import (
    Conflict,
    EventsGone,
    HoldfastError,
    InvalidInput,
    NotFound,
    Refused,
    StoreError,
    StoreUnavailable,
    WaitTimeout,
)
from holdfast.http.wire import Reply, document

BY_NAME: dict[str, type[HoldfastError]] = {name: getattr(errors, name) for name in errors.__all__}
BY_STATUS: dict[int, type[HoldfastError]] = {
    400: InvalidInput,
    401: Refused,
    403: Refused,
    404: NotFound,
    408: WaitTimeout,
    409: Conflict,
    410: Refused,
    413: InvalidInput,
    415: InvalidInput,
    422: InvalidInput,
    429: StoreUnavailable,
    502: StoreUnavailable,
    503: StoreUnavailable,
    504: StoreUnavailable,
}
# That there is no such route says nothing of what was looked for there.
NO_ROUTE = frozenset({"no_such_route", "method_not_allowed"})
SHOWN = 200
LONGEST_MESSAGE = 2_000
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


def checked(reply: Reply, secret: str = "") -> Any:
    """The document of a good answer, None where there is none; otherwise the error that it tells of."""
    if not 200 <= reply.status < 300:
        raise error_of(reply, secret)
    if reply.status == 204 or not reply.body:
        return None
    try:
        return document(reply.body)
    except (ValueError, RecursionError):
        raise strange(reply, secret) from None


def error_of(reply: Reply, secret: str = "") -> HoldfastError:
    problem = _problem(reply)
    if problem is None:
        if reply.status in (429, 502, 503, 504):
            return StoreUnavailable(f"the service is not there: status {reply.status}{_beginning(reply, secret)}")
        return strange(reply, secret)
    kind = BY_NAME.get(str(problem.get("error"))) or BY_STATUS.get(reply.status, StoreError)
    if problem["code"] in NO_ROUTE:
        kind = StoreError
    said = problem.get("detail") or problem.get("title") or f"status {reply.status}"
    fix = problem.get("fix")
    error = kind(
        _clean(str(said), secret),
        code=_clean(str(problem["code"]), secret)[:100],
        fix=_clean(fix, secret) if isinstance(fix, str) else None,
    )
    if isinstance(error, EventsGone):
        cursor, through = problem.get("cursor"), problem.get("through")
        error.cursor = cursor if isinstance(cursor, str) else None
        error.through = through if isinstance(through, int) else None
    return error


def may_pass(reply: Reply) -> bool:
    """Of what says that it is busy: whether it is likely to be better in a moment. A rule that said no (what is paused,
    a tenant that has its fill) is an answer, as it is locally; so is a database that nobody has migrated."""
    problem = _problem(reply)
    return problem is None or problem.get("error", "StoreUnavailable") == "StoreUnavailable"


def strange(reply: Reply, secret: str = "") -> StoreError:
    """Somebody answered, and not in our language."""
    return StoreError(
        f"this is not what the service answers: status {reply.status}{_beginning(reply, secret)}",
        code="unexpected_answer",
        fix="Is it the URL of Holdfast's service, with the path it is mounted below?",
    )


def unreadable(what: str, why: str) -> StoreError:
    return StoreError(
        f"the service answered no {what} that this release can read: {why}",
        code="unexpected_answer",
        fix="Are client and service of about the same release?",
    )


def _problem(reply: Reply) -> dict[str, Any] | None:
    if "json" not in reply.headers.get("content-type", ""):
        return None
    try:
        found = document(reply.body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("code"), str) else None


def _beginning(reply: Reply, secret: str) -> str:
    text = _clean(" ".join(reply.body[: 4 * SHOWN].decode("utf-8", "replace").split()), secret)
    kind = _clean(reply.headers.get("content-type", ""), secret)[:60]
    shown = text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
    return (f", {kind}" if kind else "") + (f", that begins with {shown!r}" if shown else "")


def _clean(text: str, secret: str) -> str:
    hidden = text.replace(secret, "hf_…") if secret else text
    return safe_text(_CONTROL.sub(" ", hidden), LONGEST_MESSAGE)
