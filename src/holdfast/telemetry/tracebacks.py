"""An exception as data: a stable code, the message, and a traceback that begins with the user's code.

All text is cut to length and redacted here, before it is stored or logged.
"""

from __future__ import annotations

import asyncio
import sysconfig
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType, TracebackType

from holdfast.engine.outcome import Failed
from holdfast.engine.redaction import Redact
from holdfast.engine.settlement import MESSAGE_LIMIT, TRACEBACK_LIMIT
from holdfast.errors import HoldfastError

FRAMES = 25
CHAIN = 10

# Holdfast's own frames at the start of every traceback; they do not help with a failed handler.
_PACKAGE = Path(__file__).parents[1]
_INTERNAL = tuple(
    str(path)
    for path in (
        Path(__file__),
        _PACKAGE / "worker",
        _PACKAGE / "app" / "handlers.py",
        _PACKAGE / "steps" / "signature.py",
        _PACKAGE / "testing",
        Path(asyncio.__file__).parent,
        Path(threading.__file__),
    )
)
# Code of libraries: failures are grouped by the location in the user's code that called it.
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_INSTALLED = ("/site-packages/", "/dist-packages/", "\\site-packages\\")
FRAME_LIMIT = 200
# Errors whose text depends on more than the message: on the names in their frames, on source text, on other errors.
_INSPECTED = (BaseExceptionGroup, SyntaxError, NameError, AttributeError, ImportError)
MOST_STACKS = 256
_STACKS: dict[tuple[tuple[int, int], ...], tuple[str, list[CodeType]]] = {}
"""With the code objects, so that their ids stay theirs."""


def failure(error: BaseException, redact: Redact, *, final: bool = False) -> Failed:
    code = str(error.code) if isinstance(error, HoldfastError) else type_name(error)
    message = redact(message_of(error), MESSAGE_LIMIT)
    return Failed(code, message or code, traceback_of(error, redact), final=final, frame=frame_of(error))


def type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def message_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # an error that cannot be printed is still a failure
        return ""


def traceback_of(error: BaseException, redact: Redact) -> str:
    """The traceback with those of its causes, each without the frames of Holdfast that called the handler."""
    try:
        return redact(_text_of(error), TRACEBACK_LIMIT)
    except Exception as trouble:  # a __str__, __cause__ or source file that cannot be read
        return redact(f"{type_name(error)} (its traceback could not be written: {type_name(trouble)})")


def _text_of(error: BaseException) -> str:
    alone = error.__cause__ is None and (error.__context__ is None or error.__suppress_context__)
    if not alone or isinstance(error, _INSPECTED):
        summary = _summary(error)
        for item in _chain(summary):
            _trim(item.stack)
        return "".join(summary.format())
    message = traceback.TracebackException(type(error), error, None, compact=True)
    return "".join((_stack_of(error), *message.format_exception_only()))


def _stack_of(error: BaseException) -> str:
    """The part of a traceback that says where. It is written once for each way to a failure, of which a program has
    few: that is most of the cost of a traceback."""
    places: list[tuple[CodeType, int]] = []
    trace = error.__traceback__
    while trace is not None:
        places.append((trace.tb_frame.f_code, trace.tb_lasti))
        trace = trace.tb_next
    places = places[-FRAMES:]
    key = tuple((id(code), at) for code, at in places)
    known = _STACKS.get(key)
    if known is None:
        stack = _summary(error).stack
        _trim(stack)
        lines = ["Traceback (most recent call last):\n", *stack.format()] if stack else []
        if len(_STACKS) >= MOST_STACKS:
            _STACKS.clear()
        known = _STACKS[key] = "".join(lines), [code for code, _ in places]
    return known[0]


def locations_of(error: BaseException) -> str:
    """The locations of a traceback and the type of the error, without messages: for a restricted job."""
    try:
        summary = _summary(error)
        parts = []
        for item in _chain(summary):
            _trim(item.stack)
            parts += [f"{type_name(error)}\n" if item is summary else "caused by\n"]
            parts += [f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}\n' for frame in item.stack]
        return "".join(parts)[:TRACEBACK_LIMIT]
    except Exception:  # a __cause__ that cannot be read
        return type_name(error)


def _summary(error: BaseException) -> traceback.TracebackException:
    return traceback.TracebackException(
        type(error), error, error.__traceback__, limit=-FRAMES, compact=True, max_group_width=10, max_group_depth=5
    )


def frame_of(error: BaseException) -> str | None:
    """The innermost location in the user's code, as ``module:function``; frames of libraries do not count.

    For a handler that is itself an installed library, its outermost location. None if no handler was called."""
    first = own = None
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith(_INTERNAL):
            name = getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")
            location = f"{trace.tb_frame.f_globals.get('__name__', '?')}:{name}"
            first = first or location
            if not _is_library(code.co_filename):
                own = location
        trace = trace.tb_next
    result = own or first
    return None if result is None else result[:FRAME_LIMIT]


def location_of(frame: FrameType | None) -> str | None:
    """The innermost location of a thread in the user's code; None if it runs none."""
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(_INTERNAL) and not _is_library(path):
            return f"{path}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return None


def _is_library(path: str) -> bool:
    prefixes = (str(_PACKAGE), "<frozen", *_LIBRARIES)
    return path.startswith(prefixes) or any(part in path for part in _INSTALLED)


def _chain(summary: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """The traceback and its causes, cut off after the tenth: a loop that fails again and again makes long chains."""
    pending = [(summary, 1)]
    while pending:
        item, number = pending.pop()
        yield item
        if number >= CHAIN:
            item.__cause__ = item.__context__ = None
        causes = (item.__cause__, item.__context__, *(item.exceptions or ()))
        pending += [(cause, number + 1) for cause in causes if cause is not None]


def _trim(stack: traceback.StackSummary) -> None:
    own = next((number for number, frame in enumerate(stack) if not frame.filename.startswith(_INTERNAL)), 0)
    del stack[:own]
