"""The program of a child process: the handlers of ``@app.job(process=True)`` run here, one job at a time.

It is told everything over its socket: where the database is, which function to import, and each claim. The
claim's outcome is made by the same ``execute`` as in a worker, and goes back as data. A second thread reads the
socket, so that the end of the worker is seen while a handler runs.
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
from holdfast.engine.job import Claim
from holdfast.engine.names import check_name
from holdfast.engine.outcome import Outcome, Settled, Succeeded
from holdfast.engine.payload import encode
from holdfast.engine.redaction import Redactor
from holdfast.engine.units import in_words
from holdfast.errors import HoldfastError, InvalidSetting
from holdfast.features.assembly import open_store, stand_in
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
from holdfast.worker.startup import put_right
from holdfast.worker.threads import Threads
from holdfast.worker.writers import StepWriter


@dataclass(slots=True)
class ChildRuntime:
    """What is set up once and serves every job of this child."""

    client: Session
    threads: Threads
    handlers: dict[str, Handler]
    memory: int | None
    notify: str | None = None
    spent: bool = False
    rules: PayloadRuleCache = field(default_factory=PayloadRuleCache)


def main() -> None:
    """``argv``: the worker's module path as JSON, and the number of the socket."""
    sandbox.die_with_parent()
    put_right()
    faulthandler.enable()  # a crash leaves a trace on the worker's stderr
    link = socket.socket(fileno=int(sys.argv[2]))
    link.set_inheritable(False)
    startup.run(_serve(link))


async def _serve(link: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    inbox: asyncio.Queue[Message] = asyncio.Queue()
    sandbox.listen(link, lambda message: loop.call_soon_threadsafe(inbox.put_nowait, message))
    bench = _set_up(json.loads((await inbox.get())["hello"]))
    # A handler may fork. Its copies must not answer for it, nor keep the line open when this process is gone.
    born = os.getpid()
    os.register_at_fork(after_in_child=link.close)
    link.sendall(frame({}))
    while "end" not in (message := await inbox.get()):
        try:
            answer = await _answer(bench, message)
        finally:
            if os.getpid() != born:
                os._exit(0)  # at once: whatever is put in order here is shared with the process that it is a copy of
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # whatever the handler has put there
                stream.flush()
        link.sendall(frame(answer))
    await bench.client.store.aclose()


def _set_up(hello: Message) -> ChildRuntime:
    sys.argv = hello["argv"]
    os.nice(hello["niceness"])
    sandbox.set_up_logging(hello["log"])
    observers.watched_elsewhere()
    sandbox.limit_memory(hello["memory"])
    store = open_store(hello["url"], schema=hello["schema"])
    if hello["home"] is not None:  # a test: the app that is about to be imported must not reach its own database
        stand_in(hello["home"], store)
    vault = Vault.of(hello["artifacts"] or config.artifact_place(hello["url"]), config.key_text())
    client = Session(store, tenant=hello["tenant"], name=hello["name"], actor=hello["actor"], vault=vault)
    # A handler that is no coroutine runs in a thread, as in a worker: it may run an event loop of its own.
    bench = ChildRuntime(client, Threads(), {}, hello["memory"], hello["notify"])
    try:
        bench.rules.load(client.run(client.store.payload_rules.list(hello["tenant"])))
    except HoldfastError:
        bench.rules.load(None)
    return bench


async def _answer(bench: ChildRuntime, message: Message) -> Message:
    outcome: Outcome | Settled
    try:
        if "prepare" in message:
            wanted = message["prepare"]
            bench.handlers[wanted["kind"]] = _handler(bench, wanted)
            return {}
        claim = record_from_json(Claim, message["run"])
        outcome = await execute(bench.handlers[claim.kind], claim)
    except BaseException as error:  # a KeyboardInterrupt of the handler's own making ends the handler only
        outcome = failure(error, Redactor())
    return {"outcome": outcome_to_json(outcome), "spent": bench.spent}


def _handler(bench: ChildRuntime, wanted: Message) -> Handler:
    found = find(wanted)
    function = found.function if isinstance(found, Kind) else found
    kind, defaults = wanted["kind"], found.defaults if isinstance(found, Kind) else Options()
    rule = found._rule if isinstance(found, Kind) else NO_RULE
    signature = Signature(function, kind, skip=int(wants_context(function)))
    declared = Declared(Kind(kind, bench.client, signature, function, defaults, _rule=rule))
    # The worker looks for secrets once more: it knows those that were told to its app. Log lines go to
    # the database from here, so the redactor of the app that was imported looks at them first.
    client, prepare = bench.client, partial(_prepare, bench.client)
    lent = StepTools(StepWriter(client.store, client.scope), bench.threads, lambda: bench.notify)
    # The hooks of the app that declares the kind here: around the handler in this process, while the worker calls those
    # for the end of an attempt.
    hooks = found._session.hooks if isinstance(found, Kind) else None
    client.hooks = hooks
    tools = HandlerTools(client, bench.threads, Children(1), "", prepare, lent, trusted_redactor(), bench.rules)
    tools = replace(tools, log_writer=log_writer_for(client))
    handler = declared.handler(tools if hooks is None else replace(tools, hooks=hooks))

    async def call(claim: Claim, stop: Stop) -> str | Succeeded | Settled | None:
        try:
            return await handler.call(claim, stop)
        except MemoryError as error:
            sandbox.lift_memory_limit()  # to be able to tell
            bench.spent = True
            if bench.memory is None:
                raise
            limit = in_words(bench.memory)
            raise HoldfastError(f"the process reached its memory limit of {limit}", code="memory_limit") from error

    return replace(handler, call=call)


def _prepare(client: Session, kind: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Prepared[Any]:
    """For ``ctx.spawn``: a kind and its arguments, or a name and a payload, which is checked by whoever runs it."""
    if isinstance(kind, Kind):
        return kind.using(**options).prepare(*args)
    payload = encode(args[0] if args else {}, limit=PAYLOAD_LIMIT)
    spec, tenant = make_spec(check_name(kind, "kind"), payload, Options(**options), client)  # type: ignore[typeddict-item]
    pack_payload(spec, tenant, NO_RULE, client.vault)
    return Prepared(spec, tenant, lambda value: value)


# --- finding the function ---


def find(wanted: Message) -> Kind[..., Any] | Callable[..., Any]:
    """Import the module as a program of its own would, and take the kind or function by its name there."""
    module, name = wanted["module"], wanted["name"]
    try:
        found: Any = _main_module(wanted["main"]) if module == "__main__" else importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:
        raise InvalidSetting(
            f"the child process cannot import {name} of {module}: {type(error).__name__}: {error}", code="import_failed"
        ) from error
    if not callable(found):
        raise InvalidSetting(f"{name} of {module} is not a function", code="import_failed")
    checked: Kind[..., Any] | Callable[..., Any] = found
    return checked


def _main_module(main: Message) -> types.ModuleType:
    """The worker's script once more under another name, so that what is under ``__name__ == "__main__"`` is left."""
    known = sys.modules.get("__mp_main__")
    if known is not None:
        return known
    if main["name"] is not None:
        content = runpy.run_module(main["name"], run_name="__mp_main__", alter_sys=True)
    else:
        content = runpy.run_path(main["path"], run_name="__mp_main__")
    module = types.ModuleType("__mp_main__")
    module.__dict__.update(content)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    return module
