"""A declared operation is offered with the same inputs in Python, over HTTP, by the client and as a command."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from holdfast import App
from holdfast.cli.commands import app as cli
from holdfast.engine.declared import Help, Http, about, http_of, inputs_of, is_paged
from holdfast.engine.operation import operation
from holdfast.features.agents.operations import Agents, Executors
from holdfast.features.limits.operations import Limits
from holdfast.remote import Client
from holdfast.server.app import make_service
from holdfast.stores.namespace import StoreNamespace

pytestmark = pytest.mark.req("JF-14", "HF-5")

DECLARED: dict[str, type[StoreNamespace]] = {"agents": Agents, "executors": Executors, "limits": Limits}
"""Namespaces whose operations are all declared; the others follow."""
COMMANDS = {"get": "show"}


def forms() -> Iterator[tuple[str, operation[..., Any]]]:
    for noun, namespace in DECLARED.items():
        for form in vars(namespace).values():
            if isinstance(form, operation):
                yield noun, form


FORMS = {f"{noun}.{form.program.__name__}": (noun, form) for noun, form in forms()}


def declaration(form: operation[..., Any]) -> Http:
    declared = http_of(form.program)
    assert declared is not None, "every operation of a declared namespace is declared"
    return declared


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    app = App("sqlite:///:memory:")
    try:
        made: dict[str, Any] = make_service(app, authenticate=lambda _: None).openapi()
        return made
    finally:
        app.close()


@pytest.mark.parametrize(("noun", "form"), FORMS.values(), ids=FORMS.keys())
def test_route_has_the_inputs_and_the_text(noun: str, form: operation[..., Any], document: dict[str, Any]) -> None:
    declared = declaration(form)
    route = document["paths"]["/api/v1" + declared.path][declared.method.lower()]
    offered = {parameter["name"] for parameter in route.get("parameters", [])}
    if "requestBody" in route:
        schema = route["requestBody"]["content"]["application/json"]["schema"]
        reference = next(found for found in re.findall(r"#/components/schemas/(\w+)", str(schema)))
        offered |= document["components"]["schemas"][reference]["properties"].keys()
    page = {"after", "limit"} if is_paged(form.program) else set()
    assert offered - {"Holdfast-Tenant"} == {each.name for each in inputs_of(form.program) if each.help.http} | page
    assert "tenant" not in offered, "?tenant= chooses the tenant of a request"
    assert about(form.program) in route["description"]


@pytest.mark.parametrize(("noun", "form"), FORMS.values(), ids=FORMS.keys())
def test_command_has_the_inputs_with_their_help(noun: str, form: operation[..., Any]) -> None:
    verb = form.program.__name__
    command = get_command(cli).commands[noun].commands[COMMANDS.get(verb, verb)]  # type: ignore[attr-defined]
    texts = {getattr(parameter, "help", None) for parameter in command.params}
    expected = {each.help.text for each in inputs_of(form.program) if each.name != "retry"}
    assert expected - texts == set()
    assert "" not in expected, "an input without a help text"


def test_client_has_the_class_of_the_app() -> None:
    client = Client("http://127.0.0.1:9", token="hf_x")
    for noun, namespace in DECLARED.items():
        assert isinstance(getattr(client, noun), namespace)
    client.close()


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
