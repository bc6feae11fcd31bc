"""Invalid enqueue calls are refused with a code before anything is stored."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from holdfast import App
from holdfast.errors import InvalidArguments, InvalidInput, InvalidPayload
from tests.app.test_enqueue import SOON, declare, stored


@pytest.mark.req("HF-5", "SC-19")
@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"delay": -1}, "invalid_duration"),
        ({"delay": "soon"}, "invalid_duration"),
        ({"delay": math.inf}, "invalid_duration"),
        ({"delay": True}, "invalid_duration"),
        ({"run_at": datetime(2100, 1, 1)}, "invalid_time"),
        ({"run_at": "2100-01-01"}, "invalid_time"),
        ({"deadline": datetime(2100, 1, 1)}, "invalid_time"),
        ({"delay": 1, "run_at": SOON}, "conflicting_options"),
        ({"priority": 32_768}, "invalid_priority"),
        ({"priority": 1.5}, "invalid_priority"),
        ({"priority": True}, "invalid_priority"),
        ({"queue": ""}, "invalid_name"),
        ({"queue": "a\nb"}, "invalid_name"),
        ({"key": " "}, "invalid_name"),
        ({"key": "k" * 256}, "invalid_name"),
        ({"tags": ["ok", ""]}, "invalid_name"),
        ({"tags": "abc"}, "invalid_name"),
        ({"tags": 7}, "invalid_name"),
        ({"tenant": "*"}, "invalid_name"),
        ({"tenant": ""}, "invalid_name"),
        ({"tenant": None}, "invalid_name"),
        ({"parent": "not-an-id"}, "invalid_id"),
        ({"workflow_id": "7"}, "invalid_id"),
        ({"correlation_id": "a\x00b"}, "invalid_name"),
        ({"external_ref": ""}, "invalid_name"),
        ({"agent": "\u202eevil"}, "invalid_name"),
        ({"enqueued_by": "  "}, "invalid_name"),
        ({"dedupe": "maybe"}, "invalid_dedupe"),
        ({"retry": 3}, "invalid_retry"),
        ({"retry": None}, "invalid_retry"),
        ({"colour": "red"}, "unknown_option"),
    ],
)
def test_invalid_option_is_refused_with_its_code(app: App, options: dict[str, Any], code: str) -> None:
    send = declare(app)
    with pytest.raises(InvalidInput) as caught:
        send.using(**options).enqueue("x")
    assert caught.value.code == code
    assert stored(app) == []


@pytest.mark.req("HF-5", "SC-19")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((), {}), "missing a required argument: 'to'"),
        ((("x", 1, 2), {}), "too many positional arguments"),
        ((("x",), {"copy": 1}), "unexpected keyword argument 'copy'"),
        ((("x",), {"to": "y"}), "multiple values for argument 'to'"),
        ((("x", "two"), {}), "copies: "),
        (((7,), {}), "to: "),
    ],
)
def test_arguments_that_do_not_fit_are_refused(app: App, arguments: Any, message: str) -> None:
    args, kwargs = arguments
    send = declare(app)
    with pytest.raises(InvalidArguments, match=message) as caught:
        send.enqueue(*args, **kwargs)
    assert caught.value.code == "invalid_arguments"
    assert stored(app) == []


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def in_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


HOSTILE = {
    "nan": (math.nan, "payload_not_finite"),
    "infinity": ({"a": [math.inf]}, "payload_not_finite"),
    "nul": ("a\x00b", "payload_bad_text"),
    "nul in a key": ({"a\x00": 1}, "payload_bad_text"),
    "lone surrogate": ("\ud800", "payload_bad_text"),
    "5000 digits": (10**5000, "payload_bad_number"),
    "20,000 deep": (deep(20_000), "payload_too_deep"),
    "in itself": (in_itself(), "payload_too_deep"),
    "too large": ("x" * 1_048_577, "payload_too_large"),
    "bytes": (b"x", "payload_not_json"),
    "a set": ({1}, "payload_not_json"),
    "an object": (object(), "payload_not_json"),
    "a key that is not text": ({1: 2}, "payload_bad_key"),
}


@pytest.mark.req("HF-5", "SC-19")
@pytest.mark.parametrize("name", HOSTILE)
def test_payload_that_is_not_json_is_refused_and_stores_nothing(app: App, name: str) -> None:
    value, code = HOSTILE[name]

    @app.job()
    def take(value: Any) -> None: ...

    for kind in (take, app):
        with pytest.raises(InvalidPayload) as caught:
            take.enqueue(value) if kind is take else app.enqueue("elsewhere", {"value": value})
        assert caught.value.code == code
        assert len(str(caught.value)) < 500
    assert stored(app) == []


@pytest.mark.req("HF-5", "SC-19")
def test_misspelled_argument_is_named_before_the_missing_one(app: App) -> None:
    @app.job
    def bill(invoice_id: int, note: str = "") -> None: ...

    @app.job
    def anything(invoice_id: int, **more: int) -> None: ...

    def refusal(call: Callable[[], object]) -> tuple[str, str | None]:
        with pytest.raises(InvalidArguments) as caught:
            call()
        assert caught.value.code == "invalid_arguments"
        return caught.value.message, caught.value.fix

    misspelled = "bill: got an unexpected keyword argument 'invoce_id'; missing a required argument: 'invoice_id'"
    wrong: dict[str, Any] = {"invoce_id": 7}
    for call in (
        lambda: bill.enqueue(**wrong),
        lambda: asyncio.run(bill.aenqueue(**wrong)),
        lambda: app.enqueue("bill", wrong),
        lambda: app.workflow("billing").add(bill, **wrong),
    ):
        assert refusal(call) == (misspelled, "Did you mean invoice_id?")
    message, fix = refusal(lambda: app.enqueue("bill", {"invoice_id": 7, "nte": "x", "zzz": 1}))
    assert message == "bill: got unexpected keyword arguments 'nte', 'zzz'"
    assert fix == "Did you mean note?"
    assert len(refusal(lambda: app.enqueue("bill", {f"{n}" * 500: 1 for n in range(500)}))[0]) < 600
    assert refusal(lambda: app.enqueue("anything", {"invoce_id": 7}))[0].endswith(
        "missing a required argument: 'invoice_id'"
    )
    assert stored(app) == []
