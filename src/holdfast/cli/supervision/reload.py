"""``--reload``, for development: one worker child, started anew whenever a file of the project has changed.

A program that cannot be imported is shown with its error, and the next change is waited for. A child that dies
later is started again without one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from dataclasses import replace
from pathlib import Path

from holdfast.cli.supervision.plan import MARGIN, STOP, Plan
from holdfast.cli.supervision.process import ChildProcess, how_it_ended
from holdfast.cli.supervision.stopping import Stopping
from holdfast.cli.supervision.supervisor import Place, Report
from holdfast.cli.supervision.watching import Watch, expected_files

log = logging.getLogger("holdfast.supervisor")

LOOK_EVERY = 0.3
SHORT_GRACE = 2.0
PAUSE = 1.0


class Reloader:
    def __init__(self, plan: Plan) -> None:
        # Somebody is waiting to see the change: what is running gets a moment, then it is handed back.
        options = replace(plan.options, grace=min(plan.options.grace, SHORT_GRACE))
        self._plan = replace(plan, options=options, watch=True)
        self._place = Place(1)
        self._files = expected_files(plan.app, Path.cwd())
        self._child: ChildProcess | None = None
        self._stopping = Stopping(self._children, options.grace, quiet=plan.as_json)

    async def run(self) -> Report:
        self._stopping.listen()
        while not self._stopping.asked.is_set():
            watch = Watch()
            watch.changed(self._files)  # as they are before the child reads them
            try:
                self._child = await ChildProcess.start(self._plan)
            except OSError as error:  # as when its Python is just being replaced
                log.error("the worker cannot be started: %s; trying again in %.0f s", error, PAUSE)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.asked.wait(), PAUSE)
                continue
            self._stopping.join(self._child)
            await self._round(self._child, watch)
            self._child = None
        self._stopping.over()
        return Report([self._place], clean=not self._stopping.killed and self._place.code == 0)

    async def _round(self, child: ChildProcess, watch: Watch) -> None:
        """One child, until a file has changed or everything stops."""
        ended = asyncio.create_task(child.ended())
        changed = asyncio.create_task(self._change(child, watch))
        stopped = asyncio.create_task(self._stopping.asked.wait())
        try:
            await asyncio.wait({ended, changed, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done() and not stopped.done() and not changed.done():
                await self._after_death(child, ended.result(), changed, stopped)
            elif not ended.done() and not stopped.done():
                await self._end(child, ended)
            code = await ended
        finally:
            for task in (changed, stopped):
                task.cancel()
        self._place.jobs += child.taken
        self._place.code = code if self._stopping.asked.is_set() and child.up else 0
        self._place.restarts += not self._stopping.asked.is_set()

    async def _after_death(
        self, child: ChildProcess, code: int, changed: asyncio.Task[None], stopped: asyncio.Task[bool]
    ) -> None:
        if child.up:
            log.warning("the worker (pid %s) %s; the next starts in %.0f s", child.pid, how_it_ended(code), PAUSE)
            await asyncio.wait({changed, stopped}, timeout=PAUSE, return_when=asyncio.FIRST_COMPLETED)
        else:
            log.warning("the worker could not start; waiting for a change")
            await asyncio.wait({changed, stopped}, return_when=asyncio.FIRST_COMPLETED)

    async def _end(self, child: ChildProcess, ended: asyncio.Task[int]) -> None:
        """Let it drain for a moment; killed if it does not leave."""
        child.order(STOP)
        done, _ = await asyncio.wait({ended}, timeout=self._plan.options.grace + MARGIN)
        if not done:
            log.warning("worker (pid %s) did not leave in time; it is killed", child.pid)
            child.send(signal.SIGKILL)

    async def _change(self, child: ChildProcess, watch: Watch) -> None:
        """Returns when a file has changed, and none has for one look: an editor may be writing several."""
        found: list[str] = []
        while True:
            self._files |= child.files
            more = watch.changed(self._files)
            if found and not more:
                names = ", ".join(sorted({Path(name).name for name in found}))
                log.info("%s changed; starting the worker anew", names)
                return
            found += more
            await asyncio.sleep(LOOK_EVERY)

    def _children(self) -> list[ChildProcess]:
        return [] if self._child is None else [self._child]
