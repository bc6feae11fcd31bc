"""Command jobs (SC-14): a kind whose jobs run a program, with its exit code, log and artifacts on the attempt.

No shell, a small environment, nothing on stdin unless asked for. On timeout, cancel and shutdown the whole process
group gets SIGTERM and, after ``kill_after``, SIGKILL; when the attempt has ended, nothing of the group is left.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from holdfast import config
from holdfast.client import Client
from holdfast.connectors import argv
from holdfast.connectors.ends import program_outcome
from holdfast.engine.job import Claim
from holdfast.engine.outcome import Crashed, Failed
from holdfast.engine.payload import safe_text
from holdfast.engine.units import Duration, Size, in_bytes, seconds
from holdfast.errors import InvalidSetting
from holdfast.features.connectors import program_files, program_shim
from holdfast.kind import Kind
from holdfast.stores.flow import aside
from holdfast.worker.processes.child import Child, ChildDied, Recipe
from holdfast.worker.processes.pool import Children
from holdfast.worker.processes.protocol import Message
from holdfast.worker.shutdown import Ended
from holdfast.worker.slots import LAST_WORDS

INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
# A path may have bytes in it that are no text, and no store could hold.
PATH_LIMIT = 4_096
SHIM = Recipe((sys.executable, "-I", "-S", program_shim.__file__), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """How the program of a kind is run. ``of`` takes it as ``app.command`` does, and checks it."""

    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    inherit: tuple[str, ...] = ()
    stdin: Literal["none", "payload"] = "none"
    log_dir: Path | None = None
    log_limit: int = 10 * 1024 * 1024
    ok_exit_codes: frozenset[int] = frozenset({0})
    reject_exit_codes: frozenset[int] = frozenset()
    kill_after: float = 2.0

    @classmethod
    def of(
        cls,
        *,
        cwd: str | os.PathLike[str] | None,
        env: Mapping[str, str] | None,
        inherit: Sequence[str],
        stdin: Literal["none", "payload"],
        log_dir: str | os.PathLike[str] | None,
        log_limit: Size,
        ok_exit_codes: Sequence[int],
        reject_exit_codes: Sequence[int],
        kill_after: Duration,
    ) -> Program:
        if stdin not in ("none", "payload"):
            raise InvalidSetting(f"stdin is none or payload, not {stdin!r}", code="invalid_command")
        if set(ok_exit_codes) & set(reject_exit_codes):
            raise InvalidSetting("an exit code is either ok or rejected", code="invalid_command")
        return cls(
            cwd=None if cwd is None else os.fspath(cwd),
            env=dict(env or {}),
            inherit=tuple(inherit),
            stdin=stdin,
            log_dir=None if log_dir is None else Path(log_dir),
            log_limit=in_bytes(log_limit, "log limit"),
            ok_exit_codes=frozenset(ok_exit_codes),
            reject_exit_codes=frozenset(reject_exit_codes),
            kill_after=seconds(kill_after, "kill_after"),
        )

    def environment(self, claim: Claim, at: program_files.Desk) -> dict[str, str]:
        """A few variables that programs need, those that were asked for, those that were given, and the job's."""
        names = (*INHERITED, *self.inherit)
        return {
            "PATH": os.defpath,
            **{name: os.environ[name] for name in names if name in os.environ},
            **self.env,
            "HOLDFAST_JOB_ID": claim.id,
            "HOLDFAST_KIND": claim.kind,
            "HOLDFAST_TENANT": claim.tenant,
            "HOLDFAST_ATTEMPT": str(claim.attempt),
            "HOLDFAST_IDEMPOTENCY_KEY": f"{claim.tenant}:{claim.kind}:{claim.id}",
            "HOLDFAST_PAYLOAD": str(at.payload),
            "HOLDFAST_ARTIFACTS": str(at.artifacts),
        }


def command_caller(
    kind: Kind[..., Any], program: Program, timeout: float | None, client: Client, children: Children
) -> Callable[[Claim], Awaitable[str | None]]:
    async def call(claim: Claim) -> str | None:
        args, kwargs = kind.signature.unpack(claim.payload)
        line = argv.checked(kind.name, kind.function(*args, **kwargs))
        named = program.log_dir or config.log_directory()
        at = await aside(program_files.set_up, named or config.state_directory(), claim, may_make=named is None)
        order = {
            "argv": line,
            "cwd": program.cwd,
            "env": program.environment(claim, at),
            "stdin": str(at.payload) if program.stdin == "payload" else None,
            "log": str(at.log),
            "log_limit": program.log_limit,
        }
        try:
            answer = await _run(order, program, timeout, children)
            found = await aside(at.found)
        finally:
            await aside(at.clear)
        for each in found:
            about = {"size": each.size, "sha256": each.sha256}
            await client.arun(
                client.verbs.add_artifact(
                    claim.id, claim.lease, claim.attempt, each.name, each.ref, client.scope, about
                )
            )
        log = safe_text(str(at.log), PATH_LIMIT)
        raise Ended(program_outcome(program, answer, log, [each.name for each in found]))

    return call


async def _run(order: Message, program: Program, timeout: float | None, children: Children) -> Message:
    child = await children.start(SHIM)
    note = {"log": safe_text(order["log"], PATH_LIMIT)}
    try:
        async with asyncio.timeout(timeout):
            return await child.ask(order)
    except TimeoutError:
        last = await _stop(child, program.kill_after)
        message = f"the program was not done after {timeout} s, and was killed"
        raise Ended(Failed("timeout", message, note={**note, **last})) from None
    except asyncio.CancelledError as told:
        # Only of a job that was cancelled is nobody waiting for its end. Otherwise it is handed on in a moment, and
        # must not run twice.
        patient = told.args[:1] == ("cancelled",)
        await _stop(child, program.kill_after if patient else min(program.kill_after, 0.8 * LAST_WORDS))
        raise
    except ChildDied as died:
        raise Ended(Crashed("process_died", f"the shim of the program: {died.how}", note)) from None
    finally:
        children.drop(child)


async def _stop(child: Child, kill_after: float) -> Message:
    """Ask it to end, then end it; answers its exit code if it had one to give."""
    child.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(kill_after):
            answer = await child.answer()
    except (TimeoutError, ChildDied):
        return {}
    finally:
        child.kill()
        await child.gone(1.0)
    return {"exit_code": answer["exit_code"]} if "exit_code" in answer else {}
