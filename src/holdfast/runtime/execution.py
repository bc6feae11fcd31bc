"""Run one handler and say how it ended, as data. Nothing a handler does gets past here as an exception."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from holdfast.domain.errors import HoldfastError, InvalidArguments, InvalidPayload
from holdfast.domain.job import Claim
from holdfast.domain.outcome import Failed, Outcome, Succeeded
from holdfast.runtime.ending import Ended

FRAMES = 25


@dataclass(frozen=True, slots=True)
class Handler:
    """``call`` answers the result as JSON text. The timeout is cooperative: a thread cannot be stopped."""

    kind: str
    call: Callable[[Claim], Awaitable[str | None]]
    timeout: float | None = None


async def execute(handler: Handler, claim: Claim) -> Outcome:
    limit = asyncio.timeout(handler.timeout)
    try:
        async with limit:
            return Succeeded(await handler.call(claim))
    except Ended as end:
        return end.outcome
    except TimeoutError as error:
        if limit.expired():
            return Failed("timeout", f"the handler was not done after {handler.timeout} s")
        return failure(error)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # the worker is being stopped: it decides what becomes of the job
        return failure(error)  # the handler's own doing: something it awaited was cancelled
    except (InvalidArguments, InvalidPayload) as error:
        # The same payload will not fit next time either.
        return Failed(error.code, error.message, final=True)
    except Exception as error:
        return failure(error)
    except BaseException as error:
        # SystemExit and the like end a handler, not the worker.
        if isinstance(error, KeyboardInterrupt):
            raise
        return failure(error)


def failure(error: BaseException) -> Failed:
    """A stable code (the error's own, or the name of its type), the message, and where it came from."""
    code = error.code if isinstance(error, HoldfastError) else type_name(error)
    lines = traceback.format_exception(type(error), error, error.__traceback__, limit=-FRAMES)
    return Failed(code, _message(error) or code, "".join(lines))


def type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an error that cannot even be printed is still a failure
        return ""
