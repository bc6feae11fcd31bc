"""Arguments and results between caller and handler, with and without pydantic."""

from __future__ import annotations

import dataclasses
import enum
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pydantic
import pytest

from holdfast import App, State, SyncContext
from holdfast.errors import InvalidArguments, InvalidPayload
from holdfast.steps import signature
from tests.support.workers import QUICK, work_off

pytestmark = pytest.mark.req("HF-5")


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Line:
    item: str
    price: Decimal


class Invoice(pydantic.BaseModel):
    number: int
    due: date
    lines: list[Line]


WHEN = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
INVOICE = Invoice(number=7, due=date(2030, 1, 2), lines=[Line("tea", Decimal("1.10"))])


def test_rich_values_reach_the_handler_unchanged(app: App) -> None:
    seen: list[Any] = []

    @app.job()
    def pay(
        invoice: Invoice, at: datetime, within: timedelta, id: uuid.UUID, colour: Colour, seen_by: set[str]
    ) -> Invoice:
        seen.append((invoice, at, within, id, colour, seen_by))
        return invoice

    key = uuid.uuid4()
    handle = pay.enqueue(INVOICE, WHEN, timedelta(hours=36), key, Colour.RED, seen_by={"ada"})
    work_off(app)
    assert seen == [(INVOICE, WHEN, timedelta(hours=36), key, Colour.RED, {"ada"})]
    assert handle.result(timeout=5) == INVOICE


class Exact(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    at: datetime
    colour: Colour


def test_strict_types_round_trip(app: App) -> None:
    @app.job()
    def take(exact: Exact, at: Annotated[datetime, pydantic.Strict()]) -> Exact:
        assert at == WHEN
        return exact

    exact = Exact(at=WHEN, colour=Colour.RED)
    handle = take.enqueue(exact, WHEN)
    loose: Any = take
    with pytest.raises(InvalidArguments):
        loose.enqueue(exact, WHEN.isoformat())  # strict means strict for callers
    work_off(app)
    assert handle.result(timeout=5) == exact


async def test_dataclass_arguments_round_trip_in_async_code(app: App) -> None:
    @app.job()
    async def pay(line: Line) -> Line:
        return dataclasses.replace(line, price=line.price * 2)

    handle = await pay.aenqueue(Line("tea", Decimal("1.10")))
    await app.worker(burst=True, **QUICK).run()
    assert await handle == Line("tea", Decimal("2.20"))
    await app.aclose()


def test_every_kind_of_parameter_is_bound(app: App) -> None:
    seen: list[Any] = []

    @app.job()
    def odd(first: int, /, second: int = 2, *rest: int, third: int = 3, **more: Any) -> None:
        seen.append((first, second, rest, third, more))

    odd.enqueue(1)
    odd.enqueue(1, 5, 6, 7, third=8, fourth=[9])
    work_off(app)
    assert sorted(seen, key=lambda each: each[1]) == [(1, 2, (), 3, {}), (1, 5, (6, 7), 8, {"fourth": [9]})]


def test_defaults_are_applied_when_the_handler_runs(app: App) -> None:
    @app.job()
    def greet(name: str, greeting: str = "hello") -> str:
        return f"{greeting} {name}"

    handle = greet.enqueue("ada")
    assert handle.get().payload == {"name": "ada"}
    work_off(app)
    assert handle.result(timeout=5) == "hello ada"


def test_validation_error_names_the_field_and_not_the_value(app: App) -> None:
    @app.job()
    def pay(invoice: Invoice) -> None: ...

    secret: Any = {"number": "hunter2", "due": "2030-01-01", "lines": []}
    with pytest.raises(InvalidArguments, match=r"pay: invoice\.number: ") as caught:
        pay.enqueue(secret)
    assert "hunter2" not in str(caught.value)


def test_uncheckable_annotations_are_ignored(app: App) -> None:
    class Unknown: ...

    @app.job()
    def take(value: Unknown, other: "NoSuchName") -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037

    handle = app.enqueue("take", {"value": 1, "other": [2]})
    assert handle.get().payload == {"value": 1, "other": [2]}


def test_stored_payload_that_no_longer_fits_is_dead_lettered_at_once(app: App, new_app: Any) -> None:
    old, new = app, new_app()

    @old.job("pay")
    def before(amount: int) -> None: ...

    handle = before.enqueue(1)

    @new.job("pay")
    def after(sum: int) -> None: ...

    work_off(new)
    job = handle.get()
    assert (job.state, job.error_code, job.attempt) == (State.DEAD_LETTER, "invalid_arguments", 1)
    assert "unexpected arguments amount" in str(job.error_message)


# -- without pydantic ----------------------------------------------------------------------------------------


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, app: App) -> App:
    """As if pydantic were not installed."""
    monkeypatch.setattr(signature, "TypeAdapter", None)
    return app


def test_without_pydantic_arguments_are_bound_but_not_checked(bare: App) -> None:
    seen: list[Any] = []

    @bare.job()
    def send(ctx: SyncContext, to: str, copies: int = 1) -> dict[str, int]:
        seen.append((to, copies))
        return {"copies": copies}

    handle = send.enqueue("ada", copies=2)
    loose: Any = send
    assert loose.enqueue("ada", copies="two").get().payload == {"to": "ada", "copies": "two"}  # bound, not checked
    with pytest.raises(InvalidArguments):
        loose.enqueue()
    with pytest.raises(InvalidArguments):
        loose.enqueue("ada", size=1)
    with pytest.raises(InvalidPayload) as caught:
        loose.enqueue(Path("x"))
    assert caught.value.code == "payload_not_json"
    work_off(bare)
    assert sorted(seen, key=str) == [("ada", "two"), ("ada", 2)]  # they run in threads, in either order
    assert handle.result(timeout=5) == {"copies": 2}


def test_without_pydantic_a_datetime_is_refused_with_its_path(bare: App) -> None:
    @bare.job()
    def at(when: datetime) -> None: ...

    with pytest.raises(InvalidPayload, match=r"payload of at \$\.when: datetime\.datetime is not JSON"):
        at.enqueue(WHEN)
