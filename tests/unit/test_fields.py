"""Forms field by field: what is asked, and what people's text means (CX-7)."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from holdfast.engine.json_schema import violations
from holdfast.features.approvals.forms import Field as FormField
from holdfast.features.approvals.forms import as_json, fields

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


def asked() -> dict[str, FormField]:
    return {field.name: field for field in fields(FORM)}


def test_a_model_field_by_field() -> None:
    found = asked()
    assert list(found) == ["limit", "reason", "size", "colour", "urgent", "share", "tags"]
    assert [field.name for field in found.values() if field.required] == ["limit", "reason"]
    assert (found["limit"].types, found["limit"].about) == (("integer",), "in euros")
    assert found["limit"].bounds == ("at least 1", "at most 1000")
    assert found["reason"].bounds == ("at least 3 characters",)
    assert found["size"].choices == (1, 2, "all")
    assert (set(found["colour"].types), found["colour"].choices) == ({"string", "null"}, ("red", "green"))
    assert (found["urgent"].types, found["tags"].types) == (("boolean",), ("array",))


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
def test_what_somebody_wrote_is_read_as_what_is_asked_for(name: str, text: str, value: object) -> None:
    read = asked()[name].read(text)
    assert (read, type(read)) == (value, type(value))


def test_whether_it_fits_is_for_the_form_to_say() -> None:
    read = {name: asked()[name].read(text) for name, text in {"limit": "five", "reason": "why not"}.items()}
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
def test_text_that_is_json_is_what_it_says(text: str, value: object) -> None:
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
def test_a_form_that_makes_no_sense_is_read_as_far_as_it_does(schema: Any) -> None:
    assert {field.name for field in fields(schema)} <= {"x"}
    assert all(field.read("7") in ("7", 7) for field in fields(schema))
