"""An exception as what is kept of it: a stable code, the message, and a traceback that begins with the user's code.

Everything is cut to length and redacted here, before a store or a log hears of it.
"""

from __future__ import annotations

import asyncio
import sysconfig
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType

from holdfast.engine.outcome import Failed
from holdfast.engine.redaction import Redact
from holdfast.engine.settlement import MESSAGE_LIMIT, TRACEBACK_LIMIT
from holdfast.errors import HoldfastError

FRAMES = 25
CHAIN = 10

# Where every traceback of ours begins; of no use to somebody whose handler failed.
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
# Nobody's own code: what a failure is told apart by is where theirs called these.
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_INSTALLED = ("/site-packages/", "/dist-packages/", "\\site-packages\\")
FRAME_LIMIT = 200


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
    except BaseException:  # an error that cannot even be printed is still a failure
        return ""


def traceback_of(error: BaseException, redact: Redact) -> str:
    """The traceback and those it was caused by, each without the frames of the machinery that called the handler."""
    try:
        told = traceback.TracebackException(
            type(error), error, error.__traceback__, limit=-FRAMES, compact=True, max_group_width=10, max_group_depth=5
        )
        for one in _chain(told):
            _trim(one.stack)
        return redact("".join(told.format()), TRACEBACK_LIMIT)
    except Exception as trouble:  # some __str__, __cause__ or source file that will not be read
        return redact(f"{type_name(error)} (its traceback could not be written: {type_name(trouble)})")


def places_of(error: BaseException) -> str:
    """Of a traceback only where it led through and the types of the errors: what may be told of a restricted job."""
    try:
        told = traceback.TracebackException(
            type(error), error, error.__traceback__, limit=-FRAMES, compact=True, max_group_width=10, max_group_depth=5
        )
        parts = []
        for one in _chain(told):
            _trim(one.stack)
            parts += [f"{type_name(error)}\n" if one is told else "led to by\n"]
            parts += [f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}\n' for frame in one.stack]
        return "".join(parts)[:TRACEBACK_LIMIT]
    except Exception:  # some __cause__ that will not be read
        return type_name(error)


def frame_of(error: BaseException) -> str | None:
    """Where in the user's own code it was raised, as ``module:function``; what raises an error for another is not it.

    Of a handler that is itself installed, where it begins; None for what never came to any handler."""
    first = own = None
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith(_INTERNAL):
            name = getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")
            place = f"{trace.tb_frame.f_globals.get('__name__', '?')}:{name}"
            first = first or place
            if not _is_library(code.co_filename):
                own = place
        trace = trace.tb_next
    found = own or first
    return None if found is None else found[:FRAME_LIMIT]


def place_of(frame: FrameType | None) -> str | None:
    """Where a thread is in the user's own code; None when it is in nothing of theirs."""
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(_INTERNAL) and not _is_library(path):
            return f"{path}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return None


def _is_library(path: str) -> bool:
    ours = (str(_PACKAGE), "<frozen", *_LIBRARIES)
    return path.startswith(ours) or any(part in path for part in _INSTALLED)


def _chain(told: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """It and what led to it, cut off behind the tenth: a loop that fails and fails makes long ones."""
    waiting = [(told, 1)]
    while waiting:
        one, number = waiting.pop()
        yield one
        if number >= CHAIN:
            one.__cause__ = one.__context__ = None
        before = (one.__cause__, one.__context__, *(one.exceptions or ()))
        waiting += [(each, number + 1) for each in before if each is not None]


def _trim(stack: traceback.StackSummary) -> None:
    own = next((number for number, frame in enumerate(stack) if not frame.filename.startswith(_INTERNAL)), 0)
    del stack[:own]
