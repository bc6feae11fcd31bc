"""A live feed of the ledger: one reader per process, any number of listeners.

The watcher reads events in commit order, when the store notifies it and at intervals. It stops when no one listens.
Each listener has a bounded queue. When a slow listener's queue overflows, the queue is dropped and the listener reads
on from its own position in the ledger: it neither delays the others nor fills the memory, and it misses nothing. An
event may arrive twice around such a switch, with the same ``seq``.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import math
import signal
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from holdfast.engine.job import EVERY_TENANT, Event
from holdfast.errors import EventsGone, Refused
from holdfast.features.events.operations import check_events_gone
from holdfast.stores.session import Session

log = logging.getLogger("holdfast.live")

PAGE = 500
QUEUE = 1_000
"""Maximum number of events that wait for one listener."""
REMEMBERED = 10_000
"""Maximum number of jobs whose queue is cached."""
MIN_PAUSE = 0.05
"""Seconds between two reads, so that a busy database does not keep this process busy with reading."""
POLL_EVERY = 0.5
"""Seconds; not every event comes with a notification."""
LATE = 5.0
"""Seconds without a read after which events may have been removed by retention, which is then checked."""


@dataclass(frozen=True, slots=True)
class ListenerBehind:
    """The listener was too slow. The events that follow are read from its own position."""


@dataclass(frozen=True, slots=True)
class FeedItem:
    """Every event up to this cursor was delivered."""

    cursor: str


class LedgerFeed:
    """``async for event in live.follow(tenant, after=cursor)``; ``tenant`` is a name, or ``*`` for all tenants."""

    def __init__(self, client: Session, *, queue: int = QUEUE) -> None:
        self._client = client
        self._queue = queue
        self._watchers: dict[str, _Watcher] = {}
        self._queues: OrderedDict[str, str | None] = OrderedDict()
        self._reads_all: bool | None = None
        self._checking = asyncio.Lock()
        self._guard: asyncio.Task[None] | None = None
        self._following = 0
        self.closed = False

    @property
    def listeners(self) -> int:
        return sum(watcher.listeners for watcher in self._watchers.values())

    async def place(self, tenant: str) -> str:
        """The current end of the ledger."""
        return await self._client.arun(self._client.store.ledger.end(tenant))

    async def queue_of(self, event: Event) -> str | None:
        """The queue of the event's job, which events do not contain. Read once per job and cached."""
        if event.job_id not in self._queues:
            job = await self._client.arun(self._client.store.jobs.get(event.job_id, event.tenant))
            self._queues[event.job_id] = None if job is None else job.queue
            if len(self._queues) > REMEMBERED:
                self._queues.popitem(last=False)
        return self._queues.get(event.job_id)

    async def follow(
        self, tenant: str, *, after: str | None = None, skip: bool = False, marks: bool = False
    ) -> AsyncGenerator[Event | ListenerBehind | FeedItem, None]:
        """Yield every event of the tenant after this cursor (default: the end), until the service ends; with ``marks``
        also a ``FeedItem`` after each batch. Raises ``EventsGone`` if retention removed events, unless ``skip``."""
        self._following += 1
        if self._guard is None or self._guard.done():
            self._guard = asyncio.get_running_loop().create_task(self._end_with_server(), context=contextvars.Context())
        try:
            async with contextlib.aclosing(self._follow(tenant, after, skip, marks)) as items:
                async for item in items:
                    yield item
        finally:
            self._following -= 1

    async def _follow(
        self, tenant: str, after: str | None, skip: bool, marks: bool
    ) -> AsyncGenerator[Event | ListenerBehind | FeedItem, None]:
        position = await self.place(tenant) if after is None else after
        watcher = await self._watcher(tenant)
        behind = False
        read_at = time.monotonic() if after is None else -math.inf  # the age of the caller's cursor is unknown
        while not self.closed:
            while behind and not self.closed:  # without a queue, which would only overflow again
                page = await self._page(position, tenant, skip or time.monotonic() - read_at <= LATE)
                behind, read_at = bool(page), time.monotonic()
                for event in page:
                    yield event
                    position = event.cursor
                if marks:
                    yield FeedItem(position)
            listener = _Listener(tenant, self._queue)
            try:
                await watcher.add(listener)
                seen = set[int]()
                # Events from before the queue existed. A short page may not be the last one; only an empty page is.
                while not behind and (
                    page := await self._page(position, tenant, skip or time.monotonic() - read_at <= LATE)
                ):
                    read_at = time.monotonic()
                    for event in page:
                        seen.add(event.seq)
                        yield event
                        position = event.cursor
                    if marks:
                        yield FeedItem(position)
                    behind = len(seen) > self._queue
                while not behind and (events := await listener.take()) is not None:
                    read_at = time.monotonic()
                    for event in events:
                        if event.seq not in seen:
                            yield event
                            position = event.cursor
                    if marks:
                        yield FeedItem(position)
            finally:
                watcher.remove(listener)
            if listener.lagged:
                behind = True
                yield ListenerBehind()

    async def aclose(self) -> None:
        """End all listeners."""
        self.closed = True
        if self._guard is not None and self._guard is not asyncio.current_task():
            self._guard.cancel()
        for watcher in self._watchers.values():
            await watcher.aclose()

    async def _end_with_server(self) -> None:
        """End the streams when the server of the embedding application stops. Uvicorn waits for open connections before
        it ends the lifespan, and then cancels them, which looks like a crash in its log."""
        while self._following and not self.closed:
            if server_stops():
                return await self.aclose()
            await asyncio.sleep(POLL_EVERY)

    async def _page(self, position: str, tenant: str, fresh: bool) -> list[Event]:
        page = await self._client.arun(self._client.store.ledger.read(position, PAGE, tenant))
        if not fresh:
            await self._client.arun(check_events_gone(self._client.store, position, tenant))
        return page

    async def _watcher(self, tenant: str) -> _Watcher:
        """One watcher of all tenants' events if the database role may read them, else one per tenant."""
        async with self._checking:  # one check for all concurrent callers
            if self._reads_all is None:
                try:
                    await self.place(EVERY_TENANT)
                    self._reads_all = True
                except Refused:
                    self._reads_all = False
        scope = EVERY_TENANT if self._reads_all else tenant
        return self._watchers.setdefault(scope, _Watcher(self._client, scope))


def server_stops() -> bool:
    """Whether uvicorn runs in this process and is stopping: its signal handler is a method of the server object."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True


class _Listener:
    """The queue of one listener. It accepts only events of its tenant."""

    def __init__(self, tenant: str, limit: int) -> None:
        self.tenant = tenant
        self.lagged = False
        self._limit = limit
        self._events: deque[Event] = deque()
        self._more = asyncio.Event()
        self._over = False

    def put(self, event: Event) -> None:
        if self.lagged or (self.tenant != EVERY_TENANT and event.tenant != self.tenant):
            return
        if len(self._events) >= self._limit:
            self.lag()
        else:
            self._events.append(event)
            self._more.set()

    def lag(self) -> None:
        """Drop the queue; the listener then reads from its own position."""
        self._events.clear()
        self.lagged = True
        self._more.set()

    def end(self) -> None:
        self._over = True
        self._more.set()

    async def take(self) -> list[Event] | None:
        """Wait for events and return them; None when the listener lagged or the feed has ended."""
        await self._more.wait()
        self._more.clear()
        if self.lagged or self._over:
            return None
        events = list(self._events)
        self._events.clear()
        return events


class _Watcher:
    """Reads the events of one scope while there are listeners, and distributes them."""

    def __init__(self, client: Session, scope: str) -> None:
        self._client = client
        self._scope = scope
        self._listeners: dict[str, set[_Listener]] = {}
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._notified = asyncio.Event()
        self._position = ""
        self._midway = False
        self._read_at = 0.0

    @property
    def listeners(self) -> int:
        return sum(map(len, self._listeners.values()))

    async def add(self, listener: _Listener) -> None:
        """Add a listener. It receives every event that is committed after this returns."""
        self._listeners.setdefault(listener.tenant, set()).add(listener)
        if self._task is None:
            self._ready.clear()
            # A new context: the watcher must not read as the caller that came first.
            self._task = asyncio.get_running_loop().create_task(self._watch(), context=contextvars.Context())
        await self._ready.wait()

    def remove(self, listener: _Listener) -> None:
        listeners = self._listeners.get(listener.tenant, set())
        listeners.discard(listener)
        if not listeners:
            self._listeners.pop(listener.tenant, None)
            self._notified.set()

    async def aclose(self) -> None:
        for listeners in self._listeners.values():
            for listener in listeners:
                listener.end()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._ready.set()

    async def _watch(self) -> None:
        stop = self._client.store.listen(self._notifier(asyncio.get_running_loop()))
        pause, started = POLL_EVERY, False
        try:
            while self._listeners:
                self._notified.clear()
                try:
                    more = await (self._read() if started else self._start())
                    started, pause = True, POLL_EVERY
                except Exception as error:  # the listeners depend on this task: it must survive any error
                    log.warning("The ledger cannot be read, retrying: %s", error)
                    more, pause = False, min(5.0, pause * 2)
                if more:
                    continue
                await asyncio.sleep(MIN_PAUSE)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._notified.wait()
        finally:
            stop()
            self._task = None

    async def _start(self) -> bool:
        self._position = await self._client.arun(self._client.store.ledger.end(self._scope))
        self._read_at = time.monotonic()
        self._ready.set()
        return False

    async def _read(self) -> bool:
        """Read new events and distribute them; return whether there may be more."""
        client, scope = self._client, self._scope
        # One tenant may have no events for long while the ledger grows: its position must advance all the same.
        end = None if scope == EVERY_TENANT else await client.arun(client.store.ledger.end(scope))
        page = await client.arun(client.store.ledger.read(self._position, PAGE, scope))
        if time.monotonic() - self._read_at > LATE:
            try:
                await client.arun(check_events_gone(client.store, self._position, scope))
            except EventsGone:  # each listener checks from its own position whether it missed events
                for listener in [each for listeners in self._listeners.values() for each in listeners]:
                    listener.lag()
        self._read_at = time.monotonic()
        for event in page:
            for tenant in (event.tenant, EVERY_TENANT):
                for listener in self._listeners.get(tenant, ()):
                    listener.put(event)
        self._position = page[-1].cursor if page else end or self._position
        # The page after a full one may be short without being the last.
        more, self._midway = bool(page) and (self._midway or len(page) == PAGE), len(page) == PAGE
        return more

    def _notifier(self, loop: asyncio.AbstractEventLoop) -> Callable[[str], None]:
        def notify(_: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._notified.set)

        return notify
