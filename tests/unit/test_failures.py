"""The failure recorded for an exception: code, message, and a traceback that starts in the user's code."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable

import pytest

from holdfast.engine.job import Claim
from holdfast.engine.outcome import Failed
from holdfast.engine.redaction import Redactor
from holdfast.telemetry.tracebacks import CHAIN, FRAMES, failure, traceback_of
from holdfast.worker.executor import Handler, execute
from holdfast.worker.shutdown import Stop
from holdfast.worker.threads import Threads
from tests.unit.test_settlement import CLAIM

pytestmark = pytest.mark.req("DP-22", "SC-5")

PLAIN = Redactor()


def caught(function: object) -> BaseException:
    with pytest.raises(BaseException) as error:
        function()  # type: ignore[operator]
    return error.value


async def test_traceback_omits_frames_of_worker() -> None:
    def handler() -> str:
        raise ValueError("mine")

    def call(claim: Claim, stop: Stop) -> Awaitable[str]:
        return Threads().run("k", handler)

    outcome = await execute(Handler("k", call), CLAIM)
    assert isinstance(outcome, Failed)
    trace = str(outcome.traceback)
    assert "in handler" in trace
    for internal in ("executor.py", "threads.py", "asyncio"):
        assert internal not in trace


def test_traceback_of_internal_error_keeps_its_frames() -> None:
    error = caught(lambda: Stop(timeout="x"))  # type: ignore[arg-type]
    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next and error.__traceback__.tb_next.tb_next
    assert "shutdown.py" in traceback_of(error, PLAIN)


def test_exception_chains_are_recorded_up_to_a_limit() -> None:
    def chain(left: int) -> None:
        try:
            if left:
                chain(left - 1)
            raise KeyError(f"number {left}")
        except Exception as error:
            raise ValueError(f"level {left}") from error

    short, long = (traceback_of(caught(lambda levels=levels: chain(levels)), PLAIN) for levels in (1, 40))
    assert "number 0" in short
    assert "direct cause" in short
    assert long.count("Traceback (most recent call last)") == CHAIN
    assert "level 40" in long


def test_traceback_depth_is_limited() -> None:
    def down(left: int) -> None:
        if left:
            down(left - 1)
        raise ValueError("deep")

    error = caught(lambda: down(200))
    assert traceback_of(error, PLAIN).count("in down") <= FRAMES
    assert "raise ValueError" in traceback_of(error, PLAIN)


def test_exception_groups_are_recorded() -> None:
    def group() -> None:
        raise ExceptionGroup("several", [ValueError("a"), TypeError("b")])

    trace = traceback_of(caught(group), PLAIN)
    assert "ValueError: a" in trace
    assert "TypeError: b" in trace


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_exception_that_cannot_be_printed_is_recorded_by_its_code() -> None:
    recorded = failure(Unprintable(), PLAIN)
    assert recorded.code.endswith("Unprintable")
    assert recorded.message == recorded.code
    assert "Unprintable" in str(recorded.traceback)


def test_message_and_traceback_are_redacted() -> None:
    def fails() -> None:
        try:
            raise KeyError("token=first-secret")
        except KeyError:
            raise ValueError("second-secret failed") from None

    recorded = failure(caught(fails), Redactor(values=["second-secret"]))
    assert "secret" not in f"{recorded.message}{recorded.traceback}".replace("first-secret", "")
    assert recorded.message == "[redacted] failed"


def test_traceback_is_that_of_python_each_time() -> None:
    """The part that says where is written once for each way to a failure."""

    def fail(way: int, text: str) -> None:
        if way == 0:
            raise ValueError(text)
        if way == 1:
            raise RuntimeError(text) from None
        try:
            fail(0, "cause")
        except ValueError as error:
            if way == 2:
                raise KeyError(text) from error
            error.add_note(text)
            raise

    for text in ("one", "two\nlines", "", "one"):
        for way in (0, 1, 2, 3):
            error = caught(lambda way=way, text=text: fail(way, text))
            assert error.__traceback__ is not None
            expected = "".join(traceback.format_exception(error))
            assert traceback_of(error, PLAIN) == expected, (way, text)
