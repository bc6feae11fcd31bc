"""What a step returned, as JSON and back as its type; what it raised, as data and back as an error."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from holdfast.engine.payload import decode, own
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
    def of(cls, told: Mapping[str, Any]) -> AppEvent:
        sent_at = datetime.fromisoformat(told["sent_at"])
        return cls(told["id"], told["name"], told["data"], told["sent_by"], sent_at)


_KNOWN: Final = 1024
_signatures: dict[object, Signature | None] = {}
_NEW: Final = object()


def _signature(function: Callable[..., Any]) -> Signature | None:
    """By its code: what each attempt makes anew (a lambda, a function inside the handler) is looked at once, and what
    it holds on to is not kept here. What has no code of its own may be a partial or any object, and hold anything."""
    code, said = getattr(function, "__code__", None), getattr(function, "__annotations__", {})
    if code is None:
        return _look_at(function)
    key = (code, function.__module__, said.get("return"))
    try:
        found = _signatures.get(key, _NEW)
    except TypeError:  # it cannot be hashed
        return _look_at(function)
    if found is _NEW:
        if len(_signatures) >= _KNOWN:
            _signatures.clear()
        found = _signatures[key] = _look_at(function)
    return found  # type: ignore[return-value]


def _look_at(function: Callable[..., Any]) -> Signature | None:
    try:
        return Signature(function, label_of(function))
    except (TypeError, ValueError):  # a builtin that does not say what it takes
        return None


@dataclass(frozen=True, slots=True)
class Value:
    """How the results of one function are kept. What comes back is what a later attempt will see: never the object
    itself, but what its JSON says, in the type the function promises."""

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
            own(text, "result")
        return text

    def unpack(self, value: Any) -> Any:
        return value if self.signature is None else self.signature.unpack_result(value)

    def again(self, text: str | None) -> Any:
        return None if text is None else self.unpack(decode(text))


def describe(error: BaseException, redact: Redact) -> dict[str, Any]:
    kind = type(error)
    words, code = (error.message, {"code": error.code}) if isinstance(error, HoldfastError) else (message_of(error), {})
    return {"type": f"{kind.__module__}.{kind.__qualname__}", "message": redact(words, MESSAGE_LIMIT), **code}


def remembered(step: Step) -> Exception:
    """The error of a step that failed in an earlier attempt: of its own type, if that is loaded here, so that the
    handler catches it as it did then. Nothing is imported for it, and its constructor is not run: only what it said and
    its type come back, not what else it held."""
    said = step.error or {}
    message, name = str(said.get("message") or ""), str(said.get("type") or "")
    for kind in _errors():
        if f"{kind.__module__}.{kind.__qualname__}" == name:
            with contextlib.suppress(Exception):
                error = _revived(kind, message, said.get("code"))
                error.add_note(f"step {step.name!r} failed in attempt {step.attempt}, and is not tried again")
                return error
    return StepFailed(f"step {step.name!r} failed in attempt {step.attempt}: {name}: {message}")


def _revived(kind: type[Exception], message: str, code: str | None) -> Exception:
    error = kind.__new__(kind, message)
    if isinstance(error, HoldfastError):
        HoldfastError.__init__(error, message, code=code)
        return error
    error.args = (message,)
    if message_of(error) != message:  # it makes its words of what it does not have any more
        own = {"__str__": lambda _: message, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
        error = _revived(type(kind.__name__, (kind,), own), message, code)
    return error


def _errors() -> Iterator[type[Exception]]:
    found: list[type[Exception]] = [Exception]
    seen = {Exception}
    while found:
        kind = found.pop()
        yield kind
        for heir in kind.__subclasses__():
            if heir not in seen:
                seen.add(heir)
                found.append(heir)


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
    """Whether to call it on the loop. What turns out to be a coroutine only when it is called is awaited as well."""
    inner = getattr(function, "func", function)  # of a partial, or a kind
    return inspect.iscoroutinefunction(getattr(inner, "function", inner))
