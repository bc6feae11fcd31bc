"""``app.command``: kinds whose jobs run a program, with its exit code, log and artifacts on the attempt.

There is no shell, a small environment, and an empty stdin by default. On timeout, cancellation and shutdown the whole
process group gets SIGTERM and, after ``kill_after``, SIGKILL. When the attempt has ended, no process of the group is
left.

A command line is a template: ``["convert", "{source}", "-resize", "{width}x", "{target}"]``. A value fills part of one
element and cannot become two elements. It could still pass for an option (``--output=…``), so text that begins with a
dash is refused at the start of an element, unless the template has a ``--`` before it. The program itself never comes
from a payload.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Formatter
from typing import Any, Literal, TypedDict

from holdfast import config
from holdfast.engine.hints import check_options
from holdfast.engine.job import DEFAULT_RETRY, Claim
from holdfast.engine.outcome import Crashed, Failed, Outcome, Succeeded
from holdfast.engine.payload import encode
from holdfast.engine.retry import Retry, as_policy
from holdfast.engine.units import Duration, Size, in_bytes, seconds
from holdfast.errors import HoldfastError, InvalidArguments, InvalidSetting
from holdfast.features.attempts.model import LogPart
from holdfast.features.connectors import program_files, program_shim
from holdfast.kind import Kind, Options
from holdfast.stores.flow import in_thread
from holdfast.stores.session import Session
from holdfast.worker.processes.child import Child, ChildDied, Recipe
from holdfast.worker.processes.pool import Children
from holdfast.worker.processes.protocol import Message
from holdfast.worker.shutdown import Ended
from holdfast.worker.slots import STOP_TIMEOUT

log = logging.getLogger("holdfast.worker")

Argument = str | int | float
Part = tuple[str, str | None]


def _line_builder(
    kind: str, template: Sequence[str], fields: Mapping[str, Any] | None = None
) -> Callable[..., list[str]]:
    """A function from the payload's fields to the command line. Its signature has the fields and their types."""
    if isinstance(template, str) or not template:
        raise _invalid(kind, "a command is a list: the program, then its arguments")
    parts = [_parse_element(kind, element) for element in template]
    names = list(dict.fromkeys(name for element in parts for _, name in element if name is not None))
    if any(name is not None for _, name in parts[0]):
        raise _invalid(kind, "the program itself cannot come from a payload")
    types = dict.fromkeys(names, Argument) | dict(fields or {})
    if types.keys() != set(names):
        raise _invalid(kind, f"no element has the field {', '.join(sorted(types.keys() - set(names)))}")

    def build(**values: Any) -> list[str]:
        line, guarded = [], True
        for element in parts:
            line.append(_fill_element(kind, element, values, guarded))
            guarded = guarded and line[-1] != "--"
        return line

    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=types[name]) for name in names]
    build.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    build.__annotations__ = types
    build.__name__ = kind
    return build


def _checked_line(kind: str, argv: object) -> list[str]:
    """Check a command line that a function of the application has returned."""
    if isinstance(argv, str) or not isinstance(argv, Sequence) or not argv:
        raise InvalidArguments(f"{kind}: a command line must be a list of text")
    for element in argv:
        if not isinstance(element, str) or "\0" in element:
            raise InvalidArguments(f"{kind}: an element of the command line is not text that a program accepts")
    return list(argv)


def _parse_element(kind: str, element: object) -> list[Part]:
    if not isinstance(element, str):
        raise _invalid(kind, "every element of a command must be text")
    try:
        fields = list(Formatter().parse(element))
    except ValueError as error:
        raise _invalid(kind, f"{element!r}: {error}") from None
    parts = []
    for literal, name, form, conversion in fields:
        if name is not None and (form or conversion or not name.isidentifier()):
            raise _invalid(kind, f"{element!r}: a field is a plain name in braces")
        parts.append((literal, name))
    return parts or [("", None)]


def _fill_element(kind: str, element: list[Part], values: Mapping[str, Any], guarded: bool) -> str:
    text = ""
    for literal, name in element:
        text += literal
        if name is not None:
            value = values[name]
            if isinstance(value, bool) or not isinstance(value, (str, int, float)):
                raise InvalidArguments(f"{kind}: {name} is {type(value).__name__}, not text or a number")
            if guarded and not text and isinstance(value, str) and value.startswith("-"):
                raise InvalidArguments(f"{kind}: {name} begins with a dash and would be read as an option")
            text += str(value)
    return text


def _invalid(kind: str, reason: str) -> InvalidSetting:
    return InvalidSetting(
        f"{kind}: {reason}", code="invalid_command", fix='For example ["convert", "{source}", "{target}"].'
    )


TAIL_LIMIT = 600
HIDDEN = "[hidden]"

_SECRET_NAME = re.compile(r"pass|secret|token|key|credential|dsn|url", re.IGNORECASE)
_USERINFO = re.compile(r"(?<=://)[^\s/@]+(?=@)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def _program_outcome(program: Program, report: dict[str, Any], log_ref: str, artifacts: list[str]) -> Outcome:
    """The outcome of a program from the report of its shim."""
    note: dict[str, Any] = {"log": log_ref}
    if "not_started" in report:
        return Failed("command_not_started", f"the program could not be started: {report['not_started']}", note=note)
    status: int = report["exit_code"]
    note["exit_code"] = status
    if report["log_error"]:
        note["log_error"] = report["log_error"]
    if status in program.ok_exit_codes:
        result: dict[str, Any] = {"exit_code": status}
        if artifacts:
            result["artifacts"] = artifacts
        return Succeeded(encode(result), note)
    stderr = _tail(report["stderr"], program.env)
    suffix = f": {stderr}" if stderr else ""
    if status < 0:
        message = f"the program was killed by signal {_signal_name(-status)}{suffix}"
        return Failed("killed_by_signal", message, note=note)
    final = status in program.reject_exit_codes
    return Failed("exit_code", f"the program ended with exit code {status}{suffix}", final=final, note=note)


def _tail(text: str, env: Mapping[str, str]) -> str:
    """The last lines of a program's output as one line, without control characters and known secrets."""
    for name, value in env.items():
        if len(value) > 3 and _SECRET_NAME.search(name):
            text = text.replace(value, HIDDEN)
    text = _USERINFO.sub(HIDDEN, text)
    lines = [_CONTROL.sub(" ", line).strip() for line in text.splitlines()]
    return " | ".join(line for line in lines if line)[-TAIL_LIMIT:]


def _signal_name(number: int) -> str:
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)


INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
SHIM = Recipe((sys.executable, "-I", "-S", program_shim.__file__), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """How the program of a kind is run. ``of`` checks the options of ``app.command``."""

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
            raise InvalidSetting(f"stdin must be none or payload, not {stdin!r}", code="invalid_command")
        if set(ok_exit_codes) & set(reject_exit_codes):
            raise InvalidSetting("an exit code cannot be both ok and rejected", code="invalid_command")
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

    def environment(self, claim: Claim, directory: program_files.AttemptDirectory) -> dict[str, str]:
        """The variables that most programs need, those in ``inherit`` and ``env``, and the job's."""
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
            "HOLDFAST_PAYLOAD": str(directory.payload),
            "HOLDFAST_ARTIFACTS": str(directory.artifacts),
        }


def command_caller(
    kind: Kind[..., Any], program: Program, timeout: float | None, client: Session, children: Children
) -> Callable[[Claim], Awaitable[str | None]]:
    """The function that runs a job of a command kind. It raises ``Ended`` with the outcome of the program."""

    async def call(claim: Claim) -> str | None:
        args, kwargs = kind._signature.unpack(claim.payload)
        line = _checked_line(kind.name, kind.function(*args, **kwargs))
        log_dir = program.log_dir or config.log_directory()
        directory = await in_thread(
            program_files.create_directory, log_dir or config.state_directory(), claim, create_parent=log_dir is None
        )
        request = {
            "argv": line,
            "cwd": program.cwd,
            "env": program.environment(claim, directory),
            "stdin": str(directory.payload) if program.stdin == "payload" else None,
            "log": str(directory.log),
            "log_limit": program.log_limit,
        }
        # Recorded first, so that the log can be found while the program runs and if this worker is killed.
        await _record_log(client, claim, 1, directory.log_ref)
        try:
            report = await _run(request, program, timeout, children)
        except Ended as ended:
            await in_thread(directory.clear)
            # The program may have written files before it was killed.
            log_ref = await _store_output(client, claim, directory, await in_thread(directory.output_files))
            outcome = ended.outcome
            assert isinstance(outcome, (Failed, Crashed))
            raise Ended(replace(outcome, note={**(outcome.note or {}), "log": log_ref})) from None
        finally:
            await in_thread(directory.clear)
        files = await in_thread(directory.output_files)
        log_ref = await _store_output(client, claim, directory, files)
        raise Ended(_program_outcome(program, report, log_ref, [file.name for file in files]))

    return call


async def _store_output(
    client: Session,
    claim: Claim,
    directory: program_files.AttemptDirectory,
    files: Sequence[program_files.OutputFile],
) -> str:
    """Record the files of the program, and move them and its log to the artifact store if there is one. Returns the
    reference of the log. If the artifact store fails, the files stay on this host: the attempt does not fail for
    it."""
    artifacts, moved, ref = client.vault.artifacts, True, directory.log_ref
    owner = {"tenant": claim.tenant, "job_id": claim.id}
    for file in files:
        file_ref = file.ref
        try:
            if artifacts is not None:
                file_ref = await in_thread(artifacts.put_file, file.path, file.sha256, **owner)
        except (HoldfastError, OSError) as error:
            moved = False
            log.warning("Artifact %s of job %s stays on this host: %s", file.name, claim.id, error)
        meta = {"size": file.size, "sha256": file.sha256}
        await client.arun(
            client.store.steps.add_artifact(
                claim.id, claim.lease, claim.attempt, file.name, file_ref, client.scope, meta
            )
        )
    if artifacts is None:
        return ref
    try:
        ref = await in_thread(directory.copy_log, artifacts, **owner)
        recorded = await _record_log(client, claim, 2, ref)
    except (HoldfastError, OSError) as error:
        log.warning("The output of job %s stays on this host: %s", claim.id, error)
        return ref
    if recorded and moved:
        await in_thread(directory.remove)
    return ref


async def _record_log(client: Session, claim: Claim, n: int, ref: str) -> bool:
    """Record the reference of the output. Returns whether it was recorded; an attempt does not fail for it."""
    part = LogPart(claim.id, claim.attempt, n, None, ref)
    try:
        return not await client.arun(client.store.attempts.append_log(claim.lease, [part], client.scope))
    except Exception as error:
        log.warning("The reference of job %s's output could not be recorded: %s", claim.id, error)
        return False


async def _run(request: Message, program: Program, timeout: float | None, children: Children) -> Message:
    """Run the program in a shim process. Returns the shim's report."""
    child = await children.start(SHIM)
    try:
        async with asyncio.timeout(timeout):
            return await child.ask(request)
    except TimeoutError:
        note = await _stop(child, program.kill_after)
        message = f"the program was not done after {timeout} s, and was killed"
        raise Ended(Failed("timeout", message, note=note)) from None
    except asyncio.CancelledError as cancellation:
        # A cancelled job may take its time to stop. In every other case the job is about to be released to another
        # worker, and must not run twice.
        patient = cancellation.args[:1] == ("cancelled",)
        await _stop(child, program.kill_after if patient else min(program.kill_after, 0.8 * STOP_TIMEOUT))
        raise
    except ChildDied as died:
        raise Ended(Crashed("process_died", f"the shim of the program: {died.how}")) from None
    finally:
        children.drop(child)


async def _stop(child: Child, kill_after: float) -> Message:
    """Send SIGTERM, wait, then SIGKILL. Returns the exit code if the program ended in time."""
    child.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(kill_after):
            report = await child.answer()
    except (TimeoutError, ChildDied):
        return {}
    finally:
        child.kill()
        await child.gone(1.0)
    return {"exit_code": report["exit_code"]} if "exit_code" in report else {}


class CommandSettings(TypedDict, total=False):
    """The options of ``app.command``. ``fields`` has the types of a template's fields; default: text or a number."""

    fields: Mapping[str, Any]
    queue: str
    priority: int
    retry: Retry | str
    timeout: Duration
    tags: Sequence[str]
    limit_key: str | None
    resources: Sequence[str]
    cwd: str | os.PathLike[str]
    env: Mapping[str, str]
    inherit: Sequence[str]
    stdin: Literal["none", "payload"]
    log_dir: str | os.PathLike[str]
    log_limit: Size
    ok_exit_codes: Sequence[int]
    reject_exit_codes: Sequence[int]
    kill_after: Duration


def command_declaration(
    name: str, argv: Sequence[str] | Callable[..., Sequence[str]], settings: CommandSettings
) -> tuple[Callable[..., Sequence[str]], Options, float | None, Program]:
    """Check the arguments of ``app.command``. Returns the function that makes command lines, the kind's options, the
    timeout and the program."""
    check_options(settings, CommandSettings.__annotations__)
    if callable(argv):
        if "fields" in settings:
            raise InvalidSetting("a function already defines its fields", code="conflicting_options")
        function: Callable[..., Sequence[str]] = argv
    else:
        function = _line_builder(name, argv, settings.get("fields"))
    timeout = settings.get("timeout")
    options = Options(
        queue=settings.get("queue", "default"),
        priority=settings.get("priority", 0),
        tags=settings.get("tags", ()),
        limit_key=settings.get("limit_key"),
        resources=settings.get("resources", ()),
        retry=as_policy(settings.get("retry") or DEFAULT_RETRY),
    )
    program = Program.of(
        cwd=settings.get("cwd"),
        env=settings.get("env"),
        inherit=settings.get("inherit", ()),
        stdin=settings.get("stdin", "none"),
        log_dir=settings.get("log_dir"),
        log_limit=settings.get("log_limit", "10MB"),
        ok_exit_codes=settings.get("ok_exit_codes", (0,)),
        reject_exit_codes=settings.get("reject_exit_codes", ()),
        kill_after=settings.get("kill_after", 2.0),
    )
    return function, options, None if timeout is None else seconds(timeout, "timeout"), program
