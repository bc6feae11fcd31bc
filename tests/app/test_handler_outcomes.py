"""Whatever a handler raises or returns, its job ends with a storable error code and the worker continues."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from holdfast import App, Handle, Retry, State
from holdfast.app.internals import session_of
from holdfast.engine.job import Attempt
from tests.support.workers import work_off

ONCE = Retry(max_attempts=1)


def attempts(app: App, handle: Handle[Any]) -> list[Attempt]:
    return session_of(app).run(session_of(app).store.jobs.attempts(handle.id, handle.tenant))


class Strange(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


class Base(BaseException):
    pass


def stop_iteration() -> None:
    raise StopIteration(3)


async def cancelled() -> None:
    raise asyncio.CancelledError


async def awaits_something_cancelled() -> None:
    task = asyncio.create_task(asyncio.sleep(60))
    await asyncio.sleep(0)
    task.cancel()
    await task


def exits() -> None:
    sys.exit(3)


async def aexits() -> None:
    sys.exit(3)


def base() -> None:
    raise Base("out")


def strange() -> None:
    raise Strange


def recurses() -> None:
    recurses()


def group() -> None:
    raise ExceptionGroup("several", [ValueError("a"), TypeError("b")])


def timeout_of_its_own() -> None:
    raise TimeoutError("raised by the handler")


ENDS: dict[str, tuple[Any, str]] = {
    "SystemExit": (exits, "SystemExit"),
    "SystemExit in async code": (aexits, "SystemExit"),
    "BaseException": (base, "tests.app.test_handler_outcomes.Base"),
    "an error that cannot be printed": (strange, "tests.app.test_handler_outcomes.Strange"),
    "recursion": (recurses, "RecursionError"),
    "a group": (group, "ExceptionGroup"),
    "StopIteration out of a thread": (stop_iteration, "RuntimeError"),
    "its own CancelledError": (cancelled, "asyncio.exceptions.CancelledError"),
    "a task it awaited was cancelled": (awaits_something_cancelled, "asyncio.exceptions.CancelledError"),
    "its own TimeoutError": (timeout_of_its_own, "TimeoutError"),
}


@pytest.mark.req("DP-22", "SC-19")
@pytest.mark.parametrize("name", ENDS)
def test_handler_exception_ends_its_job_and_not_the_worker(app: App, name: str) -> None:
    handler, code = ENDS[name]
    app.job("odd", retry=ONCE)(handler)

    @app.job()
    def fine() -> int:
        return 3

    handle, other = app.enqueue("odd"), fine.enqueue()
    work_off(app)
    job = handle.wait(timeout=5)
    assert (job.state, job.attempt) == (State.DEAD_LETTER, 1)
    assert job.error_code is not None
    assert job.error_code.endswith(code.rpartition(".")[2])
    assert job.error_message
    assert other.result(timeout=5) == 3


HOSTILE = {
    "nul": "a\x00b",
    "surrogate": "a\ud800b",
    "huge": "x" * 3_000_000,
    "control": "\x1b[2J\r\n\x7f",
    "markup": "<script>[bold]{0}%s",
    "empty": "",
}


@pytest.mark.req("DP-22")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_error_messages_are_stored_as_far_as_possible(app: App, name: str) -> None:
    text = HOSTILE[name]

    @app.job(retry=ONCE)
    def fails() -> None:
        raise ValueError(text)

    handle = fails.enqueue()
    work_off(app)
    job = handle.wait(timeout=5)
    assert job.error_code == "ValueError"
    message = str(job.error_message)
    assert len(message) <= 2_000
    assert message[:1] == (text[:1] or "V")
    assert "\x00" not in message
    assert "\ud800" not in message
    (attempt,) = attempts(app, handle)
    assert attempt.traceback is not None
    assert len(attempt.traceback) <= 16_000
    assert handle.history()[-1].meta["error_message"] == message
    assert name != "huge" or "characters cut" in message


@pytest.mark.req("DP-22")
@pytest.mark.parametrize(
    ("value", "code"),
    [
        (object(), "payload_not_json"),
        (float("nan"), "payload_not_finite"),
        ("\x00", "payload_bad_text"),
        ("x" * 1_048_577, "payload_too_large"),
        ({1: 2}, "payload_bad_key"),
    ],
)
def test_result_that_cannot_be_stored_dead_letters_the_job_at_once(app: App, value: Any, code: str) -> None:
    """The work was done; repeating it would not help and might do harm."""
    calls: list[int] = []

    @app.job()
    def returns() -> Any:
        calls.append(1)
        return value

    handle = returns.enqueue()
    work_off(app)
    job = handle.wait(timeout=5)
    assert (job.state, job.error_code, len(calls)) == (State.DEAD_LETTER, code, 1)
