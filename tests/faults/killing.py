"""A real SIGKILL at a named moment of a durable job, once.

Whoever comes to a moment says so: the functions of the steps ("enter reserve", "leave reserve"), and the store, which
tells of each write of a step and of each end of an attempt that it is about to make, has made and not committed, and
has committed ("before save reserve", "within ask", "after pause sleep"). The child processes of a worker have the
moment in their environment, and install this by importing it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.engine.settlement import Settlement
from holdfast.engine.steps import StepEntry
from holdfast.features.postgres import PostgresStore
from holdfast.features.sqlite import SqliteStore
from holdfast.stores.flow import Flow, Steps
from tests.support.operations import name_of
from tests.support.worker_processes import FOLDER_VARIABLE

MOMENT_VARIABLE = "HOLDFAST_TEST_KILL_AT"
WORKER_VARIABLE = "HOLDFAST_TEST_KILL_WORKER"
GONE = "gone"
ENDINGS = {"succeeded": "succeed", "ask": "ask"}
# A lease of a second: the smallest that a busy machine can keep.
OPTIONS: dict[str, Any] = {
    "lease_ttl": 1.0,
    "poll": 0.1,
    "promote_every": 0.1,
    "sweep_every": 0.2,
    "concurrency": 4,
    "grace": 2.0,
}


def passing(moment: str) -> None:
    """The process ends here if this is its moment, and nobody has died of it before."""
    if moment != os.environ.get(MOMENT_VARIABLE):
        return
    try:
        handle = os.open(Path(os.environ[FOLDER_VARIABLE]) / GONE, os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return
    os.fsync(handle)
    worker = os.environ.get(WORKER_VARIABLE)
    if worker is not None and int(worker) != os.getpid():  # a child whose worker is meant; it dies with it
        os.kill(int(worker), signal.SIGKILL)
    else:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def moments(flow: Flow[Any]) -> Iterator[str]:
    """What this write is about: the steps it saves, the ends of attempts it settles."""
    name, given = name_of(flow)
    if name == "steps.list":
        yield "remember"
    for each in given:
        for item in each if isinstance(each, list | tuple) else ():
            if isinstance(item, Settlement):
                yield (
                    f"pause {item.pause['kind']}"
                    if item.ending == "pause" and item.pause
                    else ENDINGS.get(item.ending, item.ending)
                )
            elif isinstance(item, tuple) and isinstance(item[-1], StepEntry):
                yield f"save {item[-1].name}"


def before(flow: Flow[Any]) -> Flow[Any]:
    about = list(moments(flow))
    for moment in about:
        passing(f"before {moment}")
    if not about or flow.single:
        return flow

    def start() -> Steps[Any]:
        answer = yield from flow.start()
        for moment in about:
            passing(f"within {moment}")
        return answer

    return replace(flow, start=start)


def after(flow: Flow[Any], answer: Any) -> Any:
    for moment in moments(flow):
        passing(f"after {moment}")
    for claim in getattr(answer, "claims", ()):
        passing(f"after take {claim.attempt}")
    return answer


def install() -> None:
    """Put this between every store of the process and whoever uses it."""
    for kind in (SqliteStore, PostgresStore):
        _install(kind)


def _install(kind: Any) -> None:
    run, arun = kind.run, kind.arun

    def run_here(self: Any, flow: Flow[Any]) -> Any:
        return after(flow, run(self, before(flow)))

    async def run_there(self: Any, flow: Flow[Any]) -> Any:
        return after(flow, await arun(self, before(flow)))

    kind.run, kind.arun = run_here, run_there


def serve(url: str, folder: str, moment: str | None, whom: str) -> None:
    """In a process of its own: a worker of the victims' app that is gone at that moment, or one of its children is."""
    os.environ["HOLDFAST_URL"], os.environ[FOLDER_VARIABLE] = url, folder
    with (Path(folder) / "killing.log").open("ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    if moment is not None:
        install()
        os.environ[MOMENT_VARIABLE] = moment
        if whom == "worker":
            os.environ[WORKER_VARIABLE] = str(os.getpid())
    from tests.faults.victim import app

    app.run_worker(**OPTIONS)
    app.close()


if MOMENT_VARIABLE in os.environ:  # in a child, which has it from its worker
    install()
