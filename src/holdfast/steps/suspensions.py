"""What one attempt waits for: several waits at once, where a ``gather`` has several or branches wait.

A branch that waits lets the others continue; the attempt ends when none can. The job continues when the first of its
waits is over, or the last one if nothing could continue before: a ``gather`` of a hundred children is one wake-up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any

from holdfast.engine.outcome import Paused
from holdfast.steps.branches import ROOT, within
from holdfast.worker.shutdown import Suspended


class Suspensions:
    """Of one attempt. Threads of a sync handler may add to it at once."""

    __slots__ = ("_racing", "_waits", "_where", "gathering")

    def __init__(self) -> None:
        self._where: dict[str, Suspended] = {}
        """Why each branch is suspended, by its path."""
        self._waits: dict[int, tuple[str, Paused]] = {}
        self._racing: set[int] = set()
        self.gathering = 0
        """The number of ``gather`` and ``first`` of an async handler that are under way."""

    async def gather(self, calls: Iterable[Awaitable[Any]]) -> list[Any]:
        """Await calls at once: their results, or what they raise."""
        self.gathering += 1
        try:
            return await asyncio.gather(*calls, return_exceptions=True)
        finally:
            self.gathering -= 1

    def add(self, path: str, suspended: Suspended) -> None:
        suspended.together = self._together
        self._where.setdefault(path, suspended)
        self._waits[suspended.own.pause.get("n", -1)] = (path, suspended.own)  # a replay that ends has no position

    def hold(self, path: str, suspended: Suspended) -> None:
        """What a branch has gathered waits: so does the branch."""
        self._where.setdefault(path, suspended)

    def race(self, positions: list[int]) -> None:
        """These waits end when the first of them is over."""
        self._racing.update(positions)

    def withdraw(self, path: str, positions: list[int]) -> None:
        """One of these has come: the handler continues and no longer waits for the others."""
        self._where.pop(path, None)
        for n in positions:
            self._waits.pop(n, None)

    def forget(self, path: str) -> None:
        """A failure comes before a suspension: the handler, or this branch of it, does not wait."""
        self._where = {where: why for where, why in self._where.items() if not within(where, path)}
        self._waits = {n: wait for n, wait in self._waits.items() if not within(wait[0], path)}

    def check(self, path: str) -> None:
        """Raise the suspension of this branch again."""
        if self._where and (found := self._where.get(path)) is not None:
            raise found

    def check_all(self) -> None:
        """Called when the handler has returned: no branch of it may wait."""
        for suspended in self._where.values():
            raise suspended

    def _together(self) -> Paused:
        """Everything that the attempt waits for, as one pause. The approval comes first, as it decides the state of the
        job; of several approvals the first is asked."""
        waits = sorted(self._waits.values(), key=lambda wait: (wait[1].pause["kind"] != "approval", wait[1].pause["n"]))
        pauses = [paused.pause for _, paused in waits]
        first, others = pauses[0], [pause for pause in pauses[1:] if pause["kind"] != "approval"]
        entries: dict[int, dict[str, Any]] = {entry["n"]: entry for _, paused in waits for entry in paused.steps}
        if not others:
            return Paused(first, [*entries.values()])
        parallel = any(path != ROOT for path, _ in waits)
        retries = any(pause["kind"] == "step" and "awaits" not in pause for pause in pauses)
        racing = any(pause["n"] in self._racing for pause in pauses)
        return Paused(
            {**first, "also": others, **({} if parallel or retries or racing else {"all": True})}, [*entries.values()]
        )
