"""Writes the lines that handlers log with ``ctx.log``, in batches and beside the handlers.

A handler adds a line to a list and goes on; it never waits for the database, nor fails because of it. One task for all
handlers of a worker writes what has gathered, twice a second, in one transaction; it exists only while there are lines.
The end of an attempt waits a moment for its last lines: after it the database takes no more. A worker that is killed
loses the lines since the last batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.engine.job import Claim
from holdfast.errors import StoreError
from holdfast.features.attempts.model import LOG_LIMIT, PART_LIMIT, LogPart
from holdfast.stores.vault import EMPTY, Vault

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

log = logging.getLogger("holdfast.worker")

EVERY = 0.5
GATHER = 0.002
"""Seconds between the end of an attempt and the write of its last lines: handlers that end about then share it."""
LAST_WORD = 2.0
"""Seconds that the end of an attempt waits for its last lines to be written."""
MOST = 4_000_000
"""Bytes in one write."""


class AttemptLines:
    """The lines of one attempt that are not written yet. Any thread may add some."""

    def __init__(self, writer: LogWriter, claim: Claim, loop: asyncio.AbstractEventLoop) -> None:
        self.claim = claim
        self._writer = writer
        self._loop = loop
        self._lock = threading.Lock()
        self._lines: list[str] = []
        self._size = 0
        self._cut = False
        self._closed = False
        self._told = False
        self._n = 0
        self._parts: list[LogPart] = []
        self.held = False
        """A transaction of the handler has them: nobody else writes them until it has ended."""
        self.written = asyncio.Event()

    def __call__(self, line: str) -> None:
        text = line.replace("\0", "").encode("utf-8", "replace")
        with self._lock:
            if self._closed or self._cut:
                return
            if self._size + len(text) + 1 > self._writer.limit:
                self._cut = True
                text = f"[holdfast: the log was cut here, after {self._size:,} bytes]".encode()
            self._size += len(text) + 1
            self._lines.append(text.decode())
            if self._told:
                return
            self._told = True
        with contextlib.suppress(RuntimeError):  # a thread that outlived its worker
            self._loop.call_soon_threadsafe(self._writer.attend, self)

    def pending(self) -> list[LogPart]:
        """What is to be written, as numbered parts: the same ones until they are."""
        with self._lock:  # a handler that ends its job in a transaction asks from its own thread
            lines, self._lines, self._told = self._lines, [], False
            while lines:
                size, count = 0, 0
                for line in lines:
                    size += len(line.encode()) + 1
                    if count and size > PART_LIMIT:
                        break
                    count += 1
                self._n += 1
                self._parts.append(self._part("".join(f"{line}\n" for line in lines[:count])))
                lines = lines[count:]
            return list(self._parts)

    def _part(self, text: str) -> LogPart:
        claim, place = self.claim, f"{self.claim.attempt}/{self._n}"
        packed = self._writer.vault.pack_part(text, what="log", tenant=claim.tenant, job_id=claim.id, place=place)
        return LogPart(claim.id, claim.attempt, self._n, packed.text)

    def settled(self, count: int) -> None:
        """So many of the pending parts are written, or given up."""
        with self._lock:
            del self._parts[:count]

    def hold(self) -> list[LogPart]:
        """The lines so far, for a transaction of the handler that ends the job."""
        self.held = True
        return self.pending()

    async def close(self) -> None:
        """Write what has not been written. Does not raise: the attempt has its own end."""
        with self._lock:
            self._closed = True
        self.held = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORD):
                await self._writer.flush(self)
        if self.pending():
            log.warning("The last lines of the log of job %s could not be written", self.claim.id)
        self._writer.forget(self)


class LogWriter:
    """One for all handlers of a worker. ``tenant`` is the scope of its lease, ``limit`` how many bytes of lines are
    kept of each attempt."""

    def __init__(self, store: Store, tenant: str, vault: Vault = EMPTY, limit: int = LOG_LIMIT) -> None:
        self.vault = vault
        self.limit = limit
        self._store = store
        self._tenant = tenant
        self._active: dict[AttemptLines, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._hurry: asyncio.Event | None = None

    def open(self, claim: Claim, loop: asyncio.AbstractEventLoop) -> AttemptLines:
        return AttemptLines(self, claim, loop)

    def attend(self, lines: AttemptLines) -> None:
        """There is something to write. On the worker's loop, like everything below."""
        self._active[lines] = None
        lines.written.clear()
        if self._task is None or self._task.done():
            self._hurry = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._run())

    def forget(self, lines: AttemptLines) -> None:
        self._active.pop(lines, None)

    async def flush(self, lines: AttemptLines) -> None:
        """Wait until its lines are written, or can be written no more."""
        if not lines.pending():
            return
        self.attend(lines)
        assert self._hurry is not None
        self._hurry.set()
        await lines.written.wait()

    async def aclose(self) -> None:
        """The worker leaves; its attempts have closed their logs."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=LAST_WORD)

    async def _run(self) -> None:
        hurry = self._hurry
        assert hurry is not None
        while any(not lines.held for lines in self._active):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVERY):
                    await hurry.wait()
            await asyncio.sleep(GATHER)
            hurry.clear()
            leases: dict[str, list[AttemptLines]] = {}
            for lines in self._active:
                if not lines.held:
                    leases.setdefault(lines.claim.lease, []).append(lines)
            for lease, group in leases.items():
                await self._write(lease, group)

    async def _write(self, lease: str, group: list[AttemptLines]) -> None:
        batch, size = list[tuple[AttemptLines, int]](), 0
        parts: list[LogPart] = []
        for lines in group:
            pending = lines.pending()
            if size < MOST:
                batch.append((lines, len(pending)))
                parts += pending
                size += sum(len(part.lines or "") for part in pending)
        try:
            if parts:
                await self._store.arun(self._store.attempts.append_log(lease, parts, self._tenant))
        except StoreError as error:
            log.warning("Log lines of jobs could not be written, retrying: %s", error)
            await asyncio.sleep(EVERY)
            return
        except Exception as error:  # the lease is gone, or the database refuses them: they are given up
            log.warning("Log lines of jobs could not be written: %s", error)
        self._done(batch)

    def _done(self, batch: Iterable[tuple[AttemptLines, int]]) -> None:
        for lines, count in batch:
            lines.settled(count)
            if not lines.pending():
                self._active.pop(lines, None)
                lines.written.set()
