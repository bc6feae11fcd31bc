"""The HTTP reference has every route with its scope, as in the OpenAPI document."""

from __future__ import annotations

import re

import pytest

from tests.docs.http_page import PAGE, document, written


@pytest.mark.req("JF-14")
def test_page_matches_the_openapi_document() -> None:
    text = PAGE.read_text()
    assert written(text) == text, "run: python -m tests.docs.http_page --write"


@pytest.mark.req("JF-14", "DP-3")
def test_each_operation_is_described_with_its_errors() -> None:
    openapi = document()
    assert openapi["openapi"].startswith("3.1")
    names = set()
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
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
    text = str(openapi)
    assert "HTTPValidationError" not in text
    assert openapi["components"]["schemas"]["Enqueue"]["examples"]
