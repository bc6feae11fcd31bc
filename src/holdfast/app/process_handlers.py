"""The worker's side of ``@app.job(process=True)``: from a claim to the outcome that a child process sends back.

The timeout is kept here and not by ``execute``, so that it counts the handler's time and not the start of a
process; and it is real: the process is killed, with everything it has started.
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
from holdfast.engine.units import Size, in_bytes, in_words
from holdfast.errors import InvalidSetting
from holdfast.kind import Kind
from holdfast.stores.artifacts import Artifacts, Directory
from holdfast.stores.session import Session
from holdfast.worker.processes.child import Child, ChildDied, Recipe
from holdfast.worker.processes.pool import Children, ready
from holdfast.worker.processes.protocol import Message, outcome_from_json, record_to_json
from holdfast.worker.processes.sandbox import describe_logging
from holdfast.worker.shutdown import Ended

# Python with Holdfast and a database driver in it needs about half of this.
LEAST_MEMORY = 64 * 1024 * 1024
DEFAULT_RECYCLE = 100
# How long a killed process may take to be gone before its job is settled all the same.
PATIENCE = 2.0

_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from holdfast.app.child_process import main; main()"


@dataclass(frozen=True, slots=True)
class Process:
    """How the child process of a kind runs: ``@app.job(process=Process(memory="512MB"))``.

    ``memory`` limits its memory (bytes, or text like ``"512MB"``). After ``recycle`` jobs a process is replaced by a
    new one. ``niceness`` lowers its CPU priority, from 0 to 19.
    """

    memory: int | None = None
    recycle: int = DEFAULT_RECYCLE
    niceness: int = 0

    if TYPE_CHECKING:  # a size as text becomes bytes

        def __init__(self, memory: Size | None = None, recycle: int = DEFAULT_RECYCLE, niceness: int = 0) -> None: ...

    def __post_init__(self) -> None:
        if self.memory is not None:  # frozen, hence object
            object.__setattr__(self, "memory", in_bytes(self.memory, "memory limit", least=LEAST_MEMORY))
        _whole("recycle", self.recycle, 1, 1_000_000)
        _whole("niceness", self.niceness, 0, 19)


def as_process(value: object) -> Process | None:
    """What ``@app.job(process=…)`` takes: True is a process with the usual settings."""
    if value is True:
        return Process()
    if value is False or isinstance(value, Process):
        return value or None
    raise InvalidSetting("process must be True, False or a Process", code="invalid_setting")


def _whole(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidSetting(f"{name} must be a whole number from {least} to {most}", code="invalid_setting")


def target_of(kind: str, function: Callable[..., Any]) -> Message:
    """Where a child finds the function; refuses, when it is declared, one that cannot be found by name."""
    module, name = function.__module__, function.__qualname__
    main = sys.modules.get("__main__")
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    nowhere = module == "__main__" and spec is None and path is None
    if "<" in name or nowhere:
        raise InvalidSetting(
            f"{kind}: a handler that runs in a child process must be a module-level function",
            code="not_importable",
            fix="Declare the handler and its App at the top level of a module or script.",
        )
    where = {"name": spec and spec.name, "path": path and str(Path(path).resolve())}
    return {"kind": kind, "module": module, "name": name, "main": where if module == "__main__" else None}


def recipe_for(client: Session, schema: str, options: Process, notify: str | None = None) -> Recipe:
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
    target = target_of(kind.name, kind.function)

    async def call(claim: Claim) -> str | Settled | None:
        child = await children.borrow(recipe)
        try:
            answer = await _run(child, target, claim, timeout, options)
        except BaseException:
            # Timeout, cancel, a lost lease, the end of the worker: the job's process is gone before its job is settled.
            children.drop(child)
            await child.gone(PATIENCE)
            raise
        children.give_back(child, recycle=options.recycle, spent=answer["spent"])
        outcome = outcome_from_json(answer["outcome"])
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
        within = f"; its memory limit was {in_words(options.memory)}" if options.memory else ""
        raise Ended(Crashed("process_died", f"{died.how}{within}")) from None


def _folder(artifacts: Artifacts | None) -> str | None:
    """The artifact store of the app, where it is a folder; a child reads the other kinds from its environment."""
    return str(artifacts.store.root) if artifacts is not None and isinstance(artifacts.store, Directory) else None
