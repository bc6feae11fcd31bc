"""Icons, badges, times, amounts, JSON for pages."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlsplit

from markupsafe import Markup

from holdfast.engine.trace import plain_tags
from holdfast.stores.vault import shown

# UUIDs of actors are shortened to their first eight characters.
_UUID = re.compile(r"\b([0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


def span(value: timedelta | float | None) -> str:
    """A duration for people: 350 ms, 4.2 s, 12 min, 3 h 20 min, 5 d."""
    if value is None:
        return "–"
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 1440} d"


def ago(at: datetime | None) -> str:
    if at is None:
        return "–"
    seconds = (datetime.now(UTC) - at).total_seconds()
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def moment(at: datetime | None) -> str:
    return "–" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def amount(value: float | None) -> str:
    """A number for people: 12,345; 0.25; a dash for None."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}".rstrip("0").rstrip(".")


def capped(count: int, cap: int = 10_000) -> str:
    """A count that stops at a limit: 10,000+ when there are more."""
    return f"{cap:,}+" if count >= cap else f"{count:,}"


def percent(share: float | None) -> str:
    """A share from 0 to 1: 2.5 %."""
    return "–" if share is None else f"{share * 100:.1f}".rstrip("0").rstrip(".") + " %"


def sentence(text: object) -> str:
    """The text with a capital letter, and without the period that the page adds."""
    text = str(text).rstrip(".")
    return text[:1].upper() + text[1:]


def as_json(value: Any, most: int = 100_000) -> str:
    """Indented JSON, cut when it is very long. Templates escape it like any other text."""
    pieces, length = [], 0
    for piece in json.JSONEncoder(indent=2, ensure_ascii=False, default=str).iterencode(value):
        pieces.append(piece)
        length += len(piece)
        if length > most:  # the rest is not encoded: it may be long
            return f"{''.join(pieces)[:most]}\n… cut after {most:,} characters"
    return "".join(pieces)


def short(text: object, most: int = 80) -> str:
    """The text on one line, cut to a length."""
    line = " ".join(str(text or "").split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def quoted(text: object) -> str:
    """The text as a value of a search."""
    value = str(text).replace('"', "")
    return f'"{value}"' if any(character.isspace() for character in value) else value


def actor(text: object) -> str:
    return short(_UUID.sub(r"\1", str(text)), 80)


def in_path(text: object) -> str:
    """The text as one segment of a path."""
    return quote(str(text), safe="")


def query_fields(url: str) -> list[tuple[str, str]]:
    """The query of a URL, as fields: a form that is sent with GET replaces the query of its action."""
    return parse_qsl(urlsplit(url).query)


FILTERS = {
    "query_fields": query_fields,
    "plain_tags": plain_tags,
    "shown": shown,
    "ago": ago,
    "span": span,
    "moment": moment,
    "amount": amount,
    "capped": capped,
    "percent": percent,
    "sentence": sentence,
    "json": as_json,
    "short": short,
    "actor": actor,
    "path": in_path,
    "quoted": quoted,
}


# Inline icons on a grid of 16. An icon never stands without a word.
SHAPES: Final = {
    "overview": "M2.5 9.5h3v4h-3zM6.5 5.5h3v8h-3zM10.5 2.5h3v11h-3z",
    "jobs": "M5.5 4h8M5.5 8h8M5.5 12h8M2.5 4h.01M2.5 8h.01M2.5 12h.01",
    "approvals": "M8 14.2c3.4-1.3 5-3.5 5-6.7V3.6L8 1.8 3 3.6v3.9c0 3.2 1.6 5.4 5 6.7zM5.8 7.8l1.6 1.6 2.9-3",
    "dead-letters": "M8 2.2l6.3 11.3H1.7zM8 6.5v3.2M8 11.7v.1",
    "workflows": "M2.5 2.5h4v3h-4zM9.5 10.5h4v3h-4zM9.5 2.5h4v3h-4zM6.5 4h3M4.5 5.5v6.5h5",
    "schedules": "M8 14.2A6.2 6.2 0 1 0 8 1.8a6.2 6.2 0 0 0 0 12.4zM8 4.6V8l2.4 1.6",
    "queues": "M2.5 3h11v3h-11zM2.5 10h11v3h-11zM4.5 4.5h.01M4.5 11.5h.01M8 6v4",
    "tenants": (
        "M6 7.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5zM1.8 13.5c.3-2.7 1.9-4 4.2-4s3.9 1.3 4.2 4"
        "M10.5 2.8a2.4 2.4 0 0 1 0 4.5M12 9.8c1.3.6 2 1.8 2.2 3.7"
    ),
    "workers": "M2.5 3h11v7h-11zM5.5 13h5M8 10v3M5 6.5h.01M8 6.5h.01M11 6.5h.01",
    "limits": "M2.2 11.5a6 6 0 1 1 11.6 0M8 10.5l2.6-4.2M8 11.6v.1",
    "usage": "M2.5 13.5h11M4 11.5v-4M8 11.5v-8M12 11.5v-6",
    "audit": "M4 1.8h5.5L12.5 5v9.2H4zM9.5 1.8V5h3M6 8h4M6 10.8h4",
    "system": (
        "M8 10.2a2.2 2.2 0 1 0 0-4.4 2.2 2.2 0 0 0 0 4.4zM8 1.8v2M8 12.2v2M1.8 8h2M12.2 8h2M3.6 3.6l1.4 1.4"
        "M11 11l1.4 1.4M3.6 12.4L5 11M11 5l1.4-1.4"
    ),
    "queued": "M8 13.5a5.5 5.5 0 1 0 0-11 5.5 5.5 0 0 0 0 11z",
    "leased": "M4 7.5h8v6H4zM5.5 7.5V5a2.5 2.5 0 0 1 5 0v2.5",
    "in_progress": "M5 3.2l7.5 4.8L5 12.8z",
    "succeeded": "M2.8 8.6l3.4 3.4 7-7.8",
    "failed": "M4 4l8 8M12 4l-8 8",
    "retry_waiting": "M13 8a5 5 0 1 1-1.6-3.7M13 2v3h-3",
    "dead_letter": "M8 2.2l6.3 11.3H1.7zM8 6.5v3.2M8 11.7v.1",
    "cancelled": "M8 13.7A5.7 5.7 0 1 0 8 2.3a5.7 5.7 0 0 0 0 11.4zM4 12L12 4",
    "cleaned": "M3 4.5h10M6 4.5V2.5h4v2M4.5 4.5l.6 9h5.8l.6-9",
    "waiting_for_approval": "M5.6 6a2.4 2.4 0 1 1 3.5 2.2c-.8.4-1.1.9-1.1 1.8M8 12.7v.1",
    "ok": "M8 14.2A6.2 6.2 0 1 0 8 1.8a6.2 6.2 0 0 0 0 12.4zM5.3 8.3l1.9 1.9 3.6-4",
    "warn": "M8 2.2l6.3 11.3H1.7zM8 6.5v3.2M8 11.7v.1",
    "critical": "M5.5 1.8h5l3.7 3.7v5l-3.7 3.7h-5l-3.7-3.7v-5zM8 5v3.8M8 11v.1",
    "menu": "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
    "paused": "M5.5 3.5v9M10.5 3.5v9",
    "pause": "M5.5 3.5v9M10.5 3.5v9",
    "play": "M5 3.2l7.5 4.8L5 12.8z",
}
ICON = Markup('<svg class="icon" viewBox="0 0 16 16" aria-hidden="true" focusable="false"><path d="{}"/></svg>')
BADGE = Markup('<span class="badge {}">{}{}</span>')
NEVER = Markup('<span class="quiet">–</span>')


@lru_cache(maxsize=128)
def icon(name: str) -> Markup:
    return ICON.format(SHAPES.get(name, SHAPES["queued"]))


@lru_cache(maxsize=256)
def state(name: str, word: str | None = None) -> Markup:
    """A badge for a state of a job, or for ok, warn, critical, paused: color, icon and word."""
    return BADGE.format(name, icon(str(name)), word or str(name).replace("_", " "))


def when(at: datetime | None, words: str | None = None) -> Markup:
    """A time, relative to now unless ``words`` are given."""
    if at is None:
        return NEVER
    text = Markup.escape(words) if words else f"{ago(at)}"
    live = "" if words else " data-ago"
    return Markup(f'<time datetime="{at.isoformat()}" title="{moment(at)}"{live}>{text}</time>')
