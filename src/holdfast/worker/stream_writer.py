"""Writes what handlers write to their output streams, in batches.

A chunk is added to a list, and the handler continues: it waits only when much is unwritten. One task for all handlers
of a worker writes the collected chunks: the first one at once, later ones after ``EVERY``. Before a step is recorded
and before an attempt ends, its chunks are written; so a stream never lacks chunks of a step that is not repeated. A
worker that is killed loses the chunks since the last write, with the step that wrote them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from typing import TYPE_CHECKING

from holdfast.engine.job import Claim
from holdfast.errors import HoldfastError, InvalidPayload, Refused, StaleLease, StoreError
from holdfast.features.streams.model import (
    CHUNK_LIMIT,
    COUNT_LIMIT,
    PART_CHUNKS,
    PART_LIMIT,
    STREAM_LIMIT,
    StreamPart,
)
from holdfast.stores.vault import EMPTY, Vault

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

log = logging.getLogger("holdfast.worker")

EVERY = 0.02
"""Seconds between two writes of a worker: those who read see chunks about as late."""
BEHIND = 2_000_000
"""Bytes that one attempt may have unwritten before its handler waits."""
LARGEST_WRITE = 4_000_000
CLOSE_TIMEOUT = 10.0
"""Seconds that the end of an attempt waits for its last chunks, if the database is unreachable."""


class _Open:
    """A part that still takes chunks."""

    __slots__ = ("chunks", "run", "section", "size", "starts", "stream")

    def __init__(self, stream: str, section: int, run: object, starts: bool) -> None:
        self.stream, self.section, self.run, self.starts = stream, section, run, starts
        self.chunks: list[str] = []
        self.size = 0


class AttemptStreams:
    """The streams of one attempt. Any thread may add chunks; the other methods run on the worker's loop."""

    def __init__(self, writer: StreamWriter, claim: Claim, loop: asyncio.AbstractEventLoop) -> None:
        self.claim = claim
        self._writer = writer
        self._loop = loop
        self._lock = threading.Lock()
        self._open: list[_Open] = []
        self._runs: dict[tuple[str, int], object] = {}
        """The run that wrote last to each section of a stream."""
        self._parts: list[StreamPart] = []
        self._n = self._size = self._count = 0
        self.unwritten = 0
        self._announced = False
        self.error: Exception | None = None
        self.written = asyncio.Event()

    def add(self, stream: str, section: int, run: object, text: str) -> bool:
        """Add a chunk, as JSON text. ``run`` is another object for each run of the section. Returns whether the handler
        should wait, because much is unwritten."""
        size = len(text) if text.isascii() else len(text.encode())
        if size > CHUNK_LIMIT:
            raise InvalidPayload(
                f"a chunk of stream {stream!r} has {size:,} bytes; at most {CHUNK_LIMIT:,} are allowed",
                code="chunk_too_large",
                fix="Write it in pieces, or as an artifact.",
            )
        with self._lock:
            if self.error is not None:
                raise self.error
            if self._size + size > STREAM_LIMIT or self._count >= COUNT_LIMIT:
                raise Refused(
                    f"this attempt has written {self._count:,} chunks with {self._size:,} bytes to its streams, and may"
                    " write no more",
                    code="stream_full",
                )
            key = (stream, section)
            starts = self._runs.get(key) is not run
            if starts:
                self._runs[key] = run
                for part in [part for part in self._open if (part.stream, part.section) == key]:
                    self._open.remove(part)  # written by nobody, and replaced now
                    self.unwritten -= part.size
            last = self._open[-1] if self._open else None
            if (
                starts
                or last is None
                or (last.stream, last.section) != key
                or last.size + size > PART_LIMIT
                or len(last.chunks) >= PART_CHUNKS
            ):
                last = _Open(stream, section, run, starts)
                self._open.append(last)
            last.chunks.append(text)
            last.size += size + 1
            self.unwritten += size + 1
            self._size += size
            self._count += 1
            announced, self._announced = self._announced, True
        if not announced:
            with contextlib.suppress(RuntimeError):  # a thread that outlived its worker
                self._loop.call_soon_threadsafe(self._writer.schedule, self)
        return self.unwritten > BEHIND

    def pending(self) -> list[StreamPart]:
        """The parts to write: the same ones until they are written."""
        with self._lock:
            parts, self._open, self._announced = self._open, [], False
            self.unwritten -= sum(part.size for part in parts)
        claim = self.claim
        for part in parts:
            self._n += 1
            text, place = f"[{','.join(part.chunks)}]", f"{claim.attempt}/{self._n}"
            packed = self._writer.vault.pack_part(
                text, what="stream", tenant=claim.tenant, job_id=claim.id, place=place
            )
            self._parts.append(
                StreamPart(
                    *(claim.id, claim.attempt, self._n, part.stream, part.section, part.starts),
                    count=len(part.chunks),
                    chunks=packed.text,
                )
            )
        return list(self._parts)

    def remove(self, count: int) -> None:
        """Remove the first parts, which were written or given up."""
        del self._parts[:count]

    @property
    def is_empty(self) -> bool:
        with self._lock:
            return not self._open and not self._parts

    async def flush(self) -> None:
        """Write everything now. Waits for an unreachable database; raises if the attempt is no longer this worker's."""
        while self.error is None and not self.is_empty:
            self._writer.schedule(self, now=True)
            await self.written.wait()
        if self.error is not None:
            raise self.error

    async def close(self) -> None:
        """Write the remaining chunks. Does not raise, so that the attempt ends as it should."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self.flush()
        except (HoldfastError, TimeoutError) as error:
            log.warning("The last chunks of streams of job %s could not be written: %s", self.claim.id, error)
        self._writer.forget(self)


class StreamWriter:
    """One for all handlers of a worker. ``tenant`` is the scope of its lease."""

    def __init__(self, store: Store, tenant: str, vault: Vault = EMPTY) -> None:
        self.vault = vault
        self._store = store
        self._tenant = tenant
        self._active: dict[AttemptStreams, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._write_now: asyncio.Event | None = None
        self._last = 0.0

    def open(self, claim: Claim, loop: asyncio.AbstractEventLoop) -> AttemptStreams:
        return AttemptStreams(self, claim, loop)

    def schedule(self, streams: AttemptStreams, now: bool = False) -> None:
        """Write these streams soon, or ``now``. On the worker's loop, like everything below."""
        self._active[streams] = None
        streams.written.clear()
        if self._task is None or self._task.done():
            self._write_now = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._run())
        if now and self._write_now is not None:
            self._write_now.set()

    def forget(self, streams: AttemptStreams) -> None:
        self._active.pop(streams, None)

    async def aclose(self) -> None:
        """To be called when all attempts have ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CLOSE_TIMEOUT)

    async def _run(self) -> None:
        write_now = self._write_now
        assert write_now is not None
        while self._active:
            pause = self._last + EVERY - time.monotonic()
            if pause > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await write_now.wait()
            write_now.clear()
            leases: dict[str, list[AttemptStreams]] = {}
            for streams in self._active:
                leases.setdefault(streams.claim.lease, []).append(streams)
            self._last = time.monotonic()
            for lease, group in leases.items():
                await self._write(lease, group)

    async def _write(self, lease: str, group: list[AttemptStreams]) -> None:
        batch, size = list[tuple[AttemptStreams, int]](), 0
        parts: list[StreamPart] = []
        for streams in group:
            pending = streams.pending()
            chosen = 0
            for part in pending:
                if size >= LARGEST_WRITE:
                    break
                chosen, size = chosen + 1, size + len(part.chunks)
                parts.append(part)
            batch.append((streams, chosen))
        stale: list[str] = []
        try:
            if parts:
                stale = await self._store.arun(self._store.streams.append(lease, parts, self._tenant))
        except StoreError as error:
            log.warning("Chunks of streams could not be written, retrying: %s", error)
            await asyncio.sleep(random.uniform(0.1, 0.5))
            return
        except Exception as error:  # the lease has ended, or the database refuses a part
            if len(group) > 1 and not isinstance(error, StaleLease):
                for streams in group:  # one of them is the cause; the others must not fail with it
                    await self._write(lease, [streams])
                return
            for streams in group:
                streams.error = error
        for streams, count in batch:
            if streams.claim.id in stale:
                streams.error = StaleLease(f"job {streams.claim.id} is no longer claimed by this worker")
            streams.remove(count)
            if streams.error is not None or streams.is_empty:
                self._active.pop(streams, None)
                streams.written.set()
