"""Every public name, command, route, SQL function, setting, metric, error code and event type has a reference entry."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer.main

import holdfast
from holdfast.cli.commands import app
from holdfast.engine.states import TRANSITIONS
from tools import reference
from tools.diagrams import ASSETS, DIAGRAMS
from tools.reference import PAGES, REFERENCE, document, rendered

pytestmark = pytest.mark.req("DP-22", "JF-14")


def page(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


@pytest.mark.every_case
@pytest.mark.parametrize("name", PAGES)
def test_generated_page_is_current(name: str) -> None:
    assert page(name) == rendered(name), "run: make reference"


def test_diagrams_are_current() -> None:
    for name, draw in DIAGRAMS.items():
        assert (ASSETS / name).read_text(encoding="utf-8") == draw(), "run: make reference"
        assert ">?<" not in draw(), "an arrow of the picture is not in the table of transitions"


def test_every_public_name_route_command_and_sql_function_has_an_entry() -> None:
    python = page("api.md")
    assert [name for name in holdfast.__all__ if not re.search(rf"\b{re.escape(name)}`", python)] == []
    routes = {f"{m.upper()} {path}" for path, methods in document()["paths"].items() for m in methods}
    assert sorted(route for route in routes if f"### `{route}`" not in page("http.md")) == []
    missing = [path for path in commands(typer.main.get_command(app)) if f"# `{path}`" not in page("cli.md")]
    assert missing == []
    granted = reference.grants()
    assert sorted(name for name in granted if f"## `{name}`" not in page("sql.md")) == []


@pytest.mark.req("DP-3")
def test_each_route_is_described_with_its_errors() -> None:
    names = set()
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            name = operation["operationId"]
            assert re.fullmatch(r"[a-z]+(_[a-z]+)*", name), name
            assert name not in names, name
            names.add(name)
            if path.startswith("/api/"):
                answers = operation["responses"]
                assert "application/problem+json" in answers["422"]["content"], (method, path)
                assert [status for status in answers if status.startswith("2")], (method, path)
    assert document()["openapi"].startswith("3.1")
    assert "HTTPValidationError" not in str(document())
    assert document()["components"]["schemas"]["Enqueue"]["examples"]


def test_every_variable_has_an_entry() -> None:
    assert set(reference.VARIABLES) == reference.variables()
    named = {
        match
        for path in reference.PACKAGE.rglob("*.py")
        for match in re.findall(r"[\"'](HOLDFAST_[A-Z_]+)[\"']", path.read_text(encoding="utf-8"))
    }
    internal = {"HOLDFAST_SECRET_", "HOLDFAST_HOOKS"}  # the prefix of secrets; an example
    assert named - reference.variables() - set(reference.OF_COMMANDS) == internal


def test_every_event_type_has_an_entry() -> None:
    events = page("events.md") + page("states.md")
    types = {str(transition.type.value) for transition in TRANSITIONS}
    assert sorted(name for name in types if not re.search(rf"\b{name}\b", events)) == []


def commands(command: Any, path: str = "holdfast") -> list[str]:
    paths = [] if path == "holdfast" else [path]
    for name, child in getattr(command, "commands", {}).items():
        paths += commands(child, f"{path} {name}")
    return paths
