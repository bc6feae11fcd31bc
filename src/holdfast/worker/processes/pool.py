"""The pool of a worker's child processes: idle children are reused."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.stores.flow import in_thread
from holdfast.worker.processes.child import Child, ChildDied, Recipe
from holdfast.worker.processes.protocol import Message
from holdfast.worker.processes.reaper import Reaper

log = logging.getLogger("holdfast.worker")

# Seconds. Starting Python and importing a handler's module may take long on a busy machine, but a hang must end.
START_LIMIT = 60.0


class Children:
    """At most ``limit`` children. A worker does not run more jobs at a time, so a job never waits for another's
    child."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._reaper = Reaper()
        self._all: set[Child] = set()
        self._idle: list[Child] = []
        self._ending: set[asyncio.Task[None]] = set()

    async def borrow(self, recipe: Recipe) -> Child:
        """An idle child of this recipe, or a new one. The caller must give it back or drop it."""
        for child in reversed(self._idle):  # the last used one first, as its memory is most likely still cached
            if child.recipe == recipe:
                self._idle.remove(child)
                if child.alive:
                    return child
                self.drop(child)
                break
        while self._idle and len(self._all) >= self._limit:
            self._leave(self._idle.pop(0))
        return await self.start(recipe)

    async def start(self, recipe: Recipe) -> Child:
        try:
            child = Child(recipe, self._reaper)
        except OSError as error:
            raise not_started(str(error)) from error
        self._all.add(child)
        try:
            await ready(child, {"hello": recipe.hello})
        except BaseException:
            self.drop(child)
            raise
        return child

    def give_back(self, child: Child, *, recycle: int, spent: bool = False) -> None:
        child.jobs += 1
        if spent or child.jobs >= recycle or not child.alive:
            self._leave(child)
        else:
            self._idle.append(child)

    def drop(self, child: Child) -> None:
        """Kill it. May be called more than once."""
        child.kill()
        if child in self._all:
            self._end(child, child.discard())

    def _leave(self, child: Child) -> None:
        self._end(child, child.leave())

    def _end(self, child: Child, ending: Coroutine[Any, Any, None]) -> None:
        self._all.discard(child)
        task = asyncio.get_running_loop().create_task(ending)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def aclose(self) -> None:
        """Let idle children clean up, and kill those that still run a job."""
        idle, self._idle = self._idle, []
        for child in self._all - set(idle):
            self.drop(child)
        for child in idle:
            self._leave(child)
        if self._ending:
            await asyncio.wait(set(self._ending))
        await in_thread(self._reaper.close)


async def ready(child: Child, message: Message) -> Message:
    """Send a message that prepares a child, and return the response. Raises an error if the child dies or hangs."""
    try:
        async with asyncio.timeout(START_LIMIT):
            return await child.ask(message)
    except TimeoutError:
        raise not_started(f"it was not ready after {START_LIMIT:g} s") from None
    except ChildDied as died:
        raise not_started(died.how) from None


def not_started(why: str) -> HoldfastError:
    return HoldfastError(f"the child process could not be started: {why}", code="child_not_started")
