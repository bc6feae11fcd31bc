"""``--reload``, for development: one worker process, restarted when a file of the project changes.

If the program cannot be imported, the child prints the error and the reloader waits for the next change. A child that
dies later is restarted without one.
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
from holdfast.cli.supervisor import MARGIN, STOP, ChildProcess, Plan, Report, Shutdown, Slot, how_it_ended

# Not watched: installed packages do not change during development, and they have thousands of files.
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_NOT_THE_PROJECT = tuple(
    Path(folder).resolve()
    for folder in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), Path(holdfast.__file__).parent)
)


def imported_files() -> set[str]:
    """Return the source files of the project's modules that are imported."""
    names = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {name for name in names if isinstance(name, str) and _is_of_project(name)}


def files_of(error: BaseException) -> set[str]:
    """Return the project files in the traceback of an error. A module that failed to import is only found there."""
    names: set[str] = set()
    for cause in _chain(error):
        if isinstance(cause, SyntaxError) and cause.filename:
            names.add(cause.filename)
        trace = cause.__traceback__
        while trace is not None:
            names.add(trace.tb_frame.f_code.co_filename)
            trace = trace.tb_next
    return {name for name in names if _is_of_project(name)}


def expected_files(app: str, folder: Path) -> set[str]:
    """Return where the app's module should be, even if it does not exist: shop/jobs.py or a package of that name."""
    name = app.partition(":")[0]
    if name.endswith(".py"):
        return {str((folder / name).resolve())}
    module = folder.joinpath(*name.split("."))
    return {str(module.with_suffix(".py")), str(module / "__init__.py")}


class Watch:
    """Detects changed files. A file that was written after the watch began counts as changed when it is first seen."""

    def __init__(self) -> None:
        self._began = time.time_ns()
        self._times: dict[str, int | None] = {}

    def changed(self, files: Iterable[str]) -> list[str]:
        return sorted(name for name in files if self._has_changed(name))

    def _has_changed(self, name: str) -> bool:
        now = _modified_at(name)
        if name not in self._times:
            self._times[name] = now
            return now is not None and now > self._began
        before, self._times[name] = self._times[name], now
        return now != before


def _modified_at(name: str) -> int | None:
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

CHECK_EVERY = 0.3
SHORT_GRACE = 2.0
RESTART_PAUSE = 1.0


class Reloader:
    """Runs one worker process and restarts it when a file changes."""

    def __init__(self, plan: Plan) -> None:
        # The developer waits to see the change, so running jobs have little time before they are released.
        options = replace(plan.options, grace=min(plan.options.grace, SHORT_GRACE))
        self._plan = replace(plan, options=options, watch=True)
        self._slot = Slot(1)
        self._files = expected_files(plan.app, Path.cwd())
        self._child: ChildProcess | None = None
        self._shutdown = Shutdown(self._children, options.grace, quiet=plan.as_json)

    async def run(self) -> Report:
        self._shutdown.listen()
        while not self._shutdown.requested.is_set():
            watch = Watch()
            watch.changed(self._files)  # records their times before the child reads them
            try:
                self._child = await ChildProcess.start(self._plan)
            except OSError as error:  # for example while Python is being upgraded
                log.error("The worker cannot be started: %s; retrying in %.0f s", error, RESTART_PAUSE)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RESTART_PAUSE):
                        await self._shutdown.requested.wait()
                continue
            self._shutdown.join(self._child)
            await self._run_child(self._child, watch)
            self._child = None
        self._shutdown.over()
        return Report([self._slot], clean=not self._shutdown.killed and self._slot.code == 0)

    async def _run_child(self, child: ChildProcess, watch: Watch) -> None:
        """Wait until the child has ended, a file has changed, or the command is stopped."""
        ended = asyncio.create_task(child.ended())
        changed = asyncio.create_task(self._change(child, watch))
        stopped = asyncio.create_task(self._shutdown.requested.wait())
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
        self._slot.jobs += child.taken
        self._slot.code = code if self._shutdown.requested.is_set() and child.up else 0
        self._slot.restarts += not self._shutdown.requested.is_set()

    async def _after_death(
        self, child: ChildProcess, code: int, changed: asyncio.Task[None], stopped: asyncio.Task[bool]
    ) -> None:
        if child.up:
            log.warning("Worker (pid %s) %s; restarting in %.0f s", child.pid, how_it_ended(code), RESTART_PAUSE)
            await asyncio.wait({changed, stopped}, timeout=RESTART_PAUSE, return_when=asyncio.FIRST_COMPLETED)
        else:
            log.warning("The worker could not start; waiting for a file to change")
            await asyncio.wait({changed, stopped}, return_when=asyncio.FIRST_COMPLETED)

    async def _end(self, child: ChildProcess, ended: asyncio.Task[int]) -> None:
        """Let the child drain, and kill it if it does not end in time."""
        child.order(STOP)
        done, _ = await asyncio.wait({ended}, timeout=self._plan.options.grace + MARGIN)
        if not done:
            log.warning("Worker (pid %s) did not stop in time; killing it", child.pid)
            child.send(signal.SIGKILL)

    async def _change(self, child: ChildProcess, watch: Watch) -> None:
        """Return after a file has changed and the next check finds no other change: an editor may write several."""
        changed: list[str] = []
        while True:
            self._files |= child.files
            more = watch.changed(self._files)
            if changed and not more:
                names = ", ".join(sorted({Path(name).name for name in changed}))
                log.info("%s changed; restarting the worker", names)
                return
            changed += more
            await asyncio.sleep(CHECK_EVERY)

    def _children(self) -> list[ChildProcess]:
        return [] if self._child is None else [self._child]
