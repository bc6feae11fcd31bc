"""The routes in ``docs/reference/http.md``, from the OpenAPI document: ``python -m tests.docs.http_page --write``."""

from __future__ import annotations

import functools
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from holdfast import App
from holdfast.server.app import make_service

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "http.md"
BEGIN, END = "<!-- routes: written by python -m tests.docs.http_page --write -->", "<!-- end of the routes -->"


@functools.cache
def document() -> dict[str, Any]:
    with closing(App("sqlite:///:memory:")) as app:
        return make_service(app, authenticate=lambda _: None).openapi()


def routes() -> str:
    nouns: dict[str, list[str]] = {}
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            description = " ".join(str(operation.get("description") or operation["summary"].capitalize()).split())
            first = description.split(". ")[0].rstrip(".").replace("|", "\\|")
            scope = operation.get("x-holdfast-scope", "")
            line = f"| `{method.upper()} {path.removeprefix('/api/v1')}` | {scope} | {first} |"
            nouns.setdefault(operation["tags"][0], []).append(line)
    parts = []
    for noun, lines in nouns.items():
        parts += [f"### {noun.capitalize()}", "", "| | scope | |", "|---|---|---|", *lines, ""]
    return "\n".join(parts)


def written(text: str) -> str:
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{routes()}\n{END}{tail}"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(written(PAGE.read_text()))
    else:
        print(routes())
