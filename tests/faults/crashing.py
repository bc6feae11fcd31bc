"""A worker that is gone at a chosen point: just before, within or just after the n-th flow of a given name.

The point sits between the worker and its store, so that it needs no knowledge of either: every write of a worker is a
flow, and every flow has the name of its operation. `os._exit` runs no handler, flushes nothing and closes nothing.
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
from holdfast.engine.settlement import Settlement
from holdfast.stores.flow import Flow, Steps
from holdfast.stores.requests import ClaimRequest
from tests.support.forkserver import start_call
from tests.support.operations import name_of
from tests.support.worker_processes import FOLDER_VARIABLE

GONE = 77
FLOWS = "flows"

When = Literal["before", "within", "after"]

# Small values everywhere: a rescue takes half a second.
QUICK: dict[str, Any] = {
    "lease_ttl": 0.35,
    "poll": 0.02,
    "promote_every": 0.05,
    "sweep_every": 0.06,
    "concurrency": 4,
    "grace": 2.0,
}


@dataclass(frozen=True)
class Point:
    """`operation` is the name of an operation, or what one does: "claiming" or "settling", by whatever name."""

    type: str
    when: When
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.when} {self.type} {self.nth}"


def marks(flow: Flow[Any]) -> set[str]:
    """The name of the operation that made it, and whether it claims or settles something, as its arguments show."""
    name, given = name_of(flow)
    found = {name}
    if any(isinstance(each, ClaimRequest) and each.want > 0 for each in given):
        found.add("claiming")
    if any(isinstance(each, list | tuple) and each and isinstance(each[0], Settlement) for each in given):
        found.add("settling")
    return found


class Crash:
    """Puts itself between an app and its store, notes every write, and leaves at the point it was given."""

    def __init__(self, app: App, point: Point | None, folder: Path) -> None:
        self._point, self._folder = point, folder
        self._met: Counter[str] = Counter()
        store: Any = app._store
        self._run, self._arun = store.run, store.arun
        store.run, store.arun = self.run, self.arun

    def run(self, flow: Flow[Any]) -> Any:
        here = self._arrive(flow)
        answer = self._run(_cut(flow) if here == "within" else flow)
        self._leave(here == "after")
        return answer

    async def arun(self, flow: Flow[Any]) -> Any:
        here = self._arrive(flow)
        answer = await self._arun(_cut(flow) if here == "within" else flow)
        self._leave(here == "after")
        return answer

    def _arrive(self, flow: Flow[Any]) -> When | None:
        if not flow.writes:
            return None
        met = marks(flow)
        with (self._folder / FLOWS).open("a") as notes:
            notes.write("".join(f"{name}\n" for name in met))
        self._met.update(met)
        point = self._point
        if point is None or point.type not in met or self._met[point.type] != point.nth:
            return None
        self._leave(point.when == "before")
        return point.when

    def _leave(self, now: bool) -> None:
        if now:
            os._exit(GONE)


def _cut(flow: Flow[Any]) -> Flow[Any]:
    """The same, but the process is gone when its first statement has been answered and nothing is committed yet."""

    def start() -> Steps[Any]:
        steps = flow.start()
        yield next(steps)
        os._exit(GONE)

    return replace(flow, start=start)


def serve(url: str, folder: str, point: Point | None, burst: bool, **options: Any) -> None:
    """In a process of its own: a worker of the victims' app. With `burst` it leaves when there is nothing to take."""
    os.environ["HOLDFAST_URL"], os.environ[FOLDER_VARIABLE] = url, folder
    with (Path(folder) / "crashing.log").open("ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    from tests.faults.victim import app

    Crash(app, point, Path(folder))
    app.run_worker(burst=burst, **QUICK | options)
    app.close()


def start(url: str, folder: Path, point: Point | None = None, *, burst: bool, **options: Any) -> ForkServerProcess:
    return start_call(partial(serve, **options), url, str(folder), point, burst)


def flows(folder: Path) -> set[str]:
    """The names of all writes so far, and what they do."""
    return set((folder / FLOWS).read_text().split())
