"""What is printed, and where: data to stdout, messages to stderr.

Invariant: text that came from a database is printed to the letter. It is never read as markup, and its control
characters, which could rewrite a terminal, are shown instead of sent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

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
