"""Workers inside the test process: one in a background thread, and one that runs until no job is left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.worker import lease
from holdfast.worker.worker import Worker

# Short intervals, so that no test waits for a default. The lease is long: a busy machine may stop a process for
# seconds, and a worker that loses its lease by chance would fail unrelated tests.
QUICK: dict[str, Any] = {"lease_ttl": 30.0, "poll": 0.02, "promote_every": 0.03, "sweep_every": 0.1, "grace": 5.0}


async def serve(app: App, **options: Any) -> Worker:
    worker = app.worker(**(QUICK | options))
    await worker.run()
    return worker


def work_off(app: App, **options: Any) -> None:
    """Run all jobs that can be claimed now, and the jobs they enqueue. Waiting retries are left."""
    asyncio.run(_run_and_close(app, options))


async def _run_and_close(app: App, options: dict[str, Any]) -> None:
    try:
        await serve(app, burst=True, **options)
    finally:
        if not session_of(app).store.embedded:  # its pool belongs to this loop
            await app.aclose()


class Background:
    """A worker in its own thread. `worker` is set once it has started."""

    def __init__(self, app: App, options: dict[str, Any]) -> None:
        self._app = app
        self._options = options
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="test-worker", daemon=True)
        self.worker: Worker | None = None

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(20), "the worker did not start"

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.worker = self._app.worker(**(QUICK | self._options))
        self._ready.set()
        try:
            await self.worker.run()
        finally:
            if not session_of(self._app).store.embedded:
                await self._app.aclose()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def lease(self) -> str:
        assert self.worker is not None
        return self.worker._keeper.lease

    def ask_to_stop(self, *, now: bool = False) -> None:
        if self._loop is not None and self.worker is not None and self.alive:
            self._loop.call_soon_threadsafe(self.worker.stop_now if now else self.worker.stop)

    def stop(self) -> None:
        self.ask_to_stop()
        self._thread.join(30)
        assert not self._thread.is_alive(), "the worker did not stop"
        if self._error is not None:
            raise self._error


@contextmanager
def working(app: App, *, beat: float | None = None, **options: Any) -> Iterator[Background]:
    """Run a worker in a background thread. It renews its lease every ``beat`` seconds, whatever the lease's length.

    With ``lease_ttl`` and no ``beat`` it renews three times per lease, as by default.
    """
    if beat is None and "lease_ttl" not in options:
        beat = 1.5
    with pytest.MonkeyPatch.context() as patch:
        if beat is not None:
            patch.setattr(lease, "BEATS_PER_LEASE", (QUICK | options)["lease_ttl"] / beat)
        background = Background(app, options)
        background.start()
        try:
            yield background
        finally:
            background.stop()
