"""Rows as JSON, HTML or CSV, a piece at a time: a million rows need no more memory than one (JF-10).

What is in a cell was written by anybody. In CSV a text that a spreadsheet would take for a formula is made text by an
apostrophe in front (rule 32), and every text is quoted; in HTML everything is escaped, and the page runs nothing.
"""

from __future__ import annotations

import csv
import html
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

Row = Mapping[str, Any] | Sequence[Any]

TYPES: Final = {"json": "application/json", "html": "text/html; charset=utf-8", "csv": "text/csv; charset=utf-8"}
# Also behind spaces and quotation marks, which some programs take away first; and as East Asian keyboards type them.
_FORMULA: Final = re.compile("^[\\s\"'\u00a0\ufeff]*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]|^[\t\r\n]")
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title><style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem; }}
table {{ border-collapse: collapse; }}
th, td {{ padding: .3rem .8rem; border-bottom: 1px solid #8886; text-align: left; vertical-align: top; }}
th {{ position: sticky; top: 0; background: Canvas; }}
td.n {{ text-align: right; font-variant-numeric: tabular-nums; }}
</style></head><body><h1>{title}</h1>
<table><thead><tr>{head}</tr></thead><tbody>
"""


class Shape:
    """Which columns there are: those that were named, or those of the first row."""

    def __init__(self, columns: Sequence[str] | None) -> None:
        self.columns = None if columns is None else [str(name) for name in columns]

    def cells(self, row: Row) -> list[Any]:
        if isinstance(row, Mapping):
            if self.columns is None:
                self.columns = [str(name) for name in row]
            return [row.get(name) for name in self.columns]
        if isinstance(row, (str, bytes)) or not isinstance(row, Sequence):
            raise TypeError("a row is a list of values, or an object")
        if self.columns is None:
            self.columns = [str(number) for number in range(1, len(row) + 1)]
        return list(row[: len(self.columns)]) + [None] * (len(self.columns) - len(row))


def written(form: str, rows: Iterable[Row], columns: Sequence[str] | None, title: str) -> Iterator[str]:
    """The pieces of the document. One is made a row, besides those at its ends."""
    begin, each, end = _WRITERS[form](Shape(columns), title)
    first = True
    for row in rows:
        line = each(row)
        if first:
            yield begin()
        yield line if first or form != "json" else ",\n" + line
        first = False
    if first:
        yield begin()
    yield end


Writer = tuple[Callable[[], str], Callable[[Row], str], str]


def _json(shape: Shape, title: str) -> Writer:
    def each(row: Row) -> str:
        cells = [_finite(cell) for cell in shape.cells(row)]
        return json.dumps(dict(zip(shape.columns or (), cells, strict=True)), ensure_ascii=False, default=str)

    return lambda: "[\n", each, "\n]\n"


def _csv(shape: Shape, title: str) -> Writer:
    made = io.StringIO(newline="")
    writer = csv.writer(made, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\r\n")

    def line(cells: Iterable[Any]) -> str:
        made.seek(0)
        made.truncate()
        writer.writerow([csv_cell(cell) for cell in cells])
        return made.getvalue()

    return lambda: line(shape.columns) if shape.columns else "", lambda row: line(shape.cells(row)), ""


def _html(shape: Shape, title: str) -> Writer:
    def begin() -> str:
        head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in shape.columns or ())
        return _PAGE.format(title=html.escape(title), head=head)

    def each(row: Row) -> str:
        return f"<tr>{''.join(map(_html_cell, shape.cells(row)))}</tr>\n"

    return begin, each, "</tbody></table></body></html>\n"


_WRITERS: Final = {"json": _json, "html": _html, "csv": _csv}


def csv_cell(value: Any) -> str | int | float:
    """A number as it is, and all else as text that no spreadsheet calculates."""
    if isinstance(value, bool) or value is None or not isinstance(value, (int, float)):
        text = _text(value)
        return f"'{text}" if _FORMULA.match(text) else text
    return value if math.isfinite(value) else ""


def _html_cell(value: Any) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"<td{' class=n' if number else ''}>{html.escape(_text(value))}</td>"


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case dict() | list() | tuple():
            return json.dumps(value, ensure_ascii=False, default=str)
        case _:
            return str(value)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
