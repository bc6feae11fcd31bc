"""Values as people read them: durations, moments, amounts, JSON, a line of a long text."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from holdfast.stores.vault import shown

# An actor's UUIDs are cut to what tells them apart.
_UUID = re.compile(r"\b([0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


def span(value: timedelta | float | None) -> str:
    """A duration as people say it: 350 ms, 4.2 s, 12 min, 3 h 20 min, 5 d."""
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
    """A number as people read it: 12,345; 0.25; a dash where there is none."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}".rstrip("0").rstrip(".")


def capped(count: int, cap: int = 10_000) -> str:
    """What was counted up to a limit: 10,000+ where there is more."""
    return f"{cap:,}+" if count >= cap else f"{count:,}"


def as_json(value: Any, most: int = 100_000) -> str:
    """For reading; it is escaped like any other text, and what is very long is cut."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return text if len(text) <= most else f"{text[:most]}\n… {len(text) - most:,} characters more"


def short(text: object, most: int = 80) -> str:
    """One line of it."""
    line = " ".join(str(text or "").split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def quoted(text: object) -> str:
    """As a value in a search."""
    said = str(text).replace('"', "")
    return f'"{said}"' if any(each.isspace() for each in said) else said


def actor(text: object) -> str:
    return short(_UUID.sub(r"\1", str(text)), 80)


def in_path(text: object) -> str:
    """As one part of a path."""
    return quote(str(text), safe="")


FILTERS = {
    "shown": shown,
    "ago": ago,
    "span": span,
    "moment": moment,
    "amount": amount,
    "capped": capped,
    "json": as_json,
    "short": short,
    "actor": actor,
    "path": in_path,
    "quoted": quoted,
}
