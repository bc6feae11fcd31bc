"""Print tables, JSON, times and log lines. Data goes to stdout, messages go to stderr.

Text from a database is printed literally: it is never interpreted as markup, and control characters, which could
rewrite a terminal, are escaped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.engine.units import seconds
from holdfast.engine.units import span as span
from holdfast.errors import InvalidSetting
from holdfast.telemetry.logs import JsonLines, TextLines, configure_logging
from holdfast.telemetry.logs import plain as plain

log = logging.getLogger("holdfast.cli")

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

_SPACE = re.compile(r"[\t\r\n]+")


def line(text: object, limit: int = 200) -> str:
    """Return the text as one line, cut to ``limit`` characters."""
    flat = plain(_SPACE.sub(" ", str(text)))
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def state_text(state: str | None) -> Text:
    return Text(state or "", style=STYLES.get(state or "", ""))


def console(*, stderr: bool = False, soft_wrap: bool = True) -> Console:
    """Return a console that prints text literally: without markup, emoji codes and highlighting."""
    return Console(
        file=sys.stderr if stderr else sys.stdout, markup=False, emoji=False, highlight=False, soft_wrap=soft_wrap
    )


_rename: Callable[[str], str] = str


@contextlib.contextmanager
def renamed_commands(rename: Callable[[str], str]) -> Iterator[None]:
    """Rewrite the commands that messages and fixes name, in a program that runs them by another name."""
    global _rename
    _rename = rename
    try:
        yield
    finally:
        _rename = str


def advice(text: str) -> str:
    """Return a text with its commands as they are run here: ``python manage.py holdfast worker``, for example."""
    return _rename(text)


def say(message: str) -> None:
    """Print a message for a person to stderr; never data. If stderr cannot be written (full disk, closed pipe), the
    message is lost and the command continues."""
    with contextlib.suppress(OSError, ValueError):
        print(plain(advice(message)), file=sys.stderr, flush=True)


def logs_are_json() -> bool:
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)


def announce(message: str, process: int | None = None) -> None:
    """Print what a long-running command does, such as its start and end. Where log lines are JSON, it is one of them:
    log processors read the same stream. ``process`` is the number of a worker process."""
    if logs_are_json():  # these lines have the number already
        log.info("%s", message)
    else:
        say(message if process is None else f"[{process}] {message}")


def write(text: Cell) -> None:
    console().print(Text(plain(text)) if isinstance(text, str) else text)


def emit(value: Any) -> None:
    """Print the JSON document of a command."""
    sys.stdout.write(to_json(value, indent=2) + "\n")
    sys.stdout.flush()


def to_json(value: Any, indent: int | None = None) -> str:
    """Return JSON in ASCII, which every terminal, pipe and locale can handle."""
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
    """Print a table. Columns in ``keep`` are not wrapped. To a pipe it prints aligned lines of full length."""
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


def print_fields(pairs: Iterable[tuple[str, Cell | None]]) -> None:
    """Print names and values, one per line. Values of None are left out."""
    shown = [(name, value) for name, value in pairs if value is not None and str(value) != ""]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        text = value if isinstance(value, Text) else Text(plain(value))
        write(Text.assemble((f"{name:<{width}}  ", "dim"), text))


def heading(text: str) -> None:
    write(Text(f"\n{text}", style="bold"))


def print_document(title: str, value: Any) -> None:
    """Print JSON under a heading, cut to ``DOCUMENT_LIMIT`` characters."""
    heading(title)
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if len(text) > DOCUMENT_LIMIT:
        text = f"{text[:DOCUMENT_LIMIT]}\n… {len(text) - DOCUMENT_LIMIT:,} more characters; --json prints them"
    write(text)


def age(since: datetime, now: datetime) -> str:
    """Format the time since ``since``; zero if clocks differ and it is in the future."""
    return span(max(0.0, (now - since).total_seconds()))


def rate(number: int | None, per: float | None, burst: int | None) -> str | None:
    """Format a rate limit as it is written: ``100/m``, ``10/1.5s, burst 3``. A burst of ``number`` is left out."""
    if number is None or per is None:
        return None
    units = {1: "s", 60: "m", 3600: "h", 86400: "d"}
    size = next(size for size in (86400, 3600, 60, 1) if size == 1 or per % size == 0)
    text = f"{number}/{'' if per == size else f'{per / size:g}'}{units[size]}"
    return text if burst is None or burst == number else f"{text}, burst {burst}"


def counted(number: int, noun: str) -> str:
    """``1 attempt``, ``2 attempts``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def moment(at: datetime) -> str:
    """Format a date and time in UTC, with milliseconds."""
    return f"{at.astimezone(UTC):%Y-%m-%d} {clock(at)}"


def clock(at: datetime) -> str:
    at = at.astimezone(UTC)
    return f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}"


def duration(text: str, what: str) -> float:
    """Parse ``90``, ``90s`` or ``1h30m`` into seconds."""
    try:
        number = float(text)
    except ValueError:
        return seconds(text, what)
    return seconds(number if math.isfinite(number) else text, what)


def instant(text: str, what: str) -> datetime:
    """Parse an ISO 8601 time. A time without a zone is ambiguous and refused."""
    try:
        parsed = datetime.fromisoformat(text)
        if parsed.tzinfo is not None:
            return parsed.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise InvalidSetting(
        f"{what} {text!r} is not a time with a time zone",
        code="invalid_time",
        fix="For example 2027-01-31T09:00:00Z or 2027-01-31T09:00:00+02:00.",
    )


def time_or_span(text: str, what: str) -> datetime | float:
    """Parse a time, or a duration in seconds from now."""
    try:
        return duration(text, what)
    except InvalidSetting:
        return instant(text, what)


def since(text: str | None, what: str, now: Callable[[], datetime]) -> datetime | None:
    """Parse a time, or a duration before ``now``: ``1h`` is an hour ago by the database's clock."""
    if text is None:
        return None
    try:
        return now() - timedelta(seconds=duration(text, what))
    except InvalidSetting:
        return instant(text, what)


def set_up(level: str, *, as_json: bool, process: int | None = None, jobs: bool = False) -> None:
    """Configure logging to stderr. ``process`` is the number of a worker process whose lines are mixed with others.

    With ``jobs``, in JSON logs and at the level ``debug`` there is a line for each attempt that ends; otherwise only
    for each failure.
    """
    handler = configure_logging(json=as_json, level=level, jobs=as_json or jobs or level == "debug")
    handler.setFormatter(JsonLines(process) if as_json else TextLines(process))
    logging.getLogger().handlers[:] = [handler]
