"""The reference of the HTTP API has every route, with the scope it asks for, as its document has it."""

from __future__ import annotations

import re

import pytest

from tests.docs.http_page import PAGE, document, written


@pytest.mark.req("JF-14")
def test_the_page_is_what_the_document_says() -> None:
    text = PAGE.read_text()
    assert written(text) == text, "run: python -m tests.docs.http_page --write"


@pytest.mark.req("JF-14", "DP-3")
def test_each_operation_is_described_and_says_how_it_refuses() -> None:
    found = document()
    assert found["openapi"].startswith("3.1")
    names = set()
    for path, those in found["paths"].items():
        for method, operation in those.items():
            name = operation["operationId"]
            assert re.fullmatch(r"[a-z]+(_[a-z]+)*", name), name
            assert name not in names, name
            names.add(name)
            if not path.startswith("/api/"):
                continue
            answers = operation["responses"]
            assert "application/problem+json" in answers["422"]["content"], (method, path)
            good = [status for status in answers if status.startswith("2")]
            assert good, (method, path)
    text = str(found)
    assert "HTTPValidationError" not in text
    assert found["components"]["schemas"]["Enqueue"]["examples"]
