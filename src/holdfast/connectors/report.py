"""``report.generate`` (JF-10): rows as JSON, HTML or CSV, written to the artifact store of the tenant.

The rows are in the payload, or come from a function of the app (``@app.report("sales")``) that a job can name and give
arguments to. There is no query in a payload, and none is made of one.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypedDict

from holdfast.connectors.tables import TYPES, Row, written
from holdfast.context import Context
from holdfast.engine.names import check_name
from holdfast.engine.outcome import Reject
from holdfast.errors import InvalidArguments, InvalidSetting

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
        raise InvalidSetting(f"there is a report called {name!r} already", code="duplicate_report")
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
        if ctx.client.vault.artifacts is None:
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
            keep, digest = ctx.client.vault.keep_file, document.digest.hexdigest()
            ref = await asyncio.to_thread(keep, document.path, digest, tenant=ctx.tenant, job_id=ctx.job_id)
        about = {"size": document.size, "sha256": digest, "rows": document.rows, "content_type": TYPES[format]}
        await ctx.aartifact(called, ref, about)
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
        raise InvalidArguments(f"{GENERATE}: a report has rows or a source, one of them")
    if values.get("rows") is not None and values.get("arguments"):
        raise InvalidArguments(f"{GENERATE}: arguments are for a source")
    if not all(isinstance(row, (list, dict)) for row in values.get("rows") or ()):
        raise InvalidArguments(f"{GENERATE}: a row is a list of values, or an object")
    if values.get("format", "csv") not in TYPES:
        raise InvalidArguments(f"{GENERATE}: a format is one of {', '.join(TYPES)}")
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
    given = (ctx,) if parameters[:1] == ["ctx"] else ()
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
            ctx.check()
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
