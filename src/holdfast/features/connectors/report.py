"""``report.generate``: write rows as JSON, HTML or CSV to the tenant's artifact store.

The rows are in the payload, or come from a function of the app (``@app.report("sales")``) that a job names with
arguments. A payload never contains a query. Rows are written one at a time: a million rows need no more memory than
one.

Cells are untrusted. In CSV, text that a spreadsheet would treat as a formula gets an apostrophe in front, and all text
is quoted. In HTML everything is escaped, and the page runs no script.
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
from holdfast.stores.host_files import open_private

Row = Mapping[str, Any] | Sequence[Any]

TYPES: Final = {"json": "application/json", "html": "text/html; charset=utf-8", "csv": "text/csv; charset=utf-8"}
# Also after spaces and quotation marks, which some programs strip first, and in the full-width forms of East Asian
# keyboards.
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


class Columns:
    """The columns of a report: those given, or those of the first row."""

    def __init__(self, names: Sequence[str] | None) -> None:
        self.names = None if names is None else [str(name) for name in names]

    def cells(self, row: Row) -> list[Any]:
        if isinstance(row, Mapping):
            if self.names is None:
                self.names = [str(name) for name in row]
            return [row.get(name) for name in self.names]
        if isinstance(row, (str, bytes)) or not isinstance(row, Sequence):
            raise TypeError("a row is a list of values, or an object")
        if self.names is None:
            self.names = [str(number) for number in range(1, len(row) + 1)]
        return list(row[: len(self.names)]) + [None] * (len(self.names) - len(row))


def document_parts(format: str, rows: Iterable[Row], columns: Sequence[str] | None, title: str) -> Iterator[str]:
    """The parts of the document: its beginning, one part per row, and its end."""
    begin, render, end = _WRITERS[format](Columns(columns), title)
    first = True
    for row in rows:
        line = render(row)
        if first:
            yield begin()
        yield line if first or format != "json" else ",\n" + line
        first = False
    if first:
        yield begin()
    yield end


Writer = tuple[Callable[[], str], Callable[[Row], str], str]
"""A function for the beginning of a document, called after the first row; one for each row; and the end."""


def _json(columns: Columns, title: str) -> Writer:
    def render(row: Row) -> str:
        cells = [_finite(cell) for cell in columns.cells(row)]
        return json.dumps(dict(zip(columns.names or (), cells, strict=True)), ensure_ascii=False, default=str)

    return lambda: "[\n", render, "\n]\n"


def _csv(columns: Columns, title: str) -> Writer:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\r\n")

    def line(cells: Iterable[Any]) -> str:
        buffer.seek(0)
        buffer.truncate()
        writer.writerow([csv_cell(cell) for cell in cells])
        return buffer.getvalue()

    return lambda: line(columns.names) if columns.names else "", lambda row: line(columns.cells(row)), ""


def _html(columns: Columns, title: str) -> Writer:
    def begin() -> str:
        head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in columns.names or ())
        return _PAGE.format(title=html.escape(title), head=head)

    def render(row: Row) -> str:
        return f"<tr>{''.join(map(_html_cell, columns.cells(row)))}</tr>\n"

    return begin, render, "</tbody></table></body></html>\n"


_WRITERS: Final = {"json": _json, "html": _html, "csv": _csv}


def csv_cell(value: Any) -> str | int | float:
    """A number unchanged, and everything else as text that no spreadsheet evaluates."""
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
BATCH: Final = 500
"""Rows between two cancellation checks, and rows that are read from an async source at a time."""

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


def report_handler(sources: Sources) -> Callable[..., Awaitable[ReportResult]]:
    """The handler of ``report.generate``."""

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
        data: Any = rows if source is None else await _source_rows(ctx, sources, source, arguments or {})
        heading, filename = title or source or "Report", name or f"{source or 'report'}.{format}"
        with tempfile.TemporaryDirectory(prefix="holdfast-report-") as folder:
            document = Document(Path(folder) / "report")
            if hasattr(data, "__aiter__"):
                data = _sync_rows(data, asyncio.get_running_loop())
            parts = document_parts(format, _counted(ctx, data, document), columns, heading)
            await asyncio.to_thread(document.write, parts)
            keep, digest = ctx._run.session.vault.keep_file, document.digest.hexdigest()
            ref = await asyncio.to_thread(keep, document.path, digest, tenant=ctx.tenant, job_id=ctx.job_id)
        meta = {"size": document.size, "sha256": digest, "rows": document.rows, "content_type": TYPES[format]}
        await ctx.artifact(filename, ref, meta)
        return ReportResult(
            artifact=ref,
            name=filename,
            format=format,
            content_type=TYPES[format],
            rows=document.rows,
            size=document.size,
            sha256=digest,
        )

    return report_generate


def check_report(values: Mapping[str, Any]) -> None:
    """Check a payload before it is stored."""
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
    """A file that is hashed while it is written."""

    path: Path
    rows: int = 0
    size: int = 0
    digest: Any = None

    def write(self, parts: Iterator[str]) -> None:
        self.digest = hashlib.sha256()
        with open_private(self.path) as file:
            for part in parts:
                data = part.encode("utf-8", "replace")
                self.size += len(data)
                if self.size > LARGEST:
                    raise Reject("report_too_large", f"the report has more than {LARGEST:,} bytes")
                self.digest.update(data)
                file.write(data)


async def _source_rows(ctx: Context, sources: Sources, name: str, arguments: dict[str, Any]) -> Any:
    """Call the report function, in a thread if it is a plain function."""
    function = sources.get(name)
    if function is None:
        raise Reject("report_not_found", f"this worker has no report called {name}")
    parameters = list(inspect.signature(function).parameters)
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    context: AnyContext = ctx if is_async else SyncContext(ctx._run)
    args = (context,) if parameters[:1] == ["ctx"] else ()
    try:
        inspect.signature(function).bind(*args, **arguments)
    except TypeError as error:
        raise InvalidArguments(f"{GENERATE}: report {name}: {error}") from None
    if inspect.iscoroutinefunction(function):
        return await function(*args, **arguments)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return function(*args, **arguments)
    return await asyncio.to_thread(function, *args, **arguments)


def _counted(ctx: Context, rows: Iterable[Row], document: Document) -> Iterator[Row]:
    """Count the rows, and stop if the job is cancelled."""
    for row in rows:
        if document.rows % BATCH == 0:
            ctx.raise_if_cancelled()
        document.rows += 1
        yield row


def _sync_rows(rows: AsyncIterator[Row], loop: asyncio.AbstractEventLoop) -> Iterator[Row]:
    """Read an async source from the thread that writes the document, one batch at a time."""

    async def read_batch() -> list[Row]:
        result: list[Row] = []
        async for row in rows:
            result.append(row)
            if len(result) == BATCH:
                break
        return result

    while batch := asyncio.run_coroutine_threadsafe(read_batch(), loop).result():
        yield from batch
