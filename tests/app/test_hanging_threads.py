"""Handlers that hang in `asyncio.to_thread`, which has few threads: the worker needs none of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast import App, State
from holdfast.worker.worker import WorkerOptions
from tests.support.stores import put_one, state_of
from tests.support.workers import QUICK


@pytest.mark.req("SC-13", "SC-14", "JF-4")
def test_worker_stops_although_handlers_hang_in_threads(app: App, tmp_path: Path) -> None:
    """Until then it runs programs, whose directories must be created, and replaces a lost lease."""
    end = threading.Event()
    hogs = 2

    @app.job()
    async def hang() -> None:
        await asyncio.to_thread(end.wait)

    program = app.command("program", ["true"], log_dir=tmp_path)

    async def scenario() -> None:
        try:
            await run_worker()
        finally:
            end.set()  # the loop waits for its threads

    async def run_worker() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(hogs))
        worker = app.worker(WorkerOptions(**(QUICK | {"grace": 0.1})))
        serving = asyncio.create_task(worker.run())

        async def until(holds: Callable[[], bool]) -> None:
            async with asyncio.timeout(20):
                while not holds():  # noqa: ASYNC110 - the condition reads the database
                    await asyncio.sleep(0.02)

        held = [put_one(app._store, "hang") for _ in range(hogs)]
        await until(lambda: all(state_of(app._store, job_id) is State.IN_PROGRESS for job_id in held))
        handle = program.enqueue()
        await until(lambda: state_of(app._store, handle.id) is State.SUCCEEDED)
        lost = worker._keeper.lease
        worker._keeper._lose(lost)
        await until(lambda: worker._keeper.lease not in ("", lost))
        worker.stop()
        await asyncio.wait_for(serving, 20)
        if not app._store.embedded:
            await app.aclose()

    asyncio.run(scenario())
    assert app._store.run(app._store.health.get("*")).lease_active <= 1, "only the lease that was declared lost"
