"""The program of a child process, which runs handlers of ``@app.job(process=True)``, one job at a time.

The worker sends everything over a socket: the database's URL, the function to import, and each claim. The child runs a
claim with the same ``execute`` as a worker and sends the outcome back as JSON. A second thread reads the socket, so
that the child notices the end of the worker while a handler runs.
"""

from __future__ import annotations

import asyncio
import faulthandler
import importlib
import json
import os
import runpy
import socket
import sys
import types
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from holdfast import config
from holdfast.app.handlers import Declared, HandlerTools, log_writer_for, wants_context
from holdfast.engine.hooks import AppHooks
from holdfast.engine.job import Claim
from holdfast.engine.names import check_name
from holdfast.engine.outcome import Outcome, Settled, Succeeded
from holdfast.engine.payload import encode
from holdfast.engine.redaction import Redactor
from holdfast.engine.retry import is_permanent
from holdfast.engine.units import size_in_words
from holdfast.errors import HoldfastError, InvalidSetting
from holdfast.features.assembly import open_store, substitute_store
from holdfast.features.payloads.model import NO_RULE
from holdfast.kind import PAYLOAD_LIMIT, Kind, Options, Prepared, make_spec, pack_payload
from holdfast.steps.driver import StepTools
from holdfast.steps.signature import Signature
from holdfast.stores.session import Session
from holdfast.stores.vault import Vault
from holdfast.telemetry import observers
from holdfast.telemetry.logs import trusted_redactor
from holdfast.telemetry.tracebacks import failure
from holdfast.worker import startup
from holdfast.worker.executor import Handler, PayloadRuleCache, execute
from holdfast.worker.processes import sandbox
from holdfast.worker.processes.pool import Children
from holdfast.worker.processes.protocol import Message, frame, outcome_to_json, record_from_json
from holdfast.worker.shutdown import Stop
from holdfast.worker.startup import prepare_process
from holdfast.worker.threads import Threads
from holdfast.worker.writers import StepWriter


@dataclass(slots=True)
class ChildRuntime:
    """The state of a child process, shared by all its jobs. ``spent`` means that it must not run another one."""

    client: Session
    threads: Threads
    handlers: dict[str, Handler]
    memory: int | None
    notify: str | None = None
    spent: bool = False
    rules: PayloadRuleCache = field(default_factory=PayloadRuleCache)


def main() -> None:
    """Serve the worker. ``argv`` has the worker's ``sys.path`` as JSON, and the file descriptor of the socket."""
    sandbox.die_with_parent()
    prepare_process()
    faulthandler.enable()  # a crash leaves a trace on the worker's stderr
    link = socket.socket(fileno=int(sys.argv[2]))
    link.set_inheritable(False)
    startup.run(_serve(link))


async def _serve(link: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    inbox: asyncio.Queue[Message] = asyncio.Queue()
    sandbox.listen(link, lambda message: loop.call_soon_threadsafe(inbox.put_nowait, message))
    runtime = _set_up(json.loads((await inbox.get())["hello"]))
    # A handler may fork. Its copies must not respond in its place, nor keep the socket open after this process ended.
    own_pid = os.getpid()
    os.register_at_fork(after_in_child=link.close)
    link.sendall(frame({}))
    while "end" not in (message := await inbox.get()):
        try:
            response = await _respond(runtime, message)
        finally:
            if os.getpid() != own_pid:
                os._exit(0)  # without cleanup: a fork shares its connections and files with this process
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # a handler may have replaced the stream
                stream.flush()
        link.sendall(frame(response))
    await runtime.client.store.aclose()


def _set_up(hello: Message) -> ChildRuntime:
    sys.argv = hello["argv"]
    os.nice(hello["niceness"])
    sandbox.set_up_logging(hello["log"])
    observers.disable_in_child()
    sandbox.limit_memory(hello["memory"])
    store = open_store(hello["url"], schema=hello["schema"])
    if hello["home"] is not None:  # in a test: the app that is imported must not use its own database
        substitute_store(hello["home"], store)
    vault = Vault.of(hello["artifacts"] or config.artifact_location(hello["url"]), config.key_text())
    client = Session(store, tenant=hello["tenant"], name=hello["name"], actor=hello["actor"], vault=vault)
    # A sync handler runs in a thread, as in a worker: it may start its own event loop.
    runtime = ChildRuntime(client, Threads(), {}, hello["memory"], hello["notify"])
    try:
        runtime.rules.load(client.run(client.store.payload_rules.list(hello["tenant"])))
    except HoldfastError:
        runtime.rules.load(None)
    return runtime


async def _respond(runtime: ChildRuntime, message: Message) -> Message:
    outcome: Outcome | Settled
    try:
        if "prepare" in message:
            target = message["prepare"]
            runtime.handlers[target["kind"]] = _handler(runtime, target)
            return {}
        claim = record_from_json(Claim, message["run"])
        outcome = await execute(runtime.handlers[claim.kind], claim)
    except BaseException as error:  # also KeyboardInterrupt: raised by a handler, it ends that handler only
        outcome = failure(error, Redactor(), final=is_permanent(error))
    return {"outcome": outcome_to_json(outcome), "spent": runtime.spent}


def _handler(runtime: ChildRuntime, target: Message) -> Handler:
    imported = find(target)
    function = imported.function if isinstance(imported, Kind) else imported
    kind, defaults = target["kind"], imported.defaults if isinstance(imported, Kind) else Options()
    rule = imported._rule if isinstance(imported, Kind) else NO_RULE
    signature = Signature(function, kind, skip=int(wants_context(function)))
    declared = Declared(Kind(kind, runtime.client, signature, function, defaults, _rule=rule))
    # The worker redacts the outcome again, because it knows the secrets that were registered with its app. Log lines go
    # from here to the database, so they pass the redactor of the imported app.
    client, prepare = runtime.client, partial(_prepare, runtime.client)
    step_tools = StepTools(StepWriter(client.store, client.scope), runtime.threads, lambda: runtime.notify)
    # Hooks around the handler run in this process; the worker calls those for the end of an attempt.
    client.hooks = imported._session.hooks if isinstance(imported, Kind) else AppHooks()
    tools = HandlerTools(
        *(client, runtime.threads, Children(1), "", prepare, step_tools, trusted_redactor(), runtime.rules),
        hooks=client.hooks,
        log_writer=log_writer_for(client),
    )
    handler = declared.handler(tools)

    async def call(claim: Claim, stop: Stop) -> str | Succeeded | Settled | None:
        try:
            return await handler.call(claim, stop)
        except MemoryError as error:
            sandbox.lift_memory_limit()  # building the response needs memory
            runtime.spent = True
            if runtime.memory is None:
                raise
            limit = size_in_words(runtime.memory)
            raise HoldfastError(f"the process reached its memory limit of {limit}", code="memory_limit") from error

    return replace(handler, call=call)


def _prepare(client: Session, kind: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Prepared[Any]:
    """Prepare a job for ``ctx.spawn``: from a kind and arguments, or from a name and a payload. The latter is checked
    when the job runs."""
    if isinstance(kind, Kind):
        return kind.using(**options).prepare(*args)
    payload = encode(args[0] if args else {}, limit=PAYLOAD_LIMIT)
    spec, tenant = make_spec(check_name(kind, "kind"), payload, Options(**options), client)  # type: ignore[typeddict-item]
    pack_payload(spec, tenant, NO_RULE, client.vault)
    return Prepared(spec, tenant, lambda value: value)


# --- import the function ---


def find(target: Message) -> Kind[..., Any] | Callable[..., Any]:
    """Import the module and return the kind or function with that name."""
    module, name = target["module"], target["name"]
    try:
        value: Any = _main_module(target["main"]) if module == "__main__" else importlib.import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
    except (Exception, SystemExit) as error:
        raise InvalidSetting(
            f"the child process cannot import {name} of {module}: {type(error).__name__}: {error}", code="import_failed"
        ) from error
    if not callable(value):
        raise InvalidSetting(f"{name} of {module} is not a function", code="import_failed")
    function: Kind[..., Any] | Callable[..., Any] = value
    return function


def _main_module(main: Message) -> types.ModuleType:
    """Import the worker's script under another name, so that code under ``__name__ == "__main__"`` does not run."""
    imported = sys.modules.get("__mp_main__")
    if imported is not None:
        return imported
    if main["name"] is not None:
        content = runpy.run_module(main["name"], run_name="__mp_main__", alter_sys=True)
    else:
        content = runpy.run_path(main["path"], run_name="__mp_main__")
    module = types.ModuleType("__mp_main__")
    module.__dict__.update(content)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    return module
