"""What a step returned, as JSON and back as its type; what it raised, as data and back as an error."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from weakref import WeakKeyDictionary

from holdfast.arguments import Signature
from holdfast.domain.errors import HoldfastError, InvalidSetting, StepFailed
from holdfast.domain.payload import decode, encode
from holdfast.domain.redaction import Redact
from holdfast.domain.settlement import MESSAGE_LIMIT
from holdfast.domain.steps import VALUE_LIMIT, Step
from holdfast.runtime.failures import message_of


@dataclass(frozen=True, slots=True)
class AppEvent:
    """What ``ctx.wait_for_event`` answers: the event as it was sent."""

    id: str
    name: str
    data: dict[str, Any]
    sent_by: str
    sent_at: datetime

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> AppEvent:
        sent_at = datetime.fromisoformat(told["sent_at"])
        return cls(told["id"], told["name"], told["data"], told["sent_by"], sent_at)


# Of functions that are there for good. Most steps are closures of one attempt: what they hold must go with it.
_signatures: WeakKeyDictionary[Callable[..., Any], Signature | None] = WeakKeyDictionary()


def _signature(function: Callable[..., Any]) -> Signature | None:
    function = getattr(function, "__func__", function)  # of a method, which is made anew each time it is named
    with contextlib.suppress(KeyError, TypeError):
        return _signatures[function]
    try:
        made = Signature(function, label_of(function))
    except (TypeError, ValueError):  # a builtin that does not say what it takes
        made = None
    with contextlib.suppress(TypeError):  # it cannot be hashed, or not be held weakly
        _signatures[function] = made
    return made


@dataclass(frozen=True, slots=True)
class Value:
    """How the results of one function are kept. What comes back is what a later attempt will see: never the object
    itself, but what its JSON says, in the type the function promises."""

    name: str
    signature: Signature | None

    @classmethod
    def of(cls, name: str, function: Callable[..., Any]) -> Value:
        return cls(name, _signature(function))

    def pack(self, value: Any) -> str | None:
        if self.signature is not None:
            return self.signature.pack_result(value, limit=VALUE_LIMIT)
        return None if value is None else encode(value, limit=VALUE_LIMIT, what=f"result of step {self.name}")

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
            f"step {name!r} takes a function and its arguments, not {type(function).__name__}",
            code="not_callable",
            fix='ctx.step("charge", charge, invoice), without calling it yourself.',
        )


def label_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", "step"))


def is_async(function: Callable[..., Any]) -> bool:
    """Whether to call it on the loop. What turns out to be a coroutine only when it is called is awaited as well."""
    inner = getattr(function, "func", function)  # of a partial, or a kind
    return inspect.iscoroutinefunction(getattr(inner, "function", inner))
