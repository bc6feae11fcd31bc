"""``ctx.stream(name)``: write chunks that clients read while the handler runs (``handle.stream``).

Each chunk belongs to the section of the handler that writes it: inside durable call k, or after it. A step that is
recorded is not run again, and code after it writes nothing as long as a later call is recorded: those chunks are there.
Each branch has sections of its own, and only its own calls say how far it came.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.engine.payload import encode
from holdfast.errors import Conflict
from holdfast.features.streams.model import check_stream
from holdfast.steps.branches import current_branch
from holdfast.steps.plan import running
from holdfast.steps.transaction import Stage

if TYPE_CHECKING:
    from holdfast.steps.driver import Durable
    from holdfast.steps.handler_run import HandlerRun

YIELD_EVERY = 32
"""Chunks after which a handler that writes in a loop lets others run."""


class _Stream:
    """Where chunks go. One name may be opened many times."""

    __slots__ = ("_count", "_name", "_run")

    def __init__(self, run: HandlerRun, name: str) -> None:
        self._run, self._name, self._count = run, check_stream(name), 0

    def _add(self, durable: Durable, chunk: Any) -> bool:
        """Add a chunk; whether the handler should wait before the next one."""
        durable.check_running()
        if self._run.completion.stage is not Stage.NONE:
            raise Conflict(
                "a transaction that ends the job is open: nothing can be written to its streams",
                code="transaction_open",
                fix="Write before it.",
            )
        text = encode(chunk, what=f"chunk of stream {self._name}")
        step = running.get()
        if step is not None:
            return self._keep(durable, durable.script.section_in(step.n), step, text)
        branch = current_branch() or self._run.plan.root
        section = durable.script.section_after(branch.path, branch.calls, branch.begun)
        if section is None:
            return False  # an earlier attempt came further than this, and has written it
        return self._keep(durable, section, durable, text)

    def _keep(self, durable: Durable, section: int, run: object, text: str) -> bool:
        if durable.streams is None:
            if durable.tools.streams is None:  # a replay, which writes nothing
                return False
            assert self._run.loop is not None  # a worker that provides the tools provides its loop
            durable.streams = durable.tools.streams.open(durable.claim, self._run.loop)
        return durable.streams.add(self._name, section, run, text)


class AwaitedStream(_Stream):
    """An output stream of an async handler."""

    __slots__ = ()

    async def write(self, chunk: Any) -> None:
        """Write a chunk: any JSON, at most 64 KiB. Readers get it within about 20 ms. Many small chunks are fine: they
        are written together."""
        durable = self._run.plan.durable
        await durable.remember()
        self._count += 1
        if self._add(durable, chunk):
            assert durable.streams is not None
            await durable.streams.flush()
        elif self._count % YIELD_EVERY == 0:
            await asyncio.sleep(0)


class BlockingStream(_Stream):
    """An output stream of a sync handler."""

    __slots__ = ()

    def write(self, chunk: Any) -> None:
        """Write a chunk: any JSON, at most 64 KiB. Readers get it within about 20 ms."""
        driver = self._run.thread_driver
        durable = driver.plan.durable
        if not durable.loaded:
            driver.run_on_loop(durable.remember())
        if self._add(durable, chunk):
            assert durable.streams is not None
            driver.run_on_loop(durable.streams.flush())
