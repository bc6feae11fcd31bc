"""The worker's side of ``@app.job(process=True)``: send a claim to a child process and receive its outcome.

The timeout is enforced here and not by ``execute``, so that it does not include the start of a process. It is not
cooperative: the process is killed, with everything it has started.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.engine.job import Claim
from holdfast.engine.outcome import Crashed, Failed, Settled, Succeeded
from holdfast.engine.units import Size, in_bytes, size_in_words
from holdfast.errors import InvalidSetting
from holdfast.kind import Kind
from holdfast.stores.artifacts import Artifacts, Directory
from holdfast.stores.session import Session
from holdfast.worker.processes.child import Child, ChildDied, Recipe
from holdfast.worker.processes.pool import Children, ready
from holdfast.worker.processes.protocol import Message, outcome_from_json, record_to_json
from holdfast.worker.processes.sandbox import describe_logging
from holdfast.worker.shutdown import Ended

# Python with Holdfast and a database driver needs about half of this.
LEAST_MEMORY = 64 * 1024 * 1024
DEFAULT_RECYCLE = 100
# How long to wait for the end of a killed process before its job is settled anyway.
KILL_WAIT = 2.0

_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from holdfast.app.child_process import main; main()"


@dataclass(frozen=True, slots=True)
class Process:
    """Settings of the child processes of a kind: ``@app.job(process=Process(memory="512MB"))``.

    ``memory`` limits the memory of a process, in bytes or as text such as ``"512MB"``. A process is replaced after
    ``recycle`` jobs. ``niceness``, from 0 to 19, lowers its CPU priority. Raises ``InvalidSetting`` for other values.
    """

    memory: int | None = None
    recycle: int = DEFAULT_RECYCLE
    niceness: int = 0

    if TYPE_CHECKING:  # accepts a size as text, which becomes bytes

        def __init__(self, memory: Size | None = None, recycle: int = DEFAULT_RECYCLE, niceness: int = 0) -> None: ...

    def __post_init__(self) -> None:
        if self.memory is not None:
            object.__setattr__(self, "memory", in_bytes(self.memory, "memory limit", least=LEAST_MEMORY))
        _whole("recycle", self.recycle, 1, 1_000_000)
        _whole("niceness", self.niceness, 0, 19)


def as_process(value: object) -> Process | None:
    """Return the settings for a value of ``process=``; True stands for the defaults."""
    if value is True:
        return Process()
    if value is False or isinstance(value, Process):
        return value or None
    raise InvalidSetting("process must be True, False or a Process", code="invalid_setting")


def _whole(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidSetting(f"{name} must be a whole number from {least} to {most}", code="invalid_setting")


def target_of(kind: str, function: Callable[..., Any]) -> Message:
    """Return how a child process imports the function. Raises ``InvalidSetting`` if it cannot be imported by name."""
    module, name = function.__module__, function.__qualname__
    main = sys.modules.get("__main__")
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    interactive = module == "__main__" and spec is None and path is None
    if "<" in name or interactive:
        raise InvalidSetting(
            f"{kind}: a handler that runs in a child process must be a module-level function",
            code="not_importable",
            fix="Declare the handler and its App at the top level of a module or script.",
        )
    script = {"name": spec and spec.name, "path": path and str(Path(path).resolve())}
    return {"kind": kind, "module": module, "name": name, "main": script if module == "__main__" else None}


def recipe_for(client: Session, schema: str, options: Process, notify: str | None = None) -> Recipe:
    """Return the command line of a child process and the first message to send it."""
    if client.store.url.endswith(":memory:"):
        raise InvalidSetting(
            "an in-memory database cannot be shared with another process",
            code="not_shareable",
            fix="Use a database file, or omit process=True.",
        )
    hello = {
        "url": client.store.url,
        "artifacts": _folder(client.vault.artifacts),
        "home": None if client.store is client.home else client.home.url,
        "schema": schema,
        "tenant": client.scope,
        "name": client.name,
        "actor": client.actor,
        "argv": sys.argv,
        "notify": notify,
        "memory": options.memory,
        "niceness": options.niceness,
        "log": describe_logging(),
    }
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return Recipe((sys.executable, *flags, "-u", "-c", _BOOT, json.dumps(sys.path)), json.dumps(hello))


def process_caller(
    kind: Kind[..., Any],
    options: Process,
    timeout: float | None,
    children: Children,
    recipe: Recipe,
) -> Callable[[Claim], Awaitable[str | Settled | None]]:
    """Return a function that runs a claim in a child process of the pool and returns its result."""
    target = target_of(kind.name, kind.function)

    async def call(claim: Claim) -> str | Settled | None:
        child = await children.borrow(recipe)
        try:
            response = await _run(child, target, claim, timeout, options)
        except BaseException:
            # Timeout, cancellation, lost lease or shutdown: the process must have ended before its job is settled.
            children.drop(child)
            await child.gone(KILL_WAIT)
            raise
        children.give_back(child, recycle=options.recycle, spent=response["spent"])
        outcome = outcome_from_json(response["outcome"])
        if isinstance(outcome, Settled):
            return outcome
        if isinstance(outcome, Succeeded) and outcome.note is None and outcome.ref is None and not outcome.cost:
            return outcome.result
        raise Ended(outcome)

    return call


async def _run(child: Child, target: Message, claim: Claim, timeout: float | None, options: Process) -> Message:
    if target["kind"] not in child.knows:
        prepared = await ready(child, {"prepare": target})
        if "outcome" in prepared:
            return prepared
        child.knows.add(target["kind"])
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            return await child.ask({"run": record_to_json(claim)})
    except TimeoutError:
        raise Ended(Failed("timeout", f"the handler was not done after {timeout} s, and was killed")) from None
    except ChildDied as died:
        limited = f"; its memory limit was {size_in_words(options.memory)}" if options.memory else ""
        raise Ended(Crashed("process_died", f"{died.how}{limited}")) from None


def _folder(artifacts: Artifacts | None) -> str | None:
    """Return the artifact store's folder, if it is one. A child configures other stores from its environment."""
    return str(artifacts.store.root) if artifacts is not None and isinstance(artifacts.store, Directory) else None
