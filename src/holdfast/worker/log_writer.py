"""Writes the lines that handlers log with ``ctx.log``, in batches.

A handler adds a line to a list and continues; it never waits for the database, nor fails because of it. One task for
all handlers of a worker writes the collected lines twice a second, in one transaction. It exists only while there are
lines. The end of an attempt waits a moment for its last lines, because the database accepts none after it. A worker
that is killed loses the lines since the last batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
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
"""Seconds between the end of an attempt and the write of its last lines: handlers that end meanwhile share the
write."""
CLOSE_TIMEOUT = 2.0
"""Seconds that the end of an attempt waits for its last lines to be written."""
LARGEST_WRITE = 4_000_000
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
        self._announced = False  # the writer knows that there are lines
        self._n = 0
        self._parts: list[LogPart] = []
        self.held = False
        """A transaction of the handler writes the lines: the writer must not, until it has ended."""
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
            if self._announced:
                return
            self._announced = True
        with contextlib.suppress(RuntimeError):  # a thread that outlived its worker
            self._loop.call_soon_threadsafe(self._writer.schedule, self)

    def pending(self) -> list[LogPart]:
        """The lines to write as numbered parts: the same parts until they are written."""
        with self._lock:  # a handler that ends its job in a transaction calls this from its own thread
            lines, self._lines, self._announced = self._lines, [], False
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
        claim, position = self.claim, f"{self.claim.attempt}/{self._n}"
        packed = self._writer.vault.pack_part(text, what="log", tenant=claim.tenant, job_id=claim.id, place=position)
        return LogPart(claim.id, claim.attempt, self._n, packed.text)

    def remove(self, count: int) -> None:
        """Remove the first parts, which were written or given up."""
        with self._lock:
            del self._parts[:count]

    def hold(self) -> list[LogPart]:
        """The lines so far, for a transaction of the handler that ends the job."""
        self.held = True
        return self.pending()

    async def close(self) -> None:
        """Write the remaining lines. Does not raise, so that the attempt ends as it should."""
        with self._lock:
            self._closed = True
        self.held = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._writer.flush(self)
        if self.pending():
            log.warning("The last lines of the log of job %s could not be written", self.claim.id)
        self._writer.forget(self)


class LogWriter:
    """One for all handlers of a worker. ``tenant`` is the scope of its lease, ``limit`` the maximum number of bytes of
    log lines per attempt."""

    def __init__(self, store: Store, tenant: str, vault: Vault = EMPTY, limit: int = LOG_LIMIT) -> None:
        self.vault = vault
        self.limit = limit
        self._store = store
        self._tenant = tenant
        self._active: dict[AttemptLines, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._write_now: asyncio.Event | None = None

    def open(self, claim: Claim, loop: asyncio.AbstractEventLoop) -> AttemptLines:
        return AttemptLines(self, claim, loop)

    def schedule(self, lines: AttemptLines) -> None:
        """Write these lines soon. On the worker's loop, like everything below."""
        self._active[lines] = None
        lines.written.clear()
        if self._task is None or self._task.done():
            self._write_now = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._run())

    def forget(self, lines: AttemptLines) -> None:
        self._active.pop(lines, None)

    async def flush(self, lines: AttemptLines) -> None:
        """Write these lines now, and wait until they are written or given up."""
        if not lines.pending():
            return
        self.schedule(lines)
        assert self._write_now is not None
        self._write_now.set()
        await lines.written.wait()

    async def aclose(self) -> None:
        """To be called when all attempts have closed their logs."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CLOSE_TIMEOUT)

    async def _run(self) -> None:
        write_now = self._write_now
        assert write_now is not None
        while any(not lines.held for lines in self._active):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVERY):
                    await write_now.wait()
            await asyncio.sleep(GATHER)
            write_now.clear()
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
            if size < LARGEST_WRITE:
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
        except Exception as error:  # the lease has ended, or the database refuses the lines: they are given up
            log.warning("Log lines of jobs could not be written: %s", error)
        for lines, count in batch:
            lines.remove(count)
            if not lines.pending():
                self._active.pop(lines, None)
                lines.written.set()
