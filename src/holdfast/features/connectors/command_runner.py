"""``app.command``: command line, run, outcome of a program.

Command jobs (SC-14): a kind whose jobs run a program, with its exit code, log and artifacts on the attempt.

No shell, a small environment, nothing on stdin unless asked for. On timeout, cancel and shutdown the whole process
group gets SIGTERM and, after ``kill_after``, SIGKILL; when the attempt has ended, nothing of the group is left.

The command line of a command job: ``["convert", "{source}", "-resize", "{width}x", "{target}"]``.

A value goes into one element of the list and cannot become two, nor reach a shell, for there is none. What it could
still do is pass for an option (``--output=…``), so text that begins with a dash is refused where it would begin an
element, unless a ``--`` of the template's own comes before. The program itself is never taken from a payload.
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
from holdfast.engine.job import DEFAULT_RETRY, Claim
from holdfast.engine.names import check_options
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
from holdfast.worker.slots import LAST_WORDS

log = logging.getLogger("holdfast.worker")

Argument = str | int | float
Part = tuple[str, str | None]


def builder(kind: str, template: Sequence[str], fields: Mapping[str, Any] | None = None) -> Callable[..., list[str]]:
    """A function from the payload's fields to the command line, with a signature that says what they are."""
    if isinstance(template, str) or not template:
        raise _invalid(kind, "a command is a list: the program, then its arguments")
    parts = [_parsed(kind, element) for element in template]
    names = list(dict.fromkeys(name for element in parts for _, name in element if name is not None))
    if any(name is not None for _, name in parts[0]):
        raise _invalid(kind, "the program itself cannot come from a payload")
    types = dict.fromkeys(names, Argument) | dict(fields or {})
    if types.keys() != set(names):
        raise _invalid(kind, f"no element has the field {', '.join(sorted(types.keys() - set(names)))}")

    def build(**values: Any) -> list[str]:
        made, guarded = [], True
        for element in parts:
            made.append(_filled(kind, element, values, guarded))
            guarded = guarded and made[-1] != "--"
        return made

    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=types[name]) for name in names]
    build.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    build.__annotations__ = types
    build.__name__ = kind
    return build


def checked(kind: str, argv: object) -> list[str]:
    """What a function of the user's own has made."""
    if isinstance(argv, str) or not isinstance(argv, Sequence) or not argv:
        raise InvalidArguments(f"{kind}: a command line must be a list of text")
    for element in argv:
        if not isinstance(element, str) or "\0" in element:
            raise InvalidArguments(f"{kind}: an element of the command line is not text that a program accepts")
    return list(argv)


def _parsed(kind: str, element: object) -> list[Part]:
    if not isinstance(element, str):
        raise _invalid(kind, "every element of a command is text")
    try:
        found = list(Formatter().parse(element))
    except ValueError as error:
        raise _invalid(kind, f"{element!r}: {error}") from None
    parts = []
    for literal, name, form, conversion in found:
        if name is not None and (form or conversion or not name.isidentifier()):
            raise _invalid(kind, f"{element!r}: a field is a plain name in braces")
        parts.append((literal, name))
    return parts or [("", None)]


def _filled(kind: str, element: list[Part], values: Mapping[str, Any], guarded: bool) -> str:
    made = ""
    for literal, name in element:
        made += literal
        if name is not None:
            value = values[name]
            if isinstance(value, bool) or not isinstance(value, (str, int, float)):
                raise InvalidArguments(f"{kind}: {name} is {type(value).__name__}, not text or a number")
            if guarded and not made and isinstance(value, str) and value.startswith("-"):
                raise InvalidArguments(f"{kind}: {name} begins with a dash and would be read as an option")
            made += str(value)
    return made


def _invalid(kind: str, why: str) -> InvalidSetting:
    return InvalidSetting(
        f"{kind}: {why}", code="invalid_command", fix='For example ["convert", "{source}", "{target}"].'
    )


TAIL_LIMIT = 600
HIDDEN = "[hidden]"

_SECRET_NAME = re.compile(r"pass|secret|token|key|credential|dsn|url", re.IGNORECASE)
_USERINFO = re.compile(r"(?<=://)[^\s/@]+(?=@)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def program_outcome(program: Program, answer: dict[str, Any], log_ref: str, artifacts: list[str]) -> Outcome:
    note: dict[str, Any] = {"log": log_ref}
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


INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
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

    def environment(self, claim: Claim, at: program_files.AttemptDirectory) -> dict[str, str]:
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
    kind: Kind[..., Any], program: Program, timeout: float | None, client: Session, children: Children
) -> Callable[[Claim], Awaitable[str | None]]:
    async def call(claim: Claim) -> str | None:
        args, kwargs = kind._signature.unpack(claim.payload)
        line = checked(kind.name, kind.function(*args, **kwargs))
        named = program.log_dir or config.log_directory()
        at = await in_thread(program_files.set_up, named or config.state_directory(), claim, may_make=named is None)
        order = {
            "argv": line,
            "cwd": program.cwd,
            "env": program.environment(claim, at),
            "stdin": str(at.payload) if program.stdin == "payload" else None,
            "log": str(at.log),
            "log_limit": program.log_limit,
        }
        await _append_log(client, claim, 1, at.log_ref)  # where it is while it runs, and if this worker is killed
        try:
            answer = await _run(order, program, timeout, children)
            found = await in_thread(at.found)
        except Ended as ended:
            await in_thread(at.clear)
            place = await _keep_output(client, claim, at, [])
            outcome = ended.outcome
            assert isinstance(outcome, (Failed, Crashed))
            raise Ended(replace(outcome, note={**(outcome.note or {}), "log": place})) from None
        finally:
            await in_thread(at.clear)
        place = await _keep_output(client, claim, at, found)
        raise Ended(program_outcome(program, answer, place, [each.name for each in found]))

    return call


async def _keep_output(
    client: Session, claim: Claim, at: program_files.AttemptDirectory, found: Sequence[program_files.Found]
) -> str:
    """Record the files of the program, and move them and its log to the artifact store if there is one. Answers where
    the log is. A store that cannot be used leaves them on this host: how the program ended counts for more."""
    artifacts, moved, ref = client.vault.artifacts, True, at.log_ref
    whose = {"tenant": claim.tenant, "job_id": claim.id}
    for each in found:
        place = each.ref
        try:
            if artifacts is not None:
                place = await in_thread(artifacts.put_file, each.path, each.sha256, **whose)
        except (HoldfastError, OSError) as error:
            moved = False
            log.warning("Artifact %s of job %s stays on this host: %s", each.name, claim.id, error)
        about = {"size": each.size, "sha256": each.sha256}
        await client.arun(
            client.store.steps.add_artifact(claim.id, claim.lease, claim.attempt, each.name, place, client.scope, about)
        )
    if artifacts is None:
        return ref
    try:
        ref = await in_thread(at.move_log, artifacts, **whose)
        kept = await _append_log(client, claim, 2, ref)
    except (HoldfastError, OSError) as error:
        log.warning("The output of job %s stays on this host: %s", claim.id, error)
        return ref
    if kept and moved:
        await in_thread(at.remove)
    return ref


async def _append_log(client: Session, claim: Claim, n: int, ref: str) -> bool:
    """Record where the output is; whether it was recorded. An attempt is not failed for it."""
    part = LogPart(claim.id, claim.attempt, n, None, ref)
    try:
        return not await client.arun(client.store.attempts.append_log(claim.lease, [part], client.scope))
    except Exception as error:
        log.warning("Where the output of job %s is could not be recorded: %s", claim.id, error)
        return False


async def _run(order: Message, program: Program, timeout: float | None, children: Children) -> Message:
    child = await children.start(SHIM)
    try:
        async with asyncio.timeout(timeout):
            return await child.ask(order)
    except TimeoutError:
        last = await _stop(child, program.kill_after)
        message = f"the program was not done after {timeout} s, and was killed"
        raise Ended(Failed("timeout", message, note=last)) from None
    except asyncio.CancelledError as told:
        # Only of a job that was cancelled is nobody waiting for its end. Otherwise it is handed on in a moment, and
        # must not run twice.
        patient = told.args[:1] == ("cancelled",)
        await _stop(child, program.kill_after if patient else min(program.kill_after, 0.8 * LAST_WORDS))
        raise
    except ChildDied as died:
        raise Ended(Crashed("process_died", f"the shim of the program: {died.how}")) from None
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


class CommandSettings(TypedDict, total=False):
    """``fields`` gives the types of a template's fields, which are text or numbers else. The rest is in the guide."""

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


def command_parts(
    name: str, argv: Sequence[str] | Callable[..., Sequence[str]], settings: CommandSettings
) -> tuple[Callable[..., Sequence[str]], Options, float | None, Program]:
    check_options(settings, CommandSettings.__annotations__)
    if callable(argv):
        if "fields" in settings:
            raise InvalidSetting("a function already defines its fields", code="conflicting_options")
        function: Callable[..., Sequence[str]] = argv
    else:
        function = builder(name, argv, settings.get("fields"))
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
