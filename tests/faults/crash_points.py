"""A worker process that exits at a chosen point: before, within or after the n-th call of a store operation.

The injector sits between the worker and its store: every write of a worker is a flow, and every flow has the name of
its operation. `os._exit` runs no handler, flushes nothing and closes nothing.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Literal

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.engine.settlement import Settlement
from holdfast.stores.flow import Flow, Steps
from holdfast.stores.requests import ClaimRequest
from tests.support.forkserver import start_call
from tests.support.operations import name_of
from tests.support.worker_processes import adopt

EXIT_CODE = 77
OPERATIONS_FILE = "operations"

When = Literal["before", "within", "after"]

# With these values a recovery takes half a second.
FAST_OPTIONS: dict[str, Any] = {"lease_ttl": 0.35, "poll": 0.02, "promote_every": 0.05, "sweep_every": 0.06}
FAST_OPTIONS |= {"concurrency": 4, "grace": 2.0}


@dataclass(frozen=True)
class CrashPoint:
    """`operation` is the name of an operation, or "claiming" or "settling" for any operation that does so."""

    operation: str
    when: When
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.when} {self.operation} {self.nth}"


def operations_of(flow: Flow[Any]) -> set[str]:
    """Return the name of the flow's operation, and "claiming" or "settling" if its arguments show that it does so."""
    name, arguments = name_of(flow)
    names = {name}
    if any(isinstance(each, ClaimRequest) and each.want > 0 for each in arguments):
        names.add("claiming")
    if any(isinstance(each, list | tuple) and each and isinstance(each[0], Settlement) for each in arguments):
        names.add("settling")
    return names


class CrashInjector:
    """Wraps the store of an app, records every write, and exits at the given point."""

    def __init__(self, app: App, point: CrashPoint | None, folder: Path) -> None:
        self._point, self._folder = point, folder
        self._counts: Counter[str] = Counter()
        store: Any = session_of(app).store
        self._run, self._arun = store.run, store.arun
        store.run, store.arun = self.run, self.arun

    def run(self, flow: Flow[Any]) -> Any:
        when = self._before(flow)
        return self._after(when, self._run(_crash_within(flow) if when == "within" else flow))

    async def arun(self, flow: Flow[Any]) -> Any:
        when = self._before(flow)
        return self._after(when, await self._arun(_crash_within(flow) if when == "within" else flow))

    def _before(self, flow: Flow[Any]) -> When | None:
        if not flow.writes:
            return None
        names = operations_of(flow)
        with (self._folder / OPERATIONS_FILE).open("a") as file:
            file.write("".join(f"{name}\n" for name in names))
        self._counts.update(names)
        point = self._point
        if point is None or point.operation not in names or self._counts[point.operation] != point.nth:
            return None
        if point.when == "before":
            os._exit(EXIT_CODE)
        return point.when

    def _after(self, when: When | None, result: Any) -> Any:
        if when == "after":
            os._exit(EXIT_CODE)
        return result


def _crash_within(flow: Flow[Any]) -> Flow[Any]:
    """Exit after the first statement of the flow, before its commit."""

    def start() -> Steps[Any]:
        steps = flow.start()
        yield next(steps)
        os._exit(EXIT_CODE)

    return replace(flow, start=start)


def run_worker(url: str, folder: str, point: CrashPoint | None, burst: bool, **options: Any) -> None:
    """Run a worker in this process. With `burst` it ends when there is nothing to claim."""
    adopt(url, folder)
    from tests.faults.worker_app import app

    CrashInjector(app, point, Path(folder))
    app.run_worker(burst=burst, **FAST_OPTIONS | options)
    app.close()


def start_worker(
    url: str, folder: Path, point: CrashPoint | None = None, *, burst: bool, **options: Any
) -> ForkServerProcess:
    return start_call(partial(run_worker, **options), url, str(folder), point, burst)


def recorded_operations(folder: Path) -> set[str]:
    """Return the names of all writes so far."""
    return set((folder / OPERATIONS_FILE).read_text().split())
