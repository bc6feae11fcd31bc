"""``report.generate`` (JF-10): rows as JSON, HTML and CSV, which nobody's text can turn into something else."""

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
    found = handle.result()
    assert app.artifacts is not None
    data = app.artifacts.get(found["artifact"], tenant="default")
    assert (found["size"], found["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    return found, data.decode()


class Cells(HTMLParser):
    """What a browser would show in the cells, and every element there is."""

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
    found, text = made(app, rows=rows, format="json")
    assert json.loads(text) == rows
    assert (found["rows"], found["name"], found["content_type"]) == (len(rows), "report.json", "application/json")

    found, text = made(app, rows=rows, format="html", title="<b>Sales</b>", name="sales.html")
    page = Cells(text)
    assert page.tags <= {*("html", "head", "meta", "title", "style", "body", "h1", "table", "thead"), *TABLE}
    assert [_plain(cell) for cell in page.cells[::3]] == [_plain(text) for text in HOSTILE + FORMULAS]
    assert "&lt;b&gt;Sales&lt;/b&gt;" in text
    assert "default-src 'none'" in text

    found, text = made(app, rows=rows, format="csv")
    table = list(csv.reader(io.StringIO(text, newline="")))
    assert table[0] == ["what", "n", "none"]
    assert [row[0] for row in table[1 : 1 + len(HOSTILE)]] == HOSTILE
    assert [row[0] for row in table[1 + len(HOSTILE) :]] == [f"'{text}" for text in FORMULAS]
    assert [int(row[1]) for row in table[1:]] == list(range(len(rows)))


def test_numbers_stay_numbers_and_the_rest_is_text() -> None:
    assert [csv_cell(value) for value in (-5, -1.5, True, None, "-5", [1, {"a": 2}], float("inf"))] == [
        *(-5, -1.5, "true", "", "'-5", '[1, {"a": 2}]', ""),
    ]
    assert "".join(document_parts("json", [[1, float("nan")]], ["a", "b"], "")) == '[\n{"a": 1, "b": null}\n]\n'
    assert "".join(document_parts("csv", [[1], [2, 3]], ["a", "b"], "")) == '"a","b"\r\n1,""\r\n2,3\r\n'
    assert "".join(document_parts("csv", [], None, "")) == ""
    assert json.loads("".join(document_parts("json", [], None, ""))) == []


def test_a_source_yields_rows_and_is_given_arguments(app: App) -> None:
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

    found, text = made(app, source="sales", arguments={"month": "=11"}, columns=["tenant", "month"])
    assert (found["name"], text) == ("sales.csv", '"tenant","month"\r\n"default","\'=11"\r\n"default","\'=11"\r\n')
    found, text = made(app, source="people", format="json", columns=["id", "name"])
    assert found["rows"] == 1_203
    assert json.loads(text)[-1] == {"id": 1_202, "name": "person 1202"}
    assert made(app, source="all")[1] == '"a"\r\n1\r\n'
    with pytest.raises(InvalidSetting, match="duplicate_report"):
        app.report("sales")(sales)


def test_what_makes_no_report_is_refused(app: App) -> None:
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


def test_a_report_belongs_to_its_tenant(app: App) -> None:
    with app.tenant("acme"):
        handle: Handle[Any] = app.enqueue("report.generate", {"rows": [[1]]})
    work_off(app)
    assert app.artifacts is not None
    ref = handle.result()["artifact"]
    assert app.artifacts.get(ref, tenant="acme") == b'"1"\r\n1\r\n'
    with pytest.raises(holdfast.HoldfastError, match="artifact_not_yours"):
        app.artifacts.get(ref, tenant="default")


@pytest.mark.slow
def test_many_rows_need_no_more_memory_than_few(new_app: NewApp) -> None:
    """Some 40 MB of report, of which never more than a piece is in memory."""
    app = new_app()

    @app.report("long")
    def long() -> Iterator[list[Any]]:
        text = "x" * 800
        for number in range(50_000):
            yield [number, text]

    before = _peak()
    handle: Handle[Any] = app.enqueue("report.generate", {"source": "long"})
    work_off(app)
    found = handle.result()
    assert found["rows"] == 50_000
    assert found["size"] > 40_000_000
    assert _peak() - before < 20_000_000


def _plain(text: str) -> str:
    """A browser takes every line break for the same."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _peak() -> int:
    """The most memory this process has ever had, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
