"""What happens, as it happens: one reader of the ledger a process, and any number of listeners.

The watcher reads events in commit order, from where it stands, when the store hints at a change and now and then by
itself; it sleeps when nobody listens. Each listener has a short queue of its own. One that is too slow loses its
queue, is told so, and goes on from its own place in the ledger: it never holds up the others, nor fills the memory,
and misses nothing. An event may come twice around such a change; its ``seq`` tells.
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
from holdfast.features.events.read import check_gone
from holdfast.stores.session import Session

log = logging.getLogger("holdfast.live")

PAGE = 500
QUEUE = 1_000
"""How many events wait for one listener."""
REMEMBERED = 10_000
"""Jobs of which the queue is known."""
BREATH = 0.05
"""Between two looks: a busy database must not keep the process busy looking."""
LOOK = 0.5
"""Seconds; not everything that happens is hinted at."""
LATE = 5.0
"""Seconds after which it is asked whether what was not read meanwhile is still there."""


@dataclass(frozen=True, slots=True)
class ListenerBehind:
    """This listener was too slow. What comes next was read for it from its own place on."""


@dataclass(frozen=True, slots=True)
class FeedItem:
    """Everything up to this cursor was told."""

    cursor: str


class LedgerFeed:
    """``async for event in live.follow(tenant, after=cursor)``; ``tenant`` is one, or ``*`` for every tenant's."""

    def __init__(self, client: Session, *, queue: int = QUEUE) -> None:
        self._client = client
        self._queue = queue
        self._watchers: dict[str, _Watcher] = {}
        self._queues: OrderedDict[str, str | None] = OrderedDict()
        self._every: bool | None = None
        self._finding_out = asyncio.Lock()
        self._guard: asyncio.Task[None] | None = None
        self._following = 0
        self.closed = False

    @property
    def listeners(self) -> int:
        return sum(watcher.listeners for watcher in self._watchers.values())

    async def place(self, tenant: str) -> str:
        """Where the ledger ends now: whoever follows from there hears of what happens from now on."""
        return await self._client.arun(self._client.store.ledger.end(tenant))

    async def queue_of(self, event: Event) -> str | None:
        """The queue of the job, which no event names: looked up once a job, for all who ask."""
        if event.job_id not in self._queues:
            job = await self._client.arun(self._client.store.jobs.get(event.job_id, event.tenant))
            self._queues[event.job_id] = None if job is None else job.queue
            if len(self._queues) > REMEMBERED:
                self._queues.popitem(last=False)
        return self._queues.get(event.job_id)

    async def follow(
        self, tenant: str, *, after: str | None = None, skip: bool = False, marks: bool = False
    ) -> AsyncGenerator[Event | ListenerBehind | FeedItem, None]:
        """Every event of the tenant after this place (from now on, without one), until the service ends; with ``marks``
        also how far that was, now and then. ``EventsGone`` where retention was faster, unless that is to be skipped."""
        self._following += 1
        if self._guard is None or self._guard.done():
            self._guard = asyncio.get_running_loop().create_task(self._end_with_server(), context=contextvars.Context())
        try:
            async with contextlib.aclosing(self._follow(tenant, after, skip, marks)) as found:
                async for each in found:
                    yield each
        finally:
            self._following -= 1

    async def _follow(
        self, tenant: str, after: str | None, skip: bool, marks: bool
    ) -> AsyncGenerator[Event | ListenerBehind | FeedItem, None]:
        place = await self.place(tenant) if after is None else after
        watcher = await self._watcher(tenant)
        behind = False
        read_at = time.monotonic() if after is None else -math.inf  # nobody knows how old a place is that is given
        while not self.closed:
            while behind and not self.closed:  # without a queue, which would only overflow
                page = await self._page(place, tenant, skip or time.monotonic() - read_at <= LATE)
                behind, read_at = bool(page), time.monotonic()
                for event in page:
                    yield event
                    place = event.cursor
                if marks:
                    yield FeedItem(place)
            listener = _Listener(tenant, self._queue)
            try:
                await watcher.add(listener)
                seen = set[int]()
                # What came before the queue was there. A page may be short and not the last: only an empty one is.
                while not behind and (
                    page := await self._page(place, tenant, skip or time.monotonic() - read_at <= LATE)
                ):
                    read_at = time.monotonic()
                    for event in page:
                        seen.add(event.seq)
                        yield event
                        place = event.cursor
                    if marks:
                        yield FeedItem(place)
                    behind = len(seen) > self._queue
                while not behind and (events := await listener.take()) is not None:
                    read_at = time.monotonic()
                    for event in events:
                        if event.seq not in seen:
                            yield event
                            place = event.cursor
                    if marks:
                        yield FeedItem(place)
            finally:
                watcher.remove(listener)
            if listener.lagged:
                behind = True
                yield ListenerBehind()

    async def aclose(self) -> None:
        """Every listener comes to its end."""
        self.closed = True
        if self._guard is not None and self._guard is not asyncio.current_task():
            self._guard.cancel()
        for watcher in self._watchers.values():
            await watcher.aclose()

    async def _end_with_server(self) -> None:
        """End the streams when the server leaves that runs an application in which the service is mounted. It waits for
        open connections before it tells the application, and then cancels them, which looks like a crash in its log."""
        while self._following and not self.closed:
            if server_leaves():
                return await self.aclose()
            await asyncio.sleep(LOOK)

    async def _page(self, place: str, tenant: str, sure: bool) -> list[Event]:
        page = await self._client.arun(self._client.store.ledger.read(place, PAGE, tenant))
        if not sure:
            await self._client.arun(check_gone(self._client.store, place, tenant))
        return page

    async def _watcher(self, tenant: str) -> _Watcher:
        """One for every tenant's events, where the service may read them; or else one for each that is listened to."""
        async with self._finding_out:  # once for all who come at the same time
            if self._every is None:
                try:
                    await self.place(EVERY_TENANT)
                    self._every = True
                except Refused:
                    self._every = False
        scope = EVERY_TENANT if self._every else tenant
        return self._watchers.setdefault(scope, _Watcher(self._client, scope))


def server_leaves() -> bool:
    """Whether uvicorn runs in this process and was told to stop: its handler of signals is a method of the server."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True


class _Listener:
    """The queue of one listener, which is given only its own tenant's events."""

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
        """Have it read from its own place on."""
        self._events.clear()
        self.lagged = True
        self._more.set()

    def end(self) -> None:
        self._over = True
        self._more.set()

    async def take(self) -> list[Event] | None:
        """What has come; None when it has lagged, or when there will be no more."""
        await self._more.wait()
        self._more.clear()
        if self.lagged or self._over:
            return None
        events = list(self._events)
        self._events.clear()
        return events


class _Watcher:
    """Reads one scope's events while somebody listens, and hands them on."""

    def __init__(self, client: Session, scope: str) -> None:
        self._client = client
        self._scope = scope
        self._listeners: dict[str, set[_Listener]] = {}
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._told = asyncio.Event()
        self._place = ""
        self._midway = False
        self._looked = 0.0

    @property
    def listeners(self) -> int:
        return sum(map(len, self._listeners.values()))

    async def add(self, listener: _Listener) -> None:
        """When this has returned, whatever is committed from now on will come to it."""
        self._listeners.setdefault(listener.tenant, set()).add(listener)
        if self._task is None:
            self._ready.clear()
            # In a context of its own: whoever came first must not be whom it reads as.
            self._task = asyncio.get_running_loop().create_task(self._watch(), context=contextvars.Context())
        await self._ready.wait()

    def remove(self, listener: _Listener) -> None:
        those = self._listeners.get(listener.tenant, set())
        those.discard(listener)
        if not those:
            self._listeners.pop(listener.tenant, None)
            self._told.set()

    async def aclose(self) -> None:
        for those in self._listeners.values():
            for listener in those:
                listener.end()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._ready.set()

    async def _watch(self) -> None:
        stop = self._client.store.listen(self._hint(asyncio.get_running_loop()))
        pause, standing = LOOK, False
        try:
            while self._listeners:
                self._told.clear()
                try:
                    full = await (self._look() if standing else self._stand())
                    standing, pause = True, LOOK
                except Exception as error:  # whoever listens waits for it: it must go on, whatever it is
                    log.warning("The ledger cannot be read, retrying: %s", error)
                    full, pause = False, min(5.0, pause * 2)
                if full:
                    continue
                await asyncio.sleep(BREATH)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._told.wait()
        finally:
            stop()
            self._task = None

    async def _stand(self) -> bool:
        self._place = await self._client.arun(self._client.store.ledger.end(self._scope))
        self._looked = time.monotonic()
        self._ready.set()
        return False

    async def _look(self) -> bool:
        """Read what is new and hand it on; whether there may be more."""
        client, scope = self._client, self._scope
        # Of one tenant's events there may be none for long, in a ledger that grows: its place must go on all the same.
        end = None if scope == EVERY_TENANT else await client.arun(client.store.ledger.end(scope))
        page = await client.arun(client.store.ledger.read(self._place, PAGE, scope))
        if time.monotonic() - self._looked > LATE:
            try:
                await client.arun(check_gone(client.store, self._place, scope))
            except EventsGone:  # each finds out for itself whether it is among those who have missed something
                for listener in [each for those in self._listeners.values() for each in those]:
                    listener.lag()
        self._looked = time.monotonic()
        for event in page:
            for whose in (event.tenant, EVERY_TENANT):
                for listener in self._listeners.get(whose, ()):
                    listener.put(event)
        self._place = page[-1].cursor if page else end or self._place
        # What comes after a full page may be short, and not the last.
        more, self._midway = bool(page) and (self._midway or len(page) == PAGE), len(page) == PAGE
        return more

    def _hint(self, loop: asyncio.AbstractEventLoop) -> Callable[[str], None]:
        def heard(_: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
                loop.call_soon_threadsafe(self._told.set)

        return heard
