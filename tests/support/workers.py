"""Workers for tests: one that runs in a thread beside the test, and one that works off what there is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast import App
from holdfast.worker import lease
from holdfast.worker.worker import Worker, WorkerOptions

# Small values everywhere: nothing here waits for a default. But a lease lasts: a busy machine may stop a process for
# seconds, and a worker that lost its lease by chance fails tests of something else.
QUICK: dict[str, Any] = {"lease_ttl": 30.0, "poll": 0.02, "promote_every": 0.03, "sweep_every": 0.1, "grace": 5.0}


async def serve(app: App, **options: Any) -> Worker:
    worker = app.worker(WorkerOptions(**(QUICK | options)))
    await worker.run()
    return worker


def work_off(app: App, **options: Any) -> None:
    """Run everything that can be taken now, and what comes of it; retries that wait are left."""
    asyncio.run(_alone(app, options))


async def _alone(app: App, options: dict[str, Any]) -> None:
    try:
        await serve(app, burst=True, **options)
    finally:
        if not app._store.embedded:  # its pool belongs to this loop
            await app.aclose()


class Background:
    """A worker in a thread of its own. `worker` is there when it has begun."""

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
        self.worker = self._app.worker(WorkerOptions(**(QUICK | self._options)))
        self._ready.set()
        try:
            await self.worker.run()
        finally:
            if not self._app._store.embedded:
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
    """A worker beside the test. It has a store of its own, so that neither closes the other's connections.

    It renews its lease every ``beat`` seconds, however long the lease lasts; a test that sets ``lease_ttl`` instead
    gets the usual three times in a lease.
    """
    if beat is None and "lease_ttl" not in options:
        beat = 1.5
    with pytest.MonkeyPatch.context() as patch:
        if beat is not None:
            patch.setattr(lease, "BEATS_PER_LEASE", (QUICK | options)["lease_ttl"] / beat)
        beside = Background(app, options)
        beside.start()
        try:
            yield beside
        finally:
            beside.stop()
