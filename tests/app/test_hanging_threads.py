"""Handlers that hang in `asyncio.to_thread`, which has few threads: the worker needs none of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast import App, State
from holdfast.app.internals import session_of
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
        worker = app.worker(**(QUICK | {"grace": 0.1}))
        serving = asyncio.create_task(worker.run())

        async def until(holds: Callable[[], bool]) -> None:
            async with asyncio.timeout(20):
                while not holds():  # noqa: ASYNC110 - the condition reads the database
                    await asyncio.sleep(0.02)

        held = [put_one(session_of(app).store, "hang") for _ in range(hogs)]
        await until(lambda: all(state_of(session_of(app).store, job_id) is State.IN_PROGRESS for job_id in held))
        handle = program.enqueue()
        await until(lambda: state_of(session_of(app).store, handle.id) is State.SUCCEEDED)
        lost = worker._keeper.lease
        worker._keeper._lose(lost)
        await until(lambda: worker._keeper.lease not in ("", lost))
        worker.stop()
        await asyncio.wait_for(serving, 20)
        if not session_of(app).store.embedded:
            await app.aclose()

    asyncio.run(scenario())
    assert session_of(app).store.run(session_of(app).store.health.get("*")).lease_active <= 1, (
        "only the lease that was declared lost"
    )
