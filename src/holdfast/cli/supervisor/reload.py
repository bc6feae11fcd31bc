"""``--reload``: watch files, restart.

``--reload``, for development: one worker child, started anew whenever a file of the project has changed.

A program that cannot be imported is shown with its error, and the next change is waited for. A child that dies
later is started again without one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import holdfast
from holdfast.cli.supervisor.process import MARGIN, STOP, ChildProcess, Plan, how_it_ended
from holdfast.cli.supervisor.supervisor import Place, Report, Stopping

# Not watched: installed packages do not change during development, and they have thousands of files.
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_NOT_THE_PROJECT = tuple(
    Path(folder).resolve()
    for folder in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), Path(holdfast.__file__).parent)
)


def imported_files() -> set[str]:
    """The source files of the project's modules that have been imported by now."""
    named = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {name for name in named if isinstance(name, str) and _is_of_project(name)}


def files_of(error: BaseException) -> set[str]:
    """The files an error came through: a module that could not be imported is not among the imported ones."""
    found: set[str] = set()
    for each in _chain(error):
        if isinstance(each, SyntaxError) and each.filename:
            found.add(each.filename)
        trace = each.__traceback__
        while trace is not None:
            found.add(trace.tb_frame.f_code.co_filename)
            trace = trace.tb_next
    return {name for name in found if _is_of_project(name)}


def expected_files(app: str, folder: Path) -> set[str]:
    """Where the app's module should be, whether or not it is there: ``shop.jobs:app`` is shop/jobs.py or a package."""
    name = app.partition(":")[0]
    if name.endswith(".py"):
        return {str((folder / name).resolve())}
    module = folder.joinpath(*name.split("."))
    return {str(module.with_suffix(".py")), str(module / "__init__.py")}


class Watch:
    """Remembers each file as it was when first seen; one that was written after ``began`` has changed already."""

    def __init__(self) -> None:
        self._began = time.time_ns()
        self._seen: dict[str, int | None] = {}

    def changed(self, files: Iterable[str]) -> list[str]:
        return sorted(name for name in files if self._has_changed(name))

    def _has_changed(self, name: str) -> bool:
        now = _written(name)
        if name not in self._seen:
            self._seen[name] = now
            return now is not None and now > self._began
        before, self._seen[name] = self._seen[name], now
        return now != before


def _written(name: str) -> int | None:
    try:
        return Path(name).stat().st_mtime_ns
    except OSError:
        return None


def _is_of_project(name: str) -> bool:
    path = Path(name)
    if path.suffix != ".py" or not _INSTALLED.isdisjoint(path.parts):
        return False
    return not any(path.resolve().is_relative_to(folder) for folder in _NOT_THE_PROJECT)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


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
                log.error("The worker cannot be started: %s; retrying in %.0f s", error, PAUSE)
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
            log.warning("Worker (pid %s) %s; restarting in %.0f s", child.pid, how_it_ended(code), PAUSE)
            await asyncio.wait({changed, stopped}, timeout=PAUSE, return_when=asyncio.FIRST_COMPLETED)
        else:
            log.warning("The worker could not start; waiting for a file to change")
            await asyncio.wait({changed, stopped}, return_when=asyncio.FIRST_COMPLETED)

    async def _end(self, child: ChildProcess, ended: asyncio.Task[int]) -> None:
        """Let it drain for a moment; killed if it does not leave."""
        child.order(STOP)
        done, _ = await asyncio.wait({ended}, timeout=self._plan.options.grace + MARGIN)
        if not done:
            log.warning("Worker (pid %s) did not stop in time; killing it", child.pid)
            child.send(signal.SIGKILL)

    async def _change(self, child: ChildProcess, watch: Watch) -> None:
        """Returns when a file has changed, and none has for one look: an editor may be writing several."""
        found: list[str] = []
        while True:
            self._files |= child.files
            more = watch.changed(self._files)
            if found and not more:
                names = ", ".join(sorted({Path(name).name for name in found}))
                log.info("%s changed; restarting the worker", names)
                return
            found += more
            await asyncio.sleep(LOOK_EVERY)

    def _children(self) -> list[ChildProcess]:
        return [] if self._child is None else [self._child]
