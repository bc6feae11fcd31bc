"""Models of request bodies that several features share. Unknown fields are refused and every field is bounded; the
library checks the rest."""

from __future__ import annotations

import re
from datetime import datetime
from functools import cache, partial
from typing import Annotated, Any, Literal, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from holdfast.engine.payload import MAX_DIGITS
from holdfast.engine.retry import Backoff, Retry
from holdfast.server.json_body import check_numbers, check_shape

B = TypeVar("B", bound=BaseModel)

MAX_ERRORS = 100
"""More than any body of known fields can have. Pydantic cannot report only the first error."""

Text = Annotated[str, Field(max_length=255)]
LongText = Annotated[str, Field(max_length=2_000)]
Span = Annotated[
    float | Annotated[str, Field(max_length=50)],
    Field(description="Seconds, or text such as 90s, 1h30m, 2d.", examples=["5m", 90]),
]
Instant = Annotated[AwareDatetime, Field(description="RFC 3339, with a zone.", examples=["2027-01-31T09:00:00Z"])]

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_INSTANT: TypeAdapter[datetime] = TypeAdapter(AwareDatetime)


def time_if_dated(value: Any) -> Any:
    """Parse text that begins with a date, for a field that takes a time or a duration: of the two, pydantic prefers the
    duration for every text."""
    if not isinstance(value, str) or not _DATE.match(value):
        return value
    try:
        return _INSTANT.validate_python(value)
    except ValidationError:
        raise PydanticCustomError("time", "must be a time with a zone, such as 2027-01-31T09:00:00Z") from None


@cache
def _names(model: type[BaseModel]) -> frozenset[str]:
    """The names of the fields as requests spell them."""
    return frozenset(field.alias or name for name, field in model.model_fields.items())


def _refuse_unknown(model: type[BaseModel], value: Any) -> Any:
    """One error, whatever the number of unknown fields: describing each takes thirty times as long as finding it."""
    if isinstance(value, dict) and not value.keys() <= _names(model):
        first = next(name for name in value if name not in _names(model))
        raise PydanticCustomError("extra_forbidden", "unknown field {name}", {"name": repr(first[:100])})
    return value


def refuse_unknown_fields(model: type[BaseModel]) -> BeforeValidator:
    """Refuse unknown fields in items of a list whose model is not a ``Body``."""
    return BeforeValidator(partial(_refuse_unknown, model))


class Fields(BaseModel):
    model_config = ConfigDict(extra="forbid")

    def given(self) -> dict[str, Any]:
        """The fields that the request contains."""
        return {name: getattr(self, name) for name in self.model_fields_set}


class Body(Fields):
    @model_validator(mode="before")
    @classmethod
    def _known(cls, value: Any) -> Any:
        return _refuse_unknown(cls, value)


def max_entries(most: int) -> BeforeValidator:
    """Limit the entries of a mapping before its values are validated; pydantic's own limit counts afterwards."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > most:
            raise PydanticCustomError("too_long", "has more than {most} entries", {"most": most})
        return value

    return BeforeValidator(check)


RetryPreset = Literal["patient", "exponential", "gentle", "hourly_cap"]


class RetryPolicy(Body):
    """How many times a job is attempted before it becomes a dead letter, and how long it waits in between."""

    max_attempts: int = Field(default=10, ge=1, le=101)
    max_crashes: int = Field(default=3, ge=0, le=100)
    backoff: RetryPreset | BackoffRule = "patient"

    def policy(self) -> Retry:
        backoff = Backoff(**self.backoff.given()) if isinstance(self.backoff, BackoffRule) else self.backoff
        return Retry(self.max_attempts, backoff, self.max_crashes)


class BackoffRule(Body):
    """Delays in seconds: ``base``, then ``factor`` times as long each time, up to ``cap``."""

    base: float = Field(default=1.0, ge=0, le=2_592_000)
    factor: float = Field(default=2.0, ge=1, le=1_000)
    cap: float = Field(default=300.0, ge=0, le=2_592_000)
    jitter: bool = True
    head: int = Field(default=0, ge=0, le=100)


RetryPolicy.model_rebuild()

_adapters: dict[type[BaseModel], TypeAdapter[Any]] = {}


def read(model: type[B], body: bytes) -> B:
    """Parse and validate a body in one step, for the routes with the highest request rates."""
    check_shape(body)
    if len(body) > MAX_DIGITS:
        check_numbers(body)
    adapter = _adapters.get(model) or _adapters.setdefault(model, TypeAdapter(model))
    try:
        value: B = adapter.validate_json(body)
        return value
    except ValidationError as error:
        if error.error_count() > MAX_ERRORS:
            many = f"more than {MAX_ERRORS} errors, of unknown fields perhaps"
            raise RequestValidationError([{"type": "too_many_errors", "loc": ("body",), "msg": many}]) from None
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in errors]) from None
