"""Tables, JSON, times, log set-up.

What is printed, and where: data to stdout, messages to stderr.

Invariant: text that came from a database is printed to the letter. It is never read as markup, and its control
characters, which could rewrite a terminal, are shown instead of sent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.engine.units import seconds
from holdfast.errors import InvalidSetting
from holdfast.telemetry.logs import HANDLER, JsonLines, quieten, redact_line, redacted_traceback

__all__ = [
    "Cell",
    "DOCUMENT_LIMIT",
    "JsonLines",
    "STYLES",
    "TextLines",
    "age",
    "clock",
    "console",
    "duration",
    "emit",
    "facts",
    "heading",
    "instant",
    "line",
    "moment",
    "plain",
    "print_document",
    "rate",
    "say",
    "set_up",
    "since",
    "span",
    "state_text",
    "table",
    "time_or_span",
    "to_json",
    "write",
]


Cell = str | Text

STYLES = {
    "succeeded": "green",
    "in_progress": "cyan",
    "leased": "cyan",
    "retry_waiting": "yellow",
    "waiting_for_approval": "magenta",
    "failed": "red",
    "open": "magenta",
    "approved": "green",
    "denied": "red",
    "expired": "red",
    "withdrawn": "dim",
    "dead_letter": "bold red",
    "cancelled": "dim",
    "cleaned": "dim",
}

DOCUMENT_LIMIT = 4_000

# Control characters but newline and tab, and those that turn the direction of the text around them.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SPACE = re.compile(r"[\t\r\n]+")


def plain(text: str) -> str:
    """The text with control characters made visible; newlines stay."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape", "surrogatepass").decode(), text)


def line(text: object, limit: int = 200) -> str:
    """The text on one line, at most ``limit`` characters of it."""
    flat = plain(_SPACE.sub(" ", str(text)))
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def state_text(state: str | None) -> Text:
    return Text(state or "", style=STYLES.get(state or "", ""))


def console(*, stderr: bool = False, soft_wrap: bool = True) -> Console:
    """Markup, emoji codes and highlighting are off: what is passed is what appears."""
    return Console(
        file=sys.stderr if stderr else sys.stdout, markup=False, emoji=False, highlight=False, soft_wrap=soft_wrap
    )


def say(message: str) -> None:
    """Something for the person who is watching; never data. It is no reason to fail that nobody is: a disk may be full,
    or whoever has collected the messages gone."""
    with contextlib.suppress(OSError, ValueError):
        print(plain(message), file=sys.stderr, flush=True)


def write(text: Cell) -> None:
    console().print(Text(plain(text)) if isinstance(text, str) else text)


def emit(value: Any) -> None:
    """The one JSON document of a command."""
    sys.stdout.write(to_json(value, indent=2) + "\n")
    sys.stdout.flush()


def to_json(value: Any, indent: int | None = None) -> str:
    """ASCII only, so that it survives every terminal, pipe and locale."""
    return json.dumps(value, indent=indent, default=_jsonable)


def _jsonable(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is not JSON")


def table(headers: Sequence[str], rows: Iterable[Sequence[Cell]], *, keep: Sequence[str] = ()) -> None:
    """A table for a person; columns in ``keep`` are not wrapped. Into a pipe it goes as aligned lines, uncut."""
    screen = console()
    if not screen.is_terminal:
        for text in _aligned([headers, *rows]):
            sys.stdout.write(text + "\n")
        return
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for header in headers:
        grid.add_column(Text(header), no_wrap=header in keep, overflow="fold")
    for row in rows:
        grid.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    screen.print(grid, soft_wrap=False)


def _aligned(rows: Sequence[Sequence[Cell]]) -> list[str]:
    texts = [[cell.plain if isinstance(cell, Text) else cell for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*texts, strict=True)]
    lines = []
    for cells in texts:
        padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True))
        lines.append("  ".join(padded).rstrip())
    return lines


def facts(pairs: Iterable[tuple[str, Cell | None]]) -> None:
    """Names and values, one a line; a value of None is left out."""
    shown = [(name, value) for name, value in pairs if value is not None and str(value) != ""]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        text = value if isinstance(value, Text) else Text(plain(value))
        write(Text.assemble((f"{name:<{width}}  ", "dim"), text))


def heading(text: str) -> None:
    write(Text(f"\n{text}", style="bold"))


def print_document(title: str, value: Any) -> None:
    """JSON under a heading; of a long one the beginning."""
    heading(title)
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if len(text) > DOCUMENT_LIMIT:
        text = f"{text[:DOCUMENT_LIMIT]}\n… {len(text) - DOCUMENT_LIMIT:,} more characters; --json prints them"
    write(text)


_STEPS = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s"))


def span(length: float | timedelta) -> str:
    """``0 ms``, ``120 ms``, ``1.2 s``, ``3 m 10 s``, ``2 h 5 m``, ``3 d 4 h``."""
    value = length.total_seconds() if isinstance(length, timedelta) else length
    if value < 0:
        return "-" + span(-value)
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    if value < 59.95:
        return f"{value:.1f} s"
    for unit, name, part, part_name in _STEPS:
        if value >= unit:
            whole, rest = divmod(value, unit)
            parts = int(rest // part)
            return f"{whole:.0f} {name}" + (f" {parts} {part_name}" if parts else "")
    return f"{value:.0f} s"  # the fraction of a second below a minute


def age(since: datetime, now: datetime) -> str:
    """How long ago; clocks that differ make no negative ones."""
    return span(max(0.0, (now - since).total_seconds()))


def rate(number: int | None, per: float | None, burst: int | None) -> str | None:
    """``100 in 1 m``, and how many of them at once, where that is not all."""
    if number is None or per is None:
        return None
    text = f"{number:,} in {span(per)}"
    return text if burst is None or burst == number else f"{text}, {burst:,} at once"


def moment(at: datetime) -> str:
    """Date and time in UTC, to the millisecond."""
    return f"{at.astimezone(UTC):%Y-%m-%d} {clock(at)}"


def clock(at: datetime) -> str:
    at = at.astimezone(UTC)
    return f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}"


def duration(text: str, what: str) -> float:
    """Seconds of ``90``, ``90s`` or ``1h30m``."""
    try:
        number = float(text)
    except ValueError:
        return seconds(text, what)
    return seconds(number if math.isfinite(number) else text, what)


def instant(text: str, what: str) -> datetime:
    """An ISO 8601 time. One without a zone could mean two things, and is refused."""
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is not None:
            return found.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise InvalidSetting(
        f"{what} {text!r} is not a time with a time zone",
        code="invalid_time",
        fix="For example 2027-01-31T09:00:00Z or 2027-01-31T09:00:00+02:00.",
    )


def time_or_span(text: str, what: str) -> datetime | float:
    """A time, or how long from now, in seconds."""
    try:
        return duration(text, what)
    except InvalidSetting:
        return instant(text, what)


def since(text: str | None, what: str, now: Callable[[], datetime]) -> datetime | None:
    """A time, or how long ago: ``1h`` is one hour before the store's present."""
    if text is None:
        return None
    try:
        return now() - timedelta(seconds=duration(text, what))
    except InvalidSetting:
        return instant(text, what)


class TextLines(logging.Formatter):
    def __init__(self, process: int | None = None) -> None:
        super().__init__()
        self._process = "" if process is None else f"[{process}] "

    def format(self, record: logging.LogRecord) -> str:
        at = clock(datetime.fromtimestamp(record.created, UTC))
        # A message is one line, whatever a job put into it; a traceback, which is ours to print, may be many.
        message = plain(redact_line(record.getMessage())).replace("\n", "\\n")
        text = f"{at} {record.levelname.lower():<7} {self._process}{record.name}: {message}"
        trace = redacted_traceback(record)
        return f"{text}\n{plain(trace)}" if trace else text


def set_up(level: str, *, as_json: bool, process: int | None = None) -> None:
    """``process`` is the number of one of several worker processes whose lines come out together. In JSON every
    attempt that ends has a line; people have asked for none."""
    handler = logging.StreamHandler(sys.stderr)
    handler.set_name(HANDLER)
    handler.setFormatter(JsonLines(process) if as_json else TextLines(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("holdfast.jobs").setLevel(logging.INFO if as_json else logging.WARNING)
    quieten()
