"""The handler ``report.generate``: JSON, HTML, CSV.

``report.generate`` (JF-10): rows as JSON, HTML or CSV, written to the artifact store of the tenant.

The rows are in the payload, or come from a function of the app (``@app.report("sales")``) that a job can name and give
arguments to. There is no query in a payload, and none is made of one.

Rows as JSON, HTML or CSV, a piece at a time: a million rows need no more memory than one (JF-10).

What is in a cell was written by anybody. In CSV a text that a spreadsheet would take for a formula is made text by an
apostrophe in front (rule 32), and every text is quoted; in HTML everything is escaped, and the page runs nothing.
"""

from __future__ import annotations

import asyncio
import csv
import hashlib
import html
import inspect
import io
import json
import math
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypedDict

from holdfast.context import AnyContext, Context, SyncContext
from holdfast.engine.names import check_name
from holdfast.engine.outcome import Reject
from holdfast.errors import InvalidArguments, InvalidSetting

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


GENERATE: Final = "report.generate"
LARGEST: Final = 2 * 1024**3
LOOK_EVERY: Final = 500
"""After so many rows it is looked whether the job is still wanted."""

Source = Callable[..., Iterable[Row] | AsyncIterator[Row] | Awaitable[Iterable[Row]]]
Sources = dict[str, Source]


class ReportResult(TypedDict):
    artifact: str
    name: str
    format: str
    content_type: str
    rows: int
    size: int
    sha256: str


def add_source(sources: Sources, name: str, function: Source) -> None:
    if check_name(name, "report") in sources:
        raise InvalidSetting(f"a report named {name!r} already exists", code="duplicate_report")
    sources[name] = function


def generator(sources: Sources) -> Callable[..., Awaitable[ReportResult]]:
    """The handler."""

    async def report_generate(
        ctx: Context,
        format: Literal["csv", "html", "json"] = "csv",
        rows: list[Any] | None = None,
        source: str | None = None,
        arguments: dict[str, Any] | None = None,
        columns: list[str] | None = None,
        title: str | None = None,
        name: str | None = None,
    ) -> ReportResult:
        check_report({"format": format, "rows": rows, "source": source, "arguments": arguments, "name": name})
        if ctx._run.session.vault.artifacts is None:
            raise Reject(
                "no_artifact_store", "a report needs an artifact store: App(artifacts=…), or HOLDFAST_ARTIFACTS"
            )
        found: Any = rows if source is None else await _rows(ctx, sources, source, arguments or {})
        heading, called = title or source or "Report", name or f"{source or 'report'}.{format}"
        with tempfile.TemporaryDirectory(prefix="holdfast-report-") as folder:
            document = Document(Path(folder) / "report")
            if hasattr(found, "__aiter__"):
                found = _threaded(found, asyncio.get_running_loop())
            pieces = written(format, _counted(ctx, found, document), columns, heading)
            await asyncio.to_thread(document.write, pieces)
            keep, digest = ctx._run.session.vault.keep_file, document.digest.hexdigest()
            ref = await asyncio.to_thread(keep, document.path, digest, tenant=ctx.tenant, job_id=ctx.job_id)
        about = {"size": document.size, "sha256": digest, "rows": document.rows, "content_type": TYPES[format]}
        await ctx.artifact(called, ref, about)
        return ReportResult(
            artifact=ref,
            name=called,
            format=format,
            content_type=TYPES[format],
            rows=document.rows,
            size=document.size,
            sha256=digest,
        )

    return report_generate


def check_report(values: Mapping[str, Any]) -> None:
    """What can be said of a payload before it is stored."""
    if (values.get("rows") is None) == (values.get("source") is None):
        raise InvalidArguments(f"{GENERATE}: a report needs either rows or a source")
    if values.get("rows") is not None and values.get("arguments"):
        raise InvalidArguments(f"{GENERATE}: arguments need a source")
    if not all(isinstance(row, (list, dict)) for row in values.get("rows") or ()):
        raise InvalidArguments(f"{GENERATE}: a row must be a list of values or an object")
    if values.get("format", "csv") not in TYPES:
        raise InvalidArguments(f"{GENERATE}: the format must be one of {', '.join(TYPES)}")
    if values.get("name") is not None:
        try:
            check_name(values["name"], "name", limit=255)
        except InvalidSetting as wrong:
            raise InvalidArguments(f"{GENERATE}: {wrong.message}") from None


@dataclass(slots=True)
class Document:
    """A file that is hashed as it is written."""

    path: Path
    rows: int = 0
    size: int = 0
    digest: Any = None

    def write(self, pieces: Iterator[str]) -> None:
        self.digest = hashlib.sha256()
        with self.path.open("wb") as file:
            for piece in pieces:
                data = piece.encode("utf-8", "replace")
                self.size += len(data)
                if self.size > LARGEST:
                    raise Reject("report_too_large", f"the report has more than {LARGEST:,} bytes")
                self.digest.update(data)
                file.write(data)


async def _rows(ctx: Context, sources: Sources, name: str, arguments: dict[str, Any]) -> Any:
    function = sources.get(name)
    if function is None:
        raise Reject("report_not_found", f"this worker has no report called {name}")
    parameters = list(inspect.signature(function).parameters)
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    own: AnyContext = ctx if is_async else SyncContext(ctx._run)  # other functions run in a thread
    given = (own,) if parameters[:1] == ["ctx"] else ()
    try:
        inspect.signature(function).bind(*given, **arguments)
    except TypeError as error:
        raise InvalidArguments(f"{GENERATE}: report {name}: {error}") from None
    if inspect.iscoroutinefunction(function):
        return await function(*given, **arguments)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return function(*given, **arguments)
    return await asyncio.to_thread(function, *given, **arguments)


def _counted(ctx: Context, rows: Iterable[Row], document: Document) -> Iterator[Row]:
    for row in rows:
        if document.rows % LOOK_EVERY == 0:
            ctx.raise_if_cancelled()
        document.rows += 1
        yield row


def _threaded(rows: AsyncIterator[Row], loop: asyncio.AbstractEventLoop) -> Iterator[Row]:
    """Rows that come on the event loop, for the thread that writes them: some hundred at a time."""

    async def some() -> list[Row]:
        found: list[Row] = []
        async for row in rows:
            found.append(row)
            if len(found) == LOOK_EVERY:
                break
        return found

    while batch := asyncio.run_coroutine_threadsafe(some(), loop).result():
        yield from batch
