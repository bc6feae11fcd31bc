"""``report.generate`` (JF-10): rows as JSON, HTML and CSV that no cell text can break out of."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import resource
import sys
from collections.abc import AsyncIterator, Iterator
from html.parser import HTMLParser
from typing import Any

import pytest

import holdfast
from holdfast import App, Handle, Retry, State
from holdfast.errors import InvalidArguments, InvalidSetting
from holdfast.features.connectors.report import csv_cell, document_parts
from tests.app.conftest import NewApp
from tests.support.workers import work_off

pytestmark = pytest.mark.req("JF-10")

HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=y>', "a\r\nb", 'say "hi"', "x,y;z", "ünï 🎈", "\u202egnp"]
FORMULAS = [
    *("=1+1", "+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "  =1", '"=1', "'=cmd|' /C calc'!A0", '" @x', "＝1"),
    *("=HYPERLINK(\"http://x\",\"y\")", "\ufeff=1", "-", "\tplain"),
]  # fmt: skip

TABLE = ("tr", "th", "tbody", "td")


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url


def made(app: App, **payload: Any) -> tuple[dict[str, Any], str]:
    handle: Handle[Any] = app.enqueue("report.generate", payload, retry=Retry(max_attempts=1))
    work_off(app)
    result = handle.result()
    assert app.artifacts is not None
    data = app.artifacts.get(result["artifact"], tenant="default")
    assert (result["size"], result["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    return result, data.decode()


class Cells(HTMLParser):
    """The text of the cells as a browser would show it, and all element names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        if tag == "td":
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells and self.lasttag == "td":
            self.cells[-1] += data.removesuffix("\n") if data == "\n" else data


def test_rows_of_a_payload_become_json_html_and_csv(app: App) -> None:
    rows = [{"what": text, "n": number, "none": None} for number, text in enumerate(HOSTILE + FORMULAS)]
    result, text = made(app, rows=rows, format="json")
    assert json.loads(text) == rows
    assert (result["rows"], result["name"], result["content_type"]) == (len(rows), "report.json", "application/json")

    result, text = made(app, rows=rows, format="html", title="<b>Sales</b>", name="sales.html")
    page = Cells(text)
    assert page.tags <= {*("html", "head", "meta", "title", "style", "body", "h1", "table", "thead"), *TABLE}
    assert [_plain(cell) for cell in page.cells[::3]] == [_plain(text) for text in HOSTILE + FORMULAS]
    assert "&lt;b&gt;Sales&lt;/b&gt;" in text
    assert "default-src 'none'" in text

    result, text = made(app, rows=rows, format="csv")
    table = list(csv.reader(io.StringIO(text, newline="")))
    assert table[0] == ["what", "n", "none"]
    assert [row[0] for row in table[1 : 1 + len(HOSTILE)]] == HOSTILE
    assert [row[0] for row in table[1 + len(HOSTILE) :]] == [f"'{text}" for text in FORMULAS]
    assert [int(row[1]) for row in table[1:]] == list(range(len(rows)))


def test_numbers_stay_numbers_and_other_values_become_text() -> None:
    assert [csv_cell(value) for value in (-5, -1.5, True, None, "-5", [1, {"a": 2}], float("inf"))] == [
        *(-5, -1.5, "true", "", "'-5", '[1, {"a": 2}]', ""),
    ]
    assert "".join(document_parts("json", [[1, float("nan")]], ["a", "b"], "")) == '[\n{"a": 1, "b": null}\n]\n'
    assert "".join(document_parts("csv", [[1], [2, 3]], ["a", "b"], "")) == '"a","b"\r\n1,""\r\n2,3\r\n'
    assert "".join(document_parts("csv", [], None, "")) == ""
    assert json.loads("".join(document_parts("json", [], None, ""))) == []


def test_source_yields_rows_and_receives_arguments(app: App) -> None:
    @app.report("sales")
    def sales(ctx: holdfast.SyncContext, month: str, count: int = 2) -> Iterator[dict[str, Any]]:
        for number in range(count):
            yield {"month": month, "number": number, "tenant": ctx.tenant}

    @app.report("people")
    async def people() -> AsyncIterator[list[Any]]:
        for number in range(1_203):
            yield [number, f"person {number}"]

    @app.report("all")
    def everything() -> list[dict[str, int]]:
        return [{"a": 1}]

    result, text = made(app, source="sales", arguments={"month": "=11"}, columns=["tenant", "month"])
    assert (result["name"], text) == ("sales.csv", '"tenant","month"\r\n"default","\'=11"\r\n"default","\'=11"\r\n')
    result, text = made(app, source="people", format="json", columns=["id", "name"])
    assert result["rows"] == 1_203
    assert json.loads(text)[-1] == {"id": 1_202, "name": "person 1202"}
    assert made(app, source="all")[1] == '"a"\r\n1\r\n'
    with pytest.raises(InvalidSetting, match="duplicate_report"):
        app.report("sales")(sales)


def test_invalid_report_requests_are_refused(app: App) -> None:
    @app.report("sales")
    def sales(month: str) -> Iterator[list[int]]:
        yield [1]

    for wrong in (
        *({}, {"rows": [], "source": "sales"}, {"rows": [], "arguments": {"a": 1}}, {"rows": [], "format": "pdf"}),
        *({"rows": [], "name": " "}, {"rows": ["text"]}),
    ):
        with pytest.raises(InvalidArguments):
            app.enqueue("report.generate", wrong)
    ends = [
        app.enqueue("report.generate", payload, retry=Retry(max_attempts=1))
        for payload in ({"source": "none"}, {"source": "sales"}, {"source": "sales", "arguments": {"sql": "drop"}})
    ]
    work_off(app)
    assert [each.get().error_code for each in ends] == [
        *("report_not_found", "invalid_arguments", "invalid_arguments"),
    ]
    assert {each.get().state for each in ends} == {State.DEAD_LETTER}


def test_report_belongs_to_its_tenant(app: App) -> None:
    with app.tenant("acme"):
        handle: Handle[Any] = app.enqueue("report.generate", {"rows": [[1]]})
    work_off(app)
    assert app.artifacts is not None
    ref = handle.result()["artifact"]
    assert app.artifacts.get(ref, tenant="acme") == b'"1"\r\n1\r\n'
    with pytest.raises(holdfast.HoldfastError, match="artifact_not_yours"):
        app.artifacts.get(ref, tenant="default")


@pytest.mark.slow
def test_large_report_is_written_with_bounded_memory(new_app: NewApp) -> None:
    """A report of about 40 MB of which only one piece is in memory at a time."""
    app = new_app()

    @app.report("long")
    def long() -> Iterator[list[Any]]:
        text = "x" * 800
        for number in range(50_000):
            yield [number, text]

    before = _peak()
    handle: Handle[Any] = app.enqueue("report.generate", {"source": "long"})
    work_off(app)
    result = handle.result()
    assert result["rows"] == 50_000
    assert result["size"] > 40_000_000
    assert _peak() - before < 20_000_000


def _plain(text: str) -> str:
    """A browser treats every line break the same."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _peak() -> int:
    """The peak memory of this process, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
