"""The children of one worker: idle ones are kept warm and used again, at most ``limit`` of them in all."""

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

# Starting Python and importing a handler's module may take long on a busy machine; a hang must end.
START_LIMIT = 60.0


class Children:
    """A worker runs no more jobs at a time than ``limit``, so that nobody waits for a child, only for its start."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._keeper = Reaper()
        self._all: set[Child] = set()
        self._idle: list[Child] = []
        self._partings: set[asyncio.Task[None]] = set()

    async def borrow(self, recipe: Recipe) -> Child:
        """An idle child of this recipe, or a new one. It is to be given back, or dropped."""
        for child in reversed(self._idle):  # the one used last is the warmest
            if child.recipe == recipe:
                self._idle.remove(child)
                if child.alive:
                    return child
                self.drop(child)
                break
        while self._idle and len(self._all) >= self._limit:
            self._part(self._idle.pop(0))
        return await self.start(recipe)

    async def start(self, recipe: Recipe) -> Child:
        try:
            child = Child(recipe, self._keeper)
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
            self._part(child)
        else:
            self._idle.append(child)

    def drop(self, child: Child) -> None:
        """Kill it, whatever it is doing. Once is enough."""
        child.kill()
        if child in self._all:
            self._finish(child, child.discard())

    def _part(self, child: Child) -> None:
        self._finish(child, child.leave())

    def _finish(self, child: Child, parting: Coroutine[Any, Any, None]) -> None:
        self._all.discard(child)
        task = asyncio.get_running_loop().create_task(parting)
        self._partings.add(task)
        task.add_done_callback(self._partings.discard)

    async def aclose(self) -> None:
        """Idle ones may put things in order; whatever still runs is killed."""
        idle, self._idle = self._idle, []
        for child in self._all - set(idle):
            self.drop(child)
        for child in idle:
            self._part(child)
        if self._partings:
            await asyncio.wait(set(self._partings))
        await in_thread(self._keeper.close)


async def ready(child: Child, message: Message) -> Message:
    """Have a child prepare itself for something; whatever keeps it from that is a clear failure, never a hang."""
    try:
        async with asyncio.timeout(START_LIMIT):
            return await child.ask(message)
    except TimeoutError:
        raise not_started(f"it was not ready after {START_LIMIT:g} s") from None
    except ChildDied as died:
        raise not_started(died.how) from None


def not_started(why: str) -> HoldfastError:
    return HoldfastError(f"the child process could not be started: {why}", code="child_not_started")
