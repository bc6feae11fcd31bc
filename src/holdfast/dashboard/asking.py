"""What a page was asked with: parameters of the address and fields of forms, each of them bounded (rule 23)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request

from holdfast.engine.payload import DEFAULT_LIMIT
from holdfast.errors import InvalidInput

FORM = "application/x-www-form-urlencoded"
MOST_FIELDS = 2_000
AT_ONCE = 64 * 1024
PAGE = 50
LONGEST = 500


async def posted(request: Request) -> ImmutableMultiDict[str, str]:
    """The form that was posted, as browsers send it by default. Read once a request; there are no files, so the
    multipart form, which costs more to read, is refused."""
    state = request.scope.setdefault("state", {})
    if "holdfast_form" not in state:
        state["holdfast_form"] = await _read(request)
    form: ImmutableMultiDict[str, str] = state["holdfast_form"]
    return form


async def _read(request: Request) -> ImmutableMultiDict[str, str]:
    kind = request.headers.get("content-type", FORM).partition(";")[0].strip().lower()
    body = await request.body()
    if kind != FORM and body:
        raise InvalidInput(f"A form is sent as {FORM}.", code="not_a_form")
    if body.count(b"&") >= MOST_FIELDS:
        raise InvalidInput(f"The form has more than {MOST_FIELDS:,} fields.", code="body_too_complex")
    read = partial(parse_qsl, body.decode(errors="replace"), keep_blank_values=True)
    # Unescaping takes as long as the text is; a payload of 1 MiB may be three times as long in a form.
    pairs = read() if len(body) <= AT_ONCE else await asyncio.to_thread(read)
    return ImmutableMultiDict(pairs)


async def fields(request: Request) -> dict[str, str]:
    """The fields of the form, the last of each name."""
    return {name: value.strip() for name, value in (await posted(request)).items()}


def said(given: Mapping[str, str], name: str, most: int = LONGEST) -> str | None:
    """A word that was given, or None."""
    text = given.get(name, "").strip()
    if len(text) > most:
        raise InvalidInput(f"{name} has at most {most:,} characters", code="invalid_request")
    return text or None


def chosen(given: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """One of these; the first, when it is none of them."""
    value = given.get(name, "")
    return value if value in choices else choices[0]


def whole_number(given: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    text = said(given, name, 20)
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise InvalidInput(f"{name} is a whole number from {least:,} to {most:,}", code="invalid_request")
    return value


def number(given: Mapping[str, str], name: str) -> float | None:
    text = said(given, name, 30)
    try:
        return None if text is None else float(text)
    except ValueError:
        raise InvalidInput(f"{name} is a number", code="invalid_request") from None


def time_of(given: Mapping[str, str], name: str) -> datetime | None:
    """As browsers send it (in UTC), or with an offset."""
    text = said(given, name, 40)
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{name} is a time such as 2027-01-31T09:00", code="invalid_request") from None
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    if not 1971 <= at.year <= 9000:
        raise InvalidInput(f"{name} is not in the years 1971 to 9000", code="invalid_request")
    return at


def document(given: Mapping[str, str], name: str, most: int = DEFAULT_LIMIT) -> Any:
    """A field in which people write JSON."""
    text = said(given, name, most) or "{}"
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        why = "is nested too deep" if isinstance(error, RecursionError) else f"is no JSON: {error}"
        raise InvalidInput(f"{name} {why}", code="invalid_request") from None
