"""Forms of approvals as fields: their constraints, and how text input is converted."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from holdfast.engine.json_schema import Field as FormField
from holdfast.engine.json_schema import as_json, fields, violations

pytestmark = pytest.mark.req("CX-7")


class Budget(BaseModel):
    limit: int = Field(ge=1, le=1000, description="in euros")
    reason: str = Field(min_length=3)
    size: Literal[1, 2, "all"] = 1
    colour: Literal["red", "green"] | None = None
    urgent: bool = False
    share: float | None = None
    tags: list[str] = []


FORM = Budget.model_json_schema()


def form_fields() -> dict[str, FormField]:
    return {field.name: field for field in fields(FORM)}


def test_fields_have_types_bounds_and_choices_of_model() -> None:
    form = form_fields()
    assert list(form) == ["limit", "reason", "size", "colour", "urgent", "share", "tags"]
    assert [field.name for field in form.values() if field.required] == ["limit", "reason"]
    assert (form["limit"].types, form["limit"].about) == (("integer",), "in euros")
    assert form["limit"].bounds == ("at least 1", "at most 1000")
    assert form["reason"].bounds == ("at least 3 characters",)
    assert form["size"].choices == (1, 2, "all")
    assert (set(form["colour"].types), form["colour"].choices) == ({"string", "null"}, ("red", "green"))
    assert (form["urgent"].types, form["tags"].types) == (("boolean",), ("array",))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("limit", "500", 500),
        ("limit", " 500 ", 500),
        ("limit", "five", "five"),
        ("reason", "500", "500"),
        ("reason", "null", "null"),
        ("reason", '"quoted"', '"quoted"'),
        ("size", "2", 2),
        ("size", "all", "all"),
        ("colour", "red", "red"),
        ("urgent", "yes", True),
        ("urgent", "False", False),
        ("urgent", "perhaps", "perhaps"),
        ("share", "0.5", 0.5),
        ("share", "null", None),
        ("tags", '["a"]', ["a"]),
        ("tags", "a", "a"),
    ],
)
def test_text_input_is_converted_to_type_of_field(name: str, text: str, value: object) -> None:
    read = form_fields()[name].read(text)
    assert (read, type(read)) == (value, type(value))


def test_invalid_input_is_reported_by_form() -> None:
    read = {name: form_fields()[name].read(text) for name, text in {"limit": "five", "reason": "why not"}.items()}
    assert next(violations(FORM, read)) == "limit must be integer"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("7.5", 7.5),
        ("true", True),
        ("null", None),
        ('"7"', "7"),
        ("[1]", [1]),
        *((text, text) for text in ("x", "", "NaN", "007", "{", "1e999", "[" * 200)),
    ],
)
def test_json_text_is_decoded_and_other_text_kept(text: str, value: object) -> None:
    assert (as_json(text), type(as_json(text))) == (value, type(value))


CIRCLE: dict[str, Any] = {"anyOf": [{"$ref": "#"}] * 5, "properties": {"x": {"$ref": "#/properties/x"}}}


@pytest.mark.parametrize(
    "schema",
    [
        *(None, 7, [], {}, CIRCLE),
        {"properties": 7, "required": 7},
        {"required": [7, "x"]},
        {"properties": {"x": 7}},
        {"properties": {"x": {"type": {"a": 1}, "enum": 7, "anyOf": 7, "$ref": ["#"], "minimum": "x"}}},
    ],
)
def test_malformed_schema_yields_fields_without_error(schema: Any) -> None:
    assert {field.name for field in fields(schema)} <= {"x"}
    assert all(field.read("7") in ("7", 7) for field in fields(schema))
