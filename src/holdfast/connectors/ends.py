"""How a program's end becomes an outcome, in words that can be stored and shown."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.engine.outcome import Failed, Outcome, Succeeded
from holdfast.engine.payload import encode

if TYPE_CHECKING:
    from holdfast.connectors.command import Program

TAIL_LIMIT = 600
HIDDEN = "[hidden]"

_SECRET_NAME = re.compile(r"pass|secret|token|key|credential|dsn|url", re.IGNORECASE)
_USERINFO = re.compile(r"(?<=://)[^\s/@]+(?=@)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def program_outcome(program: Program, answer: dict[str, Any], log: str, artifacts: list[str]) -> Outcome:
    note: dict[str, Any] = {"log": log}
    if "not_started" in answer:
        return Failed("command_not_started", f"the program could not be started: {answer['not_started']}", note=note)
    status: int = answer["exit_code"]
    note["exit_code"] = status
    if answer["log_error"]:
        note["log_error"] = answer["log_error"]
    if status in program.ok_exit_codes:
        result: dict[str, Any] = {"exit_code": status}
        if artifacts:
            result["artifacts"] = artifacts
        return Succeeded(encode(result), note)
    said = tail(answer["stderr"], program.env)
    if status < 0:
        return Failed("killed_by_signal", _with(f"the program was killed by signal {_named(-status)}", said), note=note)
    final = status in program.reject_exit_codes
    return Failed("exit_code", _with(f"the program ended with exit code {status}", said), final=final, note=note)


def tail(text: str, env: Mapping[str, str]) -> str:
    """The end of what a program said: its last lines as one, without control characters and known secrets."""
    for name, value in env.items():
        if len(value) > 3 and _SECRET_NAME.search(name):
            text = text.replace(value, HIDDEN)
    text = _USERINFO.sub(HIDDEN, text)
    lines = [_CONTROL.sub(" ", line).strip() for line in text.splitlines()]
    return " | ".join(line for line in lines if line)[-TAIL_LIMIT:]


def _with(what: str, said: str) -> str:
    return f"{what}: {said}" if said else what


def _named(number: int) -> str:
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)
