"""What a page was asked with: parameters of the address and fields of forms, each of them bounded (rule 23)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request

from holdfast.domain.errors import InvalidInput
from holdfast.domain.payload import DEFAULT_LIMIT

PAGE = 50
LONGEST = 500


async def fields(request: Request) -> dict[str, str]:
    """The text fields of the form that was posted. Files are none."""
    form = await request.form()
    return {name: value.strip() for name, value in form.items() if isinstance(value, str)}


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
