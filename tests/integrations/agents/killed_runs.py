"""Runs the support agent in processes that are killed with SIGKILL at each point in turn.

``kill_everywhere`` runs in a separate process: it imports everything once and forks a worker for each attempt. The
points are those of ``Durable.reach``: before a call, after it, and when it is recorded.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
from collections.abc import Iterable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast import App, State
from holdfast.app.internals import session_of
from holdfast.engine.retry import Retry
from holdfast.steps.driver import Durable
from tests.integrations.agents.support_desk import support
from tests.support.workers import serve


def append(path: Path, line: str) -> int:
    """Write a line and return the number of lines; a later SIGKILL does not undo it."""
    with path.open("a") as file:
        file.write(line + "\n")
    return len(path.read_text().splitlines())


def declare(app: App, folder: Path, framework: str) -> None:
    def note(line: str) -> None:
        append(folder / "calls", line)

    settings = {"retry": Retry(max_attempts=1, max_crashes=9)}
    if framework == "openai":
        from tests.integrations.agents.refund_desk import refunds  # a second to import

        refunds(app, note, **settings)
    else:
        support(app, note, **settings)


def work(url: str, folder: Path, kill_at: int, framework: str) -> None:
    """Run a worker until no job is left, or until this process is killed at point number ``kill_at``."""

    async def reach(self: Durable, when: str, name: str) -> None:
        if append(folder / "points", f"{when} {name}") == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    Durable.reach = reach  # type: ignore[method-assign]
    with closing(App(url, name="killable")) as app:
        declare(app, folder, framework)
        asyncio.run(serve(app, burst=True))


def live(url: str, folder: Path, kill_at: int, framework: str, hours: list[int]) -> dict[str, Any]:
    """Run one job to its end with one kill; return its calls and its outcome. ``hours`` counts how far the database
    clock has been moved."""
    folder.mkdir()
    with closing(App(url, name="desk")) as app:
        payload = {"input" if framework == "openai" else "prompt": "Refund order 7"}
        job_id = app.enqueue("support", payload, retry=Retry(max_attempts=1, max_crashes=9)).id
        spent = sum(line.cost for line in app.usage.list())
    for _ in range(20):
        pid = os.fork()
        if pid == 0:
            try:
                work(url, folder, kill_at, framework)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        with closing(App(url, name="desk")) as app:
            job = app.jobs.get(job_id)
            assert job is not None
            if job.finished_at is not None:
                break
            for approval in app.approvals.list():
                app.approvals.approve(approval.id, by="ada", data={"amount": 20})
            if job.state is State.IN_PROGRESS:  # its worker was killed: let the lease run out
                hours.append(1)
                session_of(app).run(session_of(app).store.clock.set(timedelta(hours=len(hours)), None))
    points = (folder / "points").read_text().splitlines()
    with closing(App(url, name="desk")) as app:
        job = app.jobs.get(job_id)
        assert job is not None
        return {
            "killed": points[kill_at - 1] if len(points) >= kill_at else None,
            "points": points[:kill_at],
            "state": str(job.state),
            "result": app.jobs.result(job_id).value if job.state is State.SUCCEEDED else job.error_message,
            "crashes": job.crashes,
            "calls": (folder / "calls").read_text().splitlines(),
            "cost": sum(line.cost for line in app.usage.list()) - spent,
        }


def kill_everywhere(url: str, folder: str, numbers: Iterable[int], framework: str) -> None:
    """Write a line per kill to ``lives``; after the first life that ends without one, stop."""
    if framework == "openai":
        importlib.import_module("tests.integrations.agents.refund_desk")  # once, before the forks
    hours: list[int] = []
    for number in numbers:
        life = live(url, Path(folder) / str(number), number, framework, hours)
        append(Path(folder) / "lives", json.dumps(life))
        if life["killed"] is None:
            return
