"""A handler's arguments as a JSON object, and back; its result likewise.

With pydantic installed, values are checked against the annotations when they are enqueued and rebuilt
from JSON when the handler runs, so dataclasses, models and datetimes work. Without it, arguments are
bound to the signature and must be JSON as they are.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cache, lru_cache
from typing import Any, Literal

from holdfast.engine.bound_results import ResultOf
from holdfast.engine.json_schema import misfit
from holdfast.engine.payload import decode, encode
from holdfast.errors import InvalidArguments, InvalidPayload

try:
    from pydantic import PydanticUserError, TypeAdapter, ValidationError
    from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation
except ImportError:  # the extra is optional
    TypeAdapter = None  # type: ignore[assignment,misc]

REPLACED = "\ufffd"
_PLAIN = (int, str, bool, float)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Signature:
    """Packs and unpacks the arguments and the result of one handler. The first ``skip`` parameters (the context) are
    not arguments. Without ``answers`` the return value of the function is not the result of the job."""

    def __init__(self, function: Callable[..., Any], kind: str, *, skip: int = 0, answers: bool = True) -> None:
        self._kind = kind
        parameters = list(inspect.signature(function).parameters.values())[skip:]
        self._signature = inspect.Signature(parameters)
        hints = _hints(function)
        if not answers:
            hints.pop("return", None)
        self._adapters = {
            parameter.name: adapter
            for parameter in parameters
            if parameter.kind not in _VARIADIC
            and (adapter := _adapter(hints.get(parameter.name, parameter.annotation))) is not None
        }
        self._result = _adapter(hints.get("return", inspect.Signature.empty))
        self._exact_result = hints.get("return") if hints.get("return") in _PLAIN else None
        # Fast path: most calls pass each parameter once, and most values have exactly the annotated type. Then there is
        # nothing to bind, check or convert.
        self._names = tuple(parameter.name for parameter in parameters)
        self._all = frozenset(self._names)
        self._by_name = all(parameter.kind in _BY_NAME for parameter in parameters)
        self._in_order = all(parameter.kind is _BY_NAME[0] for parameter in parameters)
        self._exact = {name: hints[name] for name in self._adapters if hints.get(name) in _PLAIN}
        self._typed = [(name, self._exact.get(name), adapter) for name, adapter in self._adapters.items()]
        self._what = f"payload of {kind}"
        # One object for all jobs: a bound method for each is one more for the garbage collector (docs/adr/0025).
        self.unpack_result = self._unpack_result

    @property
    def names(self) -> tuple[str, ...]:
        return self._names

    def pack(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, limit: int) -> str:
        """The payload for this call, or ``InvalidArguments`` with the name of the wrong argument."""
        values = self._bound(args, kwargs)
        for name, adapter in self._adapters.items():
            if name in values and type(values[name]) is not self._exact.get(name):
                if isinstance(values[name], ResultOf):
                    self._check_source(name, adapter, values[name])
                    continue  # the value itself is checked when the job runs and the result is known
                values[name] = _dumped(adapter, self._checked(name, adapter, values[name]))
        text = encode(values, limit=limit, what=self._what)
        if REPLACED in text:
            _refuse_lone_surrogates(self._bound(args, kwargs), self._what)
        return text

    def _bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if isinstance(kwargs, dict):  # with `app.enqueue` it may be any mapping
            if not kwargs and self._in_order and len(args) == len(self._names):
                return dict(zip(self._names, args, strict=True))
            if not args and self._by_name and kwargs.keys() == self._all:
                return dict(kwargs)
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise self._misfit(error, args, kwargs) from None

    def _misfit(self, error: TypeError, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> InvalidArguments:
        """The error for arguments that do not fit. Unknown names come first: ``bind`` reports a misspelled argument as
        a missing one."""
        parameters = self._signature.parameters
        unknown = [name for name in kwargs if name not in parameters]
        if not unknown or any(parameter.kind is _VARIADIC[1] for parameter in parameters.values()):
            return InvalidArguments(f"{self._kind}: {error}")
        rest = {name: value for name, value in kwargs.items() if name in parameters}
        also = ""
        try:
            self._signature.bind(*args, **rest)
        except TypeError as other:
            also = f"; {other}"
        shown = [str(name)[:60] for name in unknown[:5]]
        near = [match for name in shown for match in get_close_matches(name, parameters, 1)]
        what = "an unexpected keyword argument" if len(unknown) == 1 else "unexpected keyword arguments"
        return InvalidArguments(
            f"{self._kind}: got {what} {', '.join(map(repr, shown))}{', …' if unknown[5:] else ''}{also}",
            fix=" ".join(f"Did you mean {name}?" for name in dict.fromkeys(near)) or None,
        )

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Refuse arguments that the function cannot have."""
        self._check_types(self._bound(tuple(args), kwargs))

    def check_some(self, values: Mapping[str, Any]) -> None:
        """Refuse arguments that no call could have. Missing arguments are accepted: they may be given later."""
        try:
            self._signature.bind_partial(**values)
        except TypeError as error:
            raise InvalidArguments(f"{self._kind}: {error}") from None
        self._check_types(values)

    def _check_types(self, values: Mapping[str, Any]) -> None:
        for name, adapter in self._adapters.items():
            if name in values and type(values[name]) is not self._exact.get(name):
                self._checked(name, adapter, values[name])

    def dump(self, name: str, value: Any) -> Any:
        """One argument as it is stored in a payload."""
        adapter = self._adapters.get(name)
        return value if adapter is None else _dumped(adapter, value)

    def unpack(self, payload: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a stored payload, which another release may have written."""
        values = decode(payload)
        if not isinstance(values, dict):
            raise InvalidArguments(f"{self._kind}: the payload must be an object of arguments")
        if self._by_name and values.keys() == self._all:
            arguments: dict[str, Any] = values
            for name, exact, adapter in self._typed:
                if type(arguments[name]) is not exact:
                    arguments[name] = self._rebuilt(name, adapter, arguments[name])
            return (), arguments
        unknown = values.keys() - self._signature.parameters.keys()
        if unknown:
            raise InvalidArguments(f"{self._kind}: unexpected arguments {', '.join(sorted(unknown))}")
        bound = inspect.BoundArguments(self._signature, {})
        for name, parameter in self._signature.parameters.items():
            if name in values:
                value: Any = values[name]
                adapter = self._adapters.get(name)
                bound.arguments[name] = value if adapter is None else self._rebuilt(name, adapter, value)
            elif parameter.default is inspect.Parameter.empty and parameter.kind not in _VARIADIC:
                raise InvalidArguments(f"{self._kind}: missing a required argument: {name!r}")
            elif parameter.default is not inspect.Parameter.empty:
                bound.arguments[name] = parameter.default
        return bound.args, bound.kwargs

    def pack_result(self, value: Any, *, limit: int) -> str | None:
        if value is None:
            return None
        given, what = value, f"result of {self._kind}"
        if self._result is not None and type(value) is not self._exact_result:
            value = _dumped(self._result, value)
        text = encode(value, limit=limit, what=what)
        if REPLACED in text:
            _refuse_lone_surrogates(given, what)
        return text

    def _unpack_result(self, value: Any) -> Any:
        if self._result is None or value is None or type(value) is self._exact_result:
            return value
        try:
            return _from_json(self._result, value)
        except ValidationError as error:
            # Another release of the handler may have written it.
            message = _first(error)["msg"]
            raise InvalidPayload(
                f"the stored result of {self._kind} does not fit its return type: {message}", code="invalid_result"
            ) from None

    def result_schema(self) -> Mapping[str, Any]:
        """The JSON schema of the result; empty if it is unknown."""
        return _schema(self._result, "serialization")

    def _check_source(self, name: str, adapter: Any, given: ResultOf) -> None:
        """Refuse the result of a job whose type cannot fit the argument: no run of the plan could succeed."""
        schema = _schema(adapter, "validation")
        if found := misfit(schema, given.schema, schema, given.schema):
            raise InvalidArguments(
                f"{self._kind}: {name} expects {found[0]}, and the result of {given.label} is {found[1]}",
                code="result_mismatch",
                fix="Change one of the two annotations, or put a job between them that converts the value.",
            )

    def _rebuilt(self, name: str, adapter: Any, value: Any) -> Any:
        try:
            return _from_json(adapter, value)
        except ValidationError:
            return self._checked(name, adapter, value)  # for its message

    def _checked(self, name: str, adapter: Any, value: Any) -> Any:
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            first = _first(error)
            where = ".".join([name, *(str(part) for part in first["loc"])])
            passed = first["input"]  # never shown: it may be secret
            got = "" if first["type"] == "missing" else f", got {type(passed).__name__}"
            fix = None
            if name in self._exact and passed is None:
                fix = "If it is an id that the database assigns, flush the session first."
            elif name in self._exact and type(passed).__module__ != "builtins":
                fix = f"Pass the id of the {type(passed).__name__}, not the object."
            raise InvalidArguments(f"{self._kind}: {where}: {first['msg']}{got}", fix=fix) from None


class CheckedSignature(Signature):
    """A signature that also calls ``check`` with the arguments, before they are stored."""

    def __init__(
        self, function: Callable[..., Any], kind: str, check: Callable[[Mapping[str, Any]], None], *, skip: int = 0
    ) -> None:
        super().__init__(function, kind, skip=skip)
        self._check = check

    def pack(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, limit: int) -> str:
        text = super().pack(args, kwargs, limit=limit)
        self._check(self._bound(args, kwargs))
        return text


@lru_cache(1000)
def _schema(adapter: Any, mode: Literal["validation", "serialization"]) -> Mapping[str, Any]:
    if adapter is None:
        return {}
    with suppress(PydanticUserError):  # a type without a schema
        schema: Mapping[str, Any] = adapter.json_schema(mode=mode, schema_generator=_decimal_as_number())
        return schema
    return {}


@cache
def _decimal_as_number() -> Any:
    """Results contain a ``Decimal`` as text, which an argument that is a number accepts."""
    from pydantic.json_schema import GenerateJsonSchema

    class Schemas(GenerateJsonSchema):
        def decimal_schema(self, schema: Any) -> Any:
            return {"anyOf": [{"type": "number"}, {"type": "string"}]}

    return Schemas


def result_schema(decode: object) -> Mapping[str, Any]:
    """The JSON schema of a prepared job's result, from the function that decodes it; empty if it is unknown."""
    signature = getattr(decode, "__self__", None)
    return signature.result_schema() if isinstance(signature, Signature) else {}


def _dumped(adapter: Any, value: Any) -> Any:
    """The value as JSON; as plain values or unchanged if pydantic cannot dump it, for ``encode`` to refuse."""
    for mode in ("json", "python"):
        with suppress(PydanticUserError, ValueError, RecursionError):  # too deep, circular, or text that is not UTF-8
            return adapter.dump_python(value, mode=mode, warnings=False)
    return value


def _refuse_lone_surrogates(value: Any, what: str) -> None:
    """Pydantic replaces lone surrogates in keys of a ``dict[str, …]``: two keys could become one."""
    try:
        json.dumps(value, ensure_ascii=False, skipkeys=True, default=_parts).encode()
    except UnicodeEncodeError:
        message = f"{what}: a key has a lone surrogate, which cannot be stored"
        raise InvalidPayload(message, code="payload_bad_text") from None
    except (ValueError, RecursionError):  # encoded already: only a type that describes itself badly
        return


def _parts(value: object) -> Any:
    return vars(value) if hasattr(value, "__dict__") else str(value)


def _from_json(adapter: Any, value: Any) -> Any:
    """A stored value as its type. Strict types accept text for a datetime and the like from JSON only."""
    try:
        return adapter.validate_python(value)
    except ValidationError:
        return adapter.validate_json(encode(value))


def adapter_for(annotation: Any) -> Any | None:
    """The pydantic adapter of a type; None without pydantic, or for a type that it does not support."""
    return _adapter(annotation)


def _first(error: ValidationError) -> Any:
    return error.errors(include_url=False, include_context=False)[0]


def rebuilt(annotation: Any, value: Any, what: str) -> Any:
    """A value from JSON as its type, or ``InvalidPayload``."""
    adapter = _adapter(annotation)
    if adapter is None:
        return value
    try:
        return _from_json(adapter, value)
    except ValidationError as error:
        first = _first(error)
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidPayload(f"{what} does not fit: {where}: {first['msg']}", code="form_invalid") from None


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:  # an annotation that cannot be resolved here: nothing is checked
        return {}


def _adapter(annotation: Any) -> Any | None:
    if TypeAdapter is None or annotation in (inspect.Parameter.empty, Any, None, type(None)):
        return None
    if isinstance(annotation, str):
        return None
    try:
        return TypeAdapter(annotation)
    except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError):
        return None
