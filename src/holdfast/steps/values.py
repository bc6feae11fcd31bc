"""The result of a step as JSON and back as its type; its error as data and back as an exception."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from holdfast.engine.payload import decode, refuse_reserved
from holdfast.engine.redaction import Redact
from holdfast.engine.settlement import MESSAGE_LIMIT
from holdfast.engine.steps import Step
from holdfast.errors import HoldfastError, InvalidSetting, StepFailed
from holdfast.steps.signature import Signature
from holdfast.stores.vault import EMPTY, Vault
from holdfast.telemetry.tracebacks import message_of


@dataclass(frozen=True, slots=True)
class AppEvent:
    """The event that ``ctx.wait_for_event`` returns."""

    id: str
    name: str
    data: dict[str, Any]
    sent_by: str
    sent_at: datetime

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> AppEvent:
        sent_at = datetime.fromisoformat(values["sent_at"])
        return cls(values["id"], values["name"], values["data"], values["sent_by"], sent_at)


_CACHE_SIZE: Final = 1024
_signatures: dict[object, Signature | None] = {}
_MISSING: Final = object()


def _signature(function: Callable[..., Any]) -> Signature | None:
    """The signature of a function, cached by its code object: a lambda or an inner function, which every attempt
    creates again, is inspected once, and the cache keeps no closure alive. A callable without a code object, a partial
    for example, is not cached, because it may hold anything."""
    code, annotations = getattr(function, "__code__", None), getattr(function, "__annotations__", {})
    if code is None:
        return _inspect(function)
    key = (code, function.__module__, annotations.get("return"))
    try:
        signature = _signatures.get(key, _MISSING)
    except TypeError:  # an annotation that cannot be hashed
        return _inspect(function)
    if signature is _MISSING:
        if len(_signatures) >= _CACHE_SIZE:
            _signatures.clear()
        signature = _signatures[key] = _inspect(function)
    return signature  # type: ignore[return-value]


def _inspect(function: Callable[..., Any]) -> Signature | None:
    try:
        return Signature(function, label_of(function))
    except (TypeError, ValueError):  # a builtin without a signature
        return None


@dataclass(frozen=True, slots=True)
class Value:
    """Packs and unpacks the results of one function. A step never returns the object itself, but what a later attempt
    will get: the value of its JSON, in the return type of the function."""

    name: str
    signature: Signature | None
    vault: Vault = EMPTY

    @classmethod
    def of(cls, name: str, function: Callable[..., Any], vault: Vault = EMPTY) -> Value:
        return cls(name, _signature(function), vault)

    def pack(self, value: Any) -> str | None:
        what = f"result of step {self.name}"
        if self.signature is not None:
            with self.vault.explained(what):
                text = self.signature.pack_result(value, limit=self.vault.part_limit)
        else:
            text = None if value is None else self.vault.encode_part(value, what)
        if text is not None:
            refuse_reserved(text, "result")
        return text

    def unpack(self, value: Any) -> Any:
        return value if self.signature is None else self.signature.unpack_result(value)

    def restore(self, text: str | None) -> Any:
        return None if text is None else self.unpack(decode(text))


def describe(error: BaseException, redact: Redact) -> dict[str, Any]:
    kind = type(error)
    if isinstance(error, HoldfastError):
        message, code = error.message, {"code": error.code}
    else:
        message, code = message_of(error), {}
    return {"type": f"{kind.__module__}.{kind.__qualname__}", "message": redact(message, MESSAGE_LIMIT), **code}


def recorded_error(step: Step) -> Exception:
    """The error of a step that failed in an earlier attempt, with its original type if that is loaded, so that the
    handler catches it as before. Nothing is imported for it, and its constructor is not called: it has its type and
    message, but no other attributes."""
    stored = step.error or {}
    message, name = str(stored.get("message") or ""), str(stored.get("type") or "")
    for kind in _loaded_errors():
        if f"{kind.__module__}.{kind.__qualname__}" == name:
            with contextlib.suppress(Exception):
                error = _revived(kind, message, stored.get("code"))
                error.add_note(f"step {step.name!r} failed in attempt {step.attempt}, and is not tried again")
                return error
    return StepFailed(f"step {step.name!r} failed in attempt {step.attempt}: {name}: {message}")


def _revived(kind: type[Exception], message: str, code: str | None) -> Exception:
    error = kind.__new__(kind, message)
    if isinstance(error, HoldfastError):
        HoldfastError.__init__(error, message, code=code)
        return error
    error.args = (message,)
    if message_of(error) != message:  # its __str__ uses attributes that are not there
        overrides = {
            "__str__": lambda _: message,
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
        }
        error = _revived(type(kind.__name__, (kind,), overrides), message, code)
    return error


def _loaded_errors() -> Iterator[type[Exception]]:
    pending: list[type[Exception]] = [Exception]
    seen = {Exception}
    while pending:
        kind = pending.pop()
        yield kind
        for subclass in kind.__subclasses__():
            if subclass not in seen:
                seen.add(subclass)
                pending.append(subclass)


def check_callable(name: str, function: object) -> None:
    if not callable(function):
        raise InvalidSetting(
            f"step {name!r} expects a function and its arguments, got {type(function).__name__}",
            code="not_callable",
            fix='Write ctx.step("charge", charge, invoice), without calling the function yourself.',
        )


def label_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", "step"))


def is_async(function: Callable[..., Any]) -> bool:
    """Whether to call it on the loop. A coroutine that another callable returns is awaited as well."""
    inner = getattr(function, "func", function)  # of a partial, or a kind
    return inspect.iscoroutinefunction(getattr(inner, "function", inner))
