"""A declared operation is offered with the same inputs in Python, over HTTP, by the client and as a command."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
from typer.main import get_command

from holdfast.cli.commands import app as cli
from holdfast.engine.declared import Help, Input, about, http_of, inputs_of, is_paged, position_of
from holdfast.features.agents.operations import Agents
from holdfast.features.limits.operations import Limits
from holdfast.stores.job_filters import BY_NAME
from tests.architecture.test_parity import EXCEPTIONS, OPERATIONS, called
from tools.typescript import document

pytestmark = pytest.mark.req("JF-14", "HF-5")

DECLARED = {name: declared for name, program in OPERATIONS.items() if (declared := http_of(program)) is not None}
DERIVED = [name for name, declared in DECLARED.items() if not declared.by_hand]
WITHOUT = [each for each in EXCEPTIONS if each.surface in ("command", "options") and each.called is None]
COMMANDS = [name for name in DECLARED if not any(each.holds(name) for each in WITHOUT)]


@pytest.mark.parametrize("name", DERIVED)
def test_route_has_the_inputs_and_the_text(name: str) -> None:
    declared, program = DECLARED[name], OPERATIONS[name]
    route = document()["paths"]["/api/v1" + declared.path][declared.method.lower()]
    query = {parameter["name"] for parameter in route.get("parameters", []) if parameter["in"] == "query"}
    offered = {parameter["name"] for parameter in route.get("parameters", [])}
    if "requestBody" in route:
        offered |= body_of(route).keys()
    position = position_of(program)
    page = {"after", "limit"} if is_paged(program) or position is not None else set()
    expected = {each.place for each in inputs_of(program) if each.help.http and each is not position} | page
    assert offered - {"Holdfast-Tenant"} == expected
    assert "tenant" not in query, "?tenant= chooses the tenant of a request"
    assert about(program) in route["description"]


def body_of(route: dict[str, Any]) -> dict[str, Any]:
    schema = route["requestBody"]["content"]["application/json"]["schema"]
    reference = next(found for found in re.findall(r"#/components/schemas/(\w+)", str(schema)))
    properties: dict[str, Any] = document()["components"]["schemas"][reference]["properties"]
    return properties


@pytest.mark.parametrize("name", COMMANDS)
def test_command_has_the_inputs_with_their_help(name: str) -> None:
    command: Any = get_command(cli)
    chosen = [each.called for each in EXCEPTIONS if each.surface == "command" and each.holds(name) and each.called]
    for word in (chosen[0] if chosen else called("command", name)).split():
        command = command.commands[word]
    texts = [str(getattr(parameter, "help", "")) for parameter in command.params]
    expected = {text_of(each) for each in inputs_of(OPERATIONS[name]) if each.help.cli and each.name != "retry"}
    assert {text for text in expected if not any(each.startswith(text) for each in texts)} == set()
    assert "" not in expected, "an input without a help text"


def text_of(each: Input) -> str:
    if isinstance(each.help.cli, str):
        return each.help.cli
    return each.help.text or (BY_NAME[each.name].help if each.name in BY_NAME else "")


def test_inputs_are_read_from_annotations_and_options() -> None:
    found = {each.name: each for each in inputs_of(Limits.set.program)}
    assert found["concurrency"].help == Help("Maximum number of running jobs.", low=0, high=2**31 - 1)
    assert not found["queue"].required
    assert found["kind"].members[0] is str
    (id_, *_) = inputs_of(Agents.disable.program)
    assert id_.required
    assert id_.positional
    assert [each.name for each in inputs_of(Agents.list.program)] == ["kind", "disabled"]
    assert inspect.signature(Agents.list.program).parameters["page"].kind.name == "VAR_KEYWORD"
