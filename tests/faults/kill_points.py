"""Kills a worker with SIGKILL at a named moment of a durable job, once.

The step functions pass kill points ("enter reserve", "leave reserve"), and so do the stores: before, within and after
each write of a step and each end of an attempt ("before save reserve", "within ask", "after pause sleep"). The child
processes of a worker inherit the moment in their environment, and install the kill points when they import this module.
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
from tests.support.worker_processes import FOLDER_VARIABLE, adopt

MOMENT_VARIABLE = "HOLDFAST_TEST_KILL_AT"
WORKER_VARIABLE = "HOLDFAST_TEST_KILL_WORKER"
KILLED_FILE = "killed"
ENDINGS = {"succeeded": "succeed", "ask": "ask"}
# One second is the shortest lease that a busy machine can renew in time.
OPTIONS: dict[str, Any] = {"lease_ttl": 1.0, "poll": 0.1, "promote_every": 0.1, "sweep_every": 0.2}
OPTIONS |= {"concurrency": 4, "grace": 2.0}


def kill_point(moment: str) -> None:
    """Kill the process if this is the chosen moment and no process was killed before."""
    if moment != os.environ.get(MOMENT_VARIABLE):
        return
    try:
        handle = os.open(Path(os.environ[FOLDER_VARIABLE]) / KILLED_FILE, os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return
    os.fsync(handle)
    worker = os.environ.get(WORKER_VARIABLE)
    if worker is not None and int(worker) != os.getpid():  # this is a child; it dies with its worker
        os.kill(int(worker), signal.SIGKILL)
    else:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def moments(flow: Flow[Any]) -> Iterator[str]:
    """Name what the flow writes: the steps it saves, the attempts it ends."""
    name, arguments = name_of(flow)
    if name == "steps.list":
        yield "remember"
    for argument in arguments:
        for item in argument if isinstance(argument, list | tuple) else ():
            if isinstance(item, Settlement):
                pauses = item.ending == "pause" and item.pause
                yield f"pause {pauses['kind']}" if pauses else ENDINGS.get(item.ending, item.ending)
            elif isinstance(item, tuple) and isinstance(item[-1], StepEntry):
                yield f"save {item[-1].name}"


def before(flow: Flow[Any]) -> Flow[Any]:
    names = list(moments(flow))
    for moment in names:
        kill_point(f"before {moment}")
    if not names or flow.single:
        return flow

    def start() -> Steps[Any]:
        result = yield from flow.start()
        for moment in names:
            kill_point(f"within {moment}")
        return result

    return replace(flow, start=start)


def after(flow: Flow[Any], result: Any) -> Any:
    for moment in moments(flow):
        kill_point(f"after {moment}")
    for claim in getattr(result, "claims", ()):
        kill_point(f"after take {claim.attempt}")
    return result


def install() -> None:
    """Add the kill points to every store of the process."""
    for kind in (SqliteStore, PostgresStore):
        _install(kind)


def _install(kind: Any) -> None:
    run, arun = kind.run, kind.arun

    def run_with_kill_points(self: Any, flow: Flow[Any]) -> Any:
        return after(flow, run(self, before(flow)))

    async def arun_with_kill_points(self: Any, flow: Flow[Any]) -> Any:
        return after(flow, await arun(self, before(flow)))

    kind.run, kind.arun = run_with_kill_points, arun_with_kill_points


def run_worker(url: str, folder: str, moment: str | None, target: str) -> None:
    """Run a worker in this process that is killed at that moment; with the target "child", a child of it is."""
    adopt(url, folder)
    if moment is not None:
        install()
        os.environ[MOMENT_VARIABLE] = moment
        if target == "worker":
            os.environ[WORKER_VARIABLE] = str(os.getpid())
    from tests.faults.worker_app import app

    app.run_worker(**OPTIONS)
    app.close()


if MOMENT_VARIABLE in os.environ:  # in a child process
    install()
